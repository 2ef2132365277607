# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What each rank of a lane runs.

The lanes that come in here are resolved (`schema.resolve`): layers merged, typed, defaults
filled in. The spec of a rank that goes out is plain JSON, frozen in a release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.engine.flags import FLAT_FLAGS, HEAD_FLAGS
from ansible.module_utils.sparklanes.lane.state import state, why
from ansible.module_utils.sparklanes.lane.unknowns import launch_refusals
from ansible.module_utils.sparklanes.rank.spec import overlay_path
from ansible.module_utils.sparklanes.weights.hub_cache import snapshot

SCHEMA = "sparklanes-rank/1"
JIT_ROOT = "/var/lib/sparklanes/jit"
JIT_TARGET = "/jit"
MODELS = ("lane_model", "lane_drafter")


def render_rank(
    lane: Mapping[str, Any],
    fabrics: Mapping[str, Mapping[str, Any]],
    deployment: str,
    hosts: Sequence[str],
    rank: int,
    below: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The spec of one rank: `hosts` are those of the deployment in the order of its group, `fabrics` theirs by host.

    below: `below_mounts` of all their lanes; without it all of them keep their models as this one does.
    ValueError says what is missing. Unknown digests and revisions don't stop it; `launch_refusals` does.
    """
    below = below_mounts([lane]) if below is None else below
    if len(hosts) != lane["lane_nodes"]:
        raise ValueError(
            f"deployment {deployment} has {len(hosts)} hosts ({', '.join(hosts)}), but lane {lane['lane_id']} needs {lane['lane_nodes']}"
        )
    if not 0 <= rank < len(hosts):
        raise ValueError(f"deployment {deployment} has no rank {rank}: its ranks are 0 to {len(hosts) - 1}")
    host, world = hosts[rank], len(hosts)
    fabric = fabrics.get(host) or {}
    master = None
    if world > 1:
        for needed in (hosts[0], host):
            if not (fabrics.get(needed) or {}).get("host_ip"):
                raise ValueError(f"{needed} has no fabric address yet: role roce finds it, run for all of {deployment}")
        master = {"host": str(fabrics[hosts[0]]["host_ip"]), "port": lane["lane_master_port"]}
    container, served = lane["lane_container"], _served(lane, below)
    return {
        "schema": SCHEMA,
        "deployment": deployment,
        "lane": lane["lane_id"],
        "rank": rank,
        "world_size": world,
        "node": host,
        "container": f"sparklanes-{deployment}-rank{rank}",
        **_image(lane["lane_image"]),
        "entrypoint": container["entrypoint"],
        "command": [
            *container["command_prefix"],
            served["lane_model"]["container_path"],
            *_flags(served, rank, world, master),
        ],
        "env": _environment(served, fabric, rank, world, master),
        "secret_env": sorted(lane["lane_secret_env"]),
        "mounts": mounts(lane, below),
        **({"jit_cache": jit_cache(lane)} if jit_cache(lane) else {}),
        "options": {
            key: container[key]
            for key in (
                "network",
                "ipc",
                "shm_size",
                "ulimits",
                "cap_add",
                "devices",
                "gpus",
                "memory",
                "memory_swap",
                "pids_limit",
            )
        }
        | {"restart": "no", "no_new_privileges": True},
        "api": {"host": lane["lane_api_host"], "port": lane["lane_port"]},
        "master": master,
        "labels": {
            "sparklanes.deployment": deployment,
            "sparklanes.lane": str(lane["lane_id"]),
            "sparklanes.rank": str(rank),
        },
    }


def _image(image: Mapping[str, Any]) -> dict[str, Any]:
    """What the rank runs: by digest, or by ID where no registry has the image. `image_ids` are there only if the lane has them."""
    ids = list(image.get("ids") or [])
    if not image["digest"] and ids:
        return {"image": ids[0], "image_ids": ids}
    named = f"{image['repository']}@{image['digest'] or 'sha256:unknown'}"
    return {"image": named, "image_ids": ids} if ids else {"image": named}


def _flags(lane: Mapping[str, Any], rank: int, world: int, master: Mapping[str, Any] | None) -> list[str]:
    """What follows the path of the model. The flags that people override come first, the lane's own keep their order."""
    flags: dict[str, Any] = {}
    if rank == 0:
        flags |= {flag: lane[name] for flag, name in HEAD_FLAGS.items()}
    flags |= {flag: lane[name] for flag, name in FLAT_FLAGS.items() if lane[name] is not None}
    if lane["lane_pipeline_parallel_size"] == 1:
        del flags["--pipeline-parallel-size"]
    flags |= lane["lane_engine_args"]
    if master:
        flags |= {"--nnodes": world, "--node-rank": rank, "--master-addr": master["host"], "--master-port": master["port"]}
        if rank > 0:
            flags["--headless"] = True
    words: list[str] = []
    for flag, value in flags.items():
        words += _words(str(lane["lane_flag_names"].get(flag, flag)), value)
    return words


def _words(flag: str, value: Any) -> list[str]:
    """A flag and its value as words of a command; a value that looks like a flag is bound to its own."""
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(_text(item) for item in value)]
    text = _text(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    """A value as the engine reads it: mappings as compact JSON, numbers without a trailing `.0` of their own making."""
    if isinstance(value, Mapping | list | bool):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _environment(
    lane: Mapping[str, Any], fabric: Mapping[str, Any], rank: int, world: int, master: Mapping[str, Any] | None
) -> dict[str, str]:
    """The lane's environment with the host's fabric over it: where both speak, the fabric was measured here."""
    env = {name: str(value) for name, value in lane["lane_engine_env"].items()}
    env |= {name: f"{JIT_TARGET}/{folder}" for name, folder in (lane.get("lane_jit_caches") or {}).items()}
    env |= {name: str(value) for name, value in (fabric.get("env") or {}).items() if value not in (None, "")}
    if fabric.get("host_ip"):
        env["VLLM_HOST_IP"] = str(fabric["host_ip"])
    rails = fabric.get("rails") or []
    facts = {
        "rank": rank,
        "world_size": world,
        "host_ip": fabric.get("host_ip"),
        "ifname": fabric.get("ifname"),
        "master_addr": master and master["host"],
        "master_port": master and master["port"],
        "hca": rails[0].get("hca") if rails else None,
        "hcas": ",".join(str(rail["hca"]) for rail in rails if rail.get("hca")) or None,
        "gid_index": rails[0].get("gid_index") if rails else None,
        "network": rails[0].get("network") if rails else None,
    }
    for name, source in lane["lane_fabric_env"].items():
        if facts[source] is None and world == 1:
            continue  # alone, it has nobody to find
        if facts[source] is None:
            raise ValueError(f"lane_fabric_env.{name} needs the fabric's {source}, which this Spark does not have")
        env[name] = str(facts[source])
    return env


def below_mounts(lanes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Model → where it lies below what is mounted, of those that any of these ranks keeps in a Hub cache.

    What is mounted then is the repository, as the links of a snapshot lead out of it. The command is one for all ranks, so a rank with a folder
    of its own mounts it there too.
    """
    found: dict[str, set[str]] = {}
    for lane in lanes:
        for name in MODELS:
            if cached := snapshot(str((lane[name] or {}).get("path") or "")):
                found.setdefault(name, set()).add(cached.below)
    for name, places in found.items():
        if len(places) > 1:
            raise ValueError(
                f"{name}.path is {' on one rank and '.join(sorted(places))} on another, in a Hub cache: give all the same"
            )
    return {name: min(places) for name, places in found.items()}


def placed(lane: Mapping[str, Any], places: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The lane with each model where a host has it, as module hub_cache_info said of this very path and commit."""
    found = {f"lane_{one['name']}": one for one in places}
    moved = {}
    for name in MODELS:
        model, one = lane.get(name) or {}, found.get(name) or {}
        if one and all(
            model.get(key) == one[said] for key, said in (("path", "instead_of"), ("repo", "repo"), ("revision", "revision"))
        ):
            moved[name] = {**model, "path": one["path"]}
    return {**lane, **moved}


def container_path(model: Mapping[str, Any], below: str = "") -> str:
    """Where the engine finds a model."""
    return f"{model['container_path']}/{below}" if below else str(model["container_path"])


def _served(lane: Mapping[str, Any], below: Mapping[str, str]) -> Mapping[str, Any]:
    """The lane with its models where the engine finds them, also in flags and variables that name one."""
    moved = {lane[name]["container_path"]: container_path(lane[name], place) for name, place in below.items() if lane[name]}
    if not moved:
        return lane
    paths = "|".join(map(re.escape, sorted(moved, key=len, reverse=True)))
    named = re.compile(rf"(?<![\w./-])({paths})(?![\w.-]|/snapshots/)")

    def told(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: told(item) for key, item in value.items()}
        if isinstance(value, list):
            return [told(item) for item in value]
        return named.sub(lambda found: moved[found[1]], value) if isinstance(value, str) else value

    models = {name: {**lane[name], "container_path": moved[lane[name]["container_path"]]} for name in below if lane[name]}
    return {**lane, **models, **{name: told(lane[name]) for name in ("lane_engine_args", "lane_engine_env")}}


def mounts(lane: Mapping[str, Any], below: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Weights, drafter, overlays and extras read-only, then what the lane adds. below: as in `render_rank`."""
    below = below_mounts([lane]) if below is None else below
    made = []
    for name in MODELS:
        if model := lane[name]:
            cached = snapshot(str(model["path"]))
            made.append(
                _mount(cached.repository, model["container_path"])
                if cached
                else _mount(model["path"], container_path(model, below.get(name, "")))
            )
    for item in [*(lane["lane_overlays"] or []), *(lane["lane_extras"] or [])]:
        made.append(_mount(overlay_path(item["source"], item["sha256"]), item["target"]))
    for item in (lane["lane_container"] or {}).get("mounts") or []:
        made.append(_mount(item["source"], item["target"], item["read_only"], item["create"]))
    if jit_cache(lane):
        made.append(_mount(jit_cache(lane), JIT_TARGET, read_only=False, create=True))
    return made


def _mount(source: str, target: str, read_only: bool = True, create: bool = False) -> dict[str, Any]:
    return {"source": source, "target": target, "read_only": read_only, "create": create}


def jit_cache(lane: Mapping[str, Any]) -> str:
    """The folder of a lane's compiled kernels on a Spark, empty where it keeps none. Another image compiles other kernels."""
    if not lane.get("lane_jit_caches"):
        return ""
    image = lane["lane_image"]
    named = image["digest"] or next(iter(image.get("ids") or []), "sha256:unknown")
    return f"{JIT_ROOT}/{named.rpartition(':')[2][:12]}/{lane['lane_id']}"


def needs(lane: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a lane refers to on a Spark: paths, and names of its image."""
    paths = [mount["source"] for mount in mounts(lane)]
    image = _image(lane["lane_image"])
    return {"paths": paths, "images": [image["image"], *image.get("image_ids", [])]}


def archive_files(lane: Mapping[str, Any]) -> list[dict[str, str]]:
    """Overlays and extras as an archive takes them: name there, place on a Spark, hash."""
    made = []
    for folder, items in (("overlays", lane["lane_overlays"]), ("extras", lane["lane_extras"])):
        for item in items or []:
            name = f"{folder}/{str(item['source']).lstrip('/')}"
            made.append({"name": name, "path": overlay_path(item["source"], item["sha256"]), "sha256": str(item["sha256"] or "")})
    return made


def describe(lane: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """What stands above a rendered command, as comments of a shell: who runs it, what fits, what is still unknown."""
    head = f"the head, API on {spec['api']['host']}:{spec['api']['port']}" if spec["rank"] == 0 else "a worker"
    lines = [f"rank {spec['rank']} of {spec['world_size']} on {spec['node']}: {head}", str(lane["lane_title"] or lane["lane_id"])]
    if lane["lane_max_model_len"]:
        at_once = f", {lane['lane_max_num_seqs']} requests at a time" if lane["lane_max_num_seqs"] else ""
        lines.append(f"{lane['lane_max_model_len']:,} tokens of context{at_once}")
    pinned = lane["lane_kv_cache_memory_bytes"]
    lines.append(f"KV cache {pinned / GIB:.2f} GiB on each rank, pinned" if pinned else "KV cache sized by the engine")
    lines.append(f"state: {state(lane)}" + (f", {why(lane)}" if why(lane) else ""))
    if spec["secret_env"]:
        lines.append(f"needs {', '.join(spec['secret_env'])} in the environment of this shell")
    unknown = [check.expected.split()[0] for check in launch_refusals(lane) if check.status == FAIL]
    if unknown:
        lines.append(f"unknown, so a launch is refused: {', '.join(unknown)}")
    return "\n".join(f"# {line}" for line in lines)
