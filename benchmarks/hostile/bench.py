#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What strangers can do to a Spark: hostile cases as data, and a bit flipped a thousand times on its way.

    script/bench hostile [--only GROUP|ID,…] [--flips N] [--seed N] [--jobs N] [--list]

The product's own modules and jobs, as root, in temporary folders, against servers of HTTP and rsync on loopback. What is judged
(benchmarks/hostile/judge.py) shares nothing with it: what was kept by hashlib, what lies outside by inode, times and content, what was printed,
and of a verdict whether it is the same without the words of a stranger.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.faults.score import upper_bound  # noqa: E402
from benchmarks.figures import Figure, emit  # noqa: E402
from benchmarks.hostile.arena import Arena, become  # noqa: E402
from benchmarks.hostile.cases import GROUPS, Case, table  # noqa: E402
from benchmarks.hostile.judge import Outcome  # noqa: E402
from benchmarks.hostile.plays import PLAYS  # noqa: E402

LEAST_CASES, FLIPS = 60, 1000
# Read once, before each case is a process of its own.
MODULES = ("job_status", "jit_cache", "model_lend", "model_stage", "rank_info", "readiness_info", "staged_prune", "transaction")
CASE_SECONDS = 150.0
KINDS = (
    ("wrong_bits", "wrong_bits", "files with other bits, accepted"),
    ("verdicts", "verdicts_changed", "verdicts changed by strangers"),
    ("touched", "touched_outside", "files outside touched, or secrets given away"),
    ("tracebacks", "tracebacks", "tracebacks"),
    ("without_end", "without_end", "that took time, disk or memory without an end"),
    ("unexpected", "unexpected", "that ended otherwise than they should"),
)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def play(case: Case, root: Path, seed: int) -> Outcome:
    """One case in a folder, from its beginning to its end."""
    arena = Arena(root, seed)
    try:
        return PLAYS[case.play](arena, case)
    finally:
        arena.end()


def kept(case: Case, root: Path, seed: int) -> None:
    """In a process of its own: play a case, and leave what came of it in a file."""
    signal.signal(signal.SIGTERM, stop)  # there are processes to end
    try:
        outcome = play(case, root / "arena", seed)
    except Exception:
        outcome = Outcome(unexpected=[f"the case itself broke: {traceback.format_exc()}"])
    (root / "outcome.json").write_text(json.dumps(vars(outcome)))


def all_of(cases: Sequence[Case], seed: int, at_once: int, folder: Path) -> Iterator[tuple[Case, Outcome, float]]:
    """Each case with its outcome and its seconds, as they end."""
    left, running = list(cases), dict[int, tuple[Case, Path, float]]()
    try:
        while left or running:
            while left and len(running) < at_once:
                case = left.pop(0)
                root = Path(tempfile.mkdtemp(prefix=f"{case.id}-", dir=folder))
                pid = os.fork()
                if pid == 0:
                    become(root / "said", root / "said", lambda case=case, root=root: kept(case, root, seed))  # type: ignore[misc]
                running[pid] = case, root, time.monotonic()
            for pid, (case, root, began) in list(running.items()):
                ended, _ = os.waitpid(pid, os.WNOHANG)
                late = time.monotonic() - began > CASE_SECONDS
                if late and not ended:
                    end(pid)
                if ended or late:
                    del running[pid]
                    yield case, outcome_of(root, late), time.monotonic() - began
                    shutil.rmtree(root, ignore_errors=True)
            time.sleep(0.01)
    finally:
        for pid in running:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        for pid in running:
            end(pid)


def end(pid: int) -> None:
    """End a case, which ends what it has started; and kill it where it doesn't."""
    limit = time.monotonic() + 10
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGTERM)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def outcome_of(root: Path, late: bool) -> Outcome:
    try:
        return Outcome(**json.loads((root / "outcome.json").read_text()))
    except (OSError, ValueError):
        why = f"the case did not end within {CASE_SECONDS:g} s" if late else "the case said nothing"
        return Outcome(unexpected=[f"{why}: {(root / 'said').read_text()[-300:] if (root / 'said').exists() else ''}"])


def figures(results: Mapping[str, Outcome], cases: Sequence[Case], whole: bool) -> Iterator[Figure]:
    counts = Counter(case.group for case in cases if case.id in results)
    note = ", ".join(f"{group} {counts[group]}" for group in GROUPS if counts[group])
    yield Figure("hostile.cases", len(results), f"of {len(cases)} cases", None, note)
    if whole:
        missing = len(cases) - len(results) + max(0, LEAST_CASES - len(cases))
        yield Figure("hostile.cases_lacking", missing, f"of at least {LEAST_CASES}", 0)
    for kind, name, unit in KINDS:
        found = {id_: getattr(outcome, kind) for id_, outcome in results.items() if getattr(outcome, kind)}
        note = " | ".join(f"{id_}: {'; '.join(one)[:400]}" for id_, one in found.items())
        yield Figure(f"hostile.{name}", sum(map(len, found.values())) if results else None, unit, 0, note)


def flipped(count: int, seed: int, folder: Path) -> Iterator[Figure]:
    from benchmarks.hostile import flips

    done = flips.trial(count, seed, folder)
    missed = done.made - done.found
    bound = upper_bound(missed, done.made)
    told = f"; at most {bound:.2%} of such flips with 95 % confidence" if bound is not None else ""
    yield Figure("hostile.flips_found", done.found, f"of {done.made} flips", None, done.by_way)
    lacking = f"{done.made} of {count} were made{told}"
    yield Figure("hostile.flips_missed", missed + count - done.made, "flips", 0, "; ".join([lacking, *done.wrong[:10]]))


def chosen(cases: Sequence[Case], only: str) -> list[Case]:
    names = [name for name in only.split(",") if name]
    known = {case.id for case in cases} | set(GROUPS)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(
            f"error: there is no group and no case {', '.join(unknown)}. Groups: {', '.join(GROUPS)}; --list shows all cases"
        )
    return [case for case in cases if not names or case.id in names or case.group in names]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/bench hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="GROUP|ID,…", help=f"these groups or cases only: {', '.join(GROUPS)}")
    parser.add_argument(
        "--flips", type=int, default=None, metavar="N", help=f"bits to flip; {FLIPS} by default, none with --only"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of moments, places and mutations; 1 by default")
    parser.add_argument(
        "--jobs", type=int, default=2 * (os.cpu_count() or 1), metavar="N", help="cases at once; two a processor by default"
    )
    parser.add_argument("--list", action="store_true", help="say which cases there are, and do nothing")
    options = parser.parse_args()
    cases = chosen(table(list(PLAYS)), options.only)
    if options.list:
        print("\n".join(f"{case.group:<10} {case.id:<40} {case.title}" for case in cases))
        return 0
    if os.geteuid() != 0:
        say(
            "error: some cases need users, devices and files that only root can make. Run it as root; it stays in a temporary folder"
        )
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    for name in MODULES:
        importlib.import_module(name)
    flips = options.flips if options.flips is not None else (0 if options.only else FLIPS)
    folder = Path(tempfile.mkdtemp(prefix="sparklanes-hostile-"))
    folder.chmod(0o755)
    results: dict[str, Outcome] = {}
    began, good = time.monotonic(), True
    try:
        for case, outcome, seconds in all_of(cases, options.seed, options.jobs, folder):
            results[case.id] = outcome
            say(
                f"{'RED ' if outcome.red else 'ok  '} {case.id} {seconds:.1f} s" + "".join(f"\n     {one}" for one in outcome.red)
            )
        for figure in figures(results, cases, not options.only):
            good &= emit(figure)
        for figure in flipped(flips, options.seed, folder) if flips else ():
            good &= emit(figure)
        emit(
            Figure(
                "hostile.seconds", round(time.monotonic() - began, 1), "s", None, f"seed {options.seed}, {options.jobs} at once"
            )
        )
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
