# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The mounts of a source: caches, files over those of the image, files beside the weights, all else as it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, OPEN, OURS, VERBATIM, Launch
from ansible.module_utils.sparklanes.rank.spec import overlay_sha256

CACHES = "/var/lib/sparklanes/cache"
# A folder that a person would lose nothing with: compiled kernels, downloads.
_CACHE = re.compile(
    r"(?:/root|/home/[^/]+|)?/(?:\.?cache|\.triton|\.config|\.local)(?:/.*)?|.*/(?:\.?cache|torchinductor|\.triton|flashinfer|torch_compile_cache)(?:/.*)?"
)
_HUB_CACHE = re.compile(r".*/\.?(?:cache/)?(?:huggingface|hf|hf_home)(?:/hub)?|/(?:hf|hf_home|huggingface|hub)")
_CODE = re.compile(r".*\.(?:py|pyi|so|so\.\d+|cu|cuh|pth|json)(?:\.\d+)*")
_IN_IMAGE = re.compile(r"/(?:usr|opt|app|workspace|vllm-workspace|root/\.venv)(?:/.*)?")
# What would give a rank more than its work.
_NEVER = re.compile(r"/var/run/docker\.sock|/run/docker\.sock|/|/etc|/root|/home|/var|/boot|/proc|/sys|/dev|/usr")


@dataclass
class Files:
    overlays: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    mounts: dict[str, Any] = field(default_factory=dict)


def open_path(path: str) -> bool:
    """Whether a path says no place on a Spark: relative, a home, a variable, the name of a volume, what Docker's options can't carry."""
    return not path.startswith("/") or bool(re.search(r"[$,:\s~]", path))


def holding(mounts: Sequence[Mapping[str, Any]], path: str) -> Mapping[str, Any] | None:
    """The mount in which a path of the container lies, the nearest one."""
    there = [one for one in mounts if f"{path}/".startswith(f"{str(one['target']).rstrip('/')}/")]
    return max(there, key=lambda one: len(str(one["target"])), default=None)


def of_mounts(mounts: Sequence[Mapping[str, Any]], lane: str, launch: Launch) -> Files:
    made = Files()
    for mount in mounts:
        _one(str(mount["source"]), str(mount["target"]).rstrip("/") or "/", bool(mount["read_only"]), lane, launch, made)
    return made


def _one(source: str, target: str, read_only: bool, lane: str, launch: Launch, made: Files) -> None:
    shown = f"mount {source}:{target}{':ro' if read_only else ''}"
    name = source.rstrip("/").rpartition("/")[2]
    if target in (*made.overlays, *made.extras, *made.mounts):
        launch.note(DROPPED, shown, "", "another mount has the same place")
    elif target == "/dev/shm":
        launch.note(DROPPED, shown, "lane_container.ipc", "ranks share the memory of their Spark")
    elif target == "/dev/infiniband":
        launch.note(DROPPED, shown, "lane_container.devices", "the devices are given as such")
    elif open_path(target) or (_NEVER.fullmatch(source) and source not in ("/etc/passwd", "/etc/group")):
        why = (
            "no place of a container that a lane can name"
            if open_path(target)
            else "it would give a rank more of the Spark than its work needs"
        )
        launch.note(OPEN, shown, "", why)
    elif _HUB_CACHE.fullmatch(target):
        launch.note(DROPPED, shown, "lane_model.path", "staging brings the weights and mounts their folder alone")
    elif not read_only and _CACHE.fullmatch(target):
        folder = re.sub(r"[^\w.-]+", "-", target.strip("/")).strip("-.")
        made.mounts[target] = {"source": f"{CACHES}/{lane}/{folder}", "read_only": False, "create": True}
        launch.note(OURS, shown, "lane_container.mounts", "a cache, in a folder of the lane's own")
    elif name.endswith(".jinja"):
        made.extras[target] = {"source": f"lanes/extras/{name}", "sha256": overlay_sha256(source) or None}
        launch.note(OURS, shown, "lane_extras", f"put the file to lanes/extras/{name}, its sha256sum is open")
    elif _CODE.fullmatch(name) and _IN_IMAGE.fullmatch(target):
        made.overlays[target] = {"source": f"{lane}/{name}", "sha256": overlay_sha256(source) or None}
        launch.note(OURS, shown, "lane_overlays", f"put the file to lanes/overlays/{lane}/{name}, its sha256sum is open")
    elif open_path(source):
        launch.note(
            OPEN,
            shown,
            "lane_container.mounts",
            f"where that is on a Spark stands nowhere: lane_container_site: {{mounts: {{{target}: {{source: /…}}}}}}",
        )
    else:
        made.mounts[target] = {"source": source.rstrip("/"), "read_only": read_only}
        launch.note(VERBATIM, shown, "lane_container.mounts", "every Spark needs it there")
