# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One screen about one deployment: what serves, on which ranks, over which rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars, Look, look
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.fabric.fact import fabric_of
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
    """One rank: `readiness` of readiness_info, and the result of rank_info."""

    host: str
    readiness: Look
    rank: Look
    fabric: Facts = field(default_factory=dict)


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
    return str(rank.get("progress") or "-")


def verdict(rows: Sequence[Row]) -> str:
    """The word for the deployment as its ranks tell it now, not as the last launch left it."""
    told = [row.readiness.facts for row in rows if row.readiness.facts is not None]
    if not told:
        broke = next((f": {row.host}: {row.readiness.problem}" for row in rows if row.readiness.broke), "")
        return f"unknown: no Spark could be looked at{broke}" if broke else "unknown: no Spark answers"
    claimed = {DeploymentState.from_dict(facts.get("deployment_state")).status for facts in told}
    lives = claimed & {SERVING, UNBANKED, RESTORED, SUSPECT}
    dead = [row.host for row in rows if row.rank.facts is not None and not row.rank.facts.get("running")]
    if lives and dead:
        return f"BROKEN: recorded as {', '.join(sorted(claimed))}, but no rank runs on {', '.join(dead)}. Launch again, or playbooks/recover.yml"
    unseen = [row.host for row in rows if row.rank.facts is None]
    if unseen:
        return (
            f"unknown: recorded as {', '.join(sorted(claimed))}, but whether a rank runs on {', '.join(unseen)} could not be seen"
        )
    if len(claimed) > 1:
        return f"BROKEN: the ranks disagree ({', '.join(sorted(claimed))}). playbooks/recover.yml"
    status = claimed.pop()
    return _SAYS.get(status, status)


def lines(rows: Sequence[Row]) -> list[str]:
    """The screen, line by line."""
    states = [DeploymentState.from_dict((row.readiness.facts or {}).get("deployment_state")) for row in rows]
    # A Spark that did not answer has told nothing.
    first = next((state for row, state in zip(rows, states, strict=True) if row.readiness.facts is not None), DeploymentState())
    said = [f"status     {verdict(rows)}", f"lane       {first.lane or '-'}   release {first.current or '-'}"]
    said.append(f"last good  {first.last_good or '-'}" + (f" (lane {first.last_good_lane})" if first.last_good_lane else ""))
    if first.reason:
        said.append(f"reason     {first.reason}")
    for row in rows:
        transaction = Transaction.from_dict((row.readiness.facts or {}).get("transaction"))
        if transaction:
            said.append(
                f"open       transaction {transaction.id} of {transaction.controller} in phase '{transaction.phase}' (seen on {row.host})"
            )
            break
    table = [("rank", "node", "container", "doing", "rails")]
    for number, row in enumerate(rows):
        rank = row.rank.facts
        if rank is None:
            # Its own words are long: they stand where the row is ragged.
            silent = row.readiness.facts is None and not row.readiness.broke
            why = row.readiness.problem or row.rank.problem
            table.append((str(number), row.host, "unknown", "-", why if silent else f"the look failed: {why}"))
            continue
        box = rank.get("container") or {}
        up = "running" if rank.get("running") else box.get("status") or "none"
        missing = "" if row.readiness.facts is not None else f"; the look failed: {row.readiness.problem}"
        table.append((str(number), row.host, up, doing(rank), rails(row.fabric) + missing))
    return said + columns(table)


def status(hostvars: HostVars, hosts: Sequence[str]) -> list[str]:
    """`lines`, from what playbooks/status.yml registered."""
    rows = []
    for host in hosts:
        known = hostvars[host]
        readiness, rank = look(known.get("status_readiness"), "readiness"), look(known.get("status_rank"))
        rows.append(Row(host, readiness, rank, fabric_of(known)))
    return lines(rows)
