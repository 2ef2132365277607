# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Time that no step of a clock can move, and the boot that it belongs to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


def clock() -> float:
    """Seconds since the boot, those of a sleep too. Two of them compare only within one `boot_id`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id(root: Path = Path("/")) -> str:
    """The name of this boot of the machine, empty where the kernel does not tell."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Moment:
    """A point in time on one machine: seconds of its wall clock (since the epoch, for people), its boot and `clock` of that boot."""

    wall: float
    boot: str = ""
    clock: float = 0.0


def now() -> Moment:
    return Moment(time.time(), boot_id(), clock())
