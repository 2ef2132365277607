# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A release starts again only over ground that was looked at; what nobody looked at fails."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates import forcing, ground
from test_readiness import FABRICS, HOSTS, SPECS, facts, world

STAGED = {"staged": True, "models": [{"name": "model", "revision": "r", "manifest_sha256": "m"}]}
SETTLED = {"checks": [{"id": "MEM.SETTLED", "status": "pass", "found": "enough"}]}


def stopped(**more: Any) -> dict[str, Any]:
    return facts(containers=[], listeners=[], **more)


def known(**more: Any) -> Any:
    made: dict[str, Any] = {
        "gates_ground": {host: {"readiness": stopped()} for host in HOSTS},
        "gates_settled": {host: {**SETTLED, "checks": [{**SETTLED["checks"][0], "host": host}]} for host in HOSTS},
        "model_weights_result": dict.fromkeys(HOSTS, STAGED),
        "model_weights_full": dict.fromkeys(HOSTS, STAGED),
    } | more
    return world(dict.fromkeys(HOSTS, facts()), **made)


def failed(found: Any, full: bool = False) -> set[str]:
    checks: list[Check] = ground.ground(found, HOSTS, SPECS, full)
    return {f"{check.host} {check.id}" for check in checks if check.status == "fail"}


def test_ground_that_is_well_passes_by_looks_at_each_part() -> None:
    assert FABRICS
    for full in (False, True):
        assert failed(known(), full) == set()
    ids = {check.id for check in ground.ground(known(), HOSTS, SPECS, True)}
    assert {"WEIGHTS.STAGED", "MEM.SETTLED", "FABRIC.PEER", "NODE.DOCKER", "RANK.STOPPED"} <= ids


@pytest.mark.parametrize("silent", [None, {}, {"unreachable": True}, {"failed": True, "msg": "x"}])
def test_what_was_not_looked_at_fails(silent: Any) -> None:
    good = {"readiness": stopped()}
    assert {name.split()[0] for name in failed(known(gates_ground={"s1": good, "s2": silent}))} == {"s2"}
    assert failed(known(model_weights_result={"s1": STAGED, "s2": silent})) == {"s2 WEIGHTS.STAGED"}
    assert failed(known(gates_settled={"s1": known()["s1"]["gates_settled"], "s2": silent})) == {"s2 MEM.SETTLED"}


def test_bytes_that_changed_under_the_same_size_and_time_are_seen_where_content_is_in_doubt() -> None:
    """The quick look passes, reading all of it does not, and only the last one counts then."""
    bad = {"failed": True, "msg": "s2: WEIGHTS.CONTENT: model-1.safetensors: hash 0000", "staged": False}
    found = known(model_weights_full={"s1": STAGED, "s2": bad})
    assert failed(found) == set()
    assert failed(found, full=True) == {"s2 WEIGHTS.STAGED"}
    (row,) = [check for check in ground.ground(found, HOSTS, SPECS, True) if check.status == "fail"]
    assert "model-1.safetensors" in row.found
    missing = {"staged": False, "actions": ["s2 WEIGHTS.MISSING: 1 of 9 files missing"]}
    lacks = known(model_weights_result={"s1": STAGED, "s2": missing}, model_weights_full={"s1": STAGED, "s2": {"skipped": True}})
    (row,) = [check for check in ground.ground(lacks, HOSTS, SPECS, True) if check.status == "fail"]
    assert "1 of 9 files missing" in row.found


def test_a_cut_fabric_is_no_ground() -> None:
    cut = [{"peer": "s2", "rail": "0", "ok": False, "small": False, "said": ""}]
    found = known(gates_ground={"s1": {"readiness": stopped(probes=cut)}, "s2": {"readiness": stopped()}})
    assert "s1 FABRIC.PEER" in failed(found)


def test_what_is_left_of_the_rank_that_failed_is_no_ground() -> None:
    left = [{"name": "sparklanes-sparks-rank0", "deployment": "sparks", "running": True}]
    found = known(gates_ground={"s1": {"readiness": facts(containers=left, listeners=[])}, "s2": {"readiness": stopped()}})
    assert "s1 RANK.STOPPED" in failed(found)


def test_a_frozen_release_says_by_its_own_command_what_it_is() -> None:
    spec = {
        "rank": 0,
        "image": "r@sha256:1",
        "mounts": [],
        "entrypoint": "vllm",
        "command": ["serve", "/m", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8", "--speculative-config", '{"a":1}'],
    }
    hostvars = known(gates_rank={"s1": {"log": {"version": "0.23.0"}}, "s2": {}})
    made = forcing.frozen_engine(hostvars, HOSTS, {"s1": spec, "s2": {**spec, "rank": 1}})
    assert (made["tensor_parallel_size"], made["kv_cache_dtype"], made["speculative_config"]) == (2, "fp8", {"a": 1})
    assert (made["enforce_eager"], made["vllm_version"], made["max_num_batched_tokens"]) == (False, "0.23.0", 0)
    assert [rank["weights"] for rank in made["ranks"]] == [[["model", "r", "m"]]] * 2
