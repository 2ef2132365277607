# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files of settings in drop-in folders: which there are, which of one name counts, in which order they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ConfFile:
    """One configuration file: its path on the host and its text (empty where it masks others)."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def folder(self) -> str:
        return self.path.rsplit("/", 1)[0]


@dataclass(frozen=True)
class Assigned:
    """A value and the file that sets it."""

    value: str
    path: str


def in_order(files: Iterable[ConfFile], folders: Sequence[str]) -> list[ConfFile]:
    """Files of these folders by name; of two with one name only that of the earlier folder."""
    chosen: dict[str, ConfFile] = {}
    for file in sorted((file for file in files if file.folder in folders), key=lambda file: folders.index(file.folder)):
        chosen.setdefault(file.name, file)
    return [chosen[name] for name in sorted(chosen, key=os.fsencode)]


def with_file(files: Iterable[ConfFile], path: str, text: str | None) -> list[ConfFile]:
    """The same files after `path` was written (or removed, where `text` is None)."""
    others = [file for file in files if file.path != path]
    return others if text is None else [*others, ConfFile(path, text)]


def collect(root: Path, folders: Sequence[str], *single: str) -> list[ConfFile]:
    """Read the `*.conf` files of these folders, and the single files, below `root`.

    A link to /dev/null reads as an empty file, which is what it means. /lib is left out where
    it is /usr/lib under another name.
    """
    found, seen = [], set()
    for folder in folders:
        here = root / folder.lstrip("/")
        real = here.resolve()
        if not here.is_dir() or real in seen:
            continue
        seen.add(real)
        found += [
            ConfFile(f"{folder}/{entry.name}", _text(root, entry)) for entry in sorted(here.iterdir()) if entry.suffix == ".conf"
        ]
    for path in single:
        entry = root / path.lstrip("/")
        if entry.is_file():
            found.append(ConfFile(path, _text(root, entry)))
    return found


def _text(root: Path, entry: Path) -> str:
    """The text of a file; an absolute link is one inside `root`. A dangling link sets nothing."""
    if entry.is_symlink():
        target = entry.readlink()
        entry = root / str(target).lstrip("/") if target.is_absolute() else entry.parent / target
    try:
        return entry.read_text(encoding="utf-8", errors="replace") if entry.is_file() else ""
    except OSError as error:
        raise OSError(f"{entry} cannot be read ({error.strerror}), so nobody can tell what it sets") from error
