# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A check, a verdict, and the one table in which people read them.

Rules anywhere in the project are pure functions from facts to lists of `Check`.
What could not be measured fails; an unreachable host is a row, not a gap; a skip
carries the reason that a person gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.tables import columns

PASS = "pass"
WARN = "warn"
FAIL = "fail"
SKIP = "skip"
STATUSES = (FAIL, WARN, SKIP, PASS)


@dataclass(frozen=True)
class Check:
    """One measured property of one host.

    `id` is stable (`FABRIC.MTU`), `host` an inventory name or a deployment, `found`
    and `expected` are short texts with units, `remedy` is the next step for a person
    (empty where the check passed).
    """

    id: str
    host: str
    status: str
    found: str
    expected: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"{self.id}: status {self.status!r} is none of {', '.join(STATUSES)}")

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Check:
        return cls(**{key: str(data.get(key, "")) for key in ("id", "host", "status", "found", "expected", "remedy")})


def judged(id: str, host: str, ok: bool | None, found: Any, expected: Any = "", remedy: str = "") -> Check:
    """A check that passes where `ok` is true and fails where it is false or unknown (None)."""
    if ok:
        return Check(id, host, PASS, str(found), str(expected))
    return Check(id, host, FAIL, str(found), str(expected), remedy)


def verdict(checks: Iterable[Check]) -> str:
    """`fail`, `warn` or `pass`. No checks at all is a failure: a gate fails closed."""
    seen = {check.status for check in checks}
    if not seen or FAIL in seen:
        return FAIL
    return WARN if WARN in seen else PASS


def failures(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.status == FAIL]


def sentence(check: Check) -> str:
    """`s2 FABRIC.MTU: found …, expected …. Remedy`: one check as one line of an error."""
    text = f"{check.host} {check.id}: {check.found}"
    if check.expected:
        text += f"; expected {check.expected}"
    if check.remedy:
        text += f". {check.remedy}"
    return text


def table(checks: Sequence[Check], hosts: Sequence[str] | None = None, width: int = 110) -> str:
    """The checks as plain text: one row each, the bad ones first, equal passes of all hosts folded into one row."""
    order = {status: rank for rank, status in enumerate(STATUSES)}
    rows: list[tuple[str, str, str, str]] = []
    folded: dict[tuple[str, str, str, str], list[str]] = {}
    for check in sorted(checks, key=lambda c: order[c.status]):
        key = (check.status, check.id, check.found, check.expected)
        folded.setdefault(key, []).append(check.host)
    everyone = set(hosts) if hosts is not None else {check.host for check in checks}
    remedies: dict[str, list[str]] = {}
    for check in sorted(checks, key=lambda c: order[c.status]):
        if check.remedy and check.status in (FAIL, WARN):
            remedies.setdefault(check.remedy, []).append(f"{check.host} {check.id}")
    for (status, id_, found, expected), names in folded.items():
        who = "all" if len(names) > 1 and set(names) == everyone else ", ".join(names)
        rows.append((status.upper(), id_, who, found if status == PASS or not expected else f"{found}  (want {expected})"))
    if not rows:
        return "no checks were made"
    lines = columns(rows, width=width)
    for remedy, who_needs in remedies.items():
        # Never wrapped: what is to be typed stands in it.
        lines.append(f"→ {', '.join(who_needs)}: {remedy}")
    return "\n".join(lines)


def named(checks: Iterable[Check]) -> str:
    """`s2 FABRIC.MTU, s3 FABRIC.MTU`: the failed checks by host and id, for a sentence under the table that says the rest."""
    return ", ".join(f"{check.host} {check.id}" for check in failures(checks))


@dataclass(frozen=True)
class Fault:
    """One thing wrong with the variables of a lane: a check that lacks its host."""

    id: str
    found: str
    expected: str = ""
    remedy: str = ""


def as_checks(faults: list[Fault], host: str, passes: Mapping[str, str]) -> list[Check]:
    """The faults as failed checks of a host, and a pass for each id of `passes` without one."""
    failed = [Check(fault.id, host, FAIL, fault.found, fault.expected, fault.remedy) for fault in faults]
    ids = {fault.id for fault in faults}
    return failed + [Check(id_, host, PASS, found) for id_, found in passes.items() if id_ not in ids]
