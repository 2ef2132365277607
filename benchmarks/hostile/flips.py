# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A bit flipped in bytes on their way, many times: on the wire, and in what was just written, between its first byte and its seal.

Each run stages a model of many files, and each file meets one flip; way, moment and place come from the seed. The seal is the record by which
a model counts as complete. A flip is found where no wrong bit is called right in the end; it counts only where it was made.

    wire     a web server changes one bit of the body, in its first answer for that file
    rsync    somebody between two Sparks changes one bit of what an rsync daemon sends, once, in the bytes of the file
    rest     one bit of the file is changed on the disk, through another descriptor, before a system call that the product makes on it:
             the n-th of those between the end of the transfer and the seal; the file's times are set back where the seed says so. Where
             the kernel keeps watch (a lease) it refuses to open the file, so most runs are as on a file system without leases
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.weights import digest as weights_digest

from benchmarks.hostile import judge, models
from benchmarks.hostile.arena import SECRET, Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.plays.neighbours import Between, Neighbour
from benchmarks.hostile.plays.staging import asked, folder, staged, truth
from benchmarks.hostile.servers import Site

A_RUN = 20
SHARE = (("wire", 0.4), ("rest", 0.5), ("rsync", 0.1))
# System calls that digest.py makes on a file that has come, in their order, some of them several times.
CALLS = ("open", "fchmod", "fsync", "fstat", "preadv", "posix_fadvise", "rename", "stat")


@dataclass
class Done:
    """What a trial came to. `wrong`: flips that were not found, in words."""

    made: int = 0
    found: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def by_way(self) -> str:
        return ", ".join(f"{way} {count}" for way, count in sorted(self.ways.items()))


def flip(content: bytes, place: int) -> bytes:
    """With one bit, counted from the first, turned over."""
    made = bytearray(content)
    made[place // 8] ^= 1 << place % 8
    return bytes(made)


def of(chance: random.Random) -> dict[str, bytes]:
    """A model of many files of sizes between a byte and some blocks of a disk."""
    files = {f"f{number:02}.py": chance.randbytes(chance.choice([1, 27, 4096, 5000, 70_000])) for number in range(A_RUN)}
    return {**files, models.SHARD: models.good()[models.SHARD]}


class Bits(Site):
    """Turns over a bit of the first answer for each file."""

    def __init__(self, arena: Arena, files: Mapping[str, bytes], places: Mapping[str, int]) -> None:
        list_ = json.dumps(models.manifest(files, "mirror")).encode()
        super().__init__(arena, {"/manifest.json": list_, **{f"/{name}": content for name, content in files.items()}}, {})
        self.places = dict(places)
        self.right = dict(self.files)
        self.lock = threading.Lock()

    def step(self, path: str, method: str) -> Mapping[str, Any]:
        name = path.lstrip("/")
        with self.lock:
            place = self.places.pop(name, None) if method == "GET" else None
        if place is not None:
            self.arena.note(flip=name, at="wire", place=place)
            return {"body": "flipped", "place": place}
        return {"body": "right", "range": "honour"}


class NoLeases:
    """Instead of `fcntl` there: a file system that knows no leases."""

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)

    def fcntl(self, descriptor: int, what: int, *more: Any) -> Any:
        if what == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fcntl.fcntl(descriptor, what, *more)


class Disk:
    """Instead of `os` in the product's module that hashes and names what has come: flips a bit before a call of its own choice."""

    def __init__(self, arena: Arena, plans: Mapping[str, tuple[int, int, bool]]) -> None:
        """plans: by the hash of a file's folder, (which call, which bit, whether the times are set back)."""
        self.arena, self.plans = arena, dict(plans)
        self.here = threading.local()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.before(name, real) if name in CALLS else real

    def before(self, name: str, real: Any) -> Any:
        def called(*args: Any, **more: Any) -> Any:
            if name == "open" and isinstance(args[0], Path):
                self.here.path, self.here.count = args[0], 0
            path = getattr(self.here, "path", None)
            if path is not None and (plan := self.plans.get(path.parent.name)):
                number, place, back = plan
                if self.here.count >= number or name == "rename":
                    del self.plans[path.parent.name]
                    # Between the last look and the name only a lease would tell of times that are set back: see docs/benchmarks.md.
                    self.spoil(path, place, back and name != "rename", f"{name} ({self.here.count})")
                self.here.count += 1
            return real(*args, **more)

        return called

    def spoil(self, path: Path, place: int, back: bool, when: str) -> None:
        with contextlib.suppress(OSError):
            # Who has a file open for writing is found by that alone; what changes it is opened, and closed, in between.
            before = path.stat()
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            try:
                byte = os.pread(descriptor, 1, place // 8)
                os.pwrite(descriptor, bytes([byte[0] ^ 1 << place % 8]), place // 8)
            finally:
                os.close(descriptor)
            if back:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.arena.note(flip=path.parent.name, at="rest", when=when)
            return
        self.arena.note(refused=path.parent.name, when=when)


def wire(arena: Arena, chance: random.Random) -> tuple[dict[str, bytes], Any]:
    files = of(chance)
    site = Bits(
        arena, files, {name: chance.randrange(8 * len(content)) for name, content in files.items() if name != models.SHARD}
    )
    site.serve()
    return files, arena.stage(asked(arena), source="mirror", mirror={"urls": {"model": site.url}, "lists": {}})


def rest(arena: Arena, chance: random.Random) -> tuple[dict[str, bytes], Any]:
    files = of(chance)
    site = Bits(arena, files, {})
    site.serve()
    plans = {}
    for name, content in files.items():
        if name != models.SHARD:
            plans[models.sha256(name.encode())[:16]] = (
                chance.randrange(16),
                chance.randrange(8 * len(content)),
                chance.random() < 0.5,
            )
    setattr(weights_digest, "os", Disk(arena, plans))  # noqa: B010 (mypy)
    if chance.random() < 0.8:
        setattr(weights_digest, "fcntl", NoLeases())  # noqa: B010 (mypy)
    try:
        return files, arena.stage(asked(arena), source="mirror", mirror={"urls": {"model": site.url}, "lists": {}})
    finally:
        setattr(weights_digest, "os", os)  # noqa: B010 (mypy)
        setattr(weights_digest, "fcntl", fcntl)  # noqa: B010 (mypy)


def rsync(arena: Arena, chance: random.Random) -> tuple[dict[str, bytes], Any]:
    files = {f"f{number:02}.py": chance.randbytes(9000) for number in range(A_RUN)} | {models.SHARD: models.good()[models.SHARD]}
    neighbour = Neighbour(arena, Case("neighbour", "flips", "", "chain"))
    shutil.rmtree(neighbour.root / "model")
    for name, content in files.items():
        neighbour.put(name, content)
    neighbour.files = files
    neighbour.offer()
    neighbour.serve()
    places = {name: chance.randrange(8 * 8000) for name in files if name != models.SHARD}
    lock = threading.Lock()

    def spoil(data: bytes) -> bytes:
        for name, place in list(places.items()):
            # Of the bytes of a file only those are known that come in one piece with its beginning.
            begin = data.find(files[name][:24])
            if begin >= 0 and begin + place // 8 < len(data):
                with lock:
                    if places.pop(name, None) is not None:
                        arena.note(flip=name, at="rsync")
                        data = flip(data, 8 * begin + place)
        return data

    between = Between(neighbour, spoil)
    between.serve()
    peers = [{"name": "spark-1", "url": f"rsync://{models.user_of(SECRET)}@127.0.0.1:{between.port}"}]
    return files, arena.stage(asked(arena), source="chain", chain={"peers": peers, "secret": SECRET, "patience": 2}, seconds=60)


WAYS = {"wire": wire, "rest": rest, "rsync": rsync}


def rounds(count: int, seed: int) -> Iterator[tuple[str, random.Random]]:
    """Runs without an end, in the shares of their ways."""
    number = 0
    while True:
        chance = random.Random(f"{seed}/{number}")
        yield chance.choices([way for way, _ in SHARE], [share for _, share in SHARE])[0], chance
        number += 1


def one(way: str, chance: random.Random, root: Path) -> tuple[int, list[str]]:
    """(how many flips were made, what was not found of them)."""
    arena = Arena(root, chance.randrange(1 << 30))
    try:
        files, said = WAYS[way](arena, chance)
    finally:
        arena.end()
    made = [note for note in arena.noted() if "flip" in note]
    true = truth(files)
    wrong = judge.recorded(arena.node / "staged", true)
    if staged(said):
        wrong += judge.kept(folder(arena), true)
    else:
        # What was refused may have left a file that no record says is right; a look finds it.
        wrong += [f"{name} is wrong and has a record" for name in believed(arena, true)]
    printed = judge.printed(arena.says, arena.job_logs())
    return len(made), [*wrong, *printed.red]


def believed(arena: Arena, true: Mapping[str, str]) -> list[str]:
    """Files with other bits whose record fits their size and times, so that the next look takes them for right."""
    found = []
    for path in (arena.node / "staged").rglob("*.json"):
        if path.name not in ("STAGED.json", "PARTIAL.json"):
            continue
        for name, record in json.loads(path.read_bytes()).get("files", {}).items():
            there = folder(arena) / name
            if not there.is_file() or judge.sha256(there) == true[name]:
                continue
            status = there.stat()
            if (record["size"], record["mtime_ns"], record.get("ctime_ns")) == (
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            ):
                found.append(name)
    return found


def trial(count: int, seed: int, folder_: Path) -> Done:
    """Flip `count` bits; fewer where they can't be made."""
    done = Done()
    most = 3 * (count // A_RUN + 1) + 20
    for number, (way, chance) in enumerate(rounds(count, seed)):
        if done.made >= count or number >= most:
            break
        root = Path(tempfile.mkdtemp(prefix="flips-", dir=folder_))
        try:
            made, wrong = one(way, chance, root / "arena")
        finally:
            shutil.rmtree(root, ignore_errors=True)
        made = min(made, count - done.made)
        done.made += made
        done.ways[way] += made
        done.found += max(0, made - len(wrong))
        done.wrong += [f"run {number} of seed {seed}, {way}: {text}" for text in wrong]
    return done
