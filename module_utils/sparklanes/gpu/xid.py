# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Xids: what the driver wrote into the kernel log, and which of them need a reboot."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.gpu.nvidia_smi import integer, told

# After these the GPU does not recover by itself; a reset or a reboot does it (NVIDIA's Xid catalog, "immediate action").
# The others (13, 31, 43, 45 …) end a program, not the GPU. 154 says itself what it wants.
FATAL_XIDS = {
    46: "the GPU stopped processing",
    48: "double-bit memory error",
    62: "the GPU's power controller halted",
    64: "a memory row could not be remapped",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "a context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor crashed",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
}
# These end a program and leave the GPU as it was.
PROGRAM_XIDS = frozenset({8, 13, 31, 32, 43, 45, 68, 69, 94})
_XID = re.compile(
    r"(?P<head>.{0,200}?)NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\):\s+(?P<code>[0-9]{1,4}),?\s*(?P<text>.*)"
)
_XID_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?,\s*(?:name='?(?P<name>[^,']*)'?,?\s*)?")
_XIDS_KEPT = 20


@dataclass(frozen=True)
class Xid:
    """One error that the driver wrote to the kernel log."""

    when: str
    bus_id: str
    code: int
    pid: int | None
    name: str | None
    text: str

    @property
    def fatal(self) -> str:
        """Why the GPU needs a reset or reboot after it; empty where it doesn't."""
        if self.code == 154:
            wish = self.text.rpartition("(")[2].rstrip(") ")
            return wish if re.search(r"reset|reboot|flr", wish, re.IGNORECASE) else ""
        return FATAL_XIDS.get(self.code, "")


def finding(line: str) -> tuple[str, str, str, bool] | None:
    """Id, meaning and remedy of a line with an Xid, and whether the GPU needs a reset after it; None where there is none.

    One that nobody has listed is a finding like any other: its number stands in the meaning.
    """
    if "NVRM" not in line:
        return None
    for one in parse_kernel_log(line)["xids"]:
        xid = Xid(**one)
        named = xid.fatal or ("it ends a program" if xid.code in PROGRAM_XIDS else "of a kind we don't know")
        text = f"the GPU reported Xid {xid.code} ({named}){f' for {xid.name}' if xid.name else ''}"
        remedy = "Reboot this Spark." if xid.fatal else f"NVIDIA's catalog of Xids says what {xid.code} means."
        return ("gpu_xid_fatal" if xid.fatal else "gpu_xid"), text, remedy, bool(xid.fatal)
    return None


def parse_kernel_log(text: str) -> dict[str, Any]:
    """Xid errors and failed allocations of the driver.

    `NV_ERR_NO_MEMORY` comes thousands of times in healthy boots, so it is counted and judges nothing by itself.
    """
    found: list[Xid] = []
    starved = 0
    for line in text.splitlines():
        starved += "NV_ERR_NO_MEMORY" in line
        match = _XID.search(line)
        if not match:
            continue
        rest, pid, name = match["text"].strip(), None, None
        process = _XID_PROCESS.match(rest)
        if process:
            pid, name, rest = integer(process["pid"]), told(process["name"]), rest[process.end() :]
        when = re.sub(r"\s*(?:\S+\s+)?kernel:\s*$", "", match["head"].strip()) if "kernel:" in match["head"] else match["head"]
        found.append(Xid(when.strip(" []"), match["bus"], int(match["code"]), pid, name, rest))
    counts = Counter(xid.code for xid in found)
    return {
        "xids": [asdict(xid) for xid in found[-_XIDS_KEPT:]],
        "xid_counts": {str(code): count for code, count in sorted(counts.items())},
        "fatal": [f"Xid {xid.code} ({xid.fatal})" for xid in {one.code: one for one in found if one.fatal}.values()],
        "no_memory_lines": starved,
    }
