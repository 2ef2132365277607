# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A job that is a daemon: wait until it answers, then serve until it is stopped or nobody asks any more."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError, tail

Daemon = subprocess.Popen[bytes]
# No staging takes longer, and the certificates of one are worth nothing then. Who left it may be gone.
MOST_SECONDS = 48 * 3600.0
# A log that strangers write to, one line a knock, begins anew at this size.
LOG_BYTES = 1 << 20


class RequestLog:
    """What is new in a daemon's log, line by line. It is kept below LOG_BYTES: the daemon has to append to it."""

    def __init__(self, path: Path, request: re.Pattern[str]) -> None:
        """request: matches a line, from its beginning, that only who proved who he is can cause. Names of his may stand behind it."""
        self.path = path
        self.request = request
        self.at = 0
        self.rest = b""

    def news(self) -> list[re.Match[str]]:
        """The requests since the last look."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.at)
                text = stream.read(2 * LOG_BYTES)
                self.at += len(text)
        except FileNotFoundError:
            return []
        *lines, self.rest = (self.rest + text).split(b"\n")
        self.rest = self.rest[:LOG_BYTES]
        if self.at > LOG_BYTES:
            os.truncate(self.path, 0)
            self.at = 0
        found = (self.request.match(line.decode(errors="replace")) for line in lines)
        return [match for match in found if match]


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
    look: Callable[[], bool | None],
    every: float = 1.0,
    most: float = MOST_SECONDS,
) -> dict[str, Any]:
    """The job's result once nobody has asked for anything for `idle` seconds, or after `most` seconds, whoever asks.

    `look` is called `every` so many seconds and says whether somebody who may is being served, or was since the last look; None: it did
    not look this time. A knock of a stranger is nothing that keeps a daemon up.
    """
    began = asked = time.monotonic()
    while all(daemon.poll() is None for daemon in daemons):
        time.sleep(every)
        served = look()
        if served is None:
            continue
        report.alive()
        now = time.monotonic()
        if served:
            asked = now
        if now - began > most:
            return {"changed": False, "actions": [f"ended after {most / 3600:.0f} h, as any staging is over by then"]}
        if now - asked > idle:
            return {"changed": False, "actions": [f"ended after {idle:.0f} s without a request"]}
    ended = ", ".join(str(daemon.returncode) for daemon in daemons if daemon.poll() is not None)
    raise JobError(f"{name} ended with status {ended}: {tail(log)}")
