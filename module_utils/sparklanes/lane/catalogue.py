# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The files of lanes on the controller: which there are, and a new one made from another, text to text, so that comments stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# What is true of the parent alone: where it is from, and what its source measured, saw and warned of.
NOT_INHERITED = (
    "lane_source",
    "lane_expect",
    "lane_contradictions",
    "lane_warnings",
    "lane_negative",
    "lane_state",
    "lane_superseded",
    "lane_accept",
)
HEAD = """\
---
# {name}: begun from lane {parent}, without the numbers that its source measured but for lane_memory, from which the budget is judged:
# where the model or its quantization is another one, correct it, or remove it.
# What each name means: docs/lane-reference.md. What is wrong or missing: playbooks/preflight.yml -e lane={name} -e preflight_needs=launch
lane_id: {name}
lane_title: {name}, from {parent}
lane_source:
  derived_from: {parent}
"""


def fit_name(name: str) -> None:
    """ValueError where no lane can have that name."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise ValueError(f"{name!r} is no name of a lane: letters, digits and _, for it becomes the name of a group")


def new_lane(text: str, parent: str, name: str) -> str:
    """The file of lane `name` from the text of its parent's; ValueError says why there can't be one."""
    fit_name(name)
    if name == parent:
        raise ValueError(
            f"a new lane needs a name of its own; to change {name}, write a site file of its name (docs/concepts.md)"
        )
    blocks = _blocks(text)
    if f"lane_id: {parent}" not in [line for block in blocks for line in block.splitlines()]:
        raise ValueError(f"the file of {parent} does not say lane_id: {parent}")
    dropped = (*NOT_INHERITED, "lane_id", "lane_title")
    kept = [block for block in blocks if not re.search(rf"^(?:{'|'.join(dropped)}):", block, re.MULTILINE)]
    return HEAD.format(name=name, parent=parent) + "".join(kept)


def _blocks(text: str) -> list[str]:
    """The text by top-level name, each with the comments above it; what stands before the first name is the parent's own."""
    blocks: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        if re.match(r"\w+:", line):
            blocks.append(pending + line)
            pending = ""
        elif line.startswith(("#", "---")) or not line.strip():
            pending += line
        elif blocks:
            blocks[-1] += pending + line
            pending = ""
    return blocks


def known_lanes(folders: Iterable[Path]) -> list[str]:
    """The lanes that these group_vars folders define."""
    return _known(folders, "lane")


def known_shared(folders: Sequence[Path]) -> list[str]:
    """What lanes may share, as groups: family_<id> and kit_<id>."""
    return [f"{kind}_{name}" for kind in ("family", "kit") for name in _known(folders, kind)]


def _known(folders: Iterable[Path], kind: str) -> list[str]:
    found = set()
    for folder in folders:
        for entry in folder.glob(f"{kind}_*"):
            # Ansible turns other characters of a group's name into _, and would not find the file.
            name = re.fullmatch(rf"{kind}_(\w+)(?:\.ya?ml|\.json)?", entry.name, re.ASCII)
            if name:
                found.add(name[1])
    return sorted(found)
