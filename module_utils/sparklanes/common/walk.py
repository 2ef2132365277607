# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The files below a folder that somebody else writes to, reached by root without being led out of it.

A name is looked up once, and what is looked at is what is read: each folder is entered from the open one above it, no link is
followed, and an entry stands for its inode, whatever gets its name meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Deeper folders are left out. Each open one takes a descriptor, of which a process has 1024.
DEEPEST = 40
# Links in one path, as the kernel counts them: path_resolution(7).
LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # opens nothing: no device wakes, no pipe waits


class TooMany(Exception):
    """There are more entries below a folder than somebody meant to look at."""


@dataclass(frozen=True)
class Entry:
    """A plain file at `name` below the folder, valid until the next one is asked for."""

    name: str
    status: os.stat_result
    handle: int

    def open(self) -> BinaryIO:
        """The very inode that was looked at."""
        return os.fdopen(os.open(f"/proc/self/fd/{self.handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def plain_files(folder: Path, most: int) -> Iterator[Entry]:
    """Plain files below a folder that need not exist, in the order of their names. TooMany after `most` entries of any kind."""
    try:
        handle = os.open(folder, _FOLDER | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        yield from _below(handle, "", most, itertools.count(1))
    finally:
        os.close(handle)


def _below(folder: int, above: str, most: int, seen: Iterator[int]) -> Iterator[Entry]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _within(next(seen), most)]
    for name in sorted(names):
        try:
            handle = os.open(name, _LOOK, dir_fd=folder)
        except FileNotFoundError:  # renamed or removed by who works there
            continue
        try:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode):
                yield Entry(f"{above}{name}", status, handle)
            elif stat.S_ISDIR(status.st_mode) and above.count("/") < DEEPEST:
                with contextlib.closing(_entered(handle, f"{above}{name}/", most, seen)) as inside:
                    yield from inside
        finally:
            os.close(handle)


def _entered(looked: int, above: str, most: int, seen: Iterator[int]) -> Generator[Entry, None, None]:
    handle = os.open(f"/proc/self/fd/{looked}", _FOLDER)
    try:
        yield from _below(handle, above, most, seen)
    finally:
        os.close(handle)


def _within(number: int, most: int) -> bool:
    if number > most:
        raise TooMany
    return True
