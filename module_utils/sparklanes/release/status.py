# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One screen about one deployment: what it does now, on which ranks, over which rails, and what to type next.

What the last launch recorded is not repeated as if it were so: a deployment serves where every rank runs and a generation succeeded
just now. Times are seconds since the epoch (UTC) by the clocks of the Sparks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.registered import NOT_ASKED, HostVars, Look, look
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.engine.api import address
from ansible.module_utils.sparklanes.engine.failures import ENDS_THOUGH_HEALTHY
from ansible.module_utils.sparklanes.fabric.fact import fabric_of
from ansible.module_utils.sparklanes.release import controller
from ansible.module_utils.sparklanes.release.transaction import FAILED, JUDGED, RESTORED, SERVING, STOPPED, SUSPECT, UNBANKED

Facts = Mapping[str, Any]

# What a launch recorded, said beside what was just seen. What reads well alone comes first.
_SAYS = {
    SERVING: "serving, passed all gates",
    UNBANKED: "serving-unbanked: there is no bank to compare with, so it is not last good",
    RESTORED: "restored, not judged by its own bank: it is the last good release, started again after a failure",
    JUDGED: "restored: the last good release, started again after a failure and judged by the bank of its own launch",
    SUSPECT: "suspect: it runs, but was judged again and failed",
}
_NEXT = {
    UNBANKED: "playbooks/bank.yml records what it answers as its reference",
    RESTORED: "playbooks/launch.yml judges it",
    SUSPECT: "playbooks/launch.yml -e launch_restart=true starts it anew, playbooks/stop.yml stops it",
    STOPPED: "playbooks/launch.yml",
    FAILED: "playbooks/launch.yml",
}
NOT_PROBED = Look(None, NOT_ASKED)
_DEEDS = {"restore": "restoring the last good release", "reboot": "rebooting"}


@dataclass(frozen=True)
class Row:
    """One rank: `readiness` of readiness_info, and the result of rank_info."""

    host: str
    readiness: Look
    rank: Look
    fabric: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The headline, and what a person may type next (empty: nothing)."""

    says: str
    next: str = ""


def rails(fabric: Facts) -> str:
    named = [
        f"{rail.get('hca') or rail.get('netdev')} {rail.get('ipv4') or rail.get('ipv6')} mtu {rail.get('mtu')}"
        for rail in fabric.get("rails") or []
    ]
    # What makes the fabric unusable stands beside what is left of it; `ansible HOST -m roce_facts` explains the code.
    named += [f"{code}!" for code in dict.fromkeys(str(error.get("code")) for error in fabric.get("errors") or [])]
    return ", ".join(named) or "-"


def paused(rank: Facts) -> bool:
    """Docker calls a paused container running: its processes exist, and none of them does anything."""
    return bool((rank.get("container") or {}).get("status") == "paused")


def outlived(rank: Facts, works: bool | None) -> bool:
    """Whether the rank runs and the failure in its log is over: a generation, which takes every rank, succeeded after that log was read."""
    codes = {failure.get("code") for failure in (rank.get("log") or {}).get("failures") or []}
    return bool(works and rank.get("running") and rank.get("failure")) and not codes & ENDS_THOUGH_HEALTHY


def doing(rank: Facts, works: bool | None = None) -> str:
    """What the rank does. A worker's log ends where its boot does: it never says that it serves. works: as `answer` tells."""
    log = rank.get("log") or {}
    if paused(rank):
        return "paused"
    if outlived(rank, works):
        return "working" if log.get("headless") else "serving"
    if (
        rank.get("running")
        and log.get("headless")
        and log.get("phase") in ("kv_cache", "graphs", "warmup")
        and not log.get("failures")
    ):
        return "working"
    return str(rank.get("progress") or "-")


def ago(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `2 d`: how long something is."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def unreadable(rows: Sequence[Row]) -> str:
    """Which file of which Spark can't be read, in its words; empty where all can."""
    for row in rows:
        facts = row.readiness.facts or {}
        for part in ("transaction", "deployment_state"):
            if why := (facts.get(part) or {}).get("unreadable"):
                return f"{row.host}: {why}"
    return ""


def recorded(rows: Iterable[Row]) -> dict[str, Facts]:
    """Host → what its last finished launch left, of those that told it."""
    found = {row.host: (row.readiness.facts or {}).get("deployment_state") for row in rows if row.readiness.facts is not None}
    return {host: state or {} for host, state in found.items() if not (state or {}).get("unreadable")}


def open_transaction(rows: Sequence[Row]) -> tuple[str, Facts, float]:
    """Where a transaction is open, what it is, and seconds since its heartbeat. The one heard last, where there are several."""
    found = []
    for row in rows:
        facts = row.readiness.facts or {}
        held = facts.get("transaction") or {}
        if held.get("id") and not held.get("unreadable"):
            found.append((float(held.get("age_seconds") or 0), row.host, held))
    if not found:
        return "", {}, 0.0
    age, host, held = min(found, key=lambda one: one[0])
    return host, held, age


def down(rows: Sequence[Row], works: bool | None) -> list[str]:
    """What doesn't run though a lane is said to serve, each with its host. What could not be seen is no part of it. works: as `answer` tells."""
    found = []
    for row in rows:
        rank = row.rank.facts
        if rank is None:
            continue
        box = rank.get("container") or {}
        if not rank.get("running"):
            ended = f" (it ended with exit code {box.get('exit_code')})" if box.get("status") == "exited" else ""
            found.append(f"no rank runs on {row.host}{ended}")
        elif paused(rank):
            found.append(f"the rank on {row.host} is paused")
        elif rank.get("failure") and not outlived(rank, works):
            found.append(f"the rank on {row.host} failed: {str(rank['failure']).rstrip('. ')}")
    return found


def warnings(rows: Sequence[Row], works: bool | None) -> list[str]:
    """What the log of a rank says that serves all the same, each with its host and what to do."""
    ranks = [(row.host, row.rank.facts or {}) for row in rows]
    return [
        f"{host}: its log says: {str(rank['failure']).rstrip('. ')}. {rank.get('remedy') or ''}".rstrip()
        for host, rank in ranks
        if not paused(rank) and outlived(rank, works)
    ]


def cut(rows: Sequence[Row]) -> list[str]:
    """Where the fabric is not usable. One rank alone needs none."""
    if len(rows) < 2:
        return []
    found = []
    for row in rows:
        errors = [str(error.get("message") or error.get("code")).rstrip(". ") for error in row.fabric.get("errors") or []]
        if errors:
            found.append(f"the fabric of {row.host} is not usable: {errors[0]}")
        elif not row.fabric and row.rank.facts is not None:
            found.append(f"the fabric of {row.host} could not be seen")
    return found


def answer(probe: Look) -> tuple[bool | None, str]:
    """Whether a generation succeeded just now, and in words why not. None: it was not asked."""
    if probe.facts is None:
        return None, probe.problem
    checks = [check for check in probe.facts.get("checks") or [] if isinstance(check, Mapping)]
    failed = [str(check.get("found")) for check in checks if check.get("status") == "fail"]
    done = any(check.get("status") == "pass" and check.get("id") in ("ENGINE.COMPLETION", "ENGINE.CHAT") for check in checks)
    if failed or not done:
        return False, failed[0] if failed else "no generation was made"
    return True, ""


def now_serves(rows: Sequence[Row], probe: Look) -> str:
    """What serves at this moment, for a person who must know it before the next step."""
    there = sorted({str(row.rank.facts.get("release")) for row in rows if row.rank.facts and row.rank.facts.get("running")})
    if not there:
        unseen = [row.host for row in rows if row.rank.facts is None]
        return f"whether anything runs on {', '.join(unseen)} could not be seen" if unseen else "nothing runs"
    works, why = answer(probe)
    wrong = down(rows, works)
    if not wrong and works and len(there) == 1:
        return f"release {there[0]} runs and answered just now, judged by nobody since"
    return f"release {', '.join(there)} runs, and serves nothing for certain ({'; '.join(wrong) or why or 'it was not asked'})"


def at_work(rows: Sequence[Row], probe: Look, ended: Sequence[str]) -> Verdict | None:
    """The headline while a transaction is open. ended: ids of runs of this controller whose process is gone."""
    _, held, age = open_transaction(rows)
    if not held:
        return None
    phase, lane = str(held.get("phase") or "unknown"), str(held.get("lane") or "")
    opened = float(held.get("opened") or 0)
    by = f"by {held.get('controller')}, since {moment(opened)}, last heartbeat {ago(age)} ago"
    deed = _DEEDS.get(phase) or (f"launching lane {lane}" if lane else "stopping or recovering")
    if not held.get("expired") and held.get("id") not in ended:
        return Verdict(f"{deed}, phase '{phase}', {by}. Until it ends, what is below is in between.")
    why = "its process is gone" if held.get("id") in ended else f"no heartbeat for {ago(age)}"
    says = f"interrupted while {deed}, in phase '{phase}' ({why}), {by}. Now: {now_serves(rows, probe)}."
    go_on = "playbooks/launch.yml goes on with it" + (f" (-e lane={lane})" if lane else "")
    if good(rows):
        return Verdict(says, f"{go_on}, {_RECOVER}, -e recover_to=nothing leaves it stopped")
    return Verdict(says, f"{go_on}, playbooks/recover.yml -e recover_to=nothing leaves it stopped")


_RECOVER = "playbooks/recover.yml starts the last good release"


def good(rows: Sequence[Row]) -> bool:
    """Whether there is a last good release that could come back."""
    return any(state.get("last_good") for state in recorded(rows).values())


def mend(rows: Sequence[Row]) -> str:
    """What to type where something is broken."""
    return "playbooks/launch.yml heals it" + (f", or {_RECOVER}" if good(rows) else "")


def verdict(rows: Sequence[Row], probe: Look = NOT_PROBED, ended: Sequence[str] = ()) -> Verdict:
    """The word for the deployment as its ranks tell it now, not as the last launch left it."""
    if all(row.readiness.facts is None for row in rows):
        broke = next((f": {row.host}: {row.readiness.problem}" for row in rows if row.readiness.broke), "")
        return Verdict(f"unknown: no Spark could be looked at{broke}" if broke else "unknown: no Spark answers")
    if why := unreadable(rows):
        return Verdict(f"unknown: {why}. Now: {now_serves(rows, probe)}.")
    if busy := at_work(rows, probe, ended):
        return busy
    states = recorded(rows)
    claimed = sorted({str(state.get("status") or STOPPED) for state in states.values()})
    record = f"recorded as {', '.join(claimed)}"
    unseen = [row.host for row in rows if row.rank.facts is None]
    running = [row.host for row in rows if row.rank.facts is not None and row.rank.facts.get("running")]
    works, why = answer(probe)
    wrong = down(rows, works)
    if set(claimed) & set(_SAYS) and wrong:
        more = f"; whether a rank runs on {', '.join(unseen)} could not be seen" if unseen else ""
        return Verdict(f"BROKEN: {'; '.join([*wrong, *cut(rows)])}{more}. It was {record}.", mend(rows))
    if unseen:
        return Verdict(f"unknown: {record}, but whether a rank runs on {', '.join(unseen)} could not be seen")
    if len(claimed) > 1 or len({str(state.get("current") or "") for state in states.values()}) > 1:
        told = ", ".join(f"{host} {state.get('status')} {state.get('current') or ''}".rstrip() for host, state in states.items())
        return Verdict(f"BROKEN: the ranks disagree ({told})", "playbooks/recover.yml")
    status = claimed[0]
    if status not in _SAYS:
        if running:
            return Verdict(f"BROKEN: {record}, and a rank runs on {', '.join(running)}", "playbooks/stop.yml")
        return Verdict("failed, nothing serves" if status == FAILED else f"{status}, nothing serves", _NEXT.get(status, ""))
    current = str(next(iter(states.values())).get("current") or "")
    other = [f"{row.host} runs release {row.rank.facts.get('release')}" for row in rows if row.rank.facts and row.rank.facts.get("release", current) != current]  # fmt: skip
    saw = "a generation succeeded just now" if works else f"no generation just now: {why.rstrip('. ')}"
    if works is False and not other and not cut(rows) and (far := booting(rows)):
        return Verdict(f"starting, nothing answers yet: {far}. It was {record}")
    if other or cut(rows) or works is False:
        return Verdict(f"BROKEN: {'; '.join([*other, *cut(rows), saw])}. It was {record}.", mend(rows))
    if works is None:
        return Verdict(f"unknown: {record} and every rank runs, but the API was not asked for a generation ({why.rstrip('. ')})")
    return Verdict(f"{_SAYS[status]}; every rank runs and {saw}", _NEXT.get(status, ""))


def booting(rows: Sequence[Row]) -> str:
    """How far rank 0 is where its engine has not come up yet, as after a power cut; empty where it has, or where nobody knows."""
    head = rows[0].rank.facts or {}
    phase = (head.get("log") or {}).get("phase")
    return f"{rows[0].host}: {head.get('progress') or phase}" if phase and phase != "serving" else ""


def since(rows: Sequence[Row]) -> str:
    """When the last of the ranks started, as Docker tells it."""
    started = [str((row.rank.facts.get("container") or {}).get("started_at") or "") for row in rows if row.rank.facts and row.rank.facts.get("running")]  # fmt: skip
    return f"   since {max(started)[:19].replace('T', ' ')}Z" if any(started) else ""


def lines(rows: Sequence[Row], probe: Look = NOT_PROBED, ended: Sequence[str] = (), elsewhere: str = "") -> list[str]:
    """The screen, line by line. elsewhere: the address of rank 0 for those who ask its API."""
    # A Spark that did not answer has told nothing.
    first = next(iter(recorded(rows).values()), {})
    said = verdict(rows, probe, ended)
    head = rows[0].rank.facts or {} if rows else {}
    release = head.get("release") if head.get("running") else first.get("current")
    lane = head.get("lane") if head.get("running") and head.get("lane") else first.get("lane")
    shown = [f"status     {said.says}"]
    if said.next:
        shown.append(f"next       {said.next}")
    works, _ = answer(probe)
    shown += [f"warning    {text}" for text in warnings(rows, works)]
    shown.append(f"lane       {lane or '-'}   release {release or '-'}{since(rows)}")
    if head.get("running") and head.get("api"):
        model = ((probe.facts or {}).get("facts") or {}).get("model") or ""
        shown.append(f"endpoint   {address(head['api'], elsewhere or rows[0].host)}/v1" + (f"   model {model}" if model else ""))
    shown.append(f"last good  {first.get('last_good') or '-'}" + (f" (lane {first['last_good_lane']})" if first.get("last_good_lane") else ""))  # fmt: skip
    if first.get("reason"):
        shown.append(f"reason     {first['reason']}")
    host, held, _ = open_transaction(rows)
    if held:
        shown.append(
            f"open       transaction {held.get('id')} of {held.get('controller')} in phase '{held.get('phase')}' (seen on {host})"
        )
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
        up = "paused" if paused(rank) else "running" if rank.get("running") else box.get("status") or "none"
        missing = "" if row.readiness.facts is not None else f"; the look failed: {row.readiness.problem}"
        table.append((str(number), row.host, up, doing(rank, works), rails(row.fabric) + missing))
    return shown + columns(table)


def rows_of(hostvars: HostVars, hosts: Sequence[str]) -> list[Row]:
    """What playbooks/status.yml registered."""
    return [
        Row(
            host,
            look(hostvars[host].get("status_readiness"), "readiness"),
            look(hostvars[host].get("status_rank")),
            fabric_of(hostvars[host]),
        )
        for host in hosts
    ]


def askable(hostvars: HostVars, hosts: Sequence[str]) -> bool:
    """Whether to ask for a generation: every rank runs, over a fabric that is up.

    Behind a dead or paused one it would only time out. Over a link that is down it would end engines that could outlast it idle.
    """
    rows = rows_of(hostvars, hosts)
    seen = [row.rank.facts for row in rows]
    if len(rows) > 1 and any(row.fabric.get("errors") for row in rows):
        return False
    return all(rank and rank.get("running") and not paused(rank) for rank in seen) and bool((seen[0] or {}).get("api"))


def status(hostvars: HostVars, hosts: Sequence[str], receipts: str, proc: Path = Path("/proc")) -> list[str]:
    """`lines`, from what playbooks/status.yml registered. receipts: folder of the deployment's receipts on this controller."""
    head = hostvars[hosts[0]]
    ended = controller.ended(Path(receipts), os.getpid(), proc)
    return lines(rows_of(hostvars, hosts), look(head.get("status_probe")), ended, str(head.get("ansible_host") or hosts[0]))
