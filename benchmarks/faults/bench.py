#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a launch that meets a fault tells the truth: injected faults, and what it says of them.

    script/bench faults [--rounds N] [--only ID,… | --short] [--healthy N] [--list] [--again]

Two sandbox nodes with the real engine. Each fault of benchmarks/faults/table.yml is injected by code that shares nothing with the product,
from a state in which last good serves. Right is: the node, the cause, what serves afterwards (asked of Docker on the nodes and by a
real generation, not of the product), and each rank's log on the controller. Then healthy launches: none may raise an alarm.

The sandbox of this clone is brought up where it isn't, and then taken down in the end. A run that ended early goes on where it ended while
the tree is the same (.sandbox/faults/; --again forgets it). What each playbook printed is kept there.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.faults import report  # noqa: E402
from benchmarks.faults.nodes import Fleet, NodeError  # noqa: E402
from benchmarks.faults.plays import Play  # noqa: E402
from benchmarks.faults.progress import Progress, tree  # noqa: E402
from benchmarks.faults.runner import Runner, say  # noqa: E402
from benchmarks.faults.table import Fault, table  # noqa: E402
from benchmarks.figures import Figure, emit  # noqa: E402


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def sandbox() -> Iterator[None]:
    """The sandbox, up. Where it was down before, it is taken down in the end, also if it came up only halfway."""
    down = subprocess.run(["script/sandbox", "status"], cwd=ROOT, capture_output=True, check=False).returncode != 0
    try:
        if down:
            subprocess.run(["script/sandbox", "up"], cwd=ROOT, stdout=sys.stderr, check=True)
        yield
    finally:
        Play.end_all()
        if down:
            subprocess.run(["script/sandbox", "down"], cwd=ROOT, stdout=sys.stderr, start_new_session=True, check=False)


def listed(faults: list[Fault]) -> str:
    width = max(len(fault.id) for fault in faults)
    return "\n".join(f"{fault.id:<{width}}  {fault.title}" for fault in faults)


def chosen(faults: list[Fault], only: str, short: bool) -> list[Fault]:
    """Those of the table that are named, or one of each kind, in its order; SystemExit where a name is none."""
    names = [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in {fault.id for fault in faults}]:
        raise SystemExit(f"error: no such fault: {', '.join(unknown)}. script/bench faults --list shows all.")
    return [fault for fault in faults if (not names or fault.id in names) and (fault.short or not short)]


def measure(runner: Runner, faults: list[Fault], rounds: int, healthy: int) -> None:
    """All that is not done yet."""
    for number in range(1, rounds + 1):
        for fault in faults:
            if not runner.progress.has(f"{number}/{fault.id}"):
                runner.fault(fault, number)
    for number in range(1, healthy + 1):
        if not runner.progress.has(f"healthy/{number}"):
            runner.healthy(number)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/bench faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each fault is injected; 1 by default")
    parser.add_argument("--only", default="", metavar="ID,…", help="these faults only")
    parser.add_argument("--short", action="store_true", help="one fault of each kind, as script/test full does")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="launches with nothing amiss; none by default")
    parser.add_argument("--list", action="store_true", help="say which faults there are, and do nothing")
    parser.add_argument("--again", action="store_true", help="forget what was done of this tree")
    options = parser.parse_args()
    faults = chosen(table(), options.only, options.short)
    if options.list:
        print(listed(faults))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    progress = Progress(ROOT / ".sandbox/faults", tree(ROOT), options.again)
    try:
        with sandbox():
            runner = Runner(Fleet(ROOT), progress)
            runner.ready()
            measure(runner, faults, options.rounds, options.healthy)
    except (NodeError, subprocess.SubprocessError) as error:
        emit(Figure("faults", None, "", None, str(error)))
        return 1
    except KeyboardInterrupt:
        say("Interrupted. The same command goes on from here.")
        return 130
    say(f"{time.strftime('%Y-%m-%d')}, {progress.name}: all results in {progress.folder}")
    good = True
    for figure in report.figures(progress.results, faults, options.rounds, options.healthy, report.log_alarms(ROOT)):
        good &= emit(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
