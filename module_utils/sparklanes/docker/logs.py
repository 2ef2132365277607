# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The log of an ended container in a file: whole where there is room, else its head and its tail.

An engine logs what strangers send it, so its log has no end; and a full disk is no reason to keep a lane down. What is left out, and why,
stands in the file at that place and in what is returned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.sparklanes.common.disk import free_bytes
from ansible.module_utils.sparklanes.common.sizes import MIB, human_bytes

# A boot with NCCL_DEBUG=INFO on two ranks printed some 2 MB. The head tells how it began, the tail how it ended.
MOST_BYTES = 32 * MIB
TAIL_BYTES = 8 * MIB  # held in memory while it is read, beside an engine that leaves little
# Of a disk's room so much is left to others, and with less than that for a log it is not worth a file there.
RESERVE_BYTES = MIB
LEAST_BYTES = 64 * 1024
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Saved:
    """What became of one log. `path` is empty where nothing was written; `problem` says what is missing and why, empty where it is whole."""

    container: str
    path: str = ""
    bytes: int = 0
    whole: bool = False
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def save(argv: Sequence[str], container: str, path: Path, most: int = MOST_BYTES, seconds: float = 900.0) -> Saved:
    """What `argv` (`docker logs …`) prints as the file `path`, mode 0600, in folders that everybody may enter. It raises nothing."""
    try:
        _folders(path.parent)
        room = free_bytes(path.parent) - RESERVE_BYTES
    except OSError as error:
        return Saved(container, problem=_full(path, error))
    if room < LEAST_BYTES:
        return Saved(container, problem=f"{path.parent} has {human_bytes(max(0, room))} for a log: the disk is full")
    part = path.with_name(f".{path.name}.part")
    writer = _Writer(part, min(most, room))
    try:
        with writer:
            code = _stream(argv, writer, seconds)
            writer.finish()
        if not writer.size and (code or writer.problem):
            part.unlink(missing_ok=True)
            return Saved(container, problem=writer.problem or f"docker logs printed nothing and ended with exit code {code}")
        part.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        return Saved(container, problem=_full(path, error))
    ended = f"docker logs ended with exit code {code} before the end of the log" if code else ""
    problem = "; ".join(said for said in (writer.problem, ended) if said)
    return Saved(container, str(path), writer.size, not problem, problem)


def _full(path: Path, error: OSError) -> str:
    return f"{error.filename or path}: {error.strerror or error}"


def _folders(folder: Path) -> None:
    """Whoever fetches a log passes through them; an umask of root would not let him."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        one.chmod(0o755)


def _stream(argv: Sequence[str], writer: _Writer, seconds: float) -> int:
    """Exit status; negative where it took too long and was ended."""
    with subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:

        def end() -> None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        late = threading.Timer(seconds, end)
        late.start()
        try:
            assert process.stdout
            while chunk := os.read(process.stdout.fileno(), _CHUNK):
                writer.take(chunk)
            return process.wait()
        finally:
            late.cancel()
            if process.poll() is None:
                end()


class _Writer:
    """A file of at most `most` bytes: the first bytes as they come, then the last ones."""

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self.keep = min(TAIL_BYTES, most // 2)
        self.head = most - self.keep
        self.size = self.left_out = self.held = 0
        self.tail: deque[bytes] = deque()
        self.problem = ""
        self.stream: IO[bytes] | None = None

    def __enter__(self) -> _Writer:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.stream = os.fdopen(handle, "wb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.stream
        self.stream.close()

    def take(self, chunk: bytes) -> None:
        room = max(0, self.head - self.size)
        if room and not self.left_out and not self.tail:
            chunk = chunk[:room][self._write(chunk[:room]) :] + chunk[room:]
        if not chunk:
            return
        self.tail.append(chunk)
        self.held += len(chunk)
        while self.tail and self.held - len(self.tail[0]) >= self.keep:
            gone = self.tail.popleft()
            self.held -= len(gone)
            self.left_out += len(gone)

    def _write(self, data: bytes) -> int:
        """Bytes written. A disk that fills up gives half of the room back for the tail."""
        assert self.stream
        done = 0
        try:
            while done < len(data):
                done += self.stream.write(data[done:]) or 0
        except OSError as error:
            self.problem = _full(self.path, error)
            self.size += done
            half = self.size // 2
            os.ftruncate(self.stream.fileno(), half)
            self.stream.seek(half)
            self.left_out += self.size - half
            self.keep = min(self.keep, max(0, self.size - half - 4096))
            self.size = self.head = half
            return done
        self.size += done
        return done

    def finish(self) -> None:
        """The tail after the head, with a line between them where something is missing."""
        assert self.stream
        text = b"".join(self.tail)
        cut = max(0, len(text) - self.keep)
        self.left_out += cut
        text = text[cut:]
        if self.left_out:
            why = f" ({self.problem})" if self.problem else ""
            text = f"\n[sparklanes: {self.left_out} bytes left out here{why}]\n".encode() + text
            what = f"{human_bytes(self.left_out)} in the middle of the log were left out"
            self.problem = (
                f"{what}: {self.problem}" if self.problem else f"{what}, it is longer than {human_bytes(self.head + self.keep)}"
            )
        at, said = self.size, self.problem
        self.head = self.size + len(text)
        if self._write(text) < len(text):
            # What fits of the tail is worth less than a file that ends where it says so.
            os.ftruncate(self.stream.fileno(), at // 2)
            self.size = at // 2
            self.problem = f"all of the log after {human_bytes(self.size)} was left out: {self.problem or said}"
