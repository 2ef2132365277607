# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What strangers make an engine write into its log: the verdict on a rank with their lines, beside that without them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.screen.words import clean, failure

from benchmarks.hostile import judge
from benchmarks.hostile.arena import ROOT, Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome, Said
from benchmarks.hostile.plays.staging import everywhere

DEPLOYMENT = "sparks"
# What may differ: how old the last line is, and the words of it that are shown.
FREE = ("last_line", "last_timestamp")


def container(running: bool, code: int) -> dict[str, Any]:
    labels = {
        "sparklanes.deployment": DEPLOYMENT,
        "sparklanes.release": "a" * 12,
        "sparklanes.lane": "tiny",
        "sparklanes.rank": "0",
    }
    state = {
        "Running": running,
        "Status": "running" if running else "exited",
        "ExitCode": code,
        "StartedAt": "2026-11-30T20:00:00.0Z",
    }
    state |= {} if running else {"FinishedAt": "2026-11-30T21:30:00.0Z"}
    return {"Id": "c" * 64, "Name": f"/sparklanes-{DEPLOYMENT}-rank0", "Config": {"Labels": labels, "Image": "i"}, "State": state}


def stamped(lines: Sequence[str]) -> str:
    return "".join(
        f"2026-11-30T21:{number // 60 % 60:02}:{number % 60:02}.{number:09}Z {line}\n" for number, line in enumerate(lines)
    )


def verdict(arena: Arena, case: Case, lines: Sequence[str]) -> Said:
    (arena.laid / "log").write_bytes(stamped(lines).encode("utf-8", errors="surrogateescape"))
    args = {"deployment": DEPLOYMENT, "root": str(arena.node), "transport": case.with_.get("transport", "socket")}
    return arena.module("rank_info", args)


def of(said: Said) -> dict[str, Any]:
    """What a verdict is made of: all that is said of the rank but the words of its last line."""
    kept = {name: said.result.get(name) for name in VERDICT}
    log = {name: value for name, value in (said.result.get("log") or {}).items() if name not in FREE}
    return {**kept, **{f"log.{name}": value for name, value in log.items()}}


VERDICT = (
    "finished",
    "failure",
    "job_failed",
    "error",
    "remedy",
    "hardware_or_memory",
    "running",
    "release",
    "progress",
    "warning",
)


def told(base: Mapping[str, Any], case: Case) -> list[str]:
    """The case's lines, each as often as it says, and long ones as long as it says."""
    made = []
    for one in case.with_["lines"]:
        text = (
            one if isinstance(one, str) else str(one["text"]).replace("{long}", str(one.get("of", "x")) * int(one.get("long", 1)))
        )
        made += [text] * int(1 if isinstance(one, str) else one.get("times", 1))
    return made


def log(arena: Arena, case: Case) -> Outcome:
    """`base`: a recorded log of tests/fixtures/engine; `cut`: only so many lines of it; `exit`: the rank has ended with this status;
    `lines`: what strangers add, `flood`: more than is looked at, `at`: end (default), begin or middle."""
    words = case.with_
    base = (ROOT / "tests/fixtures/engine" / words["base"]).read_text(errors="replace").splitlines()
    base = base[: int(words.get("cut", len(base)))]
    (arena.laid / "ids").write_text("c" * 64 + "\n")
    (arena.laid / "inspect").write_text(json.dumps([container("exit" not in words, int(words.get("exit", 0)))]))
    place = {"begin": 1, "middle": len(base) // 2, "end": len(base)}[words.get("at", "end")]
    alone = verdict(arena, case, base)
    lines = told(words, case)
    began = time.monotonic()
    beside = verdict(arena, case, [*base[:place], *lines, *base[place:]])
    took = time.monotonic() - began
    outcome = everywhere(arena)
    before, after = of(alone), of(beside)
    if words.get(
        "flood"
    ):  # what is older than the lines that are looked at is not known any more, of a busy engine as of a flooded one
        before, after = ({name: one[name] for name in VERDICT if name != "progress"} for one in (before, after))
    outcome.verdicts += [
        f"{name} is {after.get(name)!r:.120}, without them {before.get(name)!r:.120}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    if not before["release"]:
        outcome.unexpected.append(f"the rank was not seen: {alone.result.get('msg')}")
    if took > 20:
        outcome.without_end.append(f"the lines were read in {took:.0f} s")
    shown = [
        failure(beside.result),
        str(beside.result.get("progress")),
        *(str(one) for one in (beside.result.get("log") or {}).values()),
    ]
    outcome.unexpected += [found for text in shown for found in judge.controls(clean(text))]
    return outcome


PLAYS = {"log": log}
