# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A job that is a daemon: wait until it answers, then serve until it is stopped or nobody asks any more."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError, tail

Daemon = subprocess.Popen[bytes]


def wait_until(answers: Callable[[], bool], daemon: Daemon, seconds: float, what: str, log: Path, report: Reporter) -> None:
    """Wait until a daemon that was started answers. `what`: the failure in words (`rsync does not serve …`)."""
    limit = time.monotonic() + seconds
    while not answers():
        if daemon.poll() is not None or time.monotonic() > limit:
            raise JobError(f"{what}: {tail(log) or 'is the port taken?'}")
        report.alive()
        time.sleep(0.1)


def serve_until_idle(
    daemons: Sequence[Daemon],
    name: str,
    log: Path,
    idle: float,
    report: Reporter,
    look: Callable[[], bool | None] = lambda: False,
    every: float = 1.0,
) -> dict[str, Any]:
    """The job's result once nobody has asked for anything for `idle` seconds. Each request is a line of the daemon's log.

    `look` is called `every` so many seconds and says whether somebody is being served; None: it did not look this time.
    """
    size, asked = -1, time.monotonic()
    while all(daemon.poll() is None for daemon in daemons):
        time.sleep(every)
        served = look()
        if served is None:
            continue
        report.alive()
        now, written = time.monotonic(), log.stat().st_size if log.exists() else 0
        if served or written != size:  # a short request is over before it could be seen
            asked, size = now, written
        elif now - asked > idle:
            return {"changed": False, "actions": [f"ended after {idle:.0f} s without a request"]}
    ended = ", ".join(str(daemon.returncode) for daemon in daemons if daemon.poll() is not None)
    raise JobError(f"{name} ended with status {ended}: {tail(log)}")
