# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Is the kernel struggling for memory? Little of it free is no fault: some lanes are built to leave 0.7 GB.

Distress shows in what programs wait for: pages that they must reclaim themselves while others come back from swap.
A watchdog that looked at the amount alone was seen to end a healthy engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check

# Percent of 10 seconds in which all programs waited for memory: where systemd-oomd begins to kill (DefaultMemoryPressureLimit=).
PRESSURE_LIMIT = 60.0
# Pages a second, of reclaim and of swap-in alike, so that a stray page is no distress: 1 MiB/s of 4 KiB pages.
PAGES_A_SECOND = 256.0
COUNTERS = ("allocstall", "pgscan_direct", "pswpin", "pswpout", "oom_kill", "compact_stall", "compact_fail", "compact_success")

_PRESSURE = re.compile(r"^(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Pressure:
    """/proc/pressure/memory, in percent of the time."""

    some_avg10: float
    some_avg60: float
    full_avg10: float
    full_avg60: float


@dataclass(frozen=True)
class Reclaim:
    """What was seen: pressure (None without PSI), counters since boot, and rates a second where two looks were taken."""

    pressure: Pressure | None
    counters: dict[str, int]
    rates: dict[str, float] | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_vmstat(text: str) -> dict[str, int]:
    """The counters that matter of /proc/vmstat; `allocstall` is the sum over zones. What the kernel does not count is absent."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if not (value.isascii() and value.isdigit()):
            continue
        if name.startswith("allocstall_"):
            found["allocstall"] = found.get("allocstall", 0) + int(value)
        elif name in COUNTERS:
            found[name] = int(value)
    return found


def parse_pressure(text: str) -> Pressure | None:
    rows = {hit[1]: (float(hit[2]), float(hit[3])) for hit in _PRESSURE.finditer(text)}
    if "some" not in rows or "full" not in rows:
        return None
    return Pressure(*rows["some"], *rows["full"])


def rates(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float] | None:
    """A second, of the counters that both looks have; None where nothing was sampled."""
    both = [name for name in after if name in before]
    if seconds <= 0 or not both:
        return None
    return {name: max(0, after[name] - before[name]) / seconds for name in both}


def seen(pressure: str, before: str, after: str, seconds: float) -> Reclaim:
    first, last = parse_vmstat(before), parse_vmstat(after)
    return Reclaim(parse_pressure(pressure), last, rates(first, last, seconds))


def check_distress(host: str, reclaim: Reclaim) -> Check:
    """Fails on distress, whatever is free; what could not be measured fails too."""
    pressure, rate = reclaim.pressure, reclaim.rates
    expected = f"all programs wait less than {PRESSURE_LIMIT:g} % of the time; no direct reclaim while pages come back from swap"
    if pressure is None and rate is None:
        remedy = (
            f"Look at /proc/pressure/memory and /proc/vmstat of {host}; a kernel with psi=0 needs two looks (sample_seconds)."
        )
        return Check("MEM.DISTRESS", host, FAIL, "not measured", expected, remedy)
    found, bad = [], False
    if pressure is not None:
        found.append(f"all programs waited {pressure.full_avg10:g} % of the last 10 s")
        bad = pressure.full_avg10 >= PRESSURE_LIMIT
    if rate is not None:
        direct = max(rate.get("pgscan_direct", 0.0), rate.get("allocstall", 0.0))
        swapped = rate.get("pswpin", 0.0)
        found.append(f"{direct:.0f} pages/s of direct reclaim, {swapped:.0f} from swap")
        bad = bad or (direct >= PAGES_A_SECOND and swapped >= PAGES_A_SECOND)
        if rate.get("oom_kill", 0) > 0:
            found.append("a process was killed for memory")
            bad = True
    remedy = (
        f"End what else uses the memory of {host} (`ps -eo pid,rss,args --sort -rss | head`); if it is the rank alone, "
        "give it less: lane_kv_cache_memory_bytes, lane_max_num_batched_tokens"
    )
    return Check("MEM.DISTRESS", host, FAIL if bad else PASS, "; ".join(found), expected, remedy if bad else "")
