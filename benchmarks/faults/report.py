# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Figures of the results that were kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults import score
from benchmarks.faults.table import NOTICE_SECONDS, SLOW_SECONDS, Fault
from benchmarks.figures import Figure

AIM_LINES_GOOD, AIM_LINES_BAD = 60, 100
QUESTIONS = ("node", "cause", "serves", "logs", "ends")

Results = Mapping[str, Mapping[str, Any]]


# The tests of the reader name in HEALTHY the recorded logs in which nothing is amiss: whole names, or how names begin.
HEALTHY = {"test_enginelog.py": ".", "test_enginelog_gpu.py": "gpu"}


def healthy_logs(root: Path) -> list[str]:
    """Recorded logs in which nothing is amiss, below tests/fixtures/engine."""
    found: list[str] = []
    logs = root / "tests/fixtures/engine"
    for test, folder in HEALTHY.items():
        source = ast.parse((root / "tests/unit/engine" / test).read_text(encoding="utf-8"))
        for node in source.body:
            if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "HEALTHY" for one in node.targets):
                names = tuple(str(name) for name in ast.literal_eval(node.value))
                found += [
                    str(path.relative_to(logs)) for path in sorted((logs / folder).glob("*.log")) if path.name.startswith(names)
                ]
    return found


def log_alarms(root: Path) -> list[tuple[str, list[str]]]:
    """Each healthy log and the failures that the product's reader finds in it."""
    import ansible.module_utils

    place = str(root / "module_utils")
    if place not in ansible.module_utils.__path__:
        ansible.module_utils.__path__.append(place)
    from ansible.module_utils.sparklanes.engine import log as engine_log

    found = []
    for name in healthy_logs(root):
        # Those on GPUs were recorded in two ranks of one machine, over sockets.
        text = (root / "tests/fixtures/engine" / name).read_text(encoding="utf-8", errors="replace")
        found.append(
            (name, [failure.code for failure in engine_log.read(text, "socket" if name.startswith("gpu/") else "roce").failures])
        )
    return found


def missed(results: Results, wanted: Sequence[str], question: str) -> str:
    """Which faults were wrong in one question, and how."""
    wrong = [name for name in wanted if name in results and results[name][question] is False]
    shown = [f"{name}: {'; '.join(results[name]['notes'])}" for name in wrong]
    return " | ".join(shown)


def _lower_is_better(share: float | None) -> float | None:
    return None if share is None else round(1 - share, 4)


def figures(
    results: Results, faults: Sequence[Fault], rounds: int, healthy: int, logs: Sequence[tuple[str, list[str]]]
) -> Iterator[Figure]:
    """All of them. Shares are told as what is missing of 1, for a figure is ok up to its aim: `wrong` 0 is a share of 1.0."""
    wanted = [f"{number}/{fault.id}" for number in range(1, rounds + 1) for fault in faults]
    done = [results[name] for name in wanted if name in results]
    missing = [name for name in wanted if name not in results]
    lost = f"not measured: {', '.join(missing)}" if missing else ""
    yield Figure("faults.injected", float(len(done)), f"of {len(wanted)} faults", None, lost)
    if missing or not done:
        yield Figure("faults.wrong", None, "of all", 0, lost or "nothing was measured")
        return
    yield Figure(
        "faults.wrong",
        _lower_is_better(score.share([one["right"] for one in done])),
        "of all",
        0,
        missed(results, wanted, "right"),
    )
    for question in QUESTIONS:
        wrong = _lower_is_better(score.share([one[question] for one in done]))
        if wrong is not None:
            yield Figure(
                f"faults.wrong_{question}", wrong, "of those that have one", 0, ", ".join(_wrong(results, wanted, question))
            )
    yield from noticed(results, faults, rounds)
    failing = [one["printed"] for one in done if not one["ended_well"]]
    if failing:
        yield Figure("faults.lines_failing", max(failing), "lines, the longest", AIM_LINES_BAD, f"median {score.median(failing)}")
    passing = [one["printed"] for name, one in results.items() if name.startswith("healthy/") and one["ended_well"]]
    if passing:
        yield Figure(
            "faults.lines_passing", max(passing), "lines, the longest", AIM_LINES_GOOD, f"median {score.median(passing)}"
        )
    yield from alarms(results, healthy)
    wrong_logs = [f"{name}: {', '.join(codes)}" for name, codes in logs if codes]
    bound = score.upper_bound(len(wrong_logs), len(logs))
    note = f"{len(logs)} logs; at most {bound:.1%} with 95 % confidence" if bound is not None else "no log was read"
    yield Figure("faults.false_alarms_logs", len(wrong_logs) if logs else None, "logs", 0, "; ".join([note, *wrong_logs]))


def _wrong(results: Results, wanted: Sequence[str], question: str) -> list[str]:
    return [name for name in wanted if results[name][question] is False]


def noticed(results: Results, faults: Sequence[Fault], rounds: int) -> Iterator[Figure]:
    """Seconds from the fault to a line that tells, and how many faults took longer than they may."""
    for aim in (NOTICE_SECONDS, SLOW_SECONDS):
        mine = [fault for fault in faults if fault.seconds == aim and (fault.ids or fault.words)]
        seen = {
            f"{number}/{fault.id}": results[f"{number}/{fault.id}"]["notice"] for number in range(1, rounds + 1) for fault in mine
        }
        took = {name: float(value) for name, value in seen.items() if value is not None}
        late = [
            f"{name} {took[name]:.0f} s" if name in took else f"{name} never" for name in seen if took.get(name, aim + 1) > aim
        ]
        if seen:
            worst = max(took.values(), default=None)
            note = (
                f"median {score.median(list(took.values()))} s, worst {worst:.1f} s" if worst is not None else "none was noticed"
            )
            share = round(len(late) / len(seen), 4)
            yield Figure(f"faults.late_{aim}s", share, f"of {len(seen)}, noticed after {aim} s", 0, "; ".join([note, *late]))


def alarms(results: Results, healthy: int) -> Iterator[Figure]:
    """Healthy launches that ended as failed or named a cause."""
    mine = {name: one for name, one in results.items() if name.startswith("healthy/")}
    if not healthy and not mine:
        return
    false = [f"{name}: {'; '.join(one['notes'])}" for name, one in mine.items() if not one["right"]]
    bound = score.upper_bound(len(false), len(mine))
    note = f"{len(mine)} launches; at most {bound:.1%} of launches with 95 % confidence" if bound is not None else "none was made"
    value = len(false) if len(mine) >= healthy else None
    yield Figure("faults.false_alarms", value, "launches", 0, "; ".join([note, *false]))
