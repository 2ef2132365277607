# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A model's folder, which may be somebody else's than root's: how it is gone to, read and written so that nobody's link leads elsewhere.

All goes by descriptors, a folder at a time. On the way to a model's folder a link is followed where only root (or whoever we are) can set it.
Within the folder it is followed where it leads to a file of the same folder, or of the same repository (models--…) of a Hub cache.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.walk import LINKS
from ansible.module_utils.sparklanes.weights.hub_cache import snapshot
from ansible.module_utils.sparklanes.weights.model import StagingError

ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOBODY = 65534
SMALL = 256 << 20  # bytes; an index of 177,569 tensors has 20 MiB


class LeadsAway(StagingError):
    """A link, or what is no file, where a model's folder or file should be."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}. {remedy}")
        self.found, self.remedy = found, remedy


@dataclass(frozen=True)
class Way:
    """To a folder. `left`: names on it that are not there yet; `safe`: the last folder that nobody else can put anything into, nor
    into one before it; `reader`: the user and group as whom it is read, None where nobody else has a say on the way."""

    descriptor: int
    left: tuple[str, ...]
    safe: Path
    reader: tuple[int, int] | None

    @property
    def real(self) -> Path:
        return Path(_where(self.descriptor), *self.left)


def _where(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _ours(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())


def _else(found: os.stat_result) -> tuple[int, int] | None:
    """Who else can put things into this folder. In one with the sticky bit they can't touch what is ours."""
    if not _ours(found):
        return found.st_uid, found.st_gid
    return (NOBODY, found.st_gid) if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX else None


def _go(path: Path, make: bool) -> Way:
    """Go as far as there are folders. The descriptor is the caller's to close."""
    safe: Path | None = None
    reader: tuple[int, int] | None = None
    here, links = os.open("/", ENTER), 0
    left = list(reversed(PurePosixPath(path).parts[1:]))
    try:
        while True:
            if reader is None and (reader := _else(os.fstat(here))):
                safe = _where(here).parent
            if not left:
                return Way(here, (), safe or _where(here), reader)
            name = left.pop()
            try:
                inside = _enter(here, name, make)
            except FileNotFoundError:
                return Way(here, (name, *reversed(left)), safe or _where(here), reader)
            except NotADirectoryError:
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISLNK(found.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
                target = os.readlink(name, dir_fd=here)
                links += 1
                if reader or not _ours(found) or links > LINKS:
                    raise LeadsAway(
                        f"{_where(here) / name} is a link to {target!r:.200}, and others than root can set it",
                        f"Give the model's path without it, instead of {path}",
                    ) from None
                left += reversed([part for part in PurePosixPath(target).parts if part != "/"])
                if not target.startswith("/"):
                    continue
                inside = os.open("/", ENTER)
            os.close(here)
            here = inside
    except BaseException:
        os.close(here)
        raise


def _enter(here: int, name: str, make: bool) -> int:
    """The folder of this name. NotADirectoryError where it is a link."""
    try:
        return os.open(name, ENTER, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=here)
    return os.open(name, ENTER, dir_fd=here)


@contextlib.contextmanager
def way(path: Path, make: bool = False) -> Iterator[Way]:
    """The way to a folder, `make`: which is made where it is not there."""
    found = _go(path, make)
    try:
        yield found
    finally:
        os.close(found.descriptor)


class Home:
    """A model's folder. FileNotFoundError where there is none; LeadsAway from whatever follows a link that is not to be followed."""

    def __init__(self, folder: Path, make: bool = False) -> None:
        with way(folder, make) as found:
            if found.left:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            self.real, self.reader = found.real, found.reader
            self.top = os.open(".", LIST, dir_fd=found.descriptor)
        cached = snapshot(str(self.real))
        self.bound = Path(cached.repository) if cached else self.real
        self._bound: int | None = None

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.top)
        if self._bound is not None:
            os.close(self._bound)

    @contextlib.contextmanager
    def folder(self, name: str = "", make: bool = False) -> Iterator[int]:
        """A folder below it, to be listed or written to."""
        with _below(self.top, name, make) as here:
            descriptor = os.open(".", LIST, dir_fd=here)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, name: str) -> int:
        """A file, to be read."""
        with self._reach(name) as (here, last):
            try:
                descriptor = os.open(last, READ, dir_fd=here)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):  # a link to a link, a socket
                    raise self._no_file(name) from error
                raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._no_file(name)
        return descriptor

    def stat(self, name: str) -> os.stat_result:
        """What a file is like."""
        with self._reach(name) as (here, last):
            found = os.stat(last, dir_fd=here, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise self._no_file(name)
        return found

    def place(self, name: str) -> Path:
        """Where a file really lies."""
        with self._reach(name) as (here, last):
            return _where(here) / last

    def has(self, name: str) -> bool:
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """A small file, no more of it than such a one has."""
        with os.fdopen(self.open(name), "rb") as stream:
            return stream.read(SMALL)

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a file of it; None where there is none."""
        try:
            return _object(self.read(name))
        except OSError:
            return None

    def note(self, name: str) -> dict[str, Any] | None:
        """The same of a file in the repository's folder, where a Hub client notes what it knows. No link is followed."""
        parent, _, last = name.rpartition("/")
        try:
            with _below(self._opened(), parent) as here, os.fdopen(os.open(last, READ, dir_fd=here), "rb") as stream:
                return _object(stream.read(SMALL))
        except (OSError, LeadsAway):
            return None

    def names(self, name: str) -> list[str]:
        """What lies in a folder of the repository's folder; nothing where there is none. No link is followed."""
        try:
            with _below(self._opened(), name) as here:
                return sorted(path.name for path in Path(f"/proc/self/fd/{here}").iterdir())
        except (OSError, LeadsAway):
            return []

    def remove(self, name: str) -> bool:
        """Remove a file, or the link in its place; whether there was one."""
        parent, _, last = name.rpartition("/")
        try:
            with self.folder(parent) as here:
                os.unlink(last, dir_fd=here)
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    @contextlib.contextmanager
    def _reach(self, name: str) -> Iterator[tuple[int, str]]:
        """(its folder, its name there) of a file, links followed where they may be."""
        parent, _, last = name.rpartition("/")
        with _below(self.top, parent) as here:
            if not stat.S_ISLNK(os.stat(last, dir_fd=here, follow_symlinks=False).st_mode):
                yield here, last
                return
            target = os.readlink(last, dir_fd=here)
        # By its words: there is no other link between a file and the folder.
        place = Path(os.path.normpath(self.real / parent / target))
        if place == self.bound or not place.is_relative_to(self.bound):
            raise LeadsAway(
                f"{self.real / name} is a link to {target!r:.200}, out of {self.bound}",
                "Put the file itself there: links are followed within the model's folder, or within one models--… folder of a Hub cache",
            )
        within = place.relative_to(self.bound)
        with _below(self._opened(), str(within.parent)) as here:
            yield here, within.name

    def _opened(self) -> int:
        """The folder that links are followed within."""
        if self._bound is None:
            with way(self.bound) as found:
                if found.left:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.bound))
                self._bound = os.dup(found.descriptor)
        return self._bound

    def _no_file(self, name: str) -> LeadsAway:
        return LeadsAway(f"{self.real / name} is no file, and no link to one", "Remove it, or put the model's file there")


@contextlib.contextmanager
def _below(top: int, name: str, make: bool = False) -> Iterator[int]:
    """The folder `name` below another one, through no link."""
    here = os.dup(top)
    try:
        for part in PurePosixPath(name).parts:
            try:
                inside = _enter(here, part, make)
            except NotADirectoryError:
                raise LeadsAway(
                    f"{_where(here) / part} is a link or a file, where a folder of the model should be",
                    "Remove it, and put the folder itself there",
                ) from None
            os.close(here)
            here = inside
        yield here
    finally:
        os.close(here)


@contextlib.contextmanager
def below(folder: Path, name: str) -> Iterator[int]:
    """The folder `name` below one that root alone can put in its place; it may have been filled by somebody else, so through no link."""
    top = os.open(folder, LIST | os.O_NOFOLLOW)
    try:
        with _below(top, name) as here:
            yield here
    finally:
        os.close(top)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def private(path: Path) -> None:
    """A folder that nobody else can enter, made where there is none."""
    with way(path, make=True) as found:
        is_ours = os.fstat(found.descriptor).st_uid == os.geteuid()
        if found.reader or not is_ours:
            raise LeadsAway(f"{path} was made by somebody else", "Remove it")
        Path(f"/proc/self/fd/{found.descriptor}").chmod(0o700)
