"""Switches that would leave out what judges a lane are refused by name, before anything is asked or done."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.screen import whole
from conftest import ROOT
from test_nobody import play

HOSTS = "all: {children: {sparks: {hosts: {s1: {ansible_host: 127.0.0.1, ansible_port: 9}}}}}"


@pytest.mark.parametrize(
    ("tags", "skipped", "start", "strategy", "words"),
    [
        (["foo"], [], "", "linear", "--tags foo leaves out"),
        (["foo", "all"], [], "", "linear", "--tags foo,all"),
        (["all"], ["always"], "", "linear", "--skip-tags always"),
        (["all"], ["x", "untagged"], "", "linear", "--skip-tags untagged"),
        (["all"], [], "Launch", "linear", "--start-at-task 'Launch'"),
        (["all"], [], "", "free", "The strategy free"),
        (["all"], [], "", "ansible.builtin.host_pinned", "host_pinned"),
    ],
)
def test_a_part_of_a_verb(tags: list[str], skipped: list[str], start: str, strategy: str, words: str) -> None:
    said = whole.refusal(tags, skipped, start, strategy)
    assert words in said
    assert said.endswith("Nothing was done.")


def test_every_switch_is_said_at_once() -> None:
    said = whole.refusal(["foo"], ["always"], "x", "free")
    assert all(words in said for words in ("--tags", "--skip-tags", "--start-at-task", "strategy free"))


@pytest.mark.parametrize("strategy", ["linear", "ansible.builtin.linear", "debug"])
def test_a_whole_verb(strategy: str) -> None:
    assert whole.refusal(["all"], ["molecule-notest", "notest"], "", strategy) == ""
    assert whole.refusal([], [], "", strategy) == ""


def test_playbooks_of_others_may_have_tags(tmp_path: Path) -> None:
    assert whole.ours(ROOT / "playbooks" / "launch.yml", ROOT)
    assert whole.ours(ROOT / "playbooks" / ".." / "site.yml", ROOT)
    assert not whole.ours(tmp_path / "launch.yml", ROOT)


@pytest.mark.parametrize(
    ("playbook", "switches", "words"),
    [
        ("playbooks/launch.yml", ("--tags", "foo"), "--tags foo leaves out"),
        ("playbooks/stop.yml", ("--skip-tags", "always"), "--skip-tags always leaves out"),
        ("site.yml", ("--start-at-task", "Gate A"), "--start-at-task 'Gate A'"),
    ],
)
def test_ansible_ends_as_failed(tmp_path: Path, playbook: str, switches: tuple[str, ...], words: str) -> None:
    done: subprocess.CompletedProcess[str] = play(tmp_path, playbook, *switches, hosts=HOSTS)
    assert done.returncode != 0, done.stdout
    assert words in done.stdout + done.stderr
    assert "Nothing was done." in done.stdout + done.stderr


def test_another_strategy_ends_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_STRATEGY", "free")
    done = play(tmp_path, "playbooks/status.yml", hosts=HOSTS)
    assert done.returncode != 0
    assert "The strategy free" in done.stdout + done.stderr
