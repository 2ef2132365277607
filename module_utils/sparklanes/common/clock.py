# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Time that no step of a clock can move, and the boot that it belongs to."""

from __future__ import annotations

import time
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
