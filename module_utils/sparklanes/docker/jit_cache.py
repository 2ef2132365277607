# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of a lane, kept across boots and given to Sparks that have none.

Triton, inductor, FlashInfer and TileLang compile at the first boot of an engine, which takes minutes. What they make depends on the
image and on the lane, so it lies below both: `/var/lib/sparklanes/jit/IMAGE/LANE`. An archive of it holds files and folders only, and
is unpacked aside: a folder with half of a cache never has the final name, and one that holds something is never written into.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ansible.module_utils.sparklanes.common.files import replacing
from ansible.module_utils.sparklanes.common.sizes import GIB

# A cache has some hundred MB; more is a mistake (a path that points elsewhere), which would be sent to each Spark.
MOST_BYTES = 8 * GIB


class CacheError(Exception):
    """A cache that can't be packed or taken; the text says why and what to do."""


def files_of(folder: Path) -> Iterator[Path]:
    """Regular files below, links not followed. Locks and half-written files of a compiler that runs are left out."""
    for here, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(here, name)
            if path.is_file() and not path.is_symlink() and not name.endswith((".lock", ".tmp")):
                yield path


def measure(folder: Path) -> tuple[int, int]:
    """(files, bytes)."""
    sizes = []
    for path in files_of(folder):
        with contextlib.suppress(FileNotFoundError):  # A compiler that runs renames its files.
            sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


def pack(folder: Path, archive: Path) -> None:
    """One archive of a cache."""
    count, size = measure(folder)
    if not count:
        raise CacheError(f"{folder} holds no compiled kernel")
    if size > MOST_BYTES:
        raise CacheError(
            f"{folder} holds {size / GIB:.1f} GiB, more than compiled kernels of a lane can be. Look what else is in it"
        )
    # Readable by all, so that it is fetched as a file: what only root may read, Ansible fetches through memory, which a serving Spark lacks.
    with replacing(archive, 0o644) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for path in files_of(folder):
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            try:
                content = path.open("rb")
            except FileNotFoundError:  # A compiler that runs renames its files.
                continue
            with content:
                status = os.fstat(content.fileno())
                # The time counts: some compilers compare it with that of their sources.
                member.size, member.mtime, member.mode = status.st_size, int(status.st_mtime), status.st_mode & 0o777
                packed.addfile(member, content)


def refuse_half(archive: Path) -> None:
    """tarfile takes an archive that ends between two files for a whole one; the end of a whole one is 1024 zeros."""
    with archive.open("rb") as stream:
        stream.seek(max(0, archive.stat().st_size - 1024))
        if stream.read() != bytes(1024):
            raise CacheError(f"{archive} was cut off. Nothing was kept")


def unpack(archive: Path, folder: Path) -> int:
    """Give an empty or missing folder the content of an archive; the number of files. 0 where the folder holds something already."""
    if measure(folder)[0]:
        return 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    count = 0
    try:
        refuse_half(archive)
        with tarfile.open(archive) as packed:
            for member in packed:
                name = PurePosixPath(member.name)
                if not member.isreg() or name.is_absolute() or ".." in name.parts:
                    raise CacheError(f"{archive}: {member.name!r} is no plain file below it. Nothing was kept")
                target = aside / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = packed.extractfile(member)
                assert content
                with target.open("wb") as stream:
                    shutil.copyfileobj(content, stream)
                target.chmod(member.mode & 0o777)
                os.utime(target, (member.mtime, member.mtime))
                count += 1
        aside.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except (tarfile.TarError, EOFError) as error:
        raise CacheError(f"{archive} is damaged: {error}. Nothing was kept") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return count
