# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Touch memory page by page, since it can be promised and die on first touch.

A child process does it, and offers itself to the kernel first: where memory turns out short, the child dies and
nothing else. It stops at a margin of free memory that it leaves alone, and at a deadline.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB

# At most this much between two looks at what is left.
CHUNK = 256 * 1024**2
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True)
class Touch:
    """What a probe did. `died`: the child's end, empty where it lived; `stopped`: why it touched less than wanted."""

    wanted: int
    touched: int
    seconds: float
    died: str = ""
    stopped: str = ""

    @property
    def ok(self) -> bool:
        return not self.died and not self.stopped

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def probe(wanted: int, margin: int, seconds: float, free: Callable[[], int | None], first_victim: bool = True) -> Touch:
    """Touch `wanted` bytes of anonymous memory in a child, then give them back.

    `free` tells MemFree in bytes: below `margin`, or where it tells nothing, the child stops.
    """
    started = time.monotonic()
    if wanted <= 0:
        return Touch(0, 0, 0.0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            code = _child(writer, wanted, margin, started + seconds, free, first_victim)
        finally:
            os._exit(code)  # nothing of the parent's may be flushed or cleaned up twice
    os.close(writer)
    touched, killed = _watch(reader, child, started + seconds + 10)
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    took = time.monotonic() - started
    stopped = {3: f"MemFree came down to the margin of {margin / GIB:g} GiB", 4: f"{seconds:g} s were over"}
    code = os.waitstatus_to_exitcode(status)
    if killed:
        return Touch(wanted, touched, took, died=f"it hung and was ended after {took:.0f} s")
    if code < 0:
        return Touch(wanted, touched, took, died=f"the kernel ended it with {signal.Signals(-code).name}")
    if code in stopped:
        return Touch(wanted, touched, took, stopped=stopped[code])
    if code == 2:
        return Touch(wanted, touched, took, died="the kernel refused to promise that much")
    return Touch(wanted, touched, took, died="" if code == 0 else f"it ended with status {code}")


def _watch(reader: int, child: int, deadline: float) -> tuple[int, bool]:
    """Bytes that the child reported, and whether it had to be ended because it hung in a page fault."""
    touched, pending = 0, b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            return touched, True
        data = os.read(reader, 65536)
        if not data:
            return touched, False
        pending += data
        while len(pending) >= _COUNT.size:
            (touched,) = _COUNT.unpack(pending[: _COUNT.size])
            pending = pending[_COUNT.size :]


def _child(writer: int, wanted: int, margin: int, deadline: float, free: Callable[[], int | None], first_victim: bool) -> int:
    """0: all touched, 2: not promised, 3: at the margin, 4: out of time."""
    if first_victim:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    page = mmap.PAGESIZE
    length = -(-wanted // page) * page
    try:
        area = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError):
        return 2
    done = 0
    while done < length:
        left = free()
        if left is None or left <= margin:
            return 3
        if time.monotonic() >= deadline:
            return 4
        step = min(CHUNK, length - done, max(page, (left - margin) // page * page))
        area[done : done + step : page] = b"\x01" * (step // page)
        done += step
        os.write(writer, _COUNT.pack(min(done, wanted)))
    return 0
