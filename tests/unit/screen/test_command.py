"""The next command on the screen is one that can be pasted: with the inventory, limit and variables of the run, and no secret."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from ansible.module_utils.sparklanes.screen.command import command, completed

OURS = ("/p/inventory/shipped", "/p/inventory/fleet", "/p/inventory/lanes")


def typed(**given: Any) -> dict[str, Any]:
    return {"inventory": list(OURS), "subset": None, "extra_vars": (), "become_ask_pass": False, **given}


def said(text: str, **given: Any) -> str:
    return completed(text, typed(**given), OURS, "/p")


def test_what_needs_nothing_is_a_whole_command_all_the_same() -> None:
    assert said("Run playbooks/recover.yml.") == "Run ansible-playbook playbooks/recover.yml."
    assert said("ansible-playbook playbooks/stop.yml -l pair_a") == "ansible-playbook playbooks/stop.yml -l pair_a"


def test_inventory_limit_and_variables_of_the_run_are_repeated() -> None:
    run = {"inventory": ["/p/inventory/sandbox", "/elsewhere/x.yml"], "subset": "pair_a", "extra_vars": ("lane=mine",)}
    want = "ansible-playbook -i inventory/sandbox -i /elsewhere/x.yml playbooks/stop.yml -l pair_a -e lane=mine"
    assert said("Stop it: playbooks/stop.yml.", **run) == f"Stop it: {want}."
    assert command("playbooks/stop.yml", typed(**run), OURS, folder="/p") == want


def test_what_the_text_says_beats_what_was_typed() -> None:
    run = {"subset": "spark-1", "extra_vars": ("lane=mine", '{"lane_max_num_seqs": 2}')}
    text = said("first: playbooks/launch.yml -l pair_a -e lane=other; then", **run)
    assert text == "first: ansible-playbook playbooks/launch.yml -l pair_a -e '{\"lane_max_num_seqs\": 2}' -e lane=other; then"


def test_a_decision_of_this_run_is_none_of_the_next() -> None:
    run = {
        "extra_vars": (
            "launch_restart=true launch_forget_deaths=true",
            "recover_to=nothing break_lock=t1",
            '{"prune_confirm": true}',
        )
    }
    assert said("playbooks/launch.yml", **run) == "ansible-playbook playbooks/launch.yml"
    assert said("playbooks/recover.yml -e recover_break_lock=true", **run).endswith(" -e recover_break_lock=true")


@pytest.mark.parametrize(
    "raw",
    [
        "engine_api_key=sk",
        "hub_token=hf_x ansible_become_pass=x ansible_password=x",
        '{"ansible_ssh_pass": "x"}',
        '{"rank_secret_env": {"VLLM_API_KEY": "x"}}',
        '{"lane_env_override": {"NAME": "hf_abcdefghijklmnopqrstuvwxyz"}}',
        '{"lane_env_override": [{"HF_TOKEN": "x"}]}',
        "lane_note=sk-abcdefghijklmnopqrstuvwxyz",
        "x='not closed",
        "{not: [closed",
        "[1, 2]",
    ],
)
def test_no_secret_and_nothing_that_cannot_be_read_is_repeated(raw: str) -> None:
    assert said("playbooks/stop.yml", extra_vars=(raw,)) == "ansible-playbook playbooks/stop.yml"


def test_a_file_of_variables_is_named_and_the_vault_left_out() -> None:
    run = {
        "extra_vars": ("@more.yml",),
        "vault_password_files": ["secret.txt"],
        "vault_ids": ["x@prompt"],
        "become_ask_pass": True,
    }
    assert said("playbooks/status.yml", **run) == "ansible-playbook playbooks/status.yml -K -e @more.yml"


@pytest.mark.parametrize("value", ["a b", "it's", 'say "x"', "{{ x }}", "", "a=b", "tab\there"])
def test_what_is_pasted_gives_the_same_value(value: str) -> None:
    words = shlex.split(said("playbooks/stop.yml", extra_vars=(json.dumps({"x": value}),)))
    assert json.loads(words[-1]) == {"x": value}


def test_numbers_stay_numbers() -> None:
    words = shlex.split(said("playbooks/stop.yml", extra_vars=('{"lane_max_num_seqs": 2, "lane_swap": true}',)))
    assert words[-3:] == ['{"lane_max_num_seqs": 2}', "-e", "lane_swap=true"]


@pytest.mark.parametrize(
    "text",
    ["docs/playbooks/x.yml.md", "see site.yml", "/srv/playbooks/launch.yml", "my-playbooks/launch.yml", "playbooks/README.md"],
)
def test_what_is_no_verb_stays_as_it_is(text: str) -> None:
    assert said(text, subset="s1") == text


def test_site_is_a_verb_where_it_is_a_command() -> None:
    assert said("Next: ansible-playbook site.yml -K", subset="s1") == "Next: ansible-playbook site.yml -K -l s1"
    assert said("Run site.yml, then archive", subset="s1") == "Run ansible-playbook site.yml -l s1, then archive"
    assert said("remove it; then run site.yml", subset="s1") == "remove it; then run ansible-playbook site.yml -l s1"
    assert said("Run site.yml -e a=true to do it", subset="s1") == "Run ansible-playbook site.yml -l s1 -e a=true to do it"
