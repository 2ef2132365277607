"""Whatever a host's task has registered, no rule takes a result without facts for well, and none breaks over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gates import launch as gates_launch
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.weights.chain import order as chain_order
from test_address_plan import settings as network_settings
from test_gates import FABRICS, SETTLED, looked
from test_readiness import HOSTS, SPECS

WORDS = "state.json is no JSON"
# Without facts, each in its way. What failed may still hold what looks like facts.
BAD: dict[str, Any] = {
    "nothing": None,
    "empty": {},
    "failed": {"failed": True, "msg": WORDS},
    "failed, hidden by failed_when": {
        "failed": False,
        "changed": False,
        "actions": [],
        "missing": [],
        "mounts": [],
        "staged": True,
        "msg": WORDS,
        "failed_when_result": False,
        "failed_when_suppressed_exception": "(traceback unavailable)",
    },
    "failed with facts": {
        "failed": True, "msg": WORDS, "readiness": {}, "host": {}, "measured": [], "probes": [], "staged": True, "mounts": [],
        "missing": [], "actions": [], "running": True, "release": "a" * 12, "fabric": {}, "run": None, "checks": [],
    },
    "unreachable": {"unreachable": True, "msg": "No route to host"},
    "skipped": {"skipped": True, "skip_reason": "Conditional result was False"},
    "text": "what?",
    "list": ["what?"],
    "number": 7,
    "without its part": {"changed": False},
    "part of a wrong type": {"readiness": "x", "host": 7, "measured": "x", "probes": None, "staged": "yes", "mounts": "x", "checks": "x"},
}  # fmt: skip

RAILS = {host: [] for host in HOSTS}


def good_health(bad: Any, part: str) -> dict[str, Any]:
    one = {"roce": {"fabric": {}}, "readiness": looked(), "host": {"host": {"kernel": {"release": "6"}}}, "memory": SETTLED["s1"]}
    return {"s1": {**one, "fabric": {}, "lane": {}, "other_lane": "", part: bad}}


LANE = {"lane_gpu_memory_utilization": 0.9, "lane_gpu_arch": "sm_121"}
# How each rule judges s2, of which it has this result.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "gate A": lambda bad: gates_launch.gate_a(
        {"s1": looked(), "s2": bad},
        SPECS,
        {host: {"WEIGHTS.STAGED": {"staged": True}} for host in HOSTS},
        FABRICS,
        "mine",
        1000.0,
    ),
    "weights": lambda bad: [readiness.staged("s2", "WEIGHTS.STAGED", bad).to_dict()],
    "overlays": lambda bad: [readiness.staged("s2", "OVERLAYS.STAGED", bad).to_dict()],
    "gate B": lambda bad: gates_launch.gate_b({"s1": looked(), "s2": bad}, SPECS, SETTLED, dict.fromkeys(HOSTS, LANE)),
    "settled memory": lambda bad: gates_launch.gate_b({host: looked() for host in HOSTS}, SPECS, {**SETTLED, "s2": bad}),
    "idle": lambda bad: gates_launch.idle({"s1": looked(), "s2": bad}, HOSTS),
    "ranks alive": lambda bad: gates_launch.ranks_alive(
        {"s1": {"running": True, "release": "a" * 12}, "s2": bad}, HOSTS, "a" * 12
    ),
    "bandwidth": lambda bad: gates_launch.bandwidth_checks({"s1": {"measured": []}, "s2": bad}, FABRICS),
    "network plan": lambda bad: gates_launch.network_plan(network_settings(2), {"s1": bad, "s2": bad})["checks"],
    "network applied": lambda bad: gates_launch.network_proof({"s1": {"changed": True}, "s2": bad}, {}, RAILS, 9000),
    "network answers": lambda bad: gates_launch.network_proof(
        {"s1": {"changed": True}, "s2": {"changed": True}},
        {"s1": {"probes": []}, "s2": bad},
        fabric_addresses.plan(network_settings(2))[0],
        9000,
    ),
    "hosts kept": lambda bad: gates_hosts.hosts_kept({"s2": bad}, {}, 0.0),
    "before a reboot": lambda bad: gates_hosts.before_reboot({"s1": looked(), "s2": bad}, "sparks", "mine", 0.0),
    "no work on a GPU": lambda bad: gates_hosts.gpu_free(
        {"s1": {"reboot_stopped": looked()}, "s2": {"reboot_stopped": bad}}, HOSTS
    ),
    "after a reboot, readiness": lambda bad: gates_hosts.after_reboot("s2", {}, {"readiness": bad}),
    "after a reboot, host": lambda bad: gates_hosts.after_reboot("s2", {}, {"host": bad, "readiness": looked()}),
    "after a reboot, memory": lambda bad: gates_hosts.after_reboot("s2", {}, {"memory": bad, "readiness": looked()}),
    "health, readiness": lambda bad: gates_hosts.health(good_health(bad, "readiness"), 0.0),
    "health, host": lambda bad: gates_hosts.health(good_health(bad, "host"), 0.0),
    "health, memory": lambda bad: gates_hosts.health(good_health(bad, "memory"), 0.0),
    "GPU health": lambda bad: gpu_health.assess({"s2": bad}, {"s2": bad})["checks"],
}
# Which row says it, where the host has others that fail for their own reasons.
ROW = {
    "after a reboot, readiness": "NODE.",
    "after a reboot, host": "HOST.FACTS",
    "after a reboot, memory": "MEM.FREE",
    "health, readiness": "NODE.",
    "health, host": "HOST.FACTS",
    "health, memory": "MEM.CMA",
}


# A network that stood already was applied without a word: there the module has no part to lack.
PAIRS = [
    (rule, bad)
    for rule in CHECKS
    for bad in BAD
    if (rule, bad.partition(" ")[0]) not in {("network applied", "without"), ("network applied", "part")}
]


@pytest.mark.parametrize(("rule", "bad"), PAIRS)
def test_a_result_without_facts_is_a_failed_row_in_its_own_words(rule: str, bad: str) -> None:
    made = [one for one in CHECKS[rule](BAD[bad]) if one["id"].startswith(ROW.get(rule, ""))]
    failed = [one for one in made if one["status"] == "fail"]
    assert failed, f"{rule}: {made}"
    said = " ".join(one["found"] for one in failed)
    if bad.startswith("failed"):
        assert WORDS in said
        assert "over ssh" not in said
    if bad == "unreachable":
        assert "no answer over ssh (No route to host)" in said


@pytest.mark.parametrize("bad", BAD)
def test_the_first_look_of_a_launch(bad: str) -> None:
    made = gates_launch.reach({"s1": {"fabric": {}}, "s2": BAD[bad]}, {"s1": FABRICS["s1"]})
    failed = [one for one in made if one["status"] == "fail" and one["host"] == "s2"]
    assert failed, "a host whose fabric is not known passes nothing, were it only not asked"


@pytest.mark.parametrize("bad", BAD)
def test_no_decision_is_made_on_what_is_not_known(bad: str) -> None:
    one = BAD[bad]
    assert not gates_launch.serves({"s2": one}, "a" * 12)
    assert gates_launch.what_to_restore({"s1": {"readiness": {}}, "s2": one}, {}, "b" * 12)["release"] == ""
    why = gates_launch.reason({"s1": {"running": True, "container": {"name": "r"}, "log": {}}, "s2": one}, {"msg": "x"})
    if bad not in ("without its part", "part of a wrong type"):
        assert "s2" in why["sentence"]
    assert why["death"] == ""
    assert gates_launch.other_lane(one, "tiny") == ""
    assert gates_launch.weights_of(gates_launch.answered(one) or {}) == []
    assert [one for one in gates_launch.images({"s1": one, "s2": one}, {}, SPECS) if one["status"] == "pass"] == []
    assert gates_launch.budgets({"s2": one}, {"s2": LANE}) == []


@pytest.mark.parametrize("bad", BAD)
def test_the_screen_of_status_shows_it(bad: str) -> None:
    hostvars = {"s1": {"status_readiness": looked(), "status_rank": {"running": True}}}
    text = "\n".join(
        gates_launch.status_lines({**hostvars, "s2": {"status_readiness": BAD[bad], "status_rank": BAD[bad]}}, HOSTS)
    )
    if bad.startswith("failed"):
        assert f"the look failed: {WORDS}" in text
        assert "over ssh" not in text
    if bad == "unreachable":
        assert "no answer over ssh" in text
        assert "the look failed" not in text


@pytest.mark.parametrize("bad", BAD)
def test_nobody_has_models_by_a_result_that_does_not_say_so(bad: str) -> None:
    hostvars = {"s1": {"r": {"staged": True, "models": []}}, "s2": {"r": BAD[bad]}}
    assert chain_order.complete_on(hostvars, HOSTS, "r") == ["s1"]
    assert chain_order.chain_peers(hostvars, HOSTS, "s2", "r") == []
    assert chain_order.servers(hostvars, HOSTS, "r") == []
    lines = chain_order.table(hostvars, HOSTS, "r", HOSTS)
    assert lines[0] == "s1: complete"
    assert lines[1].startswith("s2: ")
    assert "complete" not in lines[1]
    if bad.startswith("failed"):
        assert WORDS in lines[1]
    now = chain_order.now(BAD[bad], {"staged": False, "models": [], "msg": ""})
    assert now["staged"] is not True


def test_a_job_that_failed_leaves_what_the_look_before_it_saw() -> None:
    seen = {"staged": False, "models": [{"name": "model", "path": "/m", "staged": False, "lacking": 1, "lacks": "a"}], "msg": ""}
    now = chain_order.now({"failed": True, "msg": "s2: disk full"}, seen)
    assert chain_order.lack(now, "s2") == (
        "s2: model in /m lacks 1 files (a). disk full. Mend that and run this again: what is verified stays"
    )
    assert chain_order.now({"staged": True, "models": []}, seen)["staged"] is True
