# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where releases, the transaction and the state of a deployment lie on one Spark.

A *release* is everything one launch of a lane needs, frozen under
`releases/<id>/` on each rank; restoring starts a release, it never renders again.

The Sparks are the authority; what the controller keeps is a receipt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import STATE_ROOT, read_json, write_json
from ansible.module_utils.sparklanes.release.transaction import DeploymentState, Transaction, closed, opened

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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

    def open(self, asked: Transaction, break_lock: bool, write: bool = True) -> tuple[Transaction, DeploymentState]:
        """Take the lock, or renew it, and journal the phase that begins. The transaction as it stands, and the state beside it."""
        state = self.state()
        transaction = opened(self.transaction(), state, asked, break_lock)
        if write:
            write_json(self.transaction_path, transaction.to_dict())
        return transaction, state

    def close(
        self, mine: str, now: float, outcome: Mapping[str, Any], break_lock: bool, write: bool = True
    ) -> tuple[DeploymentState, DeploymentState]:
        """Record the outcome and give the lock back. The state before and after."""
        before = self.state()
        after = closed(self.transaction(), before, mine, now, outcome, break_lock)
        if write:
            # State first: were the machine to die between the two, the journal still names what was going on.
            # A launch that did not begin changes none: then its lock goes also where the disk is full.
            if after != before:
                write_json(self.state_path, after.to_dict())
            self.transaction_path.unlink(missing_ok=True)
        return before, after

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
