# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Hash files, at rest or while they arrive, and leave nothing of them in the page cache.

A Spark's GPU takes its memory from where the page cache lies. Clean pages are dropped with fadvise as soon as they were
hashed; dirty ones can't be, so what arrives is pushed to the disk a few blocks behind the writer (sync_file_range)
and dropped then.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.sparklanes.weights.model import BLOCK, Record, StagingError
from ansible.module_utils.sparklanes.weights.pace import Pace

# <linux/fs.h>
SYNC_WAIT_BEFORE, SYNC_WRITE, SYNC_WAIT_AFTER = 1, 2, 4
# How far behind its reader a file's dirty pages are waited for: at 4 GB/s the disk has had 16 ms.
BEHIND = 16 * BLOCK
LOOK_AGAIN = 0.05  # seconds between two looks at a file that has not grown

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


def digest(path: Path, git: bool, pace: Pace, tick: Tick) -> tuple[Record, str]:
    """Read a file whole: (record, git's blob hash if asked for). Leaves nothing of it in the page cache.

    What was just written must be on the disk first: dirty pages can't be dropped. hashlib lets other threads run
    while it works on a block, so a thread a file uses as many cores as a process a file would.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        before = os.fstat(descriptor)
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
    finally:
        os.close(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or at != after.st_size:
        raise StagingError(f"{path} changed while it was read. Who writes to it?")
    sha256, sha1 = sums.result()
    # The ctime from before: whatever changed the inode meanwhile makes the record void.
    return Record(after.st_size, after.st_mtime_ns, sha256, before.st_ctime_ns), sha1


def push(descriptor: int, at: int, count: int, flags: int) -> None:
    """sync_file_range(2). Where there is none, fsync at the end does all of it."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_long(at), ctypes.c_long(count), flags)


class TailHasher:
    """Hashes a file while another program writes it from its beginning to its end.

    `find` says where the file grows, or None as long as it isn't there. A program that writes in another order, or
    starts anew, is not followed rightly: the digest then is not the wanted one, and the caller reads the file again.
    """

    def __init__(self, find: Callable[[], Path | None], size: int, git: bool, tick: Tick) -> None:
        self.find = find
        self.size = size
        self.git = git
        self.tick = tick
        self.written = threading.Event()
        self.descriptor = -1
        self.at = self.dropped = 0
        self.sums = Sums(size, git)
        self.failed = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TailHasher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _end(self) -> None:
        self.written.set()
        if self.thread.ident is not None:
            self.thread.join()

    def result(self, path: Path) -> tuple[Record, str] | None:
        """The digests of the file that now is whole at `path`, or None where another file was followed, or none."""
        self._end()
        if self.failed or self.descriptor < 0:
            return None
        os.fsync(self.descriptor)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        mine, there = os.fstat(self.descriptor), path.stat()
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino) or mine.st_size != self.at:
            return None
        sha256, sha1 = self.sums.result()
        return Record(mine.st_size, mine.st_mtime_ns, sha256), sha1

    def _run(self) -> None:
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        try:
            while True:
                last = self.written.is_set()
                if self.descriptor < 0:
                    self._open()
                if self.descriptor >= 0:
                    self._read(buffer, view)
                if last or self.failed:
                    return
                self.written.wait(LOOK_AGAIN)
        except OSError:
            self.failed = True

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if (path := self.find()) is None:
                return
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stat = os.fstat(self.descriptor)
            # Made in its full size first, and filled in any order: there is no end to follow.
            self.failed = 0 < self.size <= stat.st_size and stat.st_blocks * 512 < stat.st_size // 2

    def _read(self, buffer: bytearray, view: memoryview) -> None:
        """Up to the present end of the file."""
        while not self.failed and (left := os.fstat(self.descriptor).st_size - self.at) != 0:
            if left < 0 or self.at > self.size:
                self.failed = True  # it was cut, or is longer than it may be
                return
            count = os.preadv(self.descriptor, [view[: min(left, BLOCK)]], self.at)
            if count == 0:
                return
            self.sums.add(view[:count])
            push(self.descriptor, self.at, count, SYNC_WRITE)
            self.at += count
            self.tick(count)
            if self.at - self.dropped > 2 * BEHIND:
                ready = self.at - BEHIND - self.dropped
                push(self.descriptor, self.dropped, ready, SYNC_WAIT_BEFORE | SYNC_WRITE | SYNC_WAIT_AFTER)
                os.posix_fadvise(self.descriptor, self.dropped, ready, os.POSIX_FADV_DONTNEED)
                self.dropped += ready


def drop_cache(folder: Path) -> None:
    """Drop what other programs (rsync, a container engine) left of a folder's files in the page cache."""
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                descriptor = os.open(Path(here, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
