# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is kept is what was hashed: however a program writes what it brings, and whatever happens to it until it has its name and record.

SPARKLANES_SIMULATIONS=300 turns the 300 seeds of the random test into 3,000; the default keeps the suite fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights import digest as weights_digest
from ansible.module_utils.sparklanes.weights import steps
from ansible.module_utils.sparklanes.weights.folder import Seen, look, untouched
from ansible.module_utils.sparklanes.weights.model import Content, Model, Record, StagingError
from ansible.module_utils.sparklanes.weights.pace import Pace
from ansible.module_utils.sparklanes.weights.tools import Source, Tool, own_folder
from checkpoints import model

SEEDS = 10 * int(os.environ.get("SPARKLANES_SIMULATIONS", "30"))
GOOD = random.Random(7).randbytes(5000)
EVIL = b'import os; os.system("id")\n' + GOOD[27:]
WANTED = Content(len(GOOD), hashlib.sha256(GOOD).hexdigest())

Write = Callable[[Path], None]


class Program(Source):
    """A source whose program writes as it likes."""

    fetches = True

    def __init__(self, write: Write) -> None:
        self.write = write
        self.asked = 0
        self.why: list[str] = []

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        self.asked += 1
        path = own_folder(name, incoming) / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path)
        return path

    def refused(self, model: Model, name: str, why: str) -> None:
        self.why.append(why)


class Here:
    """A folder to bring a file into."""

    def __init__(self, root: Path) -> None:
        self.model = model(root / "models" / "tiny")
        self.incoming = root / "incoming"
        (root / "job").mkdir(parents=True)
        self.report = Reporter(root / "job", "stage")
        self.target = Path(self.model.path, "modeling.py")

    def bring(self, source: Source, pace: Pace, content: Content = WANTED) -> Record:
        tool = Tool(pace.cancel)
        free = Pace(0, pace.cancel)
        context = steps.Context("s1", source, self.report, tool, 1, 1, free, pace, False, True, self.incoming.parent / "staged")
        return steps.bring(context, self.model, "modeling.py", content, self.incoming)

    def kept(self, record: Record, content: Content = WANTED) -> None:
        """The record is true of what lies there, and that is what was wanted."""
        assert hashlib.sha256(self.target.read_bytes()).hexdigest() == record.sha256 == content.sha256
        stat: Seen = look(self.target.parent)["modeling.py"]
        assert untouched(record, stat)
        assert record.ctime_ns == stat.ctime_ns


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr(steps, "RETRY_WAIT", 0.0)
    monkeypatch.setattr(weights_digest, "WRITER_WAIT", 0.001)
    return Here(tmp_path)


FREE = Pace(0, threading.Event())


def rewrites(path: Path) -> None:
    """Right bytes first, and then an earlier one is written over in place."""
    path.write_bytes(GOOD)
    with path.open("r+b") as stream:
        stream.write(EVIL[:100])


def restarts(path: Path) -> None:
    """From its beginning again, in the same inode and the same size."""
    path.write_bytes(GOOD[:2500])
    path.write_bytes(EVIL)


def replaces(path: Path) -> None:
    path.write_bytes(GOOD)
    other = path.with_name("other")
    other.write_bytes(EVIL)
    other.replace(path)


def extends(path: Path) -> None:
    path.write_bytes(GOOD + b"more")


def cuts(path: Path) -> None:
    path.write_bytes(GOOD[:-1])


def holes(path: Path) -> None:
    """In its full size first."""
    with path.open("wb") as stream:
        stream.truncate(len(GOOD))


def backdates(path: Path) -> None:
    path.write_bytes(GOOD)
    stat = path.stat()
    path.write_bytes(EVIL)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def links(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(GOOD)
    path.symlink_to("elsewhere")


def shares(path: Path) -> None:
    """One inode under two names: whoever has the other one can write to it later."""
    path.with_name("elsewhere").write_bytes(GOOD)
    path.hardlink_to(path.with_name("elsewhere"))


def folds(path: Path) -> None:
    path.mkdir()


def vanishes(path: Path) -> None:
    path.unlink(missing_ok=True)


BAD = [rewrites, restarts, replaces, extends, cuts, holes, backdates, links, shares, folds, vanishes]


@pytest.mark.parametrize("write", BAD)
def test_whatever_a_program_did_meanwhile_only_what_lies_there_counts(here: Here, write: Write) -> None:
    def once_more(path: Path) -> None:
        assert not os.path.lexists(path), "nothing goes on from what was refused"
        for left in path.parent.iterdir():
            left.unlink()
        write(path)

    source = Program(once_more)
    with pytest.raises(StagingError, match="s1"):
        here.bring(source, FREE)
    assert source.asked == len(source.why) == source.attempts
    assert not here.target.exists()


@pytest.mark.parametrize("write", BAD)
def test_the_next_attempt_is_as_good_as_the_first(here: Here, write: Write) -> None:
    def at_first(path: Path) -> None:
        if source.asked == 1:
            write(path)
        else:
            assert not os.path.lexists(path)
            path.write_bytes(GOOD)

    source = Program(at_first)
    here.kept(here.bring(source, FREE))
    assert source.asked == 2


@pytest.mark.parametrize("after", ["never", "longer", "mapped"])
def test_a_process_that_outlives_its_program_is_found(here: Here, after: str) -> None:
    """It has the file open, and writes after the program has ended: now, later, or never."""
    left: list[Any] = []

    def write(path: Path) -> None:
        path.write_bytes(GOOD)
        stream = path.open("ab+", buffering=0)
        left.append(mmap.mmap(stream.fileno(), 0) if after == "mapped" else stream)
        if after == "mapped":
            stream.close()
        if after == "longer":
            threading.Timer(0.005, stream.write, (b"more",)).start()

    with pytest.raises(StagingError, match="something still writes to it"):
        here.bring(Program(write), FREE)
    assert not here.target.exists()
    for one in left:
        one.close()


def test_a_child_that_is_only_late_is_waited_for(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_digest, "WRITER_WAIT", 0.1)

    def write(path: Path) -> None:
        path.write_bytes(GOOD)
        late = path.open("r+b")
        threading.Timer(0.2, late.close).start()

    source = Program(write)
    here.kept(here.bring(source, FREE))
    assert source.asked == 1


class Dice(Pace):
    """Flips one bit at one moment: before or after a piece is written, a block hashed, or the file named."""

    def __init__(self, seed: int, moments: int) -> None:
        super().__init__(0, threading.Event())
        self.dice = random.Random(seed)
        self.at = self.dice.randrange(moments)
        self.keep_mtime = self.dice.random() < 0.5
        self.moment = 0
        self.path = Path()
        self.flipped = False

    def take(self, count: int) -> None:
        super().take(count)
        self.tick()

    def tick(self) -> None:
        self.moment += 1
        if self.moment != self.at + 1 or not self.path.is_file() or not (size := self.path.stat().st_size):
            return
        place, stat = self.dice.randrange(size), self.path.stat()
        with contextlib.suppress(BlockingIOError):  # the kernel tells the one who has a lease, and holds the writer up
            descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
            byte = os.pread(descriptor, 1, place)
            os.pwrite(descriptor, bytes([byte[0] ^ 1 << self.dice.randrange(8)]), place)
            if self.keep_mtime:
                os.utime(descriptor, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            os.close(descriptor)
        self.flipped = True


@pytest.mark.parametrize("leases", [True, False])
def test_a_bit_flipped_between_first_byte_and_record_is_always_found(
    here: Here, monkeypatch: pytest.MonkeyPatch, leases: bool
) -> None:
    pieces, block = 10, 500
    monkeypatch.setattr(weights_digest, "BLOCK", block)
    if not leases:
        monkeypatch.setattr(weights_digest.Arrival, "_lease", lambda self: None)
    flips, rename = 0, os.rename
    for seed in range(SEEDS):
        dice = Dice(seed, 2 * pieces + 2)

        def write(path: Path, dice: Dice = dice) -> None:
            dice.path = path
            with path.open("wb") as stream:
                for at in range(0, len(GOOD), len(GOOD) // pieces):
                    stream.write(GOOD[at : at + len(GOOD) // pieces])
                    stream.flush()
                    dice.tick()

        def named(path: Path, name: str, *, dst_dir_fd: int, dice: Dice = dice) -> None:
            # Without leases whoever sets the mtime back at this very moment is not seen, and nobody else.
            if leases or not dice.keep_mtime:
                dice.tick()
            rename(path, name, dst_dir_fd=dst_dir_fd)
            dice.path = here.target

        monkeypatch.setattr(weights_digest, "BLOCK", block)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", named)
            source = Program(write)
            record = here.bring(source, dice)
        here.kept(record)
        assert source.asked == (2 if dice.flipped else 1), (seed, dice.at)
        flips += dice.flipped
        here.target.unlink()
    assert flips > SEEDS * 0.8
