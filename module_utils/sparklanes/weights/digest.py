# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Hash files at rest, and leave nothing of them in the page cache.

What a program has brought is hashed once that program has ended, whoever it was: a hash of bytes as they came would be no proof of those
that stayed. A Spark's GPU takes its memory from where the page cache lies, so pages are dropped with fadvise as soon as they were hashed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.sparklanes.weights.home import READ, Home
from ansible.module_utils.sparklanes.weights.model import BLOCK, Record, StagingError
from ansible.module_utils.sparklanes.weights.pace import Pace

# <linux/time.h>: the clock by which a kernel gives files their times. It stands still for a tick, up to 10 ms.
CLOCK_REALTIME_COARSE = 5
TICK_LIMIT = 0.05  # seconds; a file's time may be of the clock of a file server, and ahead of ours
# <linux/fcntl.h>; Python has it from 3.13 on
F_SETSIG = 10
# A program that has ended may leave a child that closes its files a moment later.
WRITER_LOOKS, WRITER_WAIT = 20, 0.05

Tick = Callable[[int], None]


class Sums:
    """The digests of one file's bytes in their order: sha256, and git's blob hash where asked for."""

    def __init__(self, size: int, git: bool) -> None:
        self.sha256 = hashlib.sha256()
        self.sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if git else None

    def add(self, block: memoryview) -> None:
        self.sha256.update(block)
        if self.sha1:
            self.sha1.update(block)

    def result(self) -> tuple[str, str]:
        return self.sha256.hexdigest(), self.sha1.hexdigest() if self.sha1 else ""


def digest(folder: Path, name: str, git: bool, pace: Pace, tick: Tick) -> tuple[Record, str]:
    """Read a model's file whole: (record, git's blob hash if asked for). Leaves nothing of it in the page cache."""
    with Home(folder) as home:
        descriptor = home.open(name)
    try:
        return _digest(descriptor, folder / name, git, pace, tick)
    finally:
        os.close(descriptor)


def _digest(descriptor: int, path: Path, git: bool, pace: Pace, tick: Tick) -> tuple[Record, str]:
    """What was just written must be on the disk first: dirty pages can't be dropped. hashlib lets other threads run
    while it works on a block, so a thread a file uses as many cores as a process a file would."""
    os.fsync(descriptor)
    before = _settled(descriptor)
    sums = Sums(before.st_size, git)
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    at = 0
    while count := os.preadv(descriptor, [buffer], at):
        sums.add(view[:count])
        os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_DONTNEED)
        at += count
        tick(count)
        pace.take(count)
    # Read-ahead may have gone past the last block that was dropped.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or at != after.st_size:
        raise StagingError(f"{path} changed while it was read. Who writes to it?")
    sha256, sha1 = sums.result()
    # The ctime from before: whatever changed the inode meanwhile makes the record void.
    return Record(after.st_size, after.st_mtime_ns, sha256, before.st_ctime_ns), sha1


def _settled(descriptor: int) -> os.stat_result:
    """The times of a file that lie behind the clock: within one tick a second write would get the same ones."""
    limit = time.monotonic() + TICK_LIMIT
    while (found := os.fstat(descriptor)).st_ctime_ns >= time.clock_gettime_ns(CLOCK_REALTIME_COARSE):
        if time.monotonic() > limit:
            break
        time.sleep(0.001)
    return found


class Arrival:
    """A file that a program has brought. Nobody writes to it from before it is hashed until it has its name and its record.

    The kernel keeps watch (a lease, fcntl(2)): there is none while anybody has the file open for writing, and it is broken where somebody
    opens it. File systems without leases leave it to the file's times.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise StagingError(f"nothing came: {path} is not there") from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StagingError(f"{path} is a link, where a file should have come") from error
        found = os.fstat(self.descriptor)
        self.size = found.st_size
        self.leased = False
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(self.descriptor)
            raise StagingError(f"{path} is no file of its own, where one should have come")

    def __enter__(self) -> Arrival:
        try:
            self._lease()
        except BaseException:
            os.close(self.descriptor)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)  # and the lease with it

    def _lease(self) -> None:
        for look in range(WRITER_LOOKS):
            try:
                # The signal of a lease that is broken would end the process; this one does nothing.
                fcntl.fcntl(self.descriptor, F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return  # no leases here
                if look + 1 < WRITER_LOOKS:
                    time.sleep(WRITER_WAIT)
            else:
                self.leased = True
                return
        raise StagingError(f"{self.path} has come, and something still writes to it")

    def digest(self, git: bool, pace: Pace, tick: Tick) -> tuple[Record, str]:
        os.fchmod(self.descriptor, 0o644)  # now, as it changes the inode
        return _digest(self.descriptor, self.path, git, pace, tick)

    def name(self, folder: int, name: str, record: Record) -> Record:
        """Give it this name in an open folder, and its record as it stands there. Only the very bytes that were hashed keep the name."""
        self._unchanged(os.fstat(self.descriptor), record)
        os.rename(self.path, name, dst_dir_fd=folder)
        os.fsync(folder)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        try:
            # The name is a change of the inode too: of its ctime, not of its mtime.
            self._unchanged(found, replace(record, ctime_ns=found.st_ctime_ns))
            mine = os.fstat(self.descriptor)
            if (mine.st_dev, mine.st_ino) != (found.st_dev, found.st_ino):
                raise StagingError(f"{name} is another file than the one that was hashed. Who writes to {self.path.parent}?")
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            raise
        return replace(record, ctime_ns=found.st_ctime_ns)

    def _unchanged(self, found: os.stat_result, record: Record) -> None:
        broken = self.leased and fcntl.fcntl(self.descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK
        times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if broken or times != (record.size, record.mtime_ns, record.ctime_ns):
            raise StagingError(f"{self.path} changed after it was hashed. Who writes to it?")


def drop_cache(folder: Path) -> None:
    """Drop what other programs (rsync, a container engine) left of a folder's files in the page cache."""
    for _, _, names, here in os.fwalk(folder) if folder.is_dir() else ():
        for name in names:
            with contextlib.suppress(OSError):
                descriptor = os.open(name, READ, dir_fd=here)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
