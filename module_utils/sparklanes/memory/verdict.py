# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One word for the memory of a Spark, the figures behind it, and what to do.

`ready`, or what would make it so: `flush` the page cache, `compact` torn memory, end what holds it (`held`), wait
out reclaim in distress (`distress`), boot again (`reboot_required`), boot another kernel (`kernel_fault`).
`unknown` where it could not be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ansible.module_utils.sparklanes.common.checks import FAIL, Check
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory.facts import MemoryFacts, check_blocks, check_cma, check_free, gib
from ansible.module_utils.sparklanes.memory.processes import Process, named

VERDICTS = ("ready", "flush", "compact", "held", "distress", "reboot_required", "kernel_fault", "unknown")
# More than an idle Spark uses in all (MemTotal less MemAvailable of a fresh one), with nobody to account for it.
LOST_GIB = 8.6


@dataclass(frozen=True)
class Verdict:
    name: str
    figures: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        return f"{self.name}: {self.figures}" + (f". {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Done:
    """What was tried already, and whether anything may hold the GPU (None: nobody looked)."""

    flushed: bool = False
    compacted: bool = False
    idle: bool | None = None


def verdict(
    host: str,
    memory: MemoryFacts,
    distress: Check | None = None,
    processes: Sequence[Process] = (),
    min_free_gib: float | None = None,
    min_blocks: int | None = None,
    done: Done | None = None,
) -> Verdict:
    """The worst that is true, in the order in which one would mend it: no flush helps a faulty kernel."""
    done = done or Done()
    if memory.mem_total is None or (min_free_gib is not None and memory.mem_free is None):
        return Verdict("unknown", "MemTotal or MemFree was not measured", f"Look at /proc/meminfo of {host}")
    cma = check_cma(host, memory)
    if cma.status == FAIL:
        return Verdict("kernel_fault", cma.found, cma.remedy)
    if distress is not None and distress.status == FAIL and distress.found != "not measured":
        return Verdict("distress", f"{distress.found}; {_state(memory)}", distress.remedy)
    if min_free_gib is not None and (memory.mem_free or 0) < min_free_gib * GIB:
        return _short(host, memory, processes, min_free_gib, done)
    if min_blocks is not None:
        blocks = check_blocks(host, memory, min_blocks, strict=True)
        if memory.blocks is None:
            return Verdict("unknown", "free blocks were not measured", blocks.remedy)
        if blocks.status == FAIL and done.compacted:
            remedy = f"Compaction did not help. Reboot {host}"
            return Verdict("reboot_required", f"{blocks.found} after compaction, wanted {blocks.expected}", remedy)
        if blocks.status == FAIL:
            return Verdict("compact", f"{blocks.found}, wanted {blocks.expected}", blocks.remedy)
    return Verdict("ready", _state(memory))


def _short(host: str, memory: MemoryFacts, processes: Sequence[Process], min_free_gib: float, done: Done) -> Verdict:
    """MemFree is below what is wanted. Who has it?"""
    wanted, free = min_free_gib * GIB, memory.mem_free or 0
    figures = f"{_state(memory)}; wanted {min_free_gib:g} GiB free"
    if memory.mem_total is not None and memory.mem_total < wanted:
        return Verdict("held", figures, check_free(host, memory, min_free_gib).remedy)
    if free + memory.droppable >= wanted and not done.flushed:
        return Verdict(
            "flush", figures, "The page cache holds it: flush it (module page_cache_flush, or policy interval of role page_cache)"
        )
    lost = memory.unaccounted
    if done.idle and lost is not None and lost >= LOST_GIB * GIB and free + memory.droppable + lost >= wanted:
        remedy = f"No rank and no GPU process is left, and {gib(lost)} belong to nobody: the driver did not give them back. Reboot {host}"
        return Verdict("reboot_required", figures, remedy)
    holders = f"Largest: {named(processes)}. " if processes else ""
    if lost is not None:
        holders += f"No process accounts for {gib(lost)}, which the GPU driver can hold. "
    return Verdict(
        "held",
        figures,
        f"{holders}End what is not needed: look at `docker ps`, `nvidia-smi` and `ps -eo pid,rss,args --sort -rss | head` on {host}",
    )


def _state(memory: MemoryFacts) -> str:
    text = f"MemFree {gib(memory.mem_free)} of {gib(memory.mem_total)}, MemAvailable {gib(memory.mem_available)}, page cache {gib(memory.cached)}"
    return text + (f", {gib(memory.swap_used)} in swap" if memory.swap_used else "")
