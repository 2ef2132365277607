# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on a disk, asked before the first byte is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB


def standing(path: str | Path) -> Path:
    """The path, or where it does not exist yet the nearest folder above it that does."""
    made = Path(path)
    while not made.exists() and made != made.parent:
        made = made.parent
    return made


def free_bytes(path: str | Path) -> int:
    """Free space where a path is or will be. OSError where that can't be measured."""
    found = os.statvfs(standing(path))
    return int(found.f_bavail * found.f_frsize)


def device(path: str | Path) -> int:
    """The file system where a path is or will be."""
    return standing(path).stat().st_dev


def lacking(path: str | Path, needed: int, reserve: int = 0) -> str:
    """Why the disk of a path can't take `needed` bytes and keep `reserve` free, as a sentence without its stop; empty where it can.

    What can't be measured can't.
    """
    try:
        free = free_bytes(path)
    except OSError as error:
        return f"how much room {path} has can't be measured ({error.strerror or error})"
    if free >= needed + reserve:
        return ""
    return f"{path} has {free / GIB:.1f} GiB free, expected {(needed + reserve) / GIB:.1f}"


def measured(path: str | Path) -> dict[str, Any]:
    """Room where a path is or will be: free bytes and inodes for whoever is not root, the file system's number, or `error`.

    `free_inodes` is None on a file system that has no fixed number of them (btrfs). What has no absolute path was not told.
    """
    if not Path(path).is_absolute():
        return {"path": str(path), "error": "nobody told where it is"}
    try:
        place = standing(path)
        found, number = os.statvfs(place), place.stat().st_dev
    except OSError as error:
        return {"path": str(path), "error": str(error.strerror or error)}
    return {
        "path": str(path),
        "error": "",
        "free_bytes": int(found.f_bavail * found.f_frsize),
        "free_inodes": int(found.f_favail) if found.f_files else None,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
        "device": number,
    }
