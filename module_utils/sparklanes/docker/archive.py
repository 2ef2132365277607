# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Images out of archives and into them: streamed, hashed on the way, without leaving page cache behind.

An archive of an engine has 20 to 40 GB. It is read once: Docker gets its bytes as they are hashed, but the last of them only
when the hash is right. Docker unpacks an archive to its end before it keeps anything, so a wrong one leaves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from ansible.module_utils.sparklanes.common import disk, stall
from ansible.module_utils.sparklanes.common.files import replacing
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker import moving
from ansible.module_utils.sparklanes.docker.images import explain
from ansible.module_utils.sparklanes.memory.page_cache import drop_caches, measure

CHUNK = 4 * 1024**2
# Withheld until the hash is right. A tar archive ends with two empty blocks of 512 bytes, and a packed one with its checksum:
# without these Docker takes the archive as cut off.
WITHHELD = 64 * 1024
# Cache to let go of after so many bytes: the aim is less than 256 MiB left behind.
FORGET = 64 * 1024**2
# While Docker writes gigabytes, cached pages take the memory that the GPU needs. Below this much free memory they are dropped.
GUARD_FREE = 4 * GIB
GUARD_CACHED = GIB
GUARD_SECONDS = 5.0

_LOADED = re.compile(r"^Loaded image(?: ID)?: (?P<name>\S+)$", re.MULTILINE)


Result = TypeVar("Result")


@dataclass
class Count:
    """Bytes so far, for whoever watches."""

    bytes: int = 0

    def __call__(self) -> int:
        return self.bytes


class ArchiveError(Exception):
    """An archive that can't be used; the text says why and what to do."""


def loaded_names(text: str) -> list[str]:
    """The names and IDs in what `docker load` prints."""
    return [match["name"] for match in _LOADED.finditer(text)]


def load(path: Path, sha256: str, root: str, reserve_gib: int = 0, command: tuple[str, ...] = ("docker", "load")) -> list[str]:
    """Give an archive to Docker; the names of what it loaded. `root`: where images lie (`docker.daemon.image_root`)."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ArchiveError(f"lane_image.archive.sha256: found {sha256!r}, expected 64 hex digits (`sha256sum {path}`)")
    if not path.is_file():
        raise ArchiveError(f"{path}: no such file. lane_image.archive.path names a file on the Spark or on a mount of it")
    size = path.stat().st_size
    if size <= WITHHELD:
        raise ArchiveError(f"{path} has {size} bytes, too few for an image")
    refuse_without_room(size, reserve_gib, root)
    return _insist(lambda: _load(path, sha256, command))


def _insist(work: Callable[[], Result]) -> Result:
    try:
        return moving.insist(work)
    except moving.StoodStill as error:
        raise ArchiveError(f"{error} → {explain(str(error))}") from error


def _load(path: Path, sha256: str, command: tuple[str, ...]) -> list[str]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdin
    found = broken = ""
    given = Count()
    with guarding_memory(), stall.watched(process, moving.limits(given)) as watch:
        try:
            found, end = _feed(path, process.stdin, given)
            if found == sha256:
                process.stdin.write(end)
            process.stdin.close()
        except BrokenPipeError:
            broken = "it stopped reading"
        process.stdin = None  # What is left to communicate is its answer.
        out, _ = process.communicate()
    if watch:
        raise moving.StoodStill(f"docker load of {path} {watch.why}")
    told = out.decode(errors="replace")
    if found and found != sha256:
        raise ArchiveError(
            f"{path} has sha256 {found}, expected {sha256}: it is another archive, or it is damaged. Nothing was kept"
        )
    if broken or process.returncode != 0:
        raise ArchiveError(f"Docker could not load {path}: {told.strip()[-600:] or broken}")
    return loaded_names(told)


def _feed(path: Path, sink: IO[bytes], given: Count) -> tuple[str, bytes]:
    """Hash a file and pass it on but for its end: (sha256, that end)."""
    made, end = hashlib.sha256(), b""
    done = forgotten = 0
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            made.update(chunk)
            ready = end + chunk
            sink.write(ready[:-WITHHELD])
            end = ready[-WITHHELD:]
            done += len(chunk)
            given.bytes = done
            if done - forgotten > FORGET:
                os.posix_fadvise(stream.fileno(), 0, done, os.POSIX_FADV_DONTNEED)
                forgotten = done
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    sink.flush()
    return made.hexdigest(), end


def save(
    name: str, target: Path, command: tuple[str, ...] = ("docker", "save"), told: Callable[[int], None] = lambda _: None
) -> str:
    """Write an image into an archive; the archive's sha256. A half-written one never has the final name.

    `told` gets how many bytes more are written, less than none where it begins anew.
    """
    return _insist(lambda: _save(name, target, command, told))


def _save(name: str, target: Path, command: tuple[str, ...], told: Callable[[int], None]) -> str:
    made = hashlib.sha256()
    taken = Count()
    with tempfile.TemporaryFile() as complaints, replacing(target, 0o644) as stream:
        process = subprocess.Popen(
            [*command, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, start_new_session=True
        )
        assert process.stdout
        forgotten = 0
        with stall.watched(process, moving.limits(taken)) as watch:
            while chunk := process.stdout.read(CHUNK):
                made.update(chunk)
                stream.write(chunk)
                taken.bytes += len(chunk)
                told(len(chunk))
                if taken.bytes - forgotten > FORGET:
                    settle(stream)
                    forgotten = taken.bytes
            code = process.wait()
        if watch:
            told(-taken.bytes)
            raise moving.StoodStill(f"docker save of {name} {watch.why}")
        if code != 0:
            complaints.seek(0)
            raise ArchiveError(f"Docker could not save {name}: {complaints.read().decode(errors='replace').strip()[-600:]}")
        settle(stream)
    return made.hexdigest()


def settle(stream: IO[bytes]) -> None:
    """What was written goes to the disk and out of the page cache."""
    stream.flush()
    os.fdatasync(stream.fileno())
    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def refuse_without_room(size: int, reserve_gib: int, root: str, what: str = "the archive") -> None:
    """ArchiveError where the disk of Docker's images can't take it, or nobody says which that is. For a while Docker holds an image packed and unpacked: twice the size."""
    if not root:
        raise ArchiveError("Docker does not say where its images lie (docker info), so how much room there is can't be measured")
    if problem := disk.lacking(root, 2 * size, reserve_gib * GIB):
        raise ArchiveError(
            f"{problem} (twice {what}, and {reserve_gib} GiB that stay free). playbooks/prune.yml shows what may go"
        )


@contextlib.contextmanager
def guarding_memory(root: Path = Path("/"), floor: int = GUARD_FREE, seconds: float = GUARD_SECONDS) -> Iterator[None]:
    """Let go of page cache while something else fills it, where free memory runs short and there is cache to drop."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            with contextlib.suppress(OSError, ValueError):
                memory = measure(root)
                if (memory.mem_free or floor) < floor and (memory.cached or 0) > GUARD_CACHED:
                    drop_caches(1, root, sync=False)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
