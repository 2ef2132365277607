# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The file of a new lane, made from that of another one: text in, text out, so that comments stay."""

from __future__ import annotations

import re

# What is true of the parent alone: where it is from, and what its source measured, saw and warned of.
NOT_INHERITED = (
    "lane_source",
    "lane_expect",
    "lane_contradictions",
    "lane_warnings",
    "lane_negative",
    "lane_accept",
)
HEAD = """\
---
# {name}: begun from lane {parent}, without the numbers that its source measured.
# What each name means: docs/lane-reference.md. What is wrong or missing: playbooks/preflight.yml -e lane={name} -e preflight_needs=launch
lane_id: {name}
lane_title: {name}, from {parent}
lane_source:
  derived_from: {parent}
"""


def new_lane(text: str, parent: str, name: str) -> str:
    """The file of lane `name` from the text of its parent's; ValueError says why there can't be one."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise ValueError(f"{name!r} is no name of a lane: letters, digits and _, for it becomes the name of a group")
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
