"""Whatever a host's task has registered, no rule takes a result without facts for well, and none breaks over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.fabric import bandwidth
from ansible.module_utils.sparklanes.gates import forcing, health, launch, network, readiness, reboot
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.release import restore as release_restore
from ansible.module_utils.sparklanes.release import status as release_status
from ansible.module_utils.sparklanes.weights.chain import order as chain_order
from hostvars import registered
from test_address_plan import settings as network_settings
from test_readiness import FABRICS, HOSTS, SETTLED, SPECS, facts, world

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


def second(name: str, bad: Any, good: Any, **more: Any) -> dict[str, dict[str, Any]]:
    """hostvars in which s1 registered what is good, and s2 what is bad."""
    return registered(HOSTS, **{name: {"s1": good, "s2": bad}}, **more)


def seen(bad: Any) -> dict[str, Any]:
    """What role reboot keeps of a look at readiness before it."""
    return {"before": {"readiness": bad}}


def after(**looks: Any) -> list[Check]:
    return reboot.after_reboot("s2", {}, {"readiness": looked(), **looks})


def good_health(bad: Any, part: str) -> list[Check]:
    good = {"readiness": looked(), "host": {"host": {"kernel": {"release": "6"}}}, "memory": SETTLED["s1"]}
    one = {f"health_{name}": value for name, value in {**good, part: bad}.items()}
    return health.health({"s1": {"__roce_found": {"fabric": {}}, **one}}, ["s1"], 0.0)


def looked() -> dict[str, Any]:
    return {"readiness": facts()}


GOOD = {host: facts() for host in HOSTS}
LANE = {"lane_gpu_memory_utilization": 0.9, "lane_gpu_arch": "sm_121"}
# How each rule judges s2, of which it has this result.
CHECKS: dict[str, Callable[[Any], list[Check]]] = {
    "gate A": lambda bad: launch.gate_a(
        world(GOOD, gates_readiness={"s1": looked(), "s2": bad}), HOSTS, SPECS, {}, "mine", 1001.0
    ),
    "weights": lambda bad: [readiness.staged("s2", "WEIGHTS.STAGED", bad)],
    "overlays": lambda bad: [readiness.staged("s2", "OVERLAYS.STAGED", bad)],
    "gate B": lambda bad: launch.gate_b(
        world(GOOD, gates_readiness={"s1": looked(), "s2": bad}), HOSTS, SPECS, dict.fromkeys(HOSTS, LANE)
    ),
    "settled memory": lambda bad: launch.gate_b(world(GOOD, gates_settled={**SETTLED, "s2": bad}), HOSTS, SPECS, {}),
    "idle": lambda bad: launch.idle(second("r", bad, looked()), HOSTS, "r"),
    "ranks alive": lambda bad: launch.alive(
        second("gates_rank", bad, {"running": True, "release": "a" * 12}, gates_probe={"s1": SETTLED["s1"]}), HOSTS, "a" * 12
    ),
    "a real generation": lambda bad: launch.alive(
        registered(HOSTS, gates_rank={host: {"running": True, "release": "a" * 12} for host in HOSTS}, gates_probe={"s1": bad}),
        HOSTS,
        "a" * 12,
    ),
    "bandwidth": lambda bad: bandwidth.judge(
        second("fabric_bandwidth_result", bad, {"measured": []}, roce_fabric=FABRICS), HOSTS
    ),
    "network plan": lambda bad: fabric_addresses.network_plan(
        registered(HOSTS, fabric_network_settings=network_settings(2), fabric_network_now=dict.fromkeys(HOSTS, bad)), HOSTS
    )["checks"],
    "network applied": lambda bad: network.network_proof(
        second("fabric_network_tried", bad, {"changed": True}), HOSTS, RAILS, 9000
    ),
    "network answers": lambda bad: network.network_proof(
        second("fabric_network_pinged", bad, {"probes": []}, fabric_network_tried={host: {"changed": True} for host in HOSTS}),
        HOSTS,
        fabric_addresses.plan(network_settings(2))[0],
        9000,
    ),
    "hosts kept": lambda bad: gates_hosts.hosts_kept({"s2": bad}, {}, 0.0),
    "before a reboot": lambda bad: reboot.before_reboot(
        second("reboot_seen", seen(bad), seen(looked())), HOSTS, "sparks", "mine"
    ),
    "no work on a GPU": lambda bad: reboot.gpu_free({"s1": {"reboot_stopped": looked()}, "s2": {"reboot_stopped": bad}}, HOSTS),
    "after a reboot, readiness": lambda bad: after(readiness=bad),
    "after a reboot, host": lambda bad: after(host=bad),
    "after a reboot, memory": lambda bad: after(memory=bad),
    "health, readiness": lambda bad: good_health(bad, "readiness"),
    "health, host": lambda bad: good_health(bad, "host"),
    "health, memory": lambda bad: good_health(bad, "memory"),
    "GPU health": lambda bad: [
        Check.from_dict(check)
        for check in gpu_health.health(second("gpu_health_result", bad, bad, gpu_health_known={"s2": bad}), ["s2"])["checks"]
    ],
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
    made = [one for one in CHECKS[rule](BAD[bad]) if one.id.startswith(ROW.get(rule, ""))]
    failed = [one for one in made if one.status == "fail"]
    assert failed, f"{rule}: {made}"
    said = " ".join(one.found for one in failed)
    if bad.startswith("failed"):
        assert WORDS in said
        assert "over ssh" not in said
    if bad == "unreachable":
        assert "no answer over ssh (No route to host)" in said


@pytest.mark.parametrize("bad", BAD)
def test_the_first_look_of_a_launch(bad: str) -> None:
    known = second("__roce_found", BAD[bad], {"fabric": {}}, roce_fabric={"s1": FABRICS["s1"]})
    failed = [one for one in launch.reach(known, HOSTS) if one.status == "fail" and one.host == "s2"]
    assert failed, "a host whose fabric is not known passes nothing, were it only not asked"


@pytest.mark.parametrize("bad", BAD)
def test_no_decision_is_made_on_what_is_not_known(bad: str) -> None:
    one = BAD[bad]
    assert not launch.serves({"s2": {"r": one}}, ["s2"], "a" * 12, "r")
    known = second("rank_before_restore", one, {"readiness": {}})
    assert release_restore.what_to_restore(known, HOSTS, {}, "b" * 12)["release"] == ""
    running = {"running": True, "container": {"name": "r"}, "log": {}}
    why = release_restore.why_it_failed(second("rank_autopsy", one, running, rank_failure={"s2": {"msg": "x"}}), HOSTS)
    if bad not in ("without its part", "part of a wrong type"):
        assert "s2" in why["sentence"]
    assert why["death"] == ""
    assert launch.other_lane(one, "tiny") == ""
    assert forcing.identity("s2", {"rank": 1, "image": "r@sha256:1", "mounts": []}, one)["weights"] == []
    known = world(GOOD, gates_readiness=dict.fromkeys(HOSTS, one))
    made = launch.gate_a(known, HOSTS, SPECS, dict.fromkeys(HOSTS, LANE), "mine", 1001.0)
    assert [one for one in made if one.id.startswith(("IMAGE.", "BUDGET.")) and one.status == "pass"] == []


@pytest.mark.parametrize("bad", BAD)
def test_the_screen_of_status_shows_it(bad: str) -> None:
    known = second("status_readiness", BAD[bad], looked(), status_rank={"s1": {"running": True}, "s2": BAD[bad]})
    text = "\n".join(release_status.status(known, HOSTS, "no such folder"))
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
