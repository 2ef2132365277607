# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One screen about one deployment: what serves, on which ranks, over which rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.release.transaction import (
    FAILED,
    RESTORED,
    SERVING,
    SUSPECT,
    UNBANKED,
    DeploymentState,
    Transaction,
)

Facts = Mapping[str, Any]

_SAYS = {
    SERVING: "serving, passed all gates",
    UNBANKED: "serving-unbanked: no bank to compare with, so not last good (playbooks/bank.yml makes one)",
    RESTORED: "restored to its last good release",
    SUSPECT: "suspect: it runs, but was judged again and failed",
    FAILED: "failed, nothing serves",
}


@dataclass(frozen=True)
class Row:
    """One rank: `readiness` of readiness_info and the result of rank_info, None where the host did not answer."""

    host: str
    readiness: Facts | None
    rank: Facts | None
    fabric: Facts = field(default_factory=dict)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as aligned columns, the last one ragged."""
    sizes = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]


def rails(fabric: Facts) -> str:
    named = [
        f"{rail.get('hca') or rail.get('netdev')} {rail.get('ipv4') or rail.get('ipv6')} mtu {rail.get('mtu')}"
        for rail in fabric.get("rails") or []
    ]
    # What makes the fabric unusable stands beside what is left of it; `ansible HOST -m roce_facts` explains the code.
    named += [f"{code}!" for code in dict.fromkeys(str(error.get("code")) for error in fabric.get("errors") or [])]
    return ", ".join(named) or "-"


def doing(rank: Facts) -> str:
    """What the rank does. A worker's log ends where its boot does: it never says that it serves."""
    log = rank.get("log") or {}
    if (
        rank.get("running")
        and log.get("headless")
        and log.get("phase") in ("kv_cache", "graphs", "warmup")
        and not log.get("failures")
    ):
        return "working"
    return str(rank.get("progress") or rank.get("msg") or "-")


def verdict(rows: Sequence[Row]) -> str:
    """The word for the deployment as its ranks tell it now, not as the last launch left it."""
    told = [row.readiness for row in rows if row.readiness is not None]
    if not told:
        return "unknown: no Spark answers"
    claimed = {DeploymentState.from_dict(facts.get("deployment_state")).status for facts in told}
    running = [bool((row.rank or {}).get("running")) for row in rows]
    if claimed & {SERVING, UNBANKED, RESTORED, SUSPECT} and not all(running):
        dead = [row.host for row, up in zip(rows, running, strict=True) if not up]
        return f"BROKEN: recorded as {', '.join(sorted(claimed))}, but no rank runs on {', '.join(dead)}. Launch again, or playbooks/recover.yml"
    if len(claimed) > 1:
        return f"BROKEN: the ranks disagree ({', '.join(sorted(claimed))}). playbooks/recover.yml"
    status = claimed.pop()
    return _SAYS.get(status, status)


def lines(rows: Sequence[Row]) -> list[str]:
    """The screen, line by line."""
    states = [DeploymentState.from_dict((row.readiness or {}).get("deployment_state")) for row in rows]
    # A Spark that did not answer has told nothing.
    first = next((state for row, state in zip(rows, states, strict=True) if row.readiness is not None), DeploymentState())
    said = [f"status     {verdict(rows)}", f"lane       {first.lane or '-'}   release {first.current or '-'}"]
    said.append(f"last good  {first.last_good or '-'}" + (f" (lane {first.last_good_lane})" if first.last_good_lane else ""))
    if first.reason:
        said.append(f"reason     {first.reason}")
    for row in rows:
        transaction = Transaction.from_dict((row.readiness or {}).get("transaction"))
        if transaction:
            said.append(
                f"open       transaction {transaction.id} of {transaction.controller} in phase '{transaction.phase}' (seen on {row.host})"
            )
            break
    table = [("rank", "node", "container", "doing", "rails")]
    for number, row in enumerate(rows):
        if row.readiness is None or row.rank is None:
            table.append((str(number), row.host, "no answer over ssh", "-", "-"))
            continue
        box = row.rank.get("container") or {}
        up = "running" if row.rank.get("running") else box.get("status") or "none"
        table.append((str(number), row.host, up, doing(row.rank), rails(row.fabric)))
    return said + columns(table)
