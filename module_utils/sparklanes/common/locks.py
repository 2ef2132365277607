# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A lock between processes of one machine: a file that only its owner can open, held while a block runs.

It goes with the process that holds it, so a dead one locks nobody out; a living one is named.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_SECONDS = 20.0
_EVERY_SECONDS = 0.05


class Busy(ValueError):
    """Another process holds the lock, and did not give it back in time. The text names it."""


def _opened(path: Path) -> int:
    """The lock file, made where it is missing. PermissionError where others could open it too: whoever can might hold it for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(handle)
        raise PermissionError(
            f"{path} is a lock of this project and not as it was made (a file of uid {os.geteuid()}, mode 0600). "
            "Look who changed it, then remove it"
        )
    return handle


def _holder(handle: int) -> str:
    """Who wrote himself into the lock file, as part of a sentence."""
    pid, _, what = os.pread(handle, 300, 0).decode(errors="replace").strip().partition(" ")
    return f"process {pid} ({what})" if pid.isdigit() else "another process"


def got(handle: int, seconds: float) -> bool:
    """Whether the lock of an open file or folder was had within `seconds`. It goes with the handle."""
    limit = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                return False
            time.sleep(_EVERY_SECONDS)
        else:
            return True


@contextlib.contextmanager
def locked(path: str | Path, what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the lock at `path` while the block runs. `what`: what is done meanwhile, for whoever is refused. Busy after `seconds`."""
    handle = _opened(Path(path))
    try:
        if not got(handle, seconds):
            raise Busy(
                f"{_holder(handle)} on this node holds {path} for more than {seconds:g} s. Wait for it, or look what it does"
            )
        # Only a person reads it: a full disk is no reason to be without the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {what}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
