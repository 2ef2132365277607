# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What `docker info` tells of a daemon: versions, where it keeps images and containers, and by what it gives devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CONTAINERD_ROOT = "/var/lib/containerd"  # containerd's own default
_ROOT = re.compile(r"""^\s*root\s*=\s*(?P<quote>["'])(?P<path>/[^"']*)(?P=quote)""")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def image_store(data: Mapping[str, Any]) -> str:
    """The name of the image store: overlay2, or io.containerd.snapshotter.v1 and its driver."""
    status = {str(pair[0]): str(pair[1]) for pair in data.get("DriverStatus") or [] if isinstance(pair, list) and len(pair) == 2}
    driver = str(data.get("Driver", ""))
    return f"{status['driver-type']} ({driver})" if "driver-type" in status else driver


def containerd_root(config: str) -> str:
    """`root` of a containerd's config.toml: a key above the first table, else its default."""
    for line in config.splitlines():
        if line.lstrip().startswith("["):
            break
        if found := _ROOT.match(line):
            return found["path"]
    return CONTAINERD_ROOT


def image_root(data: Mapping[str, Any], read: Callable[[str], str] = _read) -> str:
    """The folder on whose disk images lie; empty where Docker does not tell.

    With the containerd store that is containerd's, not Docker's: the system's own, or the one that dockerd starts below its root.
    """
    root = str(data.get("DockerRootDir") or "")
    if "containerd" not in image_store(data):
        return root
    address = str((data.get("Containerd") or {}).get("Address") or "")
    if "/docker/containerd/" in address:
        return f"{root}/containerd/daemon" if root else ""
    return containerd_root(read(CONTAINERD_CONFIG))


def parse_info(data: Mapping[str, Any], read: Callable[[str], str] = _read) -> dict[str, Any]:
    """The parts of `docker info --format '{{json .}}'` that somebody judges.

    `cdi_dirs`: where it looks for CDI specifications; empty where CDI is off. `devices`: CDI devices that the daemon itself lists,
    None where this version lists none.
    """
    discovered = data.get("DiscoveredDevices")
    return {
        "version": data.get("ServerVersion", ""),
        "cgroup_driver": data.get("CgroupDriver", ""),
        "storage_driver": data.get("Driver", ""),
        "image_store": image_store(data),
        "containerd": (data.get("ContainerdCommit") or {}).get("ID", ""),
        "runc": (data.get("RuncCommit") or {}).get("ID", ""),
        "root": str(data.get("DockerRootDir") or ""),
        "image_root": image_root(data, read),
        "default_runtime": str(data.get("DefaultRuntime") or ""),
        "cdi_dirs": [str(path) for path in data.get("CDISpecDirs") or []],
        "devices": sorted(str(one.get("ID")) for one in discovered if one.get("ID")) if isinstance(discovered, list) else None,
    }
