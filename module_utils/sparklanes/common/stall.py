# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A program that may take hours, but must get on: one that stands still is ended.

How far it is, is counted by whoever started it (bytes of a file, bytes that a daemon has moved), as a hanging program says nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# The longest that the Hub's client repeats by itself is 6 minutes, a registry's timeouts are shorter.
SECONDS, LOOK_SECONDS, GRACE_SECONDS = 600.0, 2.0, 10.0
# Whatever counts on and on, or can't be counted, is over by then.
MOST_SECONDS = 24 * 3600.0


@dataclass
class Limits:
    """What getting on is. None of a count: it can't be known at present, and is held against nobody."""

    count: Callable[[], int | None]
    least: int = 1  # by so much, up or down, within `seconds`
    seconds: float = 0.0  # 0: SECONDS
    most: float = 0.0  # 0: MOST_SECONDS


@dataclass
class Watch:
    """Why a program was ended; empty where it wasn't."""

    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.why)


@contextlib.contextmanager
def watched(process: subprocess.Popen[Any], limits: Limits) -> Iterator[Watch]:
    """End the program, and its group where it leads one, should it stand still while the block lasts. The block waits for it as ever."""
    watch, over = Watch(), threading.Event()
    thread = threading.Thread(target=_look, args=(process, limits, watch, over), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def _look(process: subprocess.Popen[Any], limits: Limits, watch: Watch, over: threading.Event) -> None:
    seconds, most = limits.seconds or SECONDS, limits.most or MOST_SECONDS
    reached, began = limits.count(), time.monotonic()
    since = began
    while not over.wait(LOOK_SECONDS):
        found, now = limits.count(), time.monotonic()
        if found is None or reached is None or abs(found - reached) >= limits.least:
            reached, since = found, now
        if now - since >= seconds:
            watch.why = f"stood still for {seconds:g} s and was ended"
        elif now - began >= most:
            watch.why = f"was not done after {most / 3600:g} h and was ended"
        if watch.why:
            _end(process, over)
            return


def _end(process: subprocess.Popen[Any], over: threading.Event) -> None:
    """Asked to first, then killed: itself, or all of the group that it leads, which may outlive it."""
    try:
        leads = os.getpgid(process.pid) == process.pid
    except ProcessLookupError:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if leads:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        over.wait(GRACE_SECONDS)
