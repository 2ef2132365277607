# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or absent: write aside, fsync, rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

STATE_ROOT = "/var/lib/sparklanes"
LOG_ROOT = "/var/log/sparklanes"


# What is not whole yet is named so, and by what mkstemp(3) adds. Nobody else names a file so: a leftover of a killed process is known by it.
ASIDE = ".sparklanes-partial."

# No file of ours comes near it: what is larger was made by something else.
LARGEST = 16 * 1024 * 1024
# But a list of a hundred thousand files and their hashes.
LARGEST_LIST = 128 * 1024 * 1024


class Unreadable(ValueError):
    """A file is there, and what it says can't be known. The text names it and says why; nobody may take it for absent.

    `mark` stands for the bytes that were found (`unreadable-` and eight hex digits), empty where none could be read.
    so: what follows from it and what a person can do, for a file of which that is the same whoever reads it.
    """

    def __init__(self, path: str | Path, why: str, mark: str = "", so: str = "") -> None:
        super().__init__(f"{path} can't be read ({why}){so}")
        self.path, self.why, self.mark = str(path), why, mark


def _content(path: str | Path, largest: int, flags: int = 0) -> bytes:
    """The bytes of a plain file, at most one more than `largest`. Unreadable for what is none: a pipe would be waited for, a device has no end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Unreadable(path, "it is no file")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(largest + 1)
    finally:
        os.close(handle)


def read_state(path: str | Path, largest: int = LARGEST) -> tuple[dict[str, Any] | None, str]:
    """The JSON object in a file that others are judged by, and the mark of its bytes. None only where there is no such file; else Unreadable.

    Neither a link nor a pipe is followed, and no more is read than `largest` bytes.
    """
    try:
        content = _content(path, largest, os.O_NOFOLLOW)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        raise Unreadable(path, error.strerror or str(error)) from error
    mark = f"unreadable-{hashlib.sha256(content).hexdigest()[:8]}"
    if len(content) > largest:
        raise Unreadable(path, f"it is larger than {largest} bytes", mark)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(path, f"it is no JSON: {str(error)[:100]}" if content else "it is empty", mark) from error
    if not isinstance(data, dict):
        raise Unreadable(path, f"it holds {type(data).__name__}, not an object", mark)
    return data, mark


def read_json(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None where there is none or it can't be read as one.

    For what can be made or measured anew. What decides whether something may be touched is read by `read_state`.
    """
    try:
        content = _content(path, LARGEST_LIST)
        data = json.loads(content) if len(content) <= LARGEST_LIST else None
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def below(name: str) -> str:
    """A relative path of POSIX in its one spelling, which stays below the folder that it is in. ValueError for any other."""
    path = PurePosixPath(name)
    wrong = not path.parts or name != str(path) or path.is_absolute() or ".." in path.parts
    if wrong or any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise ValueError(f"{name!r} is no name below a folder")
    return name


@contextlib.contextmanager
def replacing(path: str | Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A stream whose content is that of `path` once the block ends well. Where it doesn't, nothing has changed.

    A reader sees the old file or the whole new one, also after a power cut.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=ASIDE, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(aside).rename(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: str | Path, content: str | bytes, mode: int = 0o600) -> None:
    """Give `path` this content, or leave it as it is."""
    with replacing(path, mode) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def as_json(data: Any) -> str:
    """The one spelling of JSON that we write and hash: sorted keys, two spaces, a final newline."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: str | Path, data: Any, mode: int = 0o600) -> bool:
    """Write `data` atomically; False (and nothing touched) where the file already holds it."""
    content = as_json(data)
    target = Path(path)
    try:
        if _content(target, LARGEST_LIST) == content.encode() and target.stat().st_mode & 0o777 == mode:
            return False
    except (OSError, ValueError):
        pass
    write_atomically(target, content, mode)
    return True


def lend_to_login(path: str | Path) -> None:
    """Give a file to the user who became root by sudo, who fetches it as a file: what only root may read, Ansible takes through memory."""
    user = os.environ.get("SUDO_UID", "")
    if user.isdigit() and os.geteuid() == 0:
        os.chown(path, int(user), -1, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a file or a link, if it is there, or a folder with all in it. No link is followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hash_file(path: Path) -> str:
    """sha256 without holding the file in memory: a library can have hundreds of megabytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
