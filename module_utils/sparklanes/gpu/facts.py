# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""All that is known of the GPUs of a Spark: nvidia-smi, the driver and the kernel log, asked with a time limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands, journal
from ansible.module_utils.sparklanes.gpu.cap import CAP_SETTINGS, Cap, parse_cap, parse_settings
from ansible.module_utils.sparklanes.gpu.nvidia_smi import COMPUTE_APPS, Report, parse_compute_apps, parse_xml
from ansible.module_utils.sparklanes.gpu.xid import parse_kernel_log

# --- driver and kernel ---------------------------------------------------------------------------------------

_NVRM = re.compile(r"NVRM version:\s*(.*)")
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)*)\s")


def parse_driver_version(text: str) -> dict[str, str | None]:
    """/proc/driver/nvidia/version: the loaded kernel module, which may differ from what nvidia-smi was installed with."""
    line = _NVRM.search(text)
    if not line:
        return {"module_version": None, "flavour": None}
    version = _VERSION.search(line[1] + " ")
    return {
        "module_version": version[1] if version else None,
        "flavour": "open" if "open kernel module" in line[1].lower() else "proprietary",
    }


# --- the system ----------------------------------------------------------------------------------------------

# A wedged driver held nvidia-smi for 8 to 12 minutes (DeepSeek-v4.1-Flash-DGX-Sparks issue 23), out of reach of any signal.
PATIENCE_SECONDS = 20.0
ABSENT = "nvidia-smi is not installed"
Ask = Callable[[Sequence[str]], tuple[int, str, str]]


def ask(argv: Sequence[str], seconds: float | None = None) -> tuple[int, str, str]:
    rc, out, err = commands.run(argv, seconds=PATIENCE_SECONDS if seconds is None else seconds)
    return rc, out, f"{err}: the driver hangs" if rc == commands.TIMED_OUT else err


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def report(run: Ask) -> Report:
    """Ask nvidia-smi for everything; where it leaves the processes out, ask for these again."""
    rc, out, err = run(("nvidia-smi", "-q", "-x"))
    if rc == commands.NOT_FOUND:
        return Report(error=ABSENT)
    if rc != 0:
        return Report(error=f"nvidia-smi: exit {rc}: {' '.join((err or out).split())[:200]}")
    return parse_xml(out)


def recorded(root: Path) -> Report:
    xml = read(root / "nvidia_smi_q_x.xml")
    return parse_xml(xml) if xml else Report(error=ABSENT)


def caps(root: Path) -> list[Cap]:
    """Units that are enabled and lock the clocks."""
    settings = parse_settings(read(root / CAP_SETTINGS))
    units = {path.name: path for path in sorted((root / "etc/systemd/system").glob("*.wants/*.service"))}
    # A link in the recorded tree may lead out of it; then the file of that name beside it is meant.
    found = [parse_cap(name, read(root / "etc/systemd/system" / name) or read(path), settings) for name, path in units.items()]
    return [cap for cap in found if cap is not None]


def facts(root: Path = Path("/"), run: Ask = ask) -> dict[str, Any]:
    """All that is known of the GPUs of a Spark.

    Below another root than / nothing is run: `nvidia_smi_q_x.xml` and `kernel.log` there stand in for the programs.
    """
    live = root == Path("/")
    found = report(run) if live else recorded(root)
    present = found.error != ABSENT
    processes = found.processes
    if live and processes is None and not found.error:
        rc, out, _ = run(COMPUTE_APPS)
        processes = parse_compute_apps(out) if rc == 0 else None
    # Without a driver there is nothing of it in the log, and asking takes time.
    log, problem = (
        journal.kernel(run, *journal.BOOT, grep="NVRM")
        if live and present
        else (read(root / "kernel.log") if not live else "", "")
    )
    return {
        "present": present,
        "error": found.error,
        "driver": {
            "version": found.driver_version,
            "cuda_version": found.cuda_version,
            **parse_driver_version(read(root / "proc/driver/nvidia/version")),
        },
        "gpus": [gpu.to_dict() for gpu in found.gpus],
        "processes": None
        if processes is None
        else [
            {"pid": one.pid, "name": one.name, "memory_bytes": one.memory_bytes}
            for one in sorted(processes, key=lambda one: one.pid or 0)
            if one.computes
        ],
        "kernel_log": {**parse_kernel_log(log), "error": problem},
        "caps": [asdict(cap) for cap in caps(root)],
    }
