"""A dict of a lane that a site or -e gives whole: Ansible takes it without a word, and the rest of the lane's own is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.gates.preflight import preflight
from ansible.module_utils.sparklanes.lane import listing
from ansible.module_utils.sparklanes.lane.replaced import replaced_checks
from lane_files import GROUP_VARS, SHIPPED, options, read, variables_of
from test_listing import read as read_file

LANE = "flash_nvfp4_dflash2_tp2"
OWN = read(f"lane_{LANE}")


def found(meant: list[str] | None = None, **more: Any) -> list[tuple[str, str]]:
    checks = replaced_checks({**variables_of(LANE), **more}, OWN, "s1", options(), meant or [])
    assert {check.id for check in checks} <= {"LANE.REPLACED"}
    return [(check.status, check.found) for check in checks]


def test_one_flag_by_e_drops_the_others_and_is_refused_with_what_is_lost() -> None:
    ((status, text),) = found(lane_engine_args={"--enforce-eager": None})
    assert status == "fail"
    for flag in ("--speculative-config", "--chat-template", "--limit-mm-per-prompt", "--enforce-eager"):
        assert flag in text
    (check,) = replaced_checks({**variables_of(LANE), "lane_engine_args": {}}, OWN, "s1", options())
    assert "-e lane_engine_args_override='{…}'" in check.remedy
    assert "lane_replaces: [lane_engine_args]" in check.remedy


def test_a_template_that_can_not_be_filled_in_is_no_loss() -> None:
    class Broken(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "lane_engine_args":
                raise ValueError("'x' is undefined")
            return super().__getitem__(name)

    assert replaced_checks(Broken(variables_of(LANE)), OWN, "s1", options()) == []


def test_a_word_of_consent_makes_it_a_warning() -> None:
    ((status, text),) = found(["lane_engine_args"], lane_engine_args={"--enforce-eager": True})
    assert (status, text.endswith("lane_replaces says that it is meant")) == ("warn", True)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lane_engine_args": {**OWN["lane_engine_args"], "--seed": 1}},
        {"lane_engine_args_override": {"--enforce-eager": None}},
        {"lane_engine_args_site": {"--speculative-config": None}},
        {"lane_max_model_len": 1},
        {"lane_extras": [{"source": "x", "target": "/extras/chat_template_mm.jinja/"}]},
    ],
)
def test_layers_and_what_loses_nothing_say_nothing(more: dict[str, Any]) -> None:
    assert found(**more) == []


def test_files_in_a_list_count_by_their_targets_and_the_environment_of_one_host_too() -> None:
    assert found(lane_extras=[])[0][1].endswith("loses /extras/chat_template_mm.jinja")
    assert "MAX_JOBS" in found(lane_engine_env={"NCCL_DEBUG": "INFO"})[0][1]


@pytest.mark.parametrize("lane", SHIPPED)
def test_no_lane_that_we_ship_replaces_itself(lane: str) -> None:
    (written,) = listing.written([lane], [GROUP_VARS], read_file).values()
    assert written == read(f"lane_{lane}")
    assert replaced_checks(variables_of(lane), written, "s1", options()) == []


def test_a_lane_of_the_site_is_held_against_its_own_file_and_ours_against_ours(tmp_path: Path) -> None:
    (tmp_path / "lane_mine.yml").write_text("lane_id: mine\nlane_engine_args: {--seed: 1}\n", encoding="utf-8")
    (tmp_path / f"lane_{LANE}.yml").write_text("lane_engine_args: {--seed: 1}\n", encoding="utf-8")
    told = listing.written(["mine", LANE, "absent"], [GROUP_VARS, tmp_path], read_file)
    assert told["mine"]["lane_engine_args"] == {"--seed": 1}
    assert told[LANE] == OWN
    assert told["absent"] == {}


def test_preflight_refuses_it_on_each_host_that_has_it() -> None:
    hosts = ["s1", "s2"]
    hostvars: dict[str, dict[str, Any]] = {host: {**variables_of(LANE), "lane": LANE} for host in hosts}
    hostvars["s2"] |= {"lane_engine_env": {"NCCL_DEBUG": "INFO"}}
    checks = preflight(hostvars, {"sparks": hosts}, hosts, [LANE], options(), written={LANE: OWN})
    assert [(check.host, check.status) for check in checks if check.id == "LANE.REPLACED"] == [("s2", "fail")]
    hostvars["s2"] |= {"lane_replaces": ["lane_engine_env"]}
    checks = preflight(hostvars, {"sparks": hosts}, hosts, [LANE], options(), written={LANE: OWN})
    assert [(check.host, check.status) for check in checks if check.id == "LANE.REPLACED"] == [("s2", "warn")]
