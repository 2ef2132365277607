# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a path in a container opens: its mounts and links, followed as root follows them there.

A link says where it leads as a text. In the container that text is read anew: an absolute one begins at the container's root, `..` of a
mount's top is the folder that it is mounted in, and what no mount shows is not there. So a file that opens on the Spark may not open inside,
and another one may.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.walk import LINKS

ReadLink = Callable[[str], str | None]


@dataclass(frozen=True)
class Opened:
    """Where on the Spark the file lies that a path in the container leads to, links followed; or, where it leads nowhere, why."""

    path: str = ""
    why: str = ""


def opens(mounts: Mapping[str, str], path: str, readlink: ReadLink) -> Opened:
    """mounts: place in the container → what it shows of the Spark, itself no link. readlink: the text of a link on the Spark, None for anything else."""
    shown = {_words(target): source.rstrip("/") for target, source in mounts.items()}
    here: tuple[str, ...] = ()
    left, links, said = list(_words(path)), 0, ""
    while left:
        word = left.pop(0)
        if word == "..":
            here = here[:-1]
            continue
        here = (*here, word)
        place = _place(shown, here)
        if place is None:
            if any(target[: len(here)] == here for target in shown):
                continue  # a folder that holds a mount
            return Opened(why=f"{said or 'it'} is not shown by any mount of the container")
        text = None if here in shown else readlink(place)
        if text is None:
            continue
        links += 1
        if links > LINKS:
            return Opened(why="its links go round in circles")
        here = () if text.startswith("/") else here[:-1]
        left = [*_words(text), *left]
        said = f"its link leads to {_written(here, left)}, which"
    place = _place(shown, here)
    return Opened(place) if place is not None else Opened(why=f"{said or 'it'} is no file of a mount")


def _words(path: str) -> tuple[str, ...]:
    return tuple(word for word in path.split("/") if word not in ("", "."))


def _written(here: Sequence[str], left: Iterable[str]) -> str:
    """A path as people write it, each `..` taken with the name before it."""
    words = list(here)
    for word in left:
        if word != "..":
            words.append(word)
        elif words:
            words.pop()
    return "/" + "/".join(words)


def _place(shown: Mapping[tuple[str, ...], str], here: tuple[str, ...]) -> str | None:
    """Where on the Spark a place of the container is, by the deepest mount that covers it."""
    for end in range(len(here), -1, -1):
        if here[:end] in shown:
            return "/".join([shown[here[:end]], *here[end:]]) or "/"
    return None


# On the Spark


def strays(mounts: Iterable[Mapping[str, Any]], folder: str, target: str, names: Iterable[str]) -> dict[str, str]:
    """Of the files `names` in a folder of this Spark: those that a container does not open at `target`, each with why.

    A file counts only where it is the very one, by device and inode, that lies in the folder: that one was verified. mounts: those of a rank
    (`source`, `target`). A file that is not in the folder is not asked for; nor is the time between this look and the start.
    """
    # Docker resolves what is to be mounted before it is mounted.
    shown = {str(mount["target"]): os.path.realpath(str(mount["source"])) for mount in mounts}
    found = {}
    for name in names:
        outside = _file(f"{folder}/{name}", follow=True)
        if outside is None:
            continue
        opened = opens(shown, f"{target}/{name}", _link)
        inside = _file(opened.path, follow=False) if opened.path else None
        if inside is None:
            found[name] = opened.why or f"{opened.path} is not there"
        elif inside != outside:
            found[name] = f"the container opens {opened.path}, another file"
    return found


def _link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None


def _file(path: str, follow: bool) -> tuple[int, int] | None:
    try:
        stat = Path(path).stat(follow_symlinks=follow)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
