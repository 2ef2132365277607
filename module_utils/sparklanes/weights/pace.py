# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How fast staging may go: one limit in bytes a second that all workers share, and the lower one while this Spark serves."""

from __future__ import annotations

import threading
import time


class Cancelled(Exception):
    """Another worker's failure, or the end of the job, ended this one."""


class Pace:
    """A limit in bytes per second that all workers share. Zero: none."""

    def __init__(self, rate: float, cancel: threading.Event) -> None:
        self.rate = rate
        self.cancel = cancel
        self.lock = threading.Lock()
        self.next = time.monotonic()

    def take(self, count: int) -> None:
        delay = 0.0
        if self.rate > 0:
            with self.lock:
                now = time.monotonic()
                self.next = max(self.next, now) + count / self.rate
                delay = self.next - now
        if (delay > 0 and self.cancel.wait(delay)) or self.cancel.is_set():
            raise Cancelled


def rate_limit(serving: bool, rate: int, serving_rate: int) -> int:
    """The limit that applies now: the lower one while this Spark serves, or may (`gpu.occupied`). Zero is none."""
    return tighter(rate, serving_rate) if serving else rate


def tighter(*limits: int) -> int:
    """The lowest of several limits, of which zero is none."""
    return min((limit for limit in limits if limit), default=0)
