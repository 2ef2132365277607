# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of a Spark: the largest processes, and what no process accounts for.

The driver takes GPU memory outside of all that the kernel accounts: with 114 GiB taken, a worker's own size read
3.66 GiB. So what is missing from the sum is a finding of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB

_FIELD = re.compile(r"^(Name|VmRSS|VmSwap):[ \t]+(.*)$", re.MULTILINE)
# What /proc/meminfo accounts for, in fields that do not overlap. The first ones every kernel has.
_ALWAYS = ("MemFree", "Buffers", "Cached", "AnonPages", "Slab", "KernelStack", "PageTables")
_SOMETIMES = ("SwapCached", "SecPageTables", "Percpu", "VmallocUsed", "Hugetlb")


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    resident: int
    swapped: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_status(pid: int, text: str) -> Process | None:
    """/proc/PID/status. A kernel thread has no memory of its own and is None."""
    found = dict(_FIELD.findall(text))
    sizes = {}
    for name in ("VmRSS", "VmSwap"):
        words = found.get(name, "").split()
        sizes[name] = int(words[0]) * 1024 if words and words[0].isascii() and words[0].isdigit() else None
    if sizes["VmRSS"] is None:
        return None
    return Process(pid, found.get("Name", "?").strip(), sizes["VmRSS"], sizes["VmSwap"] or 0)


def largest(processes: Iterable[Process], count: int = 5) -> list[Process]:
    return sorted(processes, key=lambda one: (-(one.resident + one.swapped), one.pid))[:count]


def unaccounted(meminfo: Mapping[str, int]) -> int | None:
    """Bytes that neither is free nor belongs to anything in /proc/meminfo: the GPU's, mostly. None where a field is missing."""
    if "MemTotal" not in meminfo or any(name not in meminfo for name in _ALWAYS):
        return None
    known = sum(meminfo[name] for name in _ALWAYS) + sum(meminfo.get(name, 0) for name in _SOMETIMES)
    return max(0, meminfo["MemTotal"] - known)


def read(proc: Path, count: int = 5) -> list[Process]:
    """The largest processes below a /proc. One that ends meanwhile is left out."""
    found = []
    for folder in proc.glob("[0-9]*"):
        if not folder.name.isdigit():
            continue
        try:
            made = parse_status(int(folder.name), (folder / "status").read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if made:
            found.append(made)
    return largest(found, count)


def named(processes: Iterable[Process]) -> str:
    """`python3 (pid 7) 3.7 GiB, …`: for a sentence."""
    return ", ".join(f"{one.name} (pid {one.pid}) {(one.resident + one.swapped) / GIB:.1f} GiB" for one in processes)


def charged(pid: int | None, root: Path = Path("/")) -> int | None:
    """Bytes that the container of a process has by its control group (v2): its own, page cache and shared memory; None where not told."""
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        group = next((line[3:] for line in lines if line.startswith("0::/")), "")
        text = (root / "sys/fs/cgroup" / group.lstrip("/") / "memory.current").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(text) if group.strip("/") and text.strip().isdigit() else None
