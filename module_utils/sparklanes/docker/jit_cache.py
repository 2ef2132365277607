# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of a lane, kept across boots and given to Sparks that have none.

Triton, inductor, FlashInfer and TileLang compile at the first boot of an engine, which takes minutes. What they make depends on the
image and on the lane, so it lies below both: `/var/lib/sparklanes/jit/IMAGE/LANE`. An archive of it holds plain files only, and
is unpacked aside: a folder with half of a cache never has the final name, and one that holds something is never written into.

A container writes there as it likes, and root reads it: what leads out of the folder is not followed (`common.walk`), and neither an archive
nor what is made of one is without an end.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ansible.module_utils.sparklanes.common.files import below, lend_to_login, replacing
from ansible.module_utils.sparklanes.common.sizes import GIB, MIB
from ansible.module_utils.sparklanes.common.walk import Entry, TooMany, plain_files

# A cache has some hundred MB in some thousand files; more is a mistake (a path that points elsewhere), which would be sent to each Spark.
MOST_BYTES = 8 * GIB
MOST_FILES = 50_000
# Folders, links and locks count too while it is looked through.
MOST_ENTRIES = 4 * MOST_FILES
# Bytes that are read at once of an archive: its headers are as long as they say.
AT_ONCE = MIB
# Locks and half-written files of a compiler that runs.
UNFINISHED = (".lock", ".tmp")


class CacheError(Exception):
    """A cache that can't be packed or taken; the text says why and what to do."""


def files_of(folder: Path) -> Iterator[Entry]:
    """Plain files below, links not followed, without those of a compiler that runs. TooMany where it has no end."""
    return (entry for entry in plain_files(folder, MOST_ENTRIES) if not entry.name.endswith(UNFINISHED))


def measure(folder: Path) -> tuple[int, int]:
    """(files, bytes); of a folder that has no end, of its beginning."""
    count = size = 0
    try:
        for entry in files_of(folder):
            count, size = count + 1, size + entry.status.st_size
    except TooMany:
        pass
    return count, size


def pack(folder: Path, archive: Path) -> None:
    """One archive of a cache, which only root and whoever became root by sudo may read."""
    if not measure(folder)[0]:
        raise CacheError(f"{folder} holds no compiled kernel")
    try:
        with (
            replacing(archive, 0o600) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as packed,
        ):
            _add_all(folder, packed)
    except TooMany:
        raise CacheError(_too_much(folder, f"more than {MOST_ENTRIES:,} files and folders")) from None
    lend_to_login(archive)


def _add_all(folder: Path, packed: tarfile.TarFile) -> None:
    count = size = 0
    for entry in files_of(folder):
        with entry.open() as content:
            status = os.fstat(content.fileno())
            count, size = count + 1, size + status.st_size
            if count > MOST_FILES:
                raise CacheError(_too_much(folder, f"more than {MOST_FILES:,} files"))
            if size > MOST_BYTES:
                raise CacheError(_too_much(folder, f"more than {MOST_BYTES / GIB:.1f} GiB"))
            member = tarfile.TarInfo(_name(folder, entry.name))
            # The time counts: some compilers compare it with that of their sources.
            member.size, member.mtime, member.mode = status.st_size, int(status.st_mtime), status.st_mode & 0o777
            try:
                packed.addfile(member, content)
            except OSError as error:
                if error.errno is not None:
                    raise
                raise CacheError(
                    f"{folder}/{entry.name} became shorter while it was packed: does an engine write there?"
                ) from None
        packed.members.clear()  # type: ignore[attr-defined]  # else each stays in memory to the end


def _too_much(folder: Path, what: str) -> str:
    return f"{folder} holds {what}, which compiled kernels of a lane can't be. Look what else is in it"


def _name(where: Path, name: str) -> str:
    try:
        return below(name)
    except ValueError:
        raise CacheError(f"{where}: {name!r} is no plain file below it. Nothing was kept") from None


def refuse_half(archive: Path) -> None:
    """tarfile takes an archive that ends between two files for a whole one; the end of a whole one is 1024 zeros."""
    with archive.open("rb") as stream:
        stream.seek(max(0, archive.stat().st_size - 1024))
        if stream.read() != bytes(1024):
            raise CacheError(f"{archive} was cut off. Nothing was kept")


class _Bounded:
    """A stream of which never more than AT_ONCE is read into memory: a header of an archive is as long as it says."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= AT_ONCE:
            raise tarfile.ReadError(f"a header of it has {count:,} bytes")
        return self.stream.read(count)


def unpack(archive: Path, folder: Path) -> int:
    """Give an empty or missing folder the content of an archive; the number of files. 0 where the folder holds something already."""
    if measure(folder)[0]:
        return 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        refuse_half(archive)
        with archive.open("rb") as stream, tarfile.open(fileobj=_Bounded(stream), mode="r:") as packed:  # type: ignore[call-overload]
            count = _take_all(archive, packed, aside)
        aside.chmod(0o755)
        _clear(folder)
        aside.rename(folder)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise CacheError(f"{archive} is damaged: {error}. Nothing was kept") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return count


def _take_all(archive: Path, packed: tarfile.TarFile, folder: Path) -> int:
    """Write the files of an archive into a folder of our own; how many they were."""
    count = size = 0
    while (member := packed.next()) is not None:
        packed.members.clear()  # type: ignore[attr-defined]
        name = _name(archive, member.name)
        if not member.isreg() or member.issparse():
            raise CacheError(f"{archive}: {name!r} is no plain file below it. Nothing was kept")
        count, size = count + 1, size + member.size
        if count > MOST_FILES or size > MOST_BYTES:
            raise CacheError(
                f"{_too_much(archive, f'more than {MOST_FILES:,} files or {MOST_BYTES / GIB:.1f} GiB')}. Nothing was kept"
            )
        target = folder / PurePosixPath(name)
        content = packed.extractfile(member)
        assert content
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stream = target.open("xb")
        except (FileExistsError, NotADirectoryError):
            raise CacheError(f"{archive}: {name!r} is there twice, or a file and a folder. Nothing was kept") from None
        with stream:
            shutil.copyfileobj(content, stream)
        target.chmod(member.mode & 0o777)
        os.utime(target, (member.mtime, member.mtime))
    return count


def _clear(folder: Path) -> None:
    """Remove a folder that holds no kernel: what a compiler left unfinished in it, and nothing else."""
    if folder.is_symlink():
        raise CacheError(f"{folder} is a link, and not ours to remove. Look what it is, and move it away")
    if not folder.is_dir():
        return
    for here, folders, names, handle in os.fwalk(folder, topdown=False):
        for name in names:
            if not name.endswith(UNFINISHED):
                raise CacheError(
                    f"{here}/{name} is no compiled kernel, and not ours to remove. Look what it is, and move it away"
                )
            os.unlink(name, dir_fd=handle)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=handle)
            except NotADirectoryError:  # a link to one
                raise CacheError(f"{here}/{name} is a link, and not ours to remove. Look what it is, and move it away") from None
    folder.rmdir()
