"""Ranks, scope, and everything that preflight says of an inventory."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates import deployments as gates_deployments
from ansible.module_utils.sparklanes.gates import preflight
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from conftest import ROOT

OPTIONS = lane_schema.schema(yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8")))
KNOWN = ["alpha", "beta"]


def variables(lane: str = "alpha", **more: Any) -> dict[str, Any]:
    """What Ansible knows of a host whose lane was loaded."""
    loaded: dict[str, Any] = {
        "lane": lane,
        "lane_id": lane,
        "lane_nodes": 2,
        "lane_tensor_parallel_size": 2,
        "lane_image": {"repository": "r/e", "digest": "sha256:" + "a" * 64},
        "lane_model": {"repo": "a/b", "revision": "b" * 40, "path": "/m", "container_path": "/m"},
        "lane_served_model_name": ["x"],
        "lane_container": {"entrypoint": "vllm", "command_prefix": ["serve"], "gpus": "all"},
    }
    return loaded | more


def bare(**more: Any) -> dict[str, Any]:
    return {"deployment": "sparks"} | more


PAIRS = {"sparks": ["s1", "s2", "s3", "s4"], "pair_a": ["s2", "s1"], "pair_b": ["s3", "s4"]}


def pairs(**more: Any) -> dict[str, dict[str, Any]]:
    return {
        "s1": variables("alpha", deployment="pair_a"),
        "s2": variables("alpha", deployment="pair_a"),
        "s3": variables("beta", deployment="pair_b"),
        "s4": variables("beta", deployment="pair_b", **more),
    }


def judge(
    hostvars: dict[str, dict[str, Any]], groups: dict[str, list[str]], hosts: list[str], needs: str = "host"
) -> list[Check]:
    return preflight.preflight(hostvars, groups, hosts, KNOWN, OPTIONS, needs)


def bad(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.status == "fail"]


def the_bad(checks: list[Check]) -> Check:
    assert len(bad(checks)) == 1, bad(checks)
    return bad(checks)[0]


# --- ranks and scope -------------------------------------------------------------------------------------------


def test_ranks_are_places_in_the_group() -> None:
    assert [gates_deployments.rank_of(host, PAIRS["pair_a"]) for host in ("s2", "s1")] == [0, 1]
    with pytest.raises(ValueError, match="s9 is no host of the deployment: s2, s1"):
        gates_deployments.rank_of("s9", PAIRS["pair_a"])


def test_a_part_of_a_deployment_may_not_launch() -> None:
    assert gates_deployments.scope_refusals(["s2", "s1", "s3"], ["s1", "s2"])[0].status == "pass"
    check = the_bad(gates_deployments.scope_refusals(["s1"], ["s2", "s1"], "pair_a"))
    assert "leaves out s2" in check.found
    assert check.remedy == "Run it with -l pair_a."


def test_one_deployment_at_a_time() -> None:
    names = {host: variables["deployment"] for host, variables in pairs().items()}
    assert bad(gates_deployments.single_refusals(names, ["s1", "s2"])) == []
    assert "-l pair_a" in the_bad(gates_deployments.single_refusals(names, ["s1", "s3"])).remedy
    assert the_bad(gates_deployments.single_refusals({}, [])).id == "DEPLOYMENT.ONE"


def test_addresses_are_of_one_host_each() -> None:
    shared = gates_deployments.address_checks("X", "address", {"s1": "10.0.0.1", "s2": "10.0.0.2", "s3": "10.0.0.1", "s4": None})
    assert the_bad(shared).host == "s1, s3"
    assert "10.0.0.1" in the_bad(shared).found
    assert bad(gates_deployments.address_checks("X", "address", {"s1": "10.0.0.1", "s2": None, "s3": None})) == []


# --- preflight -------------------------------------------------------------------------------------------------


def test_two_deployments_side_by_side_are_in_order() -> None:
    checks = judge(pairs(), PAIRS, ["s1", "s2", "s3", "s4"])
    assert bad(checks) == []
    assert "ranks 0 s2, 1 s1" in {check.found for check in checks}


def test_a_part_of_a_deployment_may_be_configured_but_not_launched() -> None:
    assert bad(judge(pairs(), PAIRS, ["s1"])) == []
    assert the_bad(judge(pairs(), PAIRS, ["s1"], "launch")).id == "DEPLOYMENT.SCOPE"
    assert the_bad(judge(pairs(), PAIRS, ["s1", "s2", "s3", "s4"], "launch")).id == "DEPLOYMENT.ONE"
    assert bad(judge(pairs(), PAIRS, ["s2", "s1"], "launch")) == []


def test_the_wrong_number_of_hosts() -> None:
    groups = {"sparks": ["s1", "s2", "s3"]}
    check = the_bad(judge({host: variables() for host in groups["sparks"]}, groups, groups["sparks"]))
    assert check.id == "DEPLOYMENT.SIZE"
    assert "3 hosts: s1, s2, s3" in check.found


def test_hosts_that_share_an_address() -> None:
    hostvars = pairs()
    hostvars["s1"]["ansible_host"] = hostvars["s4"]["ansible_host"] = "192.168.1.11"
    check = the_bad(judge(hostvars, PAIRS, ["s1", "s2"]))  # also where only one of them is in the run
    assert check.id == "INVENTORY.ADDRESS"
    assert check.host == "s1, s4"
    hostvars["s4"]["ansible_port"] = 2222  # forwarded ports are different machines
    assert bad(judge(hostvars, PAIRS, ["s1", "s2"])) == []


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"s1": "pair_a", "s2": "pair_a", "s3": "pair_x", "s4": "pair_b"}, "s3 say deployment: pair_x"),
        ({"s1": "pair_a", "s2": "pair_a", "s3": "pair_a", "s4": "pair_b"}, "s3 say deployment: pair_a but are not in that group"),
        ({"s1": "pair_a", "s2": "pair_b", "s3": "pair_b", "s4": "pair_b"}, "its group also holds s2 (pair_b)"),
        ({"s1": "pair_a", "s2": "pair_a"}, "its group also holds s1 (pair_a), s2 (pair_a)"),
    ],
)
def test_deployments_that_are_no_groups(names: dict[str, str], words: str) -> None:
    checks = gates_deployments.membership_checks(names, PAIRS, PAIRS["sparks"])
    assert any(words in check.found for check in bad(checks)), checks


def test_ranks_that_disagree() -> None:
    check = the_bad(judge(pairs(lane_max_model_len=4096), PAIRS, ["s3", "s4"]))
    assert check.id == "DEPLOYMENT.AGREE"
    assert check.found == "lane_max_model_len (--max-model-len) is absent on s3, but 4096 on s4"


def test_three_ways_to_have_no_lane_get_three_sentences() -> None:
    groups = {"sparks": ["s1"]}
    missing = judge({"s1": bare()}, groups, ["s1"])
    assert bad(missing) == []
    assert "only the host part" in next(check for check in missing if check.status == "warn").found
    unknown = the_bad(judge({"s1": bare(lane="alhpa")}, groups, ["s1"]))
    assert unknown.found == "unknown lane alhpa"
    assert unknown.expected == "one of alpha, beta"
    assert unknown.remedy == "Did you mean alpha?"
    foreign = the_bad(judge({"s1": bare(lane="alpha")}, groups, ["s1"]))
    assert foreign.found == "the variables of lane alpha were not loaded"
    assert "-i inventory/shipped -i YOURS -i inventory/lanes" in foreign.remedy


@pytest.mark.parametrize("needs", ["lane", "launch"])
def test_who_needs_a_lane_fails_without(needs: str) -> None:
    check = the_bad(judge({"s1": bare()}, {"sparks": ["s1"]}, ["s1"], needs))
    assert check.found == "no lane is chosen"
    assert "alpha, beta" in check.expected


def test_a_mistyped_lane_variable_is_seen_without_a_lane_too() -> None:
    check = the_bad(judge({"s1": bare(lane_prot=1)}, {"sparks": ["s1"]}, ["s1"]))
    assert check.remedy == "Did you mean lane_port?"


def test_one_mistake_hides_no_other() -> None:
    """A misspelled name, a wrong value, a flag and an exclusion are rows of one run."""
    groups = {"sparks": ["s1", "s2"]}
    wrong = {"lane_prot": 1, "lane_engine_args": {"--port": 1, "--enable-auto-tool-choice": True}, "lane_container": {}}
    found = judge(solo(**wrong), groups, ["s1", "s2"], "launch")
    assert {check.id for check in bad(found)} == {"LANE.NAMES", "LANE.FLAGS", "LANE.CONFLICT", "LANE.CONTAINER"}
    wrong |= {"lane_port": 0, "lane_max_model_len": "many", "lane_overlays": [{"source": "a", "target": "/b", "sha256": "c"}]}
    found = judge(solo(**wrong), groups, ["s1", "s2"], "launch")
    every = {
        "LANE.NAMES",
        "LANE.TYPES",
        "LANE.FLAGS",
        "LANE.CONFLICT",
        "LANE.CONTAINER",
        "LANE.NUMBERS",
        "LANE.WORLD",
        "LANE.FILES",
    }
    assert {check.id for check in bad(found)} == every


NO_VALUE: dict[str, Any] = {"dict": 5, "list": {"a": 1}, "str": [1], "path": "x", "raw": None}


@pytest.mark.parametrize(
    "name", sorted(name for name, option in OPTIONS.items() if option.type != "raw" and not option.by_target)
)
def test_a_wrong_value_has_no_consequences_and_hides_no_mistake(name: str) -> None:
    """Of each variable of a lane: what would only follow from it is not said, and what stands for itself is."""
    groups, hosts = {"sparks": ["s1", "s2"]}, ["s1", "s2"]
    value = NO_VALUE.get(OPTIONS[name].type, "no such")
    found = judge(solo(**{name: value}), groups, hosts, "launch")
    assert {check.id for check in bad(found)} <= {"LANE.TYPES", "LANE.CHOICE"}
    assert bad(found)
    before = {check.found for check in judge(solo(), groups, hosts, "launch")}
    assert {check.found for check in found if check.status == "warn"} <= before
    if "LANE.CHOICE" not in {check.id for check in bad(found)}:
        for other, wrong in (("lane_served_model_name", []), ("lane_boot_stall_seconds", -5)):
            if other != name:
                alone = {check.found for check in bad(judge(solo(**{other: wrong}), groups, hosts, "launch"))}
                both = {check.found for check in bad(judge(solo(**{name: value, other: wrong}), groups, hosts, "launch"))}
                assert alone <= both, other


def test_a_template_that_cannot_be_filled_in_is_a_wrong_value() -> None:
    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "lane_max_num_seqs":
                raise ValueError("'nope' is undefined")
            return super().__getitem__(name)

    told = Lazy(variables(lane_max_num_seqs="{{ nope }}", lane_port=0))
    _, checks, wrong = lane_schema.resolve_apart(told, OPTIONS, "s1")
    assert wrong == {"lane_max_num_seqs"}
    assert [check.id for check in bad(checks)] == ["LANE.TEMPLATES"]


def test_a_lane_that_bears_another_name() -> None:
    check = the_bad(judge({"s1": bare(**variables(lane_id="beta"))}, {"sparks": ["s1"]}, ["s1"]))
    assert "calls itself lane_id: beta" in check.found


def test_half_a_deployment_with_a_lane() -> None:
    checks = judge({"s1": variables(), "s2": bare()}, {"sparks": ["s1", "s2"]}, ["s1", "s2"])
    assert the_bad(checks).found == "s2 have no lane, s1 have one"


def test_an_empty_fleet_is_no_success() -> None:
    assert the_bad(judge({}, {"sparks": []}, [])).id == "INVENTORY.HOSTS"


def test_unknowns_stop_a_launch_only() -> None:
    hostvars = {host: variables(lane_image={"repository": "r/e"}) for host in ("s1", "s2")}
    groups = {"sparks": ["s1", "s2"]}
    assert bad(judge(hostvars, groups, ["s1", "s2"], "lane")) == []
    assert the_bad(judge(hostvars, groups, ["s1", "s2"], "launch")).id == "LANE.UNKNOWN"


def test_a_word_that_is_no_need() -> None:
    with pytest.raises(ValueError, match="one of host, lane, launch"):
        judge({}, {}, [], "everything")


@pytest.mark.parametrize(
    ("python", "core", "there", "failed"),
    [
        ((3, 11, 7), "2.19.14", True, set()),
        ((3, 13, 0), "2.21.0rc1", True, set()),
        ((3, 10, 12), "2.19.1", True, {"CONTROLLER.PYTHON"}),
        ((3, 14, 0), "2.22.0", True, {"CONTROLLER.PYTHON", "CONTROLLER.ANSIBLE"}),
        ((3, 12, 1), "2.18.6", False, {"CONTROLLER.ANSIBLE", "CONTROLLER.COLLECTIONS"}),
    ],
)
def test_the_controller(python: tuple[int, ...], core: str, there: bool, failed: set[str]) -> None:
    checks = preflight.controller_checks(python, core, {"a.b": there})
    assert {check.id for check in bad(checks)} == failed
    assert len(checks) == 3


def solo(**more: Any) -> dict[str, dict[str, Any]]:
    """Two Sparks of the deployment that is there without a name."""
    return {host: variables(deployment="sparks", **more) for host in ("s1", "s2")}


def test_a_family_or_kit_without_a_file_is_an_error_with_the_nearest_name() -> None:
    """Ansible passes over a file of group_vars that isn't there, and half the lane with it."""
    groups = {"sparks": ["s1", "s2"]}
    for name, given, words in [
        ("lane_kit", "dpc", "Did you mean dcp?"),
        ("lane_family", "zzz", "Write group_vars/family_zzz.yml, or correct lane_family."),
    ]:
        hostvars = solo(**{name: given})
        checks = preflight.preflight(hostvars, groups, ["s1", "s2"], KNOWN, OPTIONS, "lane", None, ["family_f", "kit_dcp"])
        check = bad(checks)[0]
        assert check.id == "LANE.CHOICE"
        assert check.remedy == words
        assert bad(preflight.preflight(hostvars, groups, ["s1", "s2"], KNOWN, OPTIONS, "lane")) == []


@pytest.mark.parametrize(("kind", "name"), [("family", "f"), ("kit", "dcp")])
def test_a_family_or_kit_that_was_not_loaded_is_refused_with_what_to_type(kind: str, name: str) -> None:
    """A chain without inventory/lanes: the files are there, and Ansible reads them for no host."""
    hostvars, shared = solo(**{f"lane_{kind}": name}), ["family_f", "kit_dcp"]
    groups = {"sparks": ["s1", "s2"]}
    for loaded, refused in [([], ["s1", "s2"]), (["s1"], ["s2"]), (["s1", "s2"], [])]:
        there = groups | {f"{kind}_{name}": loaded}
        checks = preflight.preflight(hostvars, there, ["s1", "s2"], KNOWN, OPTIONS, "lane", None, shared)
        found = [check for check in bad(checks) if check.id == "LANE.CHOICE"]
        assert [check.host for check in found] == refused
        for check in found:
            assert f"the lane's {kind} {name} were not loaded: {check.host} is not in the group {kind}_{name}" in check.found
            assert "-i inventory/shipped -i YOURS -i inventory/lanes" in check.remedy


def test_a_negative_lane_is_refused_at_launch_alone() -> None:
    groups = {"sparks": ["s1", "s2"]}
    hostvars = solo(lane_negative="slow")
    assert bad(judge(hostvars, groups, ["s1", "s2"], "lane")) == []
    assert "LANE.NEGATIVE" in {check.id for check in bad(judge(hostvars, groups, ["s1", "s2"], "launch"))}
    accepted = solo(lane_negative="slow", lane_accept_negative="true")
    assert "LANE.NEGATIVE" not in {check.id for check in bad(judge(accepted, groups, ["s1", "s2"], "launch"))}


@pytest.mark.parametrize(
    ("names", "hosts", "deployment", "words"),
    [
        ({}, ["s1", "s2", "s3", "s4"], "sparks", ""),
        ({"s1": "pair_a", "s2": "pair_a"}, ["s1", "s2"], "pair_a", ""),
        (
            {"s1": "pair_a", "s2": "pair_a"},
            ["s2"],
            "pair_a",
            "Deployment pair_a also has s1, which -l leaves out. Use -l pair_a.",
        ),
        (
            {"s1": "pair_a", "s3": "pair_b"},
            ["s1", "s3"],
            "pair_a",
            "belong to the deployments pair_a, pair_b; take one at a time: -l NAME.",
        ),
        ({"s1": "pair_a"}, ["s1", "s2"], "pair_a", "belong to the deployments pair_a, sparks"),
        (
            dict.fromkeys(("s1", "s2", "s3"), "pair_a"),
            ["s1", "s2", "s3"],
            "pair_a",
            "s3 say deployment: pair_a but are not in that group",
        ),
        ({"s1": "none"}, ["s1"], "none", "s1 say deployment: none but are not in that group"),
    ],
)
def test_a_verb_for_ranks_takes_a_whole_deployment_and_nothing_else(
    names: Any, hosts: list[str], deployment: str, words: str
) -> None:
    refusal = gates_deployments.whole_refusal(names, PAIRS, hosts, deployment)
    assert (words in refusal) if words else refusal == ""
