# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or absent: write aside, fsync, rename."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

STATE_ROOT = "/var/lib/sparklanes"
LOG_ROOT = "/var/log/sparklanes"


def read_json(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None where there is none or it can't be read as one.

    A file of ours is renamed into place, so a broken one was made by something else; the
    caller treats it as absent and says so by what then is missing.
    """
    try:
        with Path(path).open(encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
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
    handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
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
        if target.read_text(encoding="utf-8") == content and target.stat().st_mode & 0o777 == mode:
            return False
    except (OSError, ValueError):
        pass
    write_atomically(target, content, mode)
    return True
