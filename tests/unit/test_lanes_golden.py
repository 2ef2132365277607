"""Our lanes, rendered for each rank, against what the recorded launchers run: flag by flag, variable by variable, mount by mount."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes import lane_schema, lanes
from conftest import FIXTURES, ROOT

RECORDED: dict[str, Any] = yaml.safe_load((FIXTURES / "lanes" / "recorded.yml").read_text(encoding="utf-8"))
ABSENT = "(absent)"

# Where we differ on purpose: lane → what → (ours, why). A difference that is none any more fails the test.
DELIBERATE: dict[str, dict[str, tuple[Any, str]]] = {
    "glm53_dcp4_nvfp4": {
        "--pipeline-parallel-size": (ABSENT, "1 is the engine's own default"),
        "--chat-template": (
            "/extras/chat_template.jinja",
            "the launcher's patch edits the weights directory; an extra leaves it alone",
        ),
    },
    "flash_nvfp4_dflash2_tp2": {
        "--kv-cache-memory": (
            6442450944,
            "the pin of the source's later document, whose pool was published; the launcher's 8 GiB was not",
        ),
        "--chat-template": (
            "/extras/chat_template_mm.jinja",
            "a file of ours, mounted beside the weights instead of copied into them",
        ),
    },
}
RANKS = [(lane, rank) for lane, recorded in RECORDED.items() for rank in range(len(recorded["fabric_addresses"]))]


def variables_of(lane: str) -> dict[str, Any]:
    """The variables as Ansible merges them: the family, then the lane."""
    own = yaml.safe_load((ROOT / "group_vars" / f"lane_{lane}.yml").read_text(encoding="utf-8"))
    family = yaml.safe_load((ROOT / "group_vars" / f"family_{own['lane_family']}.yml").read_text(encoding="utf-8"))
    return {**family, **own}


def resolved(lane: str) -> dict[str, Any]:
    specs = yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8"))
    made, checks = lane_schema.resolve(variables_of(lane), lane_schema.schema(specs), "s1")
    assert [check for check in checks if check.status != "pass"] == []
    assert [check for check in lanes.lane_checks(made, "s1") if check.status != "pass"] == []
    assert json.loads(json.dumps(made)) == made
    return made


def hosts_and_fabrics(lane: str) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The source fleet as role roce would describe it."""
    recorded = RECORDED[lane]
    ours = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE")
    env = {name: value for name, value in recorded["env"]["fabric"].items() if name in ours}
    fabrics = {
        f"s{rank}": {"transport": "roce", "host_ip": address, "ifname": env["NCCL_SOCKET_IFNAME"], "env": env, "rails": []}
        for rank, address in enumerate(recorded["fabric_addresses"])
    }
    return list(fabrics), fabrics


def spec_of(lane: str, rank: int) -> dict[str, Any]:
    hosts, fabrics = hosts_and_fabrics(lane)
    return lanes.render_rank(resolved(lane), fabrics, "sparks", hosts, rank)


def flags_of(command: list[str], after: int) -> dict[str, Any]:
    """Words of a command as flag → value; a flag that is given twice is an error of its own."""
    flags: dict[str, Any] = {}
    current = ""
    for word in command[after:]:
        if word.startswith("--"):
            current = word
            assert current not in flags, f"{current} is given twice"
            flags[current] = []
        else:
            flags[current].append(word)
    return {flag: True if not values else values[0] if len(values) == 1 else values for flag, values in flags.items()}


def same(value: Any) -> Any:
    """Values that mean the same are the same: numbers by value, JSON by content."""
    if isinstance(value, list):
        return same(value[0]) if len(value) == 1 else [same(item) for item in value]
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def expected_flags(lane: str, rank: int) -> dict[str, Any]:
    recorded = RECORDED[lane]
    flags = dict(recorded["engine_args"])
    flags |= {"--node-rank": rank, "--master-addr": recorded["fabric_addresses"][0]}
    if rank == 0:
        del flags["--headless"]
    else:
        flags["--headless"] = True
        # Workers serve no API; the launchers give these to each rank, where they have no effect.
        del flags["--host"], flags["--port"]
    return flags


@pytest.mark.parametrize(("lane", "rank"), RANKS)
def test_flags(lane: str, rank: int) -> None:
    prefix = RECORDED[lane]["container"]["command_prefix"]
    spec = spec_of(lane, rank)
    assert spec["command"][: len(prefix)] == prefix
    ours, recorded = flags_of(spec["command"], len(prefix)), expected_flags(lane, rank)
    differ = {
        flag: same(ours.get(flag, ABSENT))
        for flag in {*ours, *recorded}
        if same(ours.get(flag, ABSENT)) != same(recorded.get(flag, ABSENT))
    }
    assert differ == {flag: value for flag, (value, _why) in DELIBERATE[lane].items()}


@pytest.mark.parametrize(("lane", "rank"), RANKS)
def test_environment(lane: str, rank: int) -> None:
    recorded = RECORDED[lane]
    expected = dict(recorded["env"]["fixed"])
    own = {
        "VLLM_HOST_IP": recorded["fabric_addresses"][rank],
        "MASTER_ADDR": recorded["fabric_addresses"][0],
        "NODE_RANK": str(rank),
    }
    expected |= {name: own.get(name, value) for name, value in recorded["env"]["fabric"].items()}
    assert spec_of(lane, rank)["env"] == expected


@pytest.mark.parametrize(("lane", "rank"), RANKS)
def test_mounts(lane: str, rank: int) -> None:
    """All targets and modes are the recorded ones. Sources are ours by design: what role staging keeps under /var/lib/sparklanes."""
    recorded = RECORDED[lane]
    expected = {mount["container"]: mount["mode"] for mount in recorded["container"]["mounts"]}
    expected |= {overlay["container"]: overlay["mode"] for overlay in recorded["overlays"]}
    spec = spec_of(lane, rank)
    ours = {mount["target"]: "ro" if mount["read_only"] else "rw" for mount in spec["mounts"]}
    added = set(ours) - set(expected)
    # The template, and the NCCL that the source keeps inside the directory it mounts as a cache.
    assert {target for target in added if not target.startswith("/extras/")} <= {
        "/cache/huggingface/hub/nccl-2.30.4/libnccl.so.2"
    }
    assert {target: ours[target] for target in expected} == expected
    sources = {mount["source"] for mount in spec["mounts"] if not mount["source"].startswith("/var/lib/sparklanes/")}
    assert sources <= {"/etc/passwd", "/etc/group"}


@pytest.mark.parametrize("lane", RECORDED)
def test_overlays_have_the_recorded_hashes(lane: str) -> None:
    ours = {overlay["target"]: overlay["sha256"] for overlay in resolved(lane)["lane_overlays"]}
    for overlay in RECORDED[lane]["overlays"]:
        assert ours[overlay["container"]] == overlay["sha256"]


@pytest.mark.parametrize("lane", RECORDED)
def test_container_options(lane: str) -> None:
    recorded, options = RECORDED[lane]["container"], spec_of(lane, 0)["options"]
    for name in ("restart", "gpus", "network", "ipc", "shm_size", "memory", "memory_swap", "cap_add", "ulimits", "devices"):
        assert options[name] == recorded[name], name
    repository = resolved(lane)["lane_image"]["repository"]
    assert f"{repository}:{resolved(lane)['lane_image']['tag']}" == RECORDED[lane]["image"]
    assert resolved(lane)["lane_swappiness"] == RECORDED[lane]["swappiness"]


@pytest.mark.parametrize("lane", RECORDED)
def test_what_the_source_does_not_tell_refuses_to_launch(lane: str) -> None:
    refused = [check for check in lanes.launch_refusals(resolved(lane)) if check.status == "fail"]
    assert any("lane_model_site: {revision:" in check.remedy for check in refused)
    assert all(f"inventory/fleet/group_vars/lane_{lane}.yml" in check.remedy for check in refused)
