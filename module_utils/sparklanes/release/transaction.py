# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The transaction of a deployment, and the state that it leaves behind.

A *transaction* is one attempt to change what runs: it is both the lock (a lease with a heartbeat) and the write-ahead journal
(which phase began, from and to which release). The *state* says what runs and which release last passed all gates.
Here is what may follow on what; `release.store` knows where it lies.

It is *acquired* once. Everything later, its end too, asks for that very transaction: who lost it changes nothing any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible.module_utils.sparklanes.common.clock import Moment
from ansible.module_utils.sparklanes.common.record import MORE, known

# A launch in the order in which it happens; the journal names the phase that began. The last one is of playbooks/reboot.yml.
PHASES = ("stop", "settle", "start", "boot", "judge", "restore", "reboot")

SERVING = "serving"
UNBANKED = "serving-unbanked"
STOPPED = "stopped"
FAILED = "failed"
RESTORED = "restored"  # started again after a failure, alive, and compared with nothing, or with another bank than its own
JUDGED = "restored-judged"  # the same, and within the noise of the bank that its own launch was judged with
SUSPECT = "suspect"
STATUSES = (SERVING, UNBANKED, RESTORED, JUDGED, SUSPECT, STOPPED, FAILED)

# Two deaths that nobody explained, and everything waits for a person (docs/architecture.md, "A transaction").
DEATHS_BEFORE_A_PERSON = 2


def _to_dict(record: Transaction | DeploymentState) -> dict[str, Any]:
    made = asdict(record)
    more: dict[str, Any] = made.pop(MORE)
    return {**more, **{name: list(value) if isinstance(value, tuple) else value for name, value in made.items()}}


@dataclass(frozen=True)
class Transaction:
    """One attempt to change what a deployment runs.

    opened, heartbeat: seconds since the epoch (UTC), for people. The lease counts by `beat`, the Spark's `clock` of its boot `boot` at the
    last heartbeat: no step of a wall clock ends a living lease. What version 0.1 left has no `boot`. more: fields of a newer version.
    """

    id: str
    phase: str
    controller: str
    opened: float
    heartbeat: float
    lease_seconds: float
    lane: str = ""
    from_release: str = ""
    to_release: str = ""
    boot: str = ""
    beat: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Transaction:
        """What a file says; ValueError where it is no transaction."""
        made = cls(**known(cls, data))
        if not made.id:
            raise ValueError("its id is empty")
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Transaction | None:
        return cls.of(data) if data else None

    def to_dict(self) -> dict[str, Any]:
        return _to_dict(self)

    def age(self, now: Moment) -> float:
        """Seconds since the last heartbeat, on the Spark that it lies on. After a reboot at least those since the boot."""
        if self.boot and now.boot:
            return max(0.0, now.clock - self.beat) if self.boot == now.boot else now.clock
        return max(0.0, now.wall - self.heartbeat)

    def expired(self, age: float) -> bool:
        return age > self.lease_seconds


@dataclass(frozen=True)
class DeploymentState:
    """What a deployment runs on this Spark, as its last finished transaction left it."""

    status: str = STOPPED
    lane: str = ""
    current: str = ""
    last_good: str = ""
    last_good_lane: str = ""
    reason: str = ""
    deaths: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> DeploymentState:
        """What a file says, or a Spark; nothing is a deployment that never ran. ValueError where it is no state, or could not be read there."""
        if data and data.get("unreadable"):
            raise ValueError(str(data["unreadable"]))
        return cls(**known(cls, data or {}))

    def to_dict(self) -> dict[str, Any]:
        return _to_dict(self)

    def waits_for_a_person(self) -> bool:
        return len(self.deaths) >= DEATHS_BEFORE_A_PERSON


def unreadable(facts: Mapping[str, Any] | None) -> str:
    """Why a Spark could not say what it has recorded of a deployment (facts of readiness_info), empty where it could."""
    return str(((facts or {}).get("deployment_state") or {}).get("unreadable") or "")


def deaths(states: Iterable[DeploymentState]) -> list[str]:
    """The deaths of a deployment as its ranks tell them. Each rank may have missed one, and none counts twice for being told twice."""
    told: Counter[str] = Counter()
    for state in states:
        told |= Counter(state.deaths)
    return list(told.elements())


def _words(held: Transaction, age: float) -> str:
    return f"transaction {held.id} of {held.controller}, in phase '{held.phase}' (last heartbeat {int(age)} s ago)"


def to_break(name: str) -> str:
    """What a person types who knows that nobody is at work under this lock any more."""
    return f"playbooks/recover.yml -e break_lock={name}"


def refusal(held: Transaction | None, mine: str, age: float, break_lock: str = "") -> str:
    """Why transaction `mine` may not open here, or an empty text where it may.

    Only the same transaction goes on by itself. Another one is waited for while its lease lives and needs a person's word when it doesn't:
    recover, or its id as `break_lock`. age: seconds since the heartbeat of `held`.
    """
    if held is None or held.id in (mine, break_lock):
        return ""
    wrong = ""
    if break_lock:
        wrong = f"break_lock is '{break_lock}', and takes the id of the lock that is to be broken, which is another here: "
    if held.expired(age):
        return (
            f"{wrong}transaction {held.id} of {held.controller} was interrupted in phase '{held.phase}' ({int(age)} s without a "
            f"heartbeat, lease {int(held.lease_seconds)} s). Run playbooks/recover.yml to finish or undo it"
        )
    return f"{wrong}{_words(held, age)} holds the lock. Wait for it; if that controller is gone for good: {to_break(held.id)}"


class Refused(ValueError):
    """Another transaction, `held`, is open. The text says whose, since when and what to do, for a person."""

    def __init__(self, why: str, held: Transaction | None) -> None:
        super().__init__(why)
        self.held = held


class Lost(Refused):
    """This transaction is not open any more. The text says whose is, if any."""


def lost(held: Transaction | None, mine: str, age: float) -> str:
    """How transaction `mine` lost the lock, or an empty text where it still holds it."""
    if held is not None and held.id == mine:
        return ""
    who = f"{_words(held, age)} holds it now" if held else "it was given back, or broken by somebody who is done already"
    return f"transaction {mine} lost the lock: {who}"


def acquired(
    held: Transaction | None, state: DeploymentState, asked: Transaction, age: float, break_lock: str = ""
) -> Transaction:
    """The transaction that is open once `asked` took the lock. Refused where another one is in the way.

    The id may be that of `held` (a rerun): when it began and where it came from stays what it was. A new one, also one that takes over,
    comes from what the last finished transaction left.
    """
    why = refusal(held, asked.id, age, break_lock)
    if why:
        raise Refused(why, held)
    if held is not None and held.id == asked.id:
        return replace(asked, opened=held.opened, from_release=held.from_release, more=held.more)
    return replace(asked, opened=asked.heartbeat, from_release=state.current)


def renewed(held: Transaction | None, asked: Transaction, age: float) -> Transaction:
    """The transaction once it has begun its next phase, which may be an earlier one. Lost where it is not `held`."""
    why = lost(held, asked.id, age)
    if held is None or why:
        raise Lost(why, held)
    return replace(asked, opened=held.opened, from_release=held.from_release, more=held.more)


def closed(state: DeploymentState, mine: str, outcome: Mapping[str, Any]) -> DeploymentState:
    """The state once transaction `mine` has ended as `outcome`.

    outcome: keys of the state that change (None leaves one as it is); `death`, one more that nobody explained; `forget_deaths`.
    """
    given = {key: value for key, value in outcome.items() if value is not None}
    before = () if given.pop("forget_deaths", False) else state.deaths
    death = str(given.pop("death", "")).rstrip(". ")
    # By its transaction, one death is known for one however many ranks tell of it.
    return replace(state, deaths=(*before, f"{death} (transaction {mine})") if death else before, **given)
