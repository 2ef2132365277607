# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Swap of a Spark: what is on, and the line of /etc/fstab that turns a file of ours on at a boot."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible.module_utils.sparklanes.common.sizes import GIB

SPARE_GIB = 10  # what a new file leaves free on its disk (ours): logs, and the state of a launch


@dataclass(frozen=True)
class Swap:
    """One line of /proc/swaps, in bytes."""

    path: str
    kind: str
    size: int
    used: int
    priority: int = -2  # below 0: the kernel's own choice


def parse_swaps(text: str) -> list[Swap]:
    """/proc/swaps: sizes are in KiB, blanks in a path are written \\040."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 4 and words[2].isascii() and words[2].isdigit() and words[3].isascii() and words[3].isdigit():
            priority = int(words[4]) if re.fullmatch(r"-?[0-9]{1,9}", "".join(words[4:5])) else -2
            found.append(Swap(words[0].replace("\\040", " "), words[1], int(words[2]) * 1024, int(words[3]) * 1024, priority))
    return found


def fstab_line(path: str) -> str:
    return f"{path} none swap sw,nofail 0 0"


def fstab_with(text: str, path: str) -> str:
    """The table with our swap file in it; a line of its own that somebody wrote for it stays as it is."""
    if any(words[:1] == [path] for words in map(str.split, text.splitlines())):
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + fstab_line(path) + "\n"


def fstab_without(text: str, path: str) -> str:
    """The table without the line that we wrote, every other byte as it was."""
    return "".join(line for line in text.splitlines(keepends=True) if line.rstrip("\n") != fstab_line(path))


def problems(gib: float, path: str) -> list[str]:
    """Wishes that make no sense, as sentences."""
    wrong = []
    if not 1 <= gib <= 256:
        wrong.append(f"gib: found {gib:g}, expected 1 to 256")
    if (
        not path.startswith("/")
        or len(path.split()) != 1
        or path.endswith("/")
        or path.startswith("/dev/")
        or ".." in path.split("/")
    ):
        wrong.append(f"path: found {path!r}, expected the absolute path of a file, without blanks")
    return wrong


def missing(swaps: list[Swap], gib: float) -> int:
    """Bytes of swap that are still to be made; 0 where what is on is enough, give or take a header's page."""
    wanted, on = int(gib * GIB), sum(swap.size for swap in swaps)
    return 0 if on >= wanted - GIB // 16 else wanted - on
