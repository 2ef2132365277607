# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a run said and what was true, held against a line of the table. Pure: text and data in, verdicts out."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.nodes import Serving
from benchmarks.faults.table import NODES, Fault

# A line that tells that something is amiss, in whatever words; Ansible's recap and headings of tasks tell nothing.
_AMISS = re.compile(r"\b(FAIL|FAILED|failed|fatal|BROKEN|UNREACHABLE|died|killed|lost|refused|paused|stalled)\b")
_NOTHING = re.compile(r"^(TASK|PLAY|RUNNING HANDLER|PLAY RECAP)\b|\bfailed=\d|\bok=\d+\s+changed=|failed_when|\.\.\.ignoring")
_ROW = re.compile(r"\bFAIL\b\W+([A-Z][A-Z_]*\.[A-Z][A-Z_0-9]*)\s+([\w.-]+(?:, ?[\w.-]+)*)")


def tells(text: str, fault: Fault) -> bool:
    """Whether a line tells a person that something is amiss."""
    if _NOTHING.search(text):
        return False
    return (
        bool(_AMISS.search(text)) or any(id_ in text for id_ in fault.ids) or bool(fault.words and re.search(fault.words, text))
    )


def rows(output: str) -> list[tuple[str, str]]:
    """Checks that failed and their nodes, from tables that were printed."""
    return [(id_, host) for id_, hosts in _ROW.findall(output) for host in re.split(r",\s*", hosts)]


@dataclass(frozen=True)
class Evidence:
    """What one fault left behind.

    lines: seconds from the fault to the line (negative: before it) and its text, of all runs. ended_well: whether the last run ended with 0
    (of two at once: exactly one of them). receipts: those that were made since, oldest first. logs: nodes of which the controller has a log of
    after the fault. touched: what of somebody else was touched. missed: why the fault was not injected.
    """

    lines: Sequence[tuple[float, str]]
    ended_well: bool
    before: Serving
    after: Serving
    good: str
    text: str
    receipts: Sequence[Mapping[str, Any]] = ()
    logs: Sequence[str] = ()
    touched: str = ""
    missed: str = ""
    ended: float = 0.0  # seconds from the fault to the end of the last run
    printed: int = 0  # lines of the run that met the fault

    @property
    def output(self) -> str:
        return "\n".join(text for _, text in self.lines)


@dataclass(frozen=True)
class Verdict:
    """Right or not, by question; `notes` say what missed. None: the question has no answer to be right about."""

    node: bool | None
    cause: bool | None
    serves: bool
    logs: bool | None
    ends: bool
    notice: float | None
    said: Sequence[tuple[str, str]] = ()
    found: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def right(self) -> bool:
        return self.serves and self.ends and not any(part is False for part in (self.node, self.cause, self.logs))


def said(evidence: Evidence) -> list[tuple[str, str]]:
    """(id, node) of all that was named: causes of receipts, checks of their gates, rows that were printed."""
    found = []
    for receipt in evidence.receipts:
        cause = receipt.get("cause") or {}
        if cause.get("id"):
            found.append((str(cause["id"]), str(cause.get("host") or "")))
        for gate in (receipt.get("gates") or {}).values():
            for check in gate.get("checks") or [] if isinstance(gate, Mapping) else []:
                if check.get("status") == "fail":
                    found.append((str(check["id"]), str(check.get("host") or "")))
    return list(dict.fromkeys([*found, *rows(evidence.output)]))


def nodes_in(text: str) -> set[str]:
    return {name for name in NODES if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


def named(fault: Fault, evidence: Evidence, things: Sequence[tuple[str, str]]) -> tuple[bool, set[str]]:
    """Whether the cause was said, and which nodes were named with it."""
    hosts = {host for id_, host in things if id_ in fault.ids}
    if hosts:
        return True, {node for host in hosts for node in (NODES if host == "all" else nodes_in(host))}
    if fault.words:
        lines = [text for at, text in evidence.lines if at >= 0 and not _NOTHING.search(text) and re.search(fault.words, text)]
        if lines:
            return True, nodes_in("\n".join(lines))
    return False, {node for _, host in things for node in nodes_in(host)}


def serves(evidence: Evidence, cut: bool) -> str:
    """What serves, as the nodes tell it themselves: same, last-good, new, nothing, or what is broken about it.

    cut: the fault itself keeps it from answering, so only its containers are judged.
    """
    after, before = evidence.after, evidence.before
    if not after.ranks:
        return f"unknown: Docker of {', '.join(after.silent)} does not answer" if len(after.silent) == len(NODES) else "nothing"
    if set(after.ranks) != set(NODES):
        return f"broken: a rank runs on {', '.join(after.ranks)} only"
    if len(after.releases) != 1:
        return "broken: the ranks run different releases"
    release = next(iter(after.releases))
    if not cut:
        if paused := [name for name, rank in after.ranks.items() if rank.paused]:
            return f"broken: the rank of {', '.join(paused)} is paused"
        if after.text is None:
            return "broken: no generation"
        if release == evidence.good and after.text != evidence.text:
            return "broken: it generates other tokens than it did"
    if after.ids == before.ids:
        return "same"
    return "last-good" if release == evidence.good else "new"


def judge(fault: Fault, evidence: Evidence) -> Verdict:
    """One fault's verdict."""
    notes = [f"not injected: {evidence.missed}"] if evidence.missed else []
    things = said(evidence)
    cause, hosts = named(fault, evidence, things)
    asked = bool(fault.ids or fault.words)
    node: bool | None = None
    if fault.node == "any":
        node = bool(hosts) or not any(id_ in fault.ids for id_, _ in things)
    elif fault.node == "controller":
        node = not hosts
    elif fault.node:
        node = hosts == {fault.node}
    false_alarm = [id_ for id_, _ in things] if fault.ends and not asked and not fault.controller else []
    if asked and not cause:
        notes.append(
            f"said {', '.join(f'{id_} {host}'.strip() for id_, host in things) or 'no id'}, not {' or '.join(fault.ids) or fault.words}"
        )
    if node is False:
        notes.append(f"named {', '.join(sorted(hosts)) or 'no node'}, not {fault.node}")
    if false_alarm:
        notes.append(f"nothing was amiss, and it said {', '.join(false_alarm)}")
    found = serves(evidence, fault.cut)
    well = "any" in fault.serves or found in fault.serves
    if evidence.touched:
        well = False
        notes.append(evidence.touched)
    if not well and not evidence.touched:
        notes.append(f"serves: {found}, not {' or '.join(fault.serves)}")
    lacking = [name for name in fault.logs if name not in evidence.logs]
    if lacking:
        notes.append(f"no log of {', '.join(lacking)} on the controller")
    if evidence.ended_well != fault.ends:
        notes.append("it ended well" if evidence.ended_well else "it ended as failed")
    notice = next((at for at, text in evidence.lines if at >= 0 and tells(text, fault)), None) if asked else None
    if asked and notice is None:
        notes.append("no line told that anything is amiss")
    return Verdict(
        node,
        (cause if asked else not false_alarm) and not evidence.missed,
        well,
        not lacking if fault.logs else None,
        evidence.ended_well == fault.ends,
        notice,
        things,
        found,
        notes,
    )


# --- figures


def share(values: Sequence[bool | None]) -> float | None:
    """Share that is right of those that could be."""
    asked = [value for value in values if value is not None]
    return round(sum(asked) / len(asked), 4) if asked else None


def upper_bound(alarms: int, trials: int, confidence: float = 0.95) -> float | None:
    """Upper end of the exact one-sided interval for a share of which `alarms` in `trials` were seen (of none: 3 in trials, about)."""
    if trials <= 0:
        return None
    if alarms >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(alarms, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, trials: int, chance: float) -> float:
    """Probability of at most `count` in `trials`."""
    term = total = (1 - chance) ** trials
    for one in range(count):
        term *= (trials - one) / (one + 1) * chance / (1 - chance)
        total += term
    return total


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None
