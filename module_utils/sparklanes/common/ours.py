# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Folders that we made and may remove whole, at a path that a person may have given: they hold a file that says so."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from ansible.module_utils.sparklanes.common import files

MARK = ".sparklanes"


class NotOurs(ValueError):
    """A folder that we did not make stands where ours would. The text names it and says what to do."""


def is_ours(folder: Path, purpose: str) -> bool:
    """Whether a folder, and not a link to one, carries our mark for this purpose."""
    wanted = f"{purpose}\n".encode()
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        mark = os.open(MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except OSError:
        return False
    finally:
        os.close(handle)
    try:
        return stat.S_ISREG(os.fstat(mark).st_mode) and os.read(mark, len(wanted) + 1) == wanted
    finally:
        os.close(mark)


def claim(folder: Path, purpose: str, mode: int = 0o700) -> None:
    """Have a folder with our mark: one that has it already, a new one, or one that is empty. NotOurs for any other."""
    if is_ours(folder, purpose):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode)
    if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
        raise NotOurs(
            f"{folder} is there already, and no file {MARK} in it says that it is ours ({purpose}). Look what it holds; name another"
            " place, or remove it"
        )
    (folder / MARK).write_text(f"{purpose}\n", encoding="ascii")


def remove(folder: Path, purpose: str) -> bool:
    """Remove a folder that carries our mark, with all in it; whether it was there. NotOurs for any other, unless it is empty."""
    if not folder.is_symlink() and not folder.exists():
        return False
    if not is_ours(folder, purpose):
        try:
            folder.rmdir()  # made, and not marked yet
        except OSError:
            raise NotOurs(
                f"{folder} was not removed: no file {MARK} in it says that it is ours ({purpose}). Look what it holds"
            ) from None
        return True
    # The mark goes last: what is half removed is still known as ours.
    for entry in folder.iterdir():
        if entry.name != MARK:
            files.remove(entry)
    shutil.rmtree(folder)
    return True
