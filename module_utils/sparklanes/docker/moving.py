# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Images on their way through Docker: pull, push, save, load. Each may take hours, none may stand still.

Docker's client says nothing while a layer of gigabytes comes, and waits for ever on a daemon, a registry or a disk that hangs. What tells
is the kernel's count of the bytes that Docker's daemons read and wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ansible.module_utils.sparklanes.common import commands, stall
from ansible.module_utils.sparklanes.common.sizes import MIB

PROC = Path("/proc")
DAEMONS = frozenset({"dockerd", "containerd"})
# By so much they get on within `stall.SECONDS`: 28 KB/s, at which an engine's image takes weeks. Daemons that serve containers move a little
# always (logs, looks at their health).
LEAST = 16 * MIB
# What one connection or one lock in a daemon held is often free for the next client.
ATTEMPTS = 2


class StoodStill(Exception):
    """Docker did not get on; the text says with what."""


def moved(root: Path | None = None) -> int | None:
    """Bytes that the daemons have read and written since they started, None where nobody tells: there are none, or we aren't root."""
    total = None
    for process in (root or PROC).glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() in DAEMONS:
                fields = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
                total = (total or 0) + int(fields["rchar"]) + int(fields["wchar"])
        except (OSError, ValueError, KeyError):
            continue
    return total


def limits(ours: Callable[[], int] = lambda: 0) -> stall.Limits:
    """What getting on is, for a client of Docker. `ours`: bytes that we ourselves gave it or took from it."""

    def count() -> int | None:
        theirs = moved()
        return None if theirs is None else theirs + ours()

    return stall.Limits(count, LEAST)


Result = TypeVar("Result")


def insist(work: Callable[[], Result]) -> Result:
    """Do it, and again where Docker stood still. StoodStill where it did so each time."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except StoodStill as error:
            if attempt == ATTEMPTS:
                raise StoodStill(f"{error}, {ATTEMPTS} times") from error
    raise AssertionError("no attempts")


def run(*words: str) -> tuple[int, str, str]:
    """`docker pull` or `docker push`: exit status, output, errors."""

    def once() -> tuple[int, str, str]:
        code, out, err = commands.run(["docker", *words], limits=limits())
        if code == commands.TIMED_OUT:
            raise StoodStill(err.replace("docker", f"docker {words[0]}", 1))
        return code, out, err

    try:
        return insist(once)
    except StoodStill as error:
        return commands.TIMED_OUT, "", str(error)
