# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a launch makes of registered results: who did not answer is never taken for well."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.gates import launch as gates_launch
from test_readiness import HOSTS, SPECS, STAGED, facts

FABRICS = {
    host: {
        "transport": "socket",
        "host_ip": f"10.1.0.{number}",
        "ifname": "fab0",
        "rails": [{"netdev": "fab0", "ipv4": f"10.1.0.{number}", "network": "10.1.0.0/24", "mtu": 9000}],
    }
    for number, host in enumerate(HOSTS, 1)
}
SILENT = [None, {}, {"unreachable": True}, {"skipped": True}]


def looked(**more: Any) -> dict[str, Any]:
    return {"readiness": facts(**more)}


SETTLED = {
    host: {"checks": [{"id": "MEM.SETTLED", "host": host, "status": "pass", "found": "MemFree 100 GiB"}]} for host in HOSTS
}


def failed(checks: list[dict[str, str]]) -> set[str]:
    return {f"{check['host']} {check['id']}" for check in checks if check["status"] == "fail"}


def gate_a(registered: dict[str, Any], **fabrics: Any) -> set[str]:
    return failed(gates_launch.gate_a(registered, SPECS, STAGED, {**FABRICS, **fabrics}, "mine", 1000.0))


def test_a_ready_deployment_passes_gate_a() -> None:
    assert gate_a({host: looked() for host in HOSTS}) == set()


@pytest.mark.parametrize("silent", SILENT)
def test_a_silent_host_fails_both_gates(silent: Any) -> None:
    registered = {"s1": looked(), "s2": silent}
    assert {name.split()[0] for name in gate_a(registered)} == {"s2"}
    assert {name.split()[0] for name in failed(gates_launch.gate_b(registered, SPECS, SETTLED))} == {"s2"}
    assert {name.split()[0] for name in failed(gates_launch.ranks_alive(registered, ["s2"], "a" * 12))} == {"s2"}
    assert gates_launch.serves(registered, "a" * 12) is False


def test_a_look_that_failed_is_no_silent_host() -> None:
    """Who reads "no answer over ssh" looks at cables and power; the module said what is wrong."""
    broke = {"failed": True, "msg": "state.json is no JSON"}
    made = gates_launch.gate_a({"s1": looked(), "s2": broke}, SPECS, STAGED, FABRICS, "mine", 1000.0)
    rows = {
        check["id"]: (check["status"], check["found"])
        for check in made
        if check["host"] == "s2" and check["id"] != "IMAGE.PARITY"
    }
    assert rows == {"NODE.REACHABLE": ("pass", "answers"), "NODE.FACTS": ("fail", "state.json is no JSON")}


def test_gate_b_tells_what_the_engine_would_refuse() -> None:
    memory = {"MemTotal": 121 * 1024**3, "MemAvailable": 90 * 1024**3}
    registered = {"s1": looked(memory=memory), "s2": looked(memory={**memory, "MemAvailable": 118 * 1024**3})}
    lane = {"lane_gpu_memory_utilization": 0.9, "lane_gpu_arch": "sm_121"}
    assert failed(gates_launch.gate_b(registered, SPECS, SETTLED, dict.fromkeys(HOSTS, lane))) == {"s1 BUDGET.UTILIZATION"}


def test_the_first_look_compares_the_fabrics_of_all_ranks() -> None:
    both: dict[str, Any] = {host: {"fabric": {}} for host in HOSTS}
    assert failed(gates_launch.reach(both, FABRICS)) == set()
    assert failed(gates_launch.reach(both, {**FABRICS, "s2": {}})) == {"s2 FABRIC.FACTS"}
    assert "s2 FABRIC.ADDRESS" in failed(gates_launch.reach(both, {**FABRICS, "s2": FABRICS["s1"]}))
    assert failed(gates_launch.reach({"s1": {"skipped": True}}, {})) == set(), "one node needs no fabric"


def test_the_first_look_names_the_silent_and_compares_no_parts() -> None:
    made = gates_launch.reach({"s1": {"fabric": {}}, "s2": {"unreachable": True}}, FABRICS)
    assert failed(made) == {"s2 NODE.REACHABLE"}
    assert not any(check["id"].startswith("FABRIC") for check in made)


def test_what_staging_registered_is_told_by_check() -> None:
    made = gates_launch.staging_of({"model_weights_result": {"staged": True}})
    assert made == {"WEIGHTS.STAGED": {"staged": True}, "OVERLAYS.STAGED": None}


def test_the_identity_of_a_rank_is_image_overlays_and_weights() -> None:
    specs = {
        "s1": {
            "rank": 0,
            "image": "r/engine@sha256:abc",
            "mounts": [{"source": "/v/overlays/b"}, {"source": "/v/models/m"}, {"source": "/v/overlays/a"}],
        }
    }
    models = {"models": [{"name": "model", "revision": "c0ffee", "manifest_sha256": "d1"}]}
    made = gates_launch.identities(specs, {"s1": {"model_weights_result": models}})
    assert made == [
        {
            "rank": 0,
            "node": "s1",
            "image": "sha256:abc",
            "overlays": ["/v/overlays/a", "/v/overlays/b"],
            "weights": [["model", "c0ffee", "d1"]],
        }
    ]
    assert gates_launch.identities(specs, {"s1": {}})[0]["weights"] == [], "nothing is known, nothing is claimed"


@pytest.mark.parametrize("silent", SILENT)
def test_no_other_lane_is_seen_on_a_silent_host(silent: Any) -> None:
    assert gates_launch.other_lane(silent, "tiny") == ""


def test_ids_of_releases_follow_the_specs_in_order() -> None:
    one = gates_launch.release_id({"s1": {"rank": 0}, "s2": {"rank": 1}}, {"lane": "x"})
    assert one == gates_launch.release_id({"s1": {"rank": 0}, "s2": {"rank": 1}}, {"lane": "x"})
    assert one != gates_launch.release_id({"s1": {"rank": 0}, "s2": {"rank": 1}}, {"lane": "y"})
    assert one != gates_launch.release_id({"s1": {"rank": 0}, "s2": {"rank": 2}}, {"lane": "x"})
