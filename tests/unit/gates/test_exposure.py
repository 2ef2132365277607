# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""ENGINE.EXPOSED and ENGINE.REMOTE_CODE: what is open, and whose code runs, is said before the stop."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates import exposure, launch, preflight
from lane_files import options, resolved, variables_of
from test_readiness import HOSTS, SPECS, facts, world

LANE = "flash_nvfp4_dflash2_tp2"


def exposed(**more: Any) -> Check:
    return exposure.exposed(resolved(LANE, **more), "sparks", "s1")


def test_a_lane_as_shipped_is_open_and_says_so_with_what_to_write() -> None:
    check = exposed()
    assert (check.id, check.status, check.host) == ("ENGINE.EXPOSED", "warn", "sparks")
    assert check.found == (
        "API on every interface, port 8000; no key; no TLS; rendezvous on every interface, port 29521: no authentication"
    )
    assert f"inventory/fleet/group_vars/lane_{LANE}.yml write lane_api_host: 127.0.0.1" in check.remedy
    assert "--dport 8000" in check.remedy
    assert "lane_api_open: true" in check.remedy


@pytest.mark.parametrize("key", [[], ["VLLM_API_KEY"]])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.11", "127.0.0.1"])
@pytest.mark.parametrize(
    ("said", "status"), [(None, "warn"), (True, "pass"), (False, "fail"), ("false", "fail"), ("true", "pass")]
)
def test_the_sites_word_decides_and_a_key_is_no_door(key: list[str], host: str, said: Any, status: str) -> None:
    check = exposed(lane_api_host=host, lane_api_open=said, lane_secret_env=key)
    assert check.status == ("pass" if host == "127.0.0.1" else status)
    assert ("none for /invocations" in check.found) == bool(key), "what the key does not cover is said beside it"
    assert ("no key" in check.found) == (not key)
    assert "rendezvous on every interface, port 29521" in check.found, "loopback closes the API, not the rendezvous"


def test_what_else_opens_or_shuts_is_said() -> None:
    made = exposure.doors(
        resolved(LANE, lane_engine_args_site={"--ssl-certfile": "/c"}, lane_engine_env_site={"VLLM_SERVER_DEV_MODE": "1"})
    )
    assert "no TLS" not in made
    assert "/collective_rpc calls any method" in made
    assert "collective_rpc" not in exposure.doors(resolved(LANE, lane_engine_env_site={"VLLM_SERVER_DEV_MODE": "0"}))
    assert "rendezvous" not in exposure.doors({**resolved(LANE), "lane_nodes": 1})


@pytest.mark.parametrize(("needs", "rows"), [("host", 0), ("lane", 0), ("launch", 1)])
def test_preflight_says_it_once_for_a_deployment_where_a_launch_is_meant(needs: str, rows: int) -> None:
    hostvars = {host: {**variables_of(LANE), "lane": LANE, "deployment": "sparks"} for host in HOSTS}
    groups = {"sparks": HOSTS, "family_glm53_flash": HOSTS, "kit_flash_nvfp4": HOSTS}
    checks = preflight.preflight(hostvars, groups, HOSTS, [LANE], options(), needs)
    assert [check.status for check in checks if check.id == "ENGINE.EXPOSED"] == ["warn"] * rows


# --- code that comes with a model ------------------------------------------------------------------------------

SHA = {"modeling_glm.py": "a" * 64, "configuration_glm.py": "b" * 64}


def staged(model: dict[str, str], drafter: dict[str, str] | None = None) -> dict[str, Any]:
    models = [("model", "/srv/m", model), ("drafter", "/srv/d", drafter or {})]
    return {"staged": True, "models": [{"name": name, "path": path, "code": code} for name, path, code in models]}


def remote_code(result: Any, **more: Any) -> list[Check]:
    return exposure.remote_code("s1", resolved(LANE, **more), result)


def test_code_that_nobody_pinned_is_named_with_its_hash_and_the_line_to_write() -> None:
    (check,) = remote_code(staged(SHA, {"draft.py": ""}))
    assert (check.id, check.host, check.status) == ("ENGINE.REMOTE_CODE", "s1", "warn")
    assert (
        "configuration_glm.py (bbbbbbbbbbbb), modeling_glm.py (aaaaaaaaaaaa), draft.py (hash unknown): run as root" in check.found
    )
    assert "Read them in /srv/m and /srv/d" in check.remedy
    assert f"lane_model_site: {{sha256: {{configuration_glm.py: {'b' * 64}, modeling_glm.py: {'a' * 64}}}}}" in check.remedy
    assert "lane_drafter_site: {sha256: {draft.py: <sha256sum of it>}}" in check.remedy


def test_the_line_to_write_makes_it_pass() -> None:
    assert remote_code(staged(SHA), lane_model_site={"sha256": SHA})[0].status == "pass"
    (check,) = remote_code(staged(SHA), lane_model_site={"sha256": {"modeling_glm.py": "a" * 64}})
    assert check.status == "warn"
    assert "modeling_glm.py" not in check.found + check.remedy, "what is pinned is done"
    (check,) = remote_code(staged(SHA), lane_drafter_site={"sha256": SHA})
    assert check.status == "warn", "a pin of the drafter pins nothing of the model"


def test_a_model_without_code_passes_and_a_lane_that_trusts_none_is_not_asked() -> None:
    assert [check.status for check in remote_code(staged({}))] == ["pass"]
    assert remote_code(staged(SHA), lane_engine_args_override={"--trust-remote-code": None}) == []


@pytest.mark.parametrize(
    "silent", [None, {}, {"unreachable": True}, {"failed": True, "msg": "no"}, {"models": [{}]}, {"models": "x"}]
)
def test_what_is_not_known_is_no_pass(silent: Any) -> None:
    assert [check.status for check in remote_code(silent)] == ["warn"]


def test_the_names_of_many_files_and_odd_ones_stay_readable() -> None:
    (check,) = remote_code(staged({f"m{number}.py": "a" * 64 for number in range(40)} | {"a: b.py": "c" * 64}))
    assert len(check.found) < 400
    assert "and 36 more" in check.found
    assert '"a: b.py": ' in check.remedy
    assert "m39.py: " in check.remedy


def test_gate_a_has_the_row_of_each_rank() -> None:
    known = {
        host: {**variables, "model_weights_result": staged(SHA)} for host, variables in world({h: facts() for h in HOSTS}).items()
    }
    lanes = dict.fromkeys(HOSTS, resolved(LANE))
    made = launch.gate_a(known, HOSTS, SPECS, lanes, "mine", 1001.0, fatal=["machine"], break_lock="", forget_deaths=False)
    assert [check.host for check in made if check.id == "ENGINE.REMOTE_CODE"] == HOSTS
