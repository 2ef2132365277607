# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Releases, transactions and the state of a deployment on one Spark.

A *release* is everything one launch of a lane needs, frozen under
`releases/<id>/` on each rank; restoring starts a release, it never renders again.
A *transaction* is one attempt to change what runs: its file is both the lock (a lease
with a heartbeat) and the write-ahead journal (which phase, from and to which release).
The *state* says what runs and which release last passed all gates.

The Sparks are the authority; what the controller keeps is a receipt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import STATE_ROOT, read_json

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

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def release_id(specs: Sequence[Mapping[str, Any]], identity: Mapping[str, Any]) -> str:
    """12 hex digits that stand for these rank specs and this identity (image, weights, overlays, host settings).

    Equal content gives an equal id on any controller, so that a second launch of the same lane is recognised.
    """
    content = json.dumps([list(specs), dict(identity)], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


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


def unreferenced(releases: Iterable[str], states: Iterable[DeploymentState], also: Iterable[str] = ()) -> list[str]:
    """Releases that no deployment runs, would restore, or is moving to."""
    used = {name for state in states for name in (state.current, state.last_good)} | set(also)
    return sorted(release for release in releases if release not in used)


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
        if not re.fullmatch(r"[0-9a-f]{12}", release):
            raise ValueError(f"release {release!r}: expected 12 hex digits")
        return Path(self.root, "releases", release)

    def state(self) -> DeploymentState:
        return DeploymentState.from_dict(read_json(self.state_path))

    def transaction(self) -> Transaction | None:
        return Transaction.from_dict(read_json(self.transaction_path))

    def spec(self, release: str) -> dict[str, Any] | None:
        """The frozen rank spec of a release on this Spark, None where it was never frozen here."""
        return read_json(self.release_folder(release) / "rank.json")

    def manifest(self, release: str) -> dict[str, Any] | None:
        return read_json(self.release_folder(release) / "release.json")

    def releases(self) -> list[str]:
        folder = Path(self.root, "releases")
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []

    def all_states(self) -> list[DeploymentState]:
        folder = Path(self.root, "deployments")
        if not folder.is_dir():
            return []
        return [Store(entry.name, self.root).state() for entry in sorted(folder.iterdir()) if entry.is_dir()]
