# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a Spark knows of the end of its rank, beside the rank's own log: boot, kernel, journal, addresses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands, journal
from ansible.module_utils.sparklanes.host import killers
from ansible.module_utils.sparklanes.host.findings import journal_findings, kernel_findings

Run = Callable[..., tuple[int, str, str]]
# A rank may have run for weeks. An engine waits for a lost peer for an hour (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS of the lanes), so two are looked at.
LONGEST_SECONDS = 7200.0
AFTER_SECONDS = 60.0
LINES, BYTES, SECONDS = 5000, 4 << 20, 20.0
JOURNAL_UNITS = ("docker.service", "containerd.service", *killers.UNITS)


def gather(
    started: float | None, ended: float | None, now: float, run: Run = commands.run, root: Path = Path("/")
) -> dict[str, Any]:
    """All that this machine says of the time of a rank. Times in seconds since the epoch; `ended` None where it runs.

    Returns started, ended, boot_time (None: unknown), addresses (text), kernel and journal (findings of `host.findings`), and
    `unread`: what could not be read, in words.
    """
    until = (ended or now) + AFTER_SECONDS
    since = max(started or 0.0, until - LONGEST_SECONDS)
    boot = boot_time(root)
    unread: list[str] = []
    # A host that is a container (of systemd, as in a sandbox) has no kernel of its own: what that says is of its neighbours too.
    kernel = [] if (root / "run/systemd/container").exists() else _kernel(run, since, until, boot, unread)
    lines = _journal(run, since, until, unread)
    return {
        "started": started,
        "ended": ended,
        "boot_time": boot,
        "addresses": addresses(run),
        "kernel": kernel_findings(kernel),
        "journal": journal_findings(lines),
        "unread": unread,
    }


def boot_time(root: Path = Path("/"), ticks: int = 0) -> float | None:
    """When this machine was booted, by the clock of now: when its first process started, which a container as a host has too.

    ticks: of the kernel's clock in a second, 0 for those of this kernel.
    """
    try:
        lines = (root / "proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
        kernel = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    try:
        # Field 22 of proc_pid_stat(5), counted after the name, which may hold blanks.
        first = (root / "proc/1/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        return kernel + float(first) / (ticks or os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return kernel


def addresses(run: Run) -> list[str]:
    """Every address of this machine; a peer that another rank lost is known by it."""
    rc, out, _ = run(["ip", "-json", "address", "show"], seconds=SECONDS)
    try:
        entries = json.loads(out) if rc == 0 else []
        return sorted({str(one["local"]) for entry in entries for one in entry.get("addr_info") or [] if one.get("local")})
    except (ValueError, TypeError, AttributeError):
        return []


def _kernel(run: Run, since: float, until: float, boot: float | None, unread: list[str]) -> list[str]:
    text, why = journal.kernel(run, *_window(since, until), "_TRANSPORT=kernel", seconds=SECONDS, most_bytes=BYTES)
    if why:
        unread.append(f"the kernel log of that time could not be read ({why})")
    return [line for line in text.splitlines()[-LINES:] if _within(line, since, until, boot)]


def _journal(run: Run, since: float, until: float, unread: list[str]) -> list[str]:
    units = [f"--unit={unit}" for unit in JOURNAL_UNITS]
    text, why = journal.read(run, *_window(since, until), *units, seconds=SECONDS, most_bytes=BYTES)
    if why:
        unread.append(f"the journal of that time could not be read ({why})")
    return text.splitlines()


def _window(since: float, until: float) -> list[str]:
    return [f"--since=@{since:.0f}", f"--until=@{until:.0f}", f"--lines={LINES}"]


def _within(line: str, since: float, until: float, boot: float | None) -> bool:
    """Whether a line of dmesg, stamped with seconds since the boot, is of that time. One of the journal is, and in doubt another too."""
    stamp = line.partition("]")[0].lstrip("[ ")
    try:
        return boot is None or since - 1 <= boot + float(stamp) <= until
    except ValueError:
        return True
