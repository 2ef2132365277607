# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where releases, the transaction and the state of a deployment lie on one Spark.

A *release* is everything one launch of a lane needs, frozen under
`releases/<id>/` on each rank; restoring starts a release, it never renders again.

The Sparks are the authority; what the controller keeps is a receipt.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import Moment
from ansible.module_utils.sparklanes.common.files import STATE_ROOT, Unreadable, read_state, write_json
from ansible.module_utils.sparklanes.common.locks import locked
from ansible.module_utils.sparklanes.release.transaction import (
    DeploymentState,
    Lost,
    Refused,
    Transaction,
    acquired,
    closed,
    lost,
    refusal,
    renewed,
    to_break,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RELEASE = re.compile(r"[0-9a-f]{12}")
# Fields that each state has that any version of ours wrote.
ALWAYS = ("status", "current", "last_good")


def unreferenced(releases: Iterable[str], states: Iterable[DeploymentState], also: Iterable[str] = ()) -> list[str]:
    """Releases that no deployment runs, would restore, or is moving to."""
    used = {name for state in states for name in (state.current, state.last_good)} | set(also)
    return sorted(release for release in releases if release not in used)


@contextlib.contextmanager
def alone(root: str, what: str, write: bool = True) -> Iterator[None]:
    """Nobody else on this Spark reads and changes a transaction, a state or a rank while the block runs. `what`: for whoever is refused.

    write: false for a check, which leaves nothing behind, not even the file of the lock.
    """
    if not write:
        yield
        return
    with locked(Path(root, "deployments", ".lock"), what):
        yield


@dataclass(frozen=True)
class Store:
    """Where the above lies on a Spark, below `root` (tests give another one)."""

    deployment: str
    root: str = STATE_ROOT

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.deployment):
            raise ValueError(f"deployment name {self.deployment!r}: expected letters, digits, '_', '.' or '-'")

    @property
    def folder(self) -> Path:
        return Path(self.root, "deployments", self.deployment)

    @property
    def state_path(self) -> Path:
        return self.folder / "state.json"

    @property
    def transaction_path(self) -> Path:
        return self.folder / "transaction.json"

    def release_folder(self, release: str) -> Path:
        if not _RELEASE.fullmatch(release):
            raise ValueError(f"release {release!r}: expected 12 hex digits")
        return Path(self.root, "releases", release)

    def state(self) -> DeploymentState:
        """What the last finished transaction left; Unreadable, never a guess, where the file does not say it."""
        data, mark = read_state(self.state_path)
        try:
            # One that says nothing of it does not say that nothing runs, or that nothing is last good.
            if data is not None and (lacks := [name for name in ALWAYS if name not in data]):
                raise ValueError(f"it has no {lacks[0]}")
            return DeploymentState.from_dict(data)
        except ValueError as error:
            raise Unreadable(self.state_path, str(error), mark) from error

    def transaction(self) -> Transaction | None:
        """The open transaction; None where no file is, Unreadable where a file is and does not say whose it is."""
        data, mark = read_state(self.transaction_path)
        try:
            return None if data is None else Transaction.of(data)
        except ValueError as error:
            raise Unreadable(self.transaction_path, str(error), mark) from error

    def acquire(
        self, asked: Transaction, now: Moment, break_lock: str = "", write: bool = True
    ) -> tuple[Transaction, DeploymentState]:
        """Take the lock and journal the phase that begins. The transaction as it stands, and the state beside it.

        Of any number that come at once one gets it. break_lock: id (or mark) of the lock that a person saw and has given up for dead.
        """
        with self._alone(f"takes the lock for transaction {asked.id}", write):
            try:
                held = self.transaction()
            except Unreadable as error:
                if not error.mark or error.mark != break_lock:
                    raise Refused(unreadable_lock(error), None) from error
                held = None
            try:
                state = self.state()
            except Unreadable as error:
                raise Refused(unreadable_state(error), held) from error
            made = acquired(held, state, asked, held.age(now) if held else 0.0, break_lock)
            if write:
                write_json(self.transaction_path, made.to_dict())
            return made, state

    def renew(self, asked: Transaction, now: Moment) -> Transaction:
        """Journal the phase that begins, and hold the lock for another lease. Lost where it is not this transaction's any more."""
        with self._alone(f"renews the lock of transaction {asked.id}"):
            held = self._held(asked.id)
            made = renewed(held, asked, held.age(now) if held else 0.0)
            write_json(self.transaction_path, made.to_dict())
            return made

    def lost(self, mine: str, now: Moment) -> str:
        """How transaction `mine` lost the lock of this Spark, as part of a sentence; empty where it holds it. `mine` empty: nobody holds it."""
        try:
            held = self.transaction()
        except Unreadable as error:
            return unreadable_lock(error)
        if not mine:
            return refusal(held, mine, held.age(now)) if held else ""
        return lost(held, mine, held.age(now) if held else 0.0)

    def close(
        self, mine: str, now: Moment, outcome: Mapping[str, Any], write: bool = True
    ) -> tuple[DeploymentState | None, DeploymentState | None]:
        """Record the outcome and give the lock back. The state before and after; None where nothing was recorded, as nothing was read.

        Lost where the lock is not this transaction's. Without an outcome one that is gone already is no error.
        """
        with self._alone(f"ends transaction {mine}", write):
            held = self._held(mine)
            # A check took no lock, so it has none.
            if held is None and not outcome:
                return None, None
            if write or held is not None:
                why = lost(held, mine, held.age(now) if held else 0.0)
                if why:
                    raise Lost(f"{why}. Nothing of what it found out was recorded here", held)
            before = after = None
            if outcome:
                try:
                    before = self.state()
                except Unreadable as error:
                    raise Refused(unreadable_state(error), held) from error
                after = closed(before, mine, outcome)
            if write:
                # State first: were the machine to die between the two, the journal still names what was going on.
                # A launch that did not begin changes none: then its lock goes also where the disk is full.
                if after is not None and after != before:
                    write_json(self.state_path, after.to_dict())
                self.transaction_path.unlink(missing_ok=True)
            return before, after

    def _held(self, mine: str) -> Transaction | None:
        try:
            return self.transaction()
        except Unreadable as error:
            raise Lost(f"whether transaction {mine} still holds the lock is not known: {unreadable_lock(error)}", None) from error

    def _alone(self, what: str, write: bool = True) -> contextlib.AbstractContextManager[None]:
        return alone(self.root, f"{what} of {self.deployment}", write)

    def spec(self, release: str) -> dict[str, Any] | None:
        """The frozen rank spec of a release on this Spark, None where it was never frozen here."""
        return read_state(self.release_folder(release) / "rank.json")[0]

    def manifest(self, release: str) -> dict[str, Any] | None:
        return read_state(self.release_folder(release) / "release.json")[0]

    def judged(self, release: str) -> dict[str, Any]:
        """What a release was judged with, as it was noted beside it: `bank` (its name) and `limits`; only rank 0 has it. `unreadable` says
        why it can't be known: no reason to leave a release down."""
        try:
            return read_state(self.release_folder(release) / "judged.json")[0] or {}
        except Unreadable as error:
            return {"unreadable": str(error)}

    def releases(self) -> list[str]:
        folder = Path(self.root, "releases")
        return sorted(entry.name for entry in folder.iterdir() if _RELEASE.fullmatch(entry.name)) if folder.is_dir() else []

    def deployments(self) -> list[Store]:
        """Every deployment that this Spark knows of."""
        folder = Path(self.root, "deployments")
        return [Store(entry.name, self.root) for entry in sorted(folder.iterdir()) if entry.is_dir()] if folder.is_dir() else []

    def all_states(self) -> list[DeploymentState]:
        return [store.state() for store in self.deployments()]

    def all_transactions(self) -> list[Transaction]:
        return [held for store in self.deployments() if (held := store.transaction()) is not None]


def unreadable_lock(error: Unreadable) -> str:
    """What a lock that can't be read means, and what a person can do."""
    way = to_break(error.mark) if error.mark else f"mv {error.path} {error.path}.broken on that Spark, then playbooks/recover.yml"
    return f"{error}, so a transaction may be open, and whose is not known. Look whether anybody launches; if nobody does: {way}"


def unreadable_state(error: Unreadable) -> str:
    """What a state that can't be read means, and what a person can do."""
    return (
        f"{error}, so what serves and what was last good is not known. Copy it from another rank of the deployment, or move it away "
        f"(mv {error.path} {error.path}.broken): then nothing counts as last good here"
    )
