# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The transaction of a deployment, and the state that it leaves behind.

A *transaction* is one attempt to change what runs: it is both the lock (a lease with a heartbeat) and the write-ahead journal
(which phase began, from and to which release). The *state* says what runs and which release last passed all gates.
Here is what may follow on what; `release.store` knows where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# A launch in the order in which it happens; the journal names the phase that began. The last one is of playbooks/reboot.yml.
PHASES = ("stop", "settle", "start", "boot", "judge", "restore", "reboot")

SERVING = "serving"
UNBANKED = "serving-unbanked"
STOPPED = "stopped"
FAILED = "failed"
RESTORED = "restored"
SUSPECT = "suspect"
STATUSES = (SERVING, UNBANKED, RESTORED, SUSPECT, STOPPED, FAILED)

# Two deaths that nobody explained, and everything waits for a person (docs/architecture.md, "A transaction").
DEATHS_BEFORE_A_PERSON = 2


@dataclass(frozen=True)
class Transaction:
    """One attempt to change what a deployment runs. Times are seconds since the epoch (UTC)."""

    id: str
    phase: str
    controller: str
    opened: float
    heartbeat: float
    lease_seconds: float
    lane: str = ""
    from_release: str = ""
    to_release: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Transaction | None:
        if not data or not data.get("id"):
            return None
        return cls(**{key: data[key] for key in cls.__dataclass_fields__ if key in data})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def expired(self, now: float) -> bool:
        return now > self.heartbeat + self.lease_seconds


@dataclass(frozen=True)
class DeploymentState:
    """What a deployment runs on this Spark, as its last finished transaction left it."""

    status: str = STOPPED
    lane: str = ""
    current: str = ""
    last_good: str = ""
    last_good_lane: str = ""
    reason: str = ""
    deaths: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> DeploymentState:
        known = {key: value for key, value in (data or {}).items() if key in cls.__dataclass_fields__}
        if "deaths" in known:
            known["deaths"] = tuple(str(death) for death in known["deaths"])
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "deaths": list(self.deaths)}

    def waits_for_a_person(self) -> bool:
        return len(self.deaths) >= DEATHS_BEFORE_A_PERSON


def refusal(held: Transaction | None, mine: str, now: float, break_lock: bool = False) -> str:
    """Why transaction `mine` may not open here, or an empty text where it may.

    Only the same transaction goes on by itself. Another one is waited for while its lease lives and
    needs a person's word (recover, or an explicit break) when it doesn't.
    """
    if held is None or held.id == mine or break_lock:
        return ""
    age = int(now - held.heartbeat)
    if held.expired(now):
        return (
            f"transaction {held.id} of {held.controller} was interrupted in phase '{held.phase}' ({age} s without a heartbeat, "
            f"lease {int(held.lease_seconds)} s). Run playbooks/recover.yml to finish or undo it"
        )
    return (
        f"transaction {held.id} of {held.controller} is in phase '{held.phase}' (last heartbeat {age} s ago). "
        "Wait for it; if that controller is gone for good, run playbooks/recover.yml -e recover_break_lock=true"
    )


class Refused(ValueError):
    """Another transaction, `held`, is open. The text says whose, since when and what to do, for a person."""

    def __init__(self, why: str, held: Transaction) -> None:
        super().__init__(why)
        self.held = held


def _refuse(held: Transaction | None, mine: str, now: float, break_lock: bool) -> None:
    why = refusal(held, mine, now, break_lock)
    if held is not None and why:
        raise Refused(why, held)


def opened(held: Transaction | None, state: DeploymentState, asked: Transaction, break_lock: bool = False) -> Transaction:
    """The transaction that is open once `asked` has begun its phase now, its heartbeat. Refused where another one is in the way.

    The id may be that of `held` and the phase go forth or back (a rerun): when it began and where it came from stays what it was.
    A new one, also one that takes over, comes from what the last finished transaction left.
    """
    _refuse(held, asked.id, asked.heartbeat, break_lock)
    if held is not None and held.id == asked.id:
        return replace(asked, opened=held.opened, from_release=held.from_release)
    return replace(asked, opened=asked.heartbeat, from_release=state.current)


def closed(
    held: Transaction | None, state: DeploymentState, mine: str, now: float, outcome: Mapping[str, Any], break_lock: bool = False
) -> DeploymentState:
    """The state once transaction `mine` has ended as `outcome`. Refused where another one is open.

    outcome: keys of the state that change (None leaves one as it is); `death`, one more that nobody explained; `forget_deaths`.
    """
    _refuse(held, mine, now, break_lock)
    given = {key: value for key, value in outcome.items() if value is not None}
    deaths = () if given.pop("forget_deaths", False) else state.deaths
    death = given.pop("death", "")
    return replace(state, deaths=(*deaths, death) if death else deaths, **given)
