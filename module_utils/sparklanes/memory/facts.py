# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the memory of a Spark can still give, and whether that is enough for a lane.

MemAvailable is no answer here: it counts page cache that the driver will not evict, and says
nothing about how torn the free memory is. Hence MemFree, and the number of large free blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo
from ansible.module_utils.sparklanes.memory.processes import unaccounted

BLOCK = 32 * 1024**2
# Below this loaders that want large blocks were seen to stall while MemAvailable said 118 GiB
# (sparkring PR 202); a fresh Spark has about 780.
ENOUGH_BLOCKS = 200
# Of a Spark's memory: a machine with less is none.
SPARK_LEAST = 0.8
# Zones that ordinary allocations come from. DMA zones are kept for devices and hardly ever torn.
ZONES = ("Normal", "Movable")
# What CUDA calls the whole: 121.69 GiB on each published Spark (MemTotal 127,600,524 to 127,608,704 kB).
SPARK_GIB = 121.69


@dataclass(frozen=True)
class Zone:
    """Free blocks of one memory zone; `counts[order]` blocks of 2^order pages."""

    node: int
    zone: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Blocks:
    """Large free blocks, in the currency of 32 MiB."""

    equivalent: int
    largest_bytes: int
    biggest_free_bytes: int

    @property
    def exact(self) -> bool:
        """False where this kernel has no blocks of 32 MiB: then its largest ones were added up."""
        return self.largest_bytes >= BLOCK


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes, None where the kernel does not say."""

    mem_total: int | None
    mem_free: int | None
    mem_available: int | None
    cached: int | None
    dirty: int | None
    shmem: int | None
    swap_total: int | None
    swap_free: int | None
    cma_total: int | None
    cma_free: int | None
    blocks: Blocks | None
    # Neither free nor anybody's in /proc/meminfo: the GPU's, mostly.
    unaccounted: int | None = None
    # What a flush can give back at most.
    droppable: int = 0

    @property
    def swap_used(self) -> int | None:
        return None if self.swap_total is None or self.swap_free is None else max(0, self.swap_total - self.swap_free)

    def to_dict(self) -> dict[str, Any]:
        data = {**asdict(self), "swap_used": self.swap_used}
        data["blocks"] = None if self.blocks is None else {**asdict(self.blocks), "exact": self.blocks.exact}
        return data


_ZONE = re.compile(r"^Node (\d+), zone +(\S+)((?: +\d+)+) *$")


def parse_buddyinfo(text: str) -> list[Zone]:
    """/proc/buddyinfo. The number of columns is the kernel's largest order plus one and is not assumed."""
    found = (_ZONE.match(line) for line in text.splitlines())
    return [Zone(int(hit[1]), hit[2], tuple(map(int, hit[3].split()))) for hit in found if hit]


def large_blocks(zones: Sequence[Zone], page_size: int) -> Blocks | None:
    """Free memory in blocks of 32 MiB and more, counted in blocks of 32 MiB.

    Where the kernel's largest block is smaller (4 MiB on common x86 kernels), those are added up:
    an upper bound, which `Blocks.exact` says.
    """
    ordinary = [zone for zone in zones if zone.zone in ZONES]
    if not ordinary:
        return None
    largest = page_size << (max(len(zone.counts) for zone in ordinary) - 1)
    floor = min(BLOCK, largest)
    free = biggest = 0
    for zone in ordinary:
        for order, count in enumerate(zone.counts):
            size = page_size << order
            biggest = max(biggest, size if count else 0)
            free += size * count if size >= floor else 0
    return Blocks(free // BLOCK, largest, biggest)


def facts(meminfo: str, buddyinfo: str, page_size: int) -> MemoryFacts:
    found = parse_meminfo(meminfo)
    return MemoryFacts(
        mem_total=found.get("MemTotal"),
        mem_free=found.get("MemFree"),
        mem_available=found.get("MemAvailable"),
        cached=found.get("Cached"),
        dirty=found.get("Dirty"),
        shmem=found.get("Shmem"),
        swap_total=found.get("SwapTotal"),
        swap_free=found.get("SwapFree"),
        cma_total=found.get("CmaTotal"),
        cma_free=found.get("CmaFree"),
        blocks=large_blocks(parse_buddyinfo(buddyinfo), page_size),
        unaccounted=unaccounted(found),
        droppable=droppable(found),
    )


def droppable(meminfo: Mapping[str, int]) -> int:
    """Bytes that a flush can give back at most: page cache, buffers, and what the kernel can take from its own caches (drop_caches 3)."""
    if "Cached" in meminfo:
        # Shared memory is counted as cache and can't be dropped.
        parts = (meminfo["Cached"] - meminfo.get("Shmem", 0), meminfo.get("Buffers", 0), meminfo.get("SReclaimable", 0))
        return sum(max(0, part) for part in parts)
    return max(0, meminfo.get("MemAvailable", 0) - meminfo.get("MemFree", 0)) if "MemFree" in meminfo else 0


def gib(value: int | None) -> str:
    return "not measured" if value is None else f"{value / GIB:.1f} GiB"


def check_free(host: str, memory: MemoryFacts, min_free_gib: float) -> Check:
    """MemFree, since the driver takes nothing else."""
    free = memory.mem_free
    found = f"MemFree {gib(free)} of {gib(memory.mem_total)}, page cache {gib(memory.cached)}, MemAvailable {gib(memory.mem_available)}"
    if free is None:
        return judged(
            "MEM.FREE", host, None, found, f"≥ {min_free_gib:g} GiB", "/proc/meminfo of this Spark has no MemFree; look at it"
        )
    if memory.mem_total is not None and memory.mem_total < min_free_gib * GIB:
        remedy = "No Spark of this size can have that much free: correct lane_min_free_gib"
    elif free + memory.droppable >= min_free_gib * GIB:
        remedy = "The page cache holds it: flush it (module page_cache_flush, or policy interval of role page_cache)"
    else:
        remedy = "Processes, the GPU or the kernel hold it: look at `docker ps`, `nvidia-smi` and `ps -eo pid,rss,args --sort -rss | head`"
    return judged("MEM.FREE", host, free >= min_free_gib * GIB, found, f"≥ {min_free_gib:g} GiB", remedy)


def check_blocks(host: str, memory: MemoryFacts, min_blocks: int, strict: bool = False) -> Check:
    """How torn free memory is. A warning unless `strict`: loaders differ in what they ask for."""
    blocks, wanted = memory.blocks, f"≥ {min_blocks}"
    if blocks is None:
        return judged(
            "MEM.BLOCKS", host, None, "not measured", wanted, "/proc/buddyinfo of this Spark has no zone Normal; look at it"
        )
    found = f"{blocks.equivalent} free blocks of 32 MiB" + (
        "" if blocks.exact else f" at most (the largest block of this kernel is {blocks.largest_bytes // 1024**2} MiB)"
    )
    remedy = (
        "Free memory is torn: stop the rank and run `echo 3 | sudo tee /proc/sys/vm/drop_caches && echo 1 | sudo tee "
        "/proc/sys/vm/compact_memory`; where that does not help, reboot the Spark"
    )
    if not strict and memory.mem_total is not None and memory.mem_total < SPARK_LEAST * SPARK_GIB * GIB:
        # Of a container or a virtual machine these are the blocks of whoever shares it, and no reboot of a Spark would help.
        return judged("MEM.BLOCKS", host, True, f"{found}; this machine is no Spark, of which the count is", wanted)
    made = judged("MEM.BLOCKS", host, blocks.equivalent >= min_blocks, found, wanted, remedy)
    return made if strict or made.status == PASS else Check(made.id, host, WARN, found, wanted, remedy)


def check_cma(host: str, memory: MemoryFacts) -> Check:
    """More free than there is: a kernel that gave memory away at boot (kexec handover) and registers none for RDMA."""
    total, free = memory.cma_total, memory.cma_free
    if memory.mem_total is None:
        return judged(
            "MEM.CMA", host, None, "not measured", "CmaFree ≤ CmaTotal", "/proc/meminfo of this Spark can't be read; look at it"
        )
    if total is None or free is None:
        return judged("MEM.CMA", host, True, "this kernel has no contiguous memory area", "CmaFree ≤ CmaTotal")
    return judged(
        "MEM.CMA",
        host,
        free <= total,
        f"CmaFree {free // 1024} kB, CmaTotal {total // 1024} kB",
        "CmaFree ≤ CmaTotal",
        "A kernel fault that also makes RDMA registration fail (ENOMEM). If `cat /sys/kernel/kexec_crash_size` is 0, boot with `kho=off`; "
        "else boot the 6.17.0-1032-nvidia kernel",
    )


def check_swap(host: str, memory: MemoryFacts, wanted: bool) -> Check:
    total = memory.swap_total
    found = "not measured" if total is None else f"{gib(total)} of swap, {gib(memory.swap_free)} free"
    if wanted:
        remedy = "This lane was measured with swap on. Turn it on: `sudo swapon -a`, and look at /etc/fstab"
        return judged("MEM.SWAP", host, None if total is None else total > 0, found, "swap on", remedy)
    remedy = "This lane was measured without swap. With no rank running: `sudo swapoff -a`, and take it out of /etc/fstab"
    return judged("MEM.SWAP", host, None if total is None else total == 0, found, "swap off", remedy)


def judge(
    host: str,
    memory: MemoryFacts,
    min_free_gib: float | None = None,
    min_blocks: int | None = ENOUGH_BLOCKS,
    strict_blocks: bool = False,
    swap: bool | None = None,
) -> list[Check]:
    """The checks that were asked for; the kernel fault is always looked for."""
    made = [check_cma(host, memory)]
    if min_free_gib is not None:
        made.append(check_free(host, memory, min_free_gib))
    if min_blocks is not None:
        made.append(check_blocks(host, memory, min_blocks, strict_blocks))
    if swap is not None:
        made.append(check_swap(host, memory, swap))
    return made
