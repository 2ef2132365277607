# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a lane must have in common: each is rendered in the same place, so that whatever differs was told to a host.

Ranks that compute with another type of cache, other batches or without the drafter hang in a collective, or answer wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS, HEAD_FLAGS
from ansible.module_utils.sparklanes.lane.render import jit_cache, mounts
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.rank.spec import OVERLAY_ROOT

# What belongs to the place of a rank, and never to what it computes: the head's address, and what a debugger turns on at one rank.
PER_RANK_FLAGS = {*HEAD_FLAGS, *DERIVED_FLAGS}
PER_RANK_ENV = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "VLLM_LOGGING_LEVEL"}
# Of the lane itself. What a host may have of its own: where it keeps the weights, how much memory a container gets.
NAMES = (
    "lane_id",
    "lane_nodes",
    "lane_gpus_per_node",
    "lane_port",
    "lane_master_port",
    "lane_secret_env",
)
MODEL = ("repo", "revision", "container_path")
# Without a device or IPC_LOCK a rank falls back to TCP, with less shared memory it ends alone. Memory is a host's own.
CONTAINER = ("entrypoint", "command_prefix", "network", "ipc", "devices", "cap_add", "ulimits", "shm_size")
ABSENT = "absent"


def shared(lane: Mapping[str, Any]) -> dict[str, str]:
    """Name → value as text, of all that a rank of this resolved lane must have like every other one."""
    found = {name: _text(lane[name]) for name in NAMES}
    for model in ("lane_model", "lane_drafter"):
        found |= {f"{model}.{part}": _text((lane[model] or {}).get(part)) for part in MODEL}
    image, container = lane["lane_image"], lane["lane_container"]
    found |= {f"lane_image.{part}": _text(image[part]) for part in ("repository", "digest", "ids")}
    found |= {f"lane_container.{part}": _text(container[part]) for part in CONTAINER}
    found |= {flag: _text(value) for flag, value in View(lane).args.items() if flag not in PER_RANK_FLAGS and value is not None}
    found |= {f"lane_flag_names.{flag}": _text(own) for flag, own in lane["lane_flag_names"].items()}
    env = {**lane["lane_engine_env"], **{name: f"the fabric's {source}" for name, source in lane["lane_fabric_env"].items()}}
    env |= {name: f"below {jit_cache(lane)}" for name in lane["lane_jit_caches"]}
    found |= {name: _text(value) for name, value in env.items() if name not in PER_RANK_ENV}
    for mount in mounts(lane):
        # A host keeps its weights where it likes; a file that replaces one of the engine is the same everywhere.
        content = str(mount["source"]) if str(mount["source"]).startswith(f"{OVERLAY_ROOT}/") else "a mount"
        found[f"the mount {mount['target']}"] = content
    return found


def _text(value: Any) -> str:
    if value is None or value == []:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def disagreements(lanes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Name → value → the hosts that have it, for every name in which the lanes of these hosts differ; the head's value first."""
    of = {host: shared(lane) for host, lane in lanes.items()}
    found: dict[str, dict[str, list[str]]] = {}
    for name in dict.fromkeys(name for values in of.values() for name in values):
        by_value: dict[str, list[str]] = {}
        for host, values in of.items():
            by_value.setdefault(values.get(name, ABSENT), []).append(host)
        if len(by_value) > 1 and not all(name in (lane["lane_per_rank"] or {}) for lane in lanes.values()):
            found[name] = by_value
    return found
