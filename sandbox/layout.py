# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where the sandbox of one clone keeps its things, and the state it remembers.

Everything lies in `<clone>/.sandbox`, but sockets and mounts: these lie in
`/run/sparklanes-<hash of the clone's path>`, for a socket's path may not be longer
than 108 bytes and a reboot should forget them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STATE_VERSION = 1
EPOCH = 1735689600  # one time for all files in images: their real ones would change the digests


@dataclass(frozen=True)
class Clone:
    """The paths and names of one clone's sandbox."""

    root: Path

    @property
    def tag(self) -> str:
        return hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        return f"sparklanes-{self.tag}"

    @property
    def home(self) -> Path:
        return self.root / ".sandbox"

    @property
    def run(self) -> Path:
        return Path("/run") / self.name

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def tmp(self) -> Path:
        return self.home / "tmp"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def nodes(self) -> Path:
        return self.home / "nodes"

    @property
    def ssh(self) -> Path:
        return self.home / "ssh"

    @property
    def storage(self) -> Path:
        return self.home / "storage"

    @property
    def state_file(self) -> Path:
        return self.home / "state.json"

    @property
    def inventory(self) -> Path:
        return self.root / "inventory" / "sandbox" / "10-sandbox.yml"

    def bridge(self, which: str) -> str:
        """An interface name has 15 characters at most."""
        return f"sl{self.tag}{which[0]}"

    def keeper(self, which: str) -> str:
        """A link that keeps the bridge while no node is attached; its peer has a `p` more."""
        return f"{self.bridge(which)}k"


@dataclass
class State:
    """What `up` did, written before and after each thing that `down` must undo."""

    version: int = STATE_VERSION
    boot_id: str = ""
    engine: str = ""
    complete: bool = False
    light: bool = False
    networks: dict[str, str] = field(default_factory=dict)  # mgmt, fabric → subnet
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)  # name → mgmt, fabric
    netns: list[str] = field(default_factory=list)
    services: dict[str, dict[str, int]] = field(default_factory=dict)  # name → pid, started
    keys: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)  # what the inventory tells

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")


def read_state(path: Path) -> State | None:
    """None: there is none, or it is not ours to understand (a half-written file never has the final name)."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if data.get("version") != STATE_VERSION:
        return None
    return State(**data)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    part.chmod(mode)
    part.rename(path)


def give_to_user(paths: Iterable[Path]) -> None:
    """Under sudo, inventory and keys belong to the person who will run Ansible."""
    user, group = int(os.environ.get("SUDO_UID", "0")), int(os.environ.get("SUDO_GID", "0"))
    if user:
        for path in paths:
            os.chown(path, user, group)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def content_key(*parts: str | bytes | Path) -> str:
    """A key for a cached thing: it changes when any of its inputs does. A folder counts with all its files."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
            for file in files:
                digest.update(f"{file.relative_to(part)}\0{file.stat().st_mode & 0o111}\0".encode())
                digest.update(file.read_bytes())
        else:
            digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]
