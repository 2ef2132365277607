# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Bytes: weights, overlays, banks and the product's own state changed, cut or gone; disks that are full."""

from __future__ import annotations

import json
import shutil
import subprocess
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.injectors import Injector
from benchmarks.faults.nodes import DEPLOYMENTS, Fleet, NodeError

FLIP = """
import glob, json, os, sys
pattern, keep, at = sys.argv[1], sys.argv[2] == 'keep', int(sys.argv[3])
path = sorted(glob.glob(pattern))[0]
before = os.stat(path)
mode = before.st_mode & 0o7777
os.chmod(path, mode | 0o200)
with open(path, 'r+b') as stream:
    stream.seek(at if at >= 0 else before.st_size + at)
    old = stream.read(64)
    stream.seek(at if at >= 0 else before.st_size + at)
    stream.write(bytes(value ^ 0x40 for value in old))
os.chmod(path, mode)
if keep:
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
print(json.dumps([path, before.st_atime_ns, before.st_mtime_ns]))
"""
RESTORE_TIMES = "import os, sys; os.utime(sys.argv[1], ns=(int(sys.argv[2]), int(sys.argv[3])))"


@dataclass
class Flip(Injector, name="flip"):
    """Bits of a file are turned over; its time of change says so, or doesn't. Undone by turning them back."""

    node: str
    path: str
    keep_mtime: bool = True
    at: int = -64
    was: list[str] = field(default_factory=list)

    def _flip(self, fleet: Fleet, pattern: str) -> list[str]:
        keep = "keep" if self.keep_mtime else "new"
        out = fleet.node(self.node).do(f"python3 - '{pattern}' {keep} {self.at}", stdin=FLIP.encode())
        return [str(word) for word in json.loads(out)]

    def inject(self, fleet: Fleet) -> None:
        self.was = self._flip(fleet, self.path)

    def undo(self, fleet: Fleet) -> None:
        if self.was:
            self._flip(fleet, self.was[0])
            fleet.node(self.node).do(f"python3 -c '{RESTORE_TIMES}' {' '.join(self.was)}")
            self.was = []


@dataclass
class Away(Injector, name="away"):
    """A file or folder is moved aside."""

    node: str
    path: str

    def inject(self, fleet: Fleet) -> None:
        fleet.node(self.node).do(f"mv {self.path} {self.path}.was-here")

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(
            f"[ ! -e {self.path}.was-here ] || {{ rm -rf {self.path}; mv {self.path}.was-here {self.path}; }}"
        )


@dataclass
class Written(Injector):
    """A file of a node becomes another text, or is cut. Undone only if the product hasn't written it since."""

    node: str
    text: str | None = field(default=None, kw_only=True)  # None: the first half of what stands there
    path: str = field(default="", kw_only=True)
    was: str | None = field(default=None, kw_only=True)
    mine: str | None = field(default=None, kw_only=True)

    @abstractmethod
    def place(self, fleet: Fleet) -> str:
        """The path of the file, asked when it is injected."""

    def inject(self, fleet: Fleet) -> None:
        node, self.path = fleet.node(self.node), self.place(fleet)
        self.was = node.read(self.path)
        if self.text is None and not self.was:
            raise NodeError(f"{self.node}: {self.path} has nothing to cut")
        self.mine = self.text if self.text is not None else (self.was or "")[: len(self.was or "") // 2]
        node.do(f"cat > {self.path}", stdin=self.mine.encode())

    def undo(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        if self.mine is None or node.read(self.path) != self.mine:
            return
        if self.was is None:
            node.do(f"rm {self.path}")
        else:
            node.do(f"cat > {self.path}", stdin=self.was.encode())


@dataclass
class WriteState(Written, name="write_state"):
    """One of the deployment's state."""

    file: str

    def place(self, fleet: Fleet) -> str:
        return f"{DEPLOYMENTS}/{self.file}"

    def touched(self, fleet: Fleet) -> str:
        there = fleet.node(self.node).read(self.path)
        return "" if there == self.mine else f"{self.path} of {self.node} was unreadable, and was written over or removed"


@dataclass
class StrangersLock(WriteState, name="strangers_lock"):
    """An open transaction of another controller whose heartbeat is off by some seconds, as after a step of the clock.

    Containers share the machine's clock, so what a step leaves behind is written, not the step made.
    """

    file: str = "transaction.json"
    off: float = 0.0

    def inject(self, fleet: Fleet) -> None:
        now = float(fleet.node(self.node).do("date +%s")) + self.off
        held = {"id": "20260101T000000Z-feed", "phase": "start", "controller": "other@elsewhere", "opened": now, "heartbeat": now}
        self.text = json.dumps({**held, "lease_seconds": 900, "lane": "sandbox_tiny", "from_release": "", "to_release": ""})
        super().inject(fleet)


@dataclass
class FullDisk(Injector, name="full_disk"):
    """A file system of its own without a free byte lies over a folder of a node."""

    node: str
    path: str

    def inject(self, fleet: Fleet) -> None:
        fleet.node(self.node).do(
            f"mkdir -p {self.path} && mount -t tmpfs -o size=256k,mode=755 emulated-full {self.path} && "
            f"{{ cat /dev/zero > {self.path}/filling 2>/dev/null || true; }}"
        )

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(
            f"while grep -q 'emulated-full {self.path} ' /proc/mounts; do umount -l {self.path} || exit 1; done"
        )


@dataclass
class FullController(Injector, name="full_controller"):
    """The folder of receipts is on a disk without a free byte: the run gets `-e artifacts_directory=.sandbox/faults/full`."""

    def inject(self, fleet: Fleet) -> None:
        place = fleet.home / "faults/full"
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "emulated-full", str(place)], check=True)
        with (place / "filling").open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                return

    def undo(self, fleet: Fleet) -> None:
        place = fleet.home / "faults/full"
        while place.is_mount():
            subprocess.run(["umount", "-l", str(place)], check=True)


@dataclass
class CutBank(Injector, name="cut_bank"):
    """The reference of the lane on the controller is only its first half."""

    def _paths(self, fleet: Fleet) -> tuple[Path, Path]:
        return fleet.home / "banks/sandbox_tiny.json.gz", fleet.home / "faults/bank.whole"

    def inject(self, fleet: Fleet) -> None:
        bank, whole = self._paths(fleet)
        whole.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(bank, whole)
        bank.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])

    def undo(self, fleet: Fleet) -> None:
        bank, whole = self._paths(fleet)
        if whole.exists():
            shutil.copy2(whole, bank)
            whole.unlink()


@dataclass
class CutFrozen(Written, name="cut_frozen"):
    """The frozen rank of the release that would come back is only its first half."""

    def place(self, fleet: Fleet) -> str:
        release = str(fleet.state(fleet.node(self.node)).get("last_good") or "")
        if not release:
            raise NodeError(f"{self.node}: no release is last good")
        return f"/var/lib/sparklanes/releases/{release}/rank.json"
