# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Hashing at rest, and what it leaves in the page cache."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import platforms
import pytest
from ansible.module_utils.sparklanes.host.mounts import where
from ansible.module_utils.sparklanes.weights.digest import Arrival, digest, drop_cache
from ansible.module_utils.sparklanes.weights.home import Home
from ansible.module_utils.sparklanes.weights.model import Record
from ansible.module_utils.sparklanes.weights.pace import Pace
from conftest import ROOT

MIB = 1 << 20
FREE = Pace(0, threading.Event())
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def resident(path: Path) -> float:
    """MiB of a file in the page cache."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        assert libc.mincore(address, size, pages) == 0
        libc.munmap(address, size)
    finally:
        os.close(descriptor)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE / MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files' pages can be dropped: those of a tmpfs, which /tmp may be, are its only place."""
    for parent in (tmp_path, Path("/var/tmp"), ROOT):
        mount = where(str(parent))
        if mount is not None and mount.kind not in ("tmpfs", "overlay", "ramfs"):
            with tempfile.TemporaryDirectory(prefix=".test-digesting-", dir=parent) as folder:
                yield Path(folder)
            return
    platforms.skip("disk")


def sums(data: bytes) -> tuple[str, str]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return hashlib.sha256(data).hexdigest(), git.hexdigest()


@pytest.mark.parametrize("size", [0, 1, 4096, 9 * MIB + 17])
def test_a_file_that_has_come_is_hashed_at_rest_and_named(tmp_path: Path, size: int) -> None:
    data, ticks = random.Random(size).randbytes(size), []
    path, target = tmp_path / "file", tmp_path / "named"
    path.write_bytes(data)
    with Arrival(path) as arrival:
        record, git = arrival.digest(True, FREE, ticks.append)
        with Home(tmp_path) as home, home.folder() as folder:
            kept = arrival.name(folder, target.name, record)
    assert (record.sha256, git) == sums(data)
    assert sum(ticks) == size
    stat = target.stat()
    assert kept == Record(size, stat.st_mtime_ns, record.sha256, stat.st_ctime_ns)
    assert (target.read_bytes(), stat.st_mode & 0o777) == (data, 0o644)


def test_reading_and_receiving_leave_no_cache(disk: Path) -> None:
    """The issue's limit is 256 MiB for all files; each leaves next to nothing."""
    path, size = disk / "file", 128 * MIB
    block = random.Random(1).randbytes(MIB)
    with path.open("wb") as stream:
        for _ in range(size // MIB):
            stream.write(block)
    with Arrival(path) as arrival:
        arrival.digest(False, FREE, lambda count: None)
    assert resident(path) < 1
    assert hashlib.sha256(path.read_bytes()).digest(), "a plain read"
    assert resident(path) > 16
    drop_cache(disk)
    assert resident(path) < 1
    digest(path.parent, path.name, False, FREE, lambda count: None)
    assert resident(path) < 1


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (9 * MIB))

    def touch(count: int) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(Exception, match="changed while it was read"):
        digest(path.parent, path.name, False, FREE, touch)
