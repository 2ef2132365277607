# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""systemd on a Spark that runs GPU containers.

`systemctl daemon-reload` makes systemd write the device rules of its cgroups again. A running
container then loses its GPU ("Failed to initialize NVML: Unknown Error") where systemd can't
look the devices up, which it does through the links in /dev/char. So: no reload there, not
even the one that `systemctl enable` does on its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from ansible.module_utils.sparklanes.common.commands import Run
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError


def missing_links(dev: Path = Path("/dev")) -> list[str]:
    """The NVIDIA device nodes that have no link in /dev/char, by path."""
    found = []
    for node in sorted([*dev.glob("nvidia*"), *dev.glob("nvidia-caps/*")]):
        status = node.stat()
        if stat.S_ISCHR(status.st_mode):
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            if not os.path.lexists(dev / "char" / number):
                found.append(str(node))
    return found


def reload_risk(gpu_containers: Sequence[str] | None, cgroup_driver: str, unlinked: Sequence[str]) -> str:
    """Why `daemon-reload` has to wait, or an empty text.

    `gpu_containers` are the running ones by name, None where Docker does not say. The cgroup
    driver only explains: with `cgroupfs` the loss is rarer, not ruled out on every release.
    """
    if gpu_containers is None:
        return "Docker does not say which containers run, and a running one could lose its GPU"
    if gpu_containers and unlinked:
        return (
            f"{', '.join(gpu_containers)} would lose the GPU at a daemon-reload (cgroup driver {cgroup_driver or 'unknown'}): "
            f"no link in /dev/char for {', '.join(unlinked)}. Stop the rank, or make the links (sudo nvidia-ctk system "
            "create-dev-char-symlinks --create-all), then run this again"
        )
    return ""


def gpu_containers(run: Run) -> tuple[list[str] | None, str]:
    """Names of the running containers that use the GPU (None where Docker does not say), and Docker's cgroup driver."""
    if not shutil.which("docker"):
        return [], ""
    docker = Docker(run)
    try:
        driver = str(docker.info()["cgroup_driver"])
        return [box.name for box in docker.running() if box.uses_gpu], driver
    except (DockerError, ValueError):
        return None, ""


def reload_risk_here(run: Run, dev: Path = Path("/dev")) -> str:
    """Why `daemon-reload` has to wait on this Spark, or an empty text."""
    boxes, driver = gpu_containers(run)
    return reload_risk(boxes, driver, missing_links(dev))
