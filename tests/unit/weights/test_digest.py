# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Hashing at rest and on the way, and what it leaves in the page cache."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import platforms
import pytest
from ansible.module_utils.sparklanes.host.mounts import where
from ansible.module_utils.sparklanes.weights.digest import BEHIND, TailHasher, digest, drop_cache
from ansible.module_utils.sparklanes.weights.pace import Pace
from conftest import ROOT

MIB = 1 << 20
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


def write_slowly(path: Path, data: bytes, pieces: int) -> None:
    step = max(1, -(-len(data) // pieces))
    with path.open("wb") as stream:
        for at in range(0, len(data), step):
            stream.write(data[at : at + step])
            stream.flush()
            time.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, 4096, 9 * MIB + 17])
def test_a_growing_file_is_hashed_on_its_way(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    path, ticks = tmp_path / "file", []
    with TailHasher(lambda: path if path.exists() else None, size, True, ticks.append) as follower:
        write_slowly(path, data, 7)
        found = follower.result(path)
    assert found is not None
    record, git = found
    assert (record.sha256, git) == sums(data)
    assert (record.size, record.mtime_ns) == (size, path.stat().st_mtime_ns)
    assert sum(ticks) == size
    # When its inode last changed is recorded with its final name.
    at_rest, git_at_rest = digest(path, True, Pace(0, threading.Event()), lambda count: None)
    assert (replace(at_rest, ctime_ns=0), git_at_rest) == (record, git)


def test_a_file_that_is_renamed_at_its_end_is_followed(tmp_path: Path) -> None:
    aside, path = tmp_path / "x.incomplete", tmp_path / "file"
    with TailHasher(lambda: aside if aside.exists() else None, 5000, False, lambda count: None) as follower:
        write_slowly(aside, b"a" * 5000, 5)
        time.sleep(0.2)
        aside.rename(path)
        found = follower.result(path)
    assert found is not None
    assert found[0].sha256 == sums(b"a" * 5000)[0]


def test_another_file_than_the_followed_one_has_no_digest(tmp_path: Path) -> None:
    aside, path = tmp_path / "x.incomplete", tmp_path / "file"
    with TailHasher(lambda: aside if aside.exists() else None, 5, False, lambda count: None) as follower:
        aside.write_bytes(b"12345")
        path.write_bytes(b"12345")
        time.sleep(0.2)
        assert follower.result(path) is None


@pytest.mark.parametrize("what", ["cut", "longer", "never there"])
def test_what_cannot_be_followed_never_has_a_wrong_digest(tmp_path: Path, what: str) -> None:
    path, size = tmp_path / "file", 3 * MIB
    with TailHasher(lambda: path if path.exists() else None, size, False, lambda count: None) as follower:
        if what != "never there":
            with path.open("wb") as stream:
                stream.write(b"x" * (2 * MIB))
                stream.flush()
                time.sleep(0.3)
                if what == "cut":
                    stream.truncate(MIB)
                elif what == "longer":
                    stream.write(b"x" * (2 * MIB))
        found = follower.result(path) if path.exists() else None
    if what == "never there":
        assert found is None
    else:  # however busy the machine was meanwhile
        assert found is None or found[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_reading_and_receiving_leave_no_cache(disk: Path) -> None:
    """The issue's limit is 256 MiB for all files; each leaves next to nothing."""
    path, size = disk / "file", 2 * BEHIND + 40 * MIB
    block = random.Random(1).randbytes(MIB)
    with TailHasher(lambda: path if path.exists() else None, size, False, lambda count: None) as follower:
        with path.open("wb") as stream:
            for _ in range(size // MIB):
                stream.write(block)
                stream.flush()
        assert follower.result(path) is not None
    assert resident(path) < 1
    assert hashlib.sha256(path.read_bytes()).digest(), "a plain read"
    assert resident(path) > 100
    drop_cache(disk)
    assert resident(path) < 1
    digest(path, False, Pace(0, threading.Event()), lambda count: None)
    assert resident(path) < 1


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (9 * MIB))

    def touch(count: int) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(Exception, match="changed while it was read"):
        digest(path, False, Pace(0, threading.Event()), touch)
