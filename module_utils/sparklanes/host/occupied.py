# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Does anything on this Spark serve, or may it? Asked before memory is moved or taken under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.gpu import nvidia_smi

Run = Callable[..., Any]


def occupied(run: Run, find: Callable[[str], str | None]) -> str:
    """What may hold the GPU, as part of a sentence; empty where nothing does. Whoever does not answer may hide something.

    `run` is `run_command` of a module, `find` its `get_bin_path`.
    """
    if find("docker"):
        try:
            boxes = [box for box in Docker(run).containers() if box.running and (box.uses_gpu or box.deployment)]
        except (DockerError, ValueError) as error:
            return f"Docker does not answer ({error})"
        if boxes:
            return f"{', '.join(box.name for box in boxes)} runs"
    binary = find("nvidia-smi")
    if not binary:
        return ""  # no tools of the driver, no GPU process
    query = ["timeout", "20", binary, "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
    rc, out, err = run(query)
    if rc != 0:
        return f"nvidia-smi does not answer ({(err or out).strip()[:120]})"
    held = nvidia_smi.parse_compute_apps(out)
    return f"{', '.join(f'{one.name} (pid {one.pid})' for one in held)} holds the GPU" if held else ""
