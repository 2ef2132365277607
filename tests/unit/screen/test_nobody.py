"""A run that is for nobody ends as failed, under every verb, and says who is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.sparklanes.screen import nobody
from conftest import ROOT

GROUPS = {"all": ["s1", "s2", "o1"], "sparks": ["s1", "s2"], "lane_x": ["s1"], "other": ["o1"], "ungrouped": []}
# Touches no Spark, so it needs none.
FOR_THE_CONTROLLER = {"new_lane.yml", "lanes.yml"}


def test_a_typo_is_named_with_what_was_meant_and_what_there_is() -> None:
    text = nobody.why("s1,spakrs", GROUPS, ["x.yml"])
    assert text == (
        "-l names spakrs, and the inventory has no such host or group. Did you mean sparks? "
        "Hosts: s1, s2, o1. Groups: sparks, other. Nothing was done."
    )


@pytest.mark.parametrize("limit", ["s*", "sparks:!s1", "all", "@retry", "~s[0-9]", "sparks[0]", "", "s1,s2", "localhost"])
def test_what_may_match_is_left_to_ansible(limit: str) -> None:
    assert nobody.unknown(limit, GROUPS) == []


def test_a_limit_outside_of_the_fleet_and_an_empty_group_are_told_apart() -> None:
    assert nobody.why("o1", GROUPS, []).startswith("-l o1 leaves no host of the group sparks (s1, s2).")
    assert nobody.why("", {"all": ["o1"], "other": ["o1"]}, []).startswith("The group sparks has no host")
    assert nobody.why("", {"all": []}, ["a", "b"]).startswith("There is no Spark: the inventory (a, b) has no host.")


def play(tmp_path: Path, playbook: str, *more: str, hosts: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "fleet").mkdir(exist_ok=True)
    (tmp_path / "fleet" / "10.yml").write_text(hosts, encoding="utf-8")
    sources = (ROOT / "inventory/shipped", tmp_path / "fleet", ROOT / "inventory/lanes")
    environ = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = ["ansible-playbook", *(word for source in sources for word in ("-i", str(source))), playbook, *more]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_the_plays_of_every_verb_are_for_the_group_that_is_looked_at() -> None:
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        hosts = {play["hosts"] for play in yaml.safe_load(path.read_text(encoding="utf-8")) if "hosts" in play}
        here = {"localhost"} if path.name in {*FOR_THE_CONTROLLER, "pin.yml"} else set()
        assert hosts == here | (set() if path.name in FOR_THE_CONTROLLER else {nobody.FLEET}), path.name


@pytest.mark.parametrize("playbook", ["site.yml", "playbooks/status.yml", "playbooks/launch.yml"])
def test_a_verb_without_a_spark_fails(tmp_path: Path, playbook: str) -> None:
    done = play(tmp_path, playbook, hosts="all: {children: {other: {hosts: {o1: {}}}}}")
    assert done.returncode != 0, done.stdout
    assert "The group sparks has no host" in done.stdout + done.stderr
    assert "Hosts: o1. Groups: sparks, other." in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("s22", "-l names s22, and the inventory has no such host or group. Did you mean s2?"),
        ("s1,s22", "-l names s22, and the inventory has no such host or group. Did you mean s2?"),
        ("o1", "-l o1 leaves no host of the group sparks (s1, s2)."),
    ],
)
def test_a_limit_that_leaves_nobody_fails_in_words_that_help(tmp_path: Path, limit: str, words: str) -> None:
    hosts = "all: {children: {sparks: {hosts: {s1: {}, s2: {}}}, other: {hosts: {o1: {}}}}}"
    done = play(tmp_path, "playbooks/status.yml", "-l", limit, hosts=hosts)
    assert done.returncode != 0, done.stdout
    assert words in done.stdout + done.stderr
    assert "Hosts: s1, s2, o1. Groups: sparks, other." in done.stdout + done.stderr
