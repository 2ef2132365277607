# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The lines of an engine's log: who said it, how serious it is, and how much of it is what a stranger asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A server writes a path of 60 KB whole; no line of an engine that tells anything is longer.
LONGEST = 4096
BROADCAST = "No available shared memory broadcast block"

_PREFIX = re.compile(r"^\((?P<process>[\w.-]{1,60})(?: pid=\d{1,10})?\)\s{1,8}")
_STAMP = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d)\b")
_ERROR_HEAD = re.compile(r"^(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{0,120}\]\s?")
# uvicorn's access lines: `INFO:     10.0.0.9:33210 - "GET /path?query HTTP/1.1" 404 Not Found`; a proxy's header may stand for the address, and
# any word for the verb. Two processes may share a line.
_ACCESS = re.compile(r"INFO:\s{4,8}[^\"]{1,300} - \"[\w!#$%&'*+.^`|~-]{1,60} |" r' - "[A-Z]{3,10} ')
# Other lines that hold what a stranger asked for: from there to the end of the line all may be his.
_ASKED = re.compile(r"\[dump_input\.py|Received request |Error with model ")
# Lines that quote configuration, or name a C++ frame: what stands in them did not happen.
_QUOTES = re.compile(r"non-default args:|with config: model=|fd limit errors like|^\s{0,8}(?:frame )?#\d{1,4}:? ")
# What is printed for as long as nothing happens.
_WAITING = re.compile(
    BROADCAST
    + r"|core engine proc\(s\) to start|client socket has failed to connect|client socket cannot be initialized|retrying after"
)
# By NCCL, torch and gloo themselves: host, pid and thread, or a rank, or the last words of a process.
_NATIVE = re.compile(
    r"^(?:\[rank\d{1,4}\]:|\[\d{4}-\d\d-\d\d |\[[EWIF]\d{4} |[\w.-]{1,64}:\d{1,10}:\d{1,10} \[|terminate called|nccl\w{4,40}Error: |"
    r"\w{4,40}: Connection closed by remote peer )"
)


@dataclass(frozen=True)
class Line:
    """A line as far as it is the engine's own: `text`; `message` without the names of processes; `bare` without level and place."""

    text: str
    message: str
    process: str
    stamp: str
    serious: bool
    quotes: bool

    @property
    def bare(self) -> str:
        return _ERROR_HEAD.sub("", self.message).strip()

    @property
    def of_server(self) -> bool:
        """Whether it may come from the process that answers requests: by its name, or nameless and not native code's."""
        return self.process.startswith("APIServer") or (not self.process and not _NATIVE.search(self.message))


def lines(text: str) -> Iterator[Line]:
    """Each line that isn't blank and is the engine's own. A progress bar rewrites its line with carriage returns: each state of it counts.

    What a stranger asked for is left out, with the rest of its line: no failure, no number and no boot is read in it.
    """
    for row in text.split("\n"):
        for raw in row.split("\r"):
            line = raw[:LONGEST].rstrip()
            if foreign := _ACCESS.search(line) or _ASKED.search(line):
                line = line[: foreign.start()] if foreign.re is _ACCESS else ""
            if line.strip():
                message, process = line, ""
                while found := _PREFIX.match(message):
                    message, process = message[found.end() :], found["process"]
                stamp = _STAMP.search(message)
                serious = not foreign and (stamp is None or message.startswith(("ERROR", "CRITICAL")))
                if message.strip():
                    yield Line(
                        line, message, process, stamp[1] if stamp else "", serious, bool(foreign or _QUOTES.search(message))
                    )
            if foreign:
                break


def tells(line: str) -> bool:
    """Whether a line is a sign of life: an engine that only says that it waits has stalled."""
    return not _WAITING.search(line[:LONGEST])
