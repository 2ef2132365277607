# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Give the page cache back to a machine whose GPU allocates from the same memory.

The driver of a GB10 wants memory that is really free and does not evict page cache to get
it. What counts is therefore MemFree, and each flush is judged by what it freed.

This file also runs by itself: role page_cache puts it on the Spark, where a systemd unit
calls it with a settings file. So it imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIB = 1024**3
POLICIES = ("interval", "floor", "boot_only", "off")
SERVING_FLAG = "/run/sparklanes/serving"
STATE_FILE = "/run/sparklanes/page-cache.json"
# A flush that frees less than this was in vain, and the next one waits longer.
WORTH_BYTES = 64 * 1024**2
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes (HugePages_* are counts and stay so). Lines of another shape are skipped."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isascii() and words[0].isdigit() and words[1:] in ([], ["kB"]):
            found[name.strip()] = int(words[0]) * (1024 if words[1:] else 1)
    return found


@dataclass(frozen=True)
class Memory:
    """The three figures that a flush is judged by, in bytes; None where the kernel does not tell."""

    mem_free: int | None
    cached: int | None
    mem_available: int | None

    @classmethod
    def of(cls, text: str) -> Memory:
        found = parse_meminfo(text)
        return cls(found.get("MemFree"), found.get("Cached"), found.get("MemAvailable"))


@dataclass(frozen=True)
class Effect:
    """What a flush did."""

    before: Memory
    after: Memory

    @property
    def freed(self) -> int:
        """Bytes that left the cache or became free, whichever is more: an engine may take them at once."""
        gains = [
            (self.after.mem_free or 0) - (self.before.mem_free or 0),
            (self.before.cached or 0) - (self.after.cached or 0),
        ]
        return max(0, *gains)

    def to_dict(self) -> dict[str, Any]:
        return {"before": asdict(self.before), "after": asdict(self.after), "freed_bytes": self.freed}


@dataclass(frozen=True)
class Settings:
    """What the unit does."""

    policy: str
    interval_seconds: int = 60
    # Of `interval`: how long after its start the unit works; 0 for ever.
    duration_seconds: int = 0
    floor_gib: float = 8.0
    drop: int = 3
    serving_flag: str = SERVING_FLAG

    def problems(self, mem_total: int | None = None) -> list[str]:
        """What makes these settings unusable, as sentences. `mem_total`: bytes of this Spark, where they are known."""
        wrong = []
        if self.policy not in POLICIES:
            wrong.append(f"policy: found {self.policy!r}, expected one of {', '.join(POLICIES)}")
        if self.interval_seconds < 1:
            wrong.append(f"interval_seconds: found {self.interval_seconds}, expected 1 or more")
        if self.duration_seconds < 0:
            wrong.append(f"duration_seconds: found {self.duration_seconds}, expected 0 (always) or more")
        if not (self.floor_gib > 0 if self.policy == "floor" else self.floor_gib >= 0):
            wrong.append(f"floor_gib: found {self.floor_gib:g}, expected more than 0")
        elif self.policy == "floor" and mem_total is not None and self.floor_gib * GIB >= mem_total:
            wrong.append(
                f"floor_gib: found {self.floor_gib:g}, expected less than all memory of this Spark, {mem_total / GIB:.1f} GiB"
            )
        if self.drop not in (1, 2, 3):
            wrong.append(f"drop: found {self.drop}, expected 1 (page cache), 2 (dentries and inodes) or 3 (both)")
        return wrong

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Settings:
        made = cls(
            policy=str(data.get("policy", "")),
            interval_seconds=int(data.get("interval_seconds", 60)),
            duration_seconds=int(data.get("duration_seconds", 0)),
            floor_gib=float(data.get("floor_gib", 8.0)),
            drop=int(data.get("drop", 3)),
            serving_flag=str(data.get("serving_flag", SERVING_FLAG)),
        )
        if made.problems():
            raise ValueError("; ".join(made.problems()))
        return made


class Governor:
    """Decides when to flush. Time and memory come in from outside, so a test can play any history."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._next = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def due(self, now: float, mem_free: int | None) -> bool:
        if now < self._next:
            return False
        if self.settings.policy != "floor":
            return True
        return mem_free is None or mem_free < self.settings.floor_gib * GIB

    def flushed(self, now: float, freed: int) -> None:
        """`interval` never backs off: a flusher that waits for a threshold was seen to starve the driver."""
        if self.settings.policy != "floor":
            self._next = now + self.settings.interval_seconds
            return
        self._next = now + self._pause
        self._pause = FIRST_PAUSE_SECONDS if freed >= WORTH_BYTES else min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def wait(self, now: float) -> float:
        """Seconds until it is worth asking again: 1 for a floor and for the flag, else until the next flush."""
        return 1.0 if self.settings.policy in ("floor", "boot_only") else max(0.1, self._next - now)


def measure(root: Path = Path("/")) -> Memory:
    return Memory.of((root / "proc/meminfo").read_text(encoding="ascii", errors="replace"))


def mem_total(root: Path = Path("/")) -> int | None:
    """Bytes of all memory; None where the kernel does not tell."""
    try:
        return parse_meminfo((root / "proc/meminfo").read_text(encoding="ascii", errors="replace")).get("MemTotal")
    except OSError:
        return None


def drop_caches(drop: int = 3, root: Path = Path("/"), sync: bool = True) -> Effect:
    """Flush as root does, and measure. Dirty pages can't be dropped, so they are written out first."""
    before = measure(root)
    if sync:
        os.sync()
    with (root / "proc/sys/vm/drop_caches").open("w", encoding="ascii") as stream:
        stream.write(f"{drop}\n")
    return Effect(before, measure(root))


def container_runs(root: Path = Path("/")) -> bool:
    """Whether any process is in a container: ranks are. True where /proc tells nothing.

    `gpu.occupied` answers better; this file runs alone on a Spark, so it asks /proc, which cannot hang.
    """
    looked = False
    for entry in (root / "proc").glob("[0-9]*/cgroup"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        looked = True
        if _CONTAINER_ID.search(text):
            return True
    return not looked


def compact(root: Path = Path("/")) -> bool:
    """Put torn free memory together, unless a rank may run: its pages would be moved under it. Whether it was done."""
    target = root / "proc/sys/vm/compact_memory"
    if not target.exists() or container_runs(root):
        return False
    target.write_text("1\n", encoding="ascii")
    return True


def files_below(paths: Iterable[str]) -> Iterator[Path]:
    """The regular files that these paths name or hold. Links to files count: the Hub's cache is made of them."""
    for given in paths:
        top = Path(given)
        if top.is_dir():
            for folder, _, names in os.walk(top):
                yield from (Path(folder, name) for name in sorted(names) if Path(folder, name).is_file())
        elif top.is_file():
            yield top


def forget(paths: Iterable[str], root: Path = Path("/")) -> tuple[Effect, int]:
    """Drop single files from the cache, which needs only the right to read them; the number of files too."""
    before, count = measure(root), 0
    for path in files_below(paths):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                count += 1
        finally:
            os.close(handle)
    return Effect(before, measure(root)), count


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Whole or absent; /run needs no fsync."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(state, sort_keys=True) + "\n", encoding="utf-8")
    aside.chmod(0o644)
    aside.rename(path)


def ended(settings: Settings, seconds: float) -> str:
    """Why the unit has nothing left to do `seconds` after its start; empty while it has."""
    if settings.policy == "off":
        return "the policy is off"
    if settings.policy == "boot_only" and Path(settings.serving_flag).exists():
        return "the lane serves"
    if settings.policy == "interval" and 0 < settings.duration_seconds <= seconds:
        return f"{settings.duration_seconds} s are over"
    return ""


def run(settings: Settings, identity: str, state_file: Path, root: Path = Path("/")) -> int:
    """The loop of the unit. It ends by itself only where the policy says so, and its state file then tells why."""
    governor, started = Governor(settings), time.monotonic()
    state: dict[str, Any] = {
        "identity": identity,
        "policy": settings.policy,
        "ended": "",
        "flushes": 0,
        "compactions": 0,
        "freed_bytes": 0,
        "last": None,
    }
    save_state(state_file, state)
    while True:
        state["ended"] = ended(settings, time.monotonic() - started)
        if state["ended"]:
            print(f"{state['ended']}: no more flushes until the next lane boots or the Spark does", flush=True)
            save_state(state_file, state)
            return 0
        if governor.due(time.monotonic(), measure(root).mem_free):
            effect = drop_caches(settings.drop, root)
            governor.flushed(time.monotonic(), effect.freed)
            state["flushes"] += 1
            state["freed_bytes"] += effect.freed
            if settings.policy == "floor":
                # The field report that this policy is from compacts with each flush.
                state["compactions"] += compact(root)
            state["last"] = {"at": int(time.time()), **effect.to_dict()}
            save_state(state_file, state)
            if effect.freed >= WORTH_BYTES:
                print(f"freed {effect.freed / GIB:.2f} GiB, MemFree {(effect.after.mem_free or 0) / GIB:.2f} GiB", flush=True)
        time.sleep(governor.wait(time.monotonic()))


def main(argv: list[str]) -> int:
    """`page_cache.py SETTINGS.json [STATE.json [ROOT]]`"""
    data = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
    state_file = argv[2] if len(argv) > 2 else STATE_FILE
    root = argv[3] if len(argv) > 3 else "/"
    return run(Settings.of(data), str(data.get("identity", "")), Path(state_file), Path(root))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
