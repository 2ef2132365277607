# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which file system a path is on: a disk of this Spark, or one that several Sparks share over a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "9p",
        "afs",
        "fuse.sshfs",
        "fuse.juicefs",
        "fuse.glusterfs",
    }
)
ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of /proc/mounts."""

    device: str
    point: str
    kind: str

    @property
    def shared(self) -> bool:
        """Whether other Sparks may see the same bytes from the same server."""
        return self.kind in NETWORK

    @property
    def server(self) -> str:
        """Who serves it; empty for a local disk."""
        return self.device if self.shared else ""


def parse_mounts(text: str) -> list[Mount]:
    """The lines of /proc/mounts; spaces in names are written \\040 there."""
    found = []
    for line in text.splitlines():
        words = [ESCAPE.sub(lambda match: chr(int(match[1], 8)), word) for word in line.split(" ")]
        if len(words) >= 3:
            found.append(Mount(words[0], words[1], words[2]))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that holds a path: the longest mount point above it, the last of two at one place."""
    above = {str(PurePosixPath(path)), *map(str, PurePosixPath(path).parents)}
    best: Mount | None = None
    for mount in mounts:
        if mount.point in above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def where(path: str, proc: Path = Path("/proc")) -> Mount | None:
    """The mount of a path on this node, links followed; None where it can't be told."""
    try:
        return mount_of(str(Path(path).resolve()), parse_mounts((proc / "mounts").read_text(errors="replace")))
    except OSError:
        return None
