# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The table of hostile cases: a file a group, read and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.hostile.arena import Arena
from benchmarks.hostile.judge import Outcome

GROUPS = ("mirror", "neighbour", "hub", "urls", "names", "archives", "links", "states")
# refused: what was asked for is not called right. right: it is, and has the right bytes. either: both are right, as long as nothing is wrong.
ENDS = ("refused", "right", "either")


@dataclass(frozen=True)
class Case:
    """One hostile case.

    play: what is done, by whom (`plays/`); with: its words. ends: how it must end. says: what the words of the product must hold then.
    quiet: whether no note of an adversary is expected, as nobody is there to write one.
    """

    group: str
    id: str
    title: str
    play: str
    ends: str = "refused"
    says: str = ""
    quiet: bool = False
    with_: Mapping[str, Any] = field(default_factory=dict)


Play = Callable[[Arena, Case], Outcome]


def problems(case: Case, plays: Sequence[str]) -> list[str]:
    """What a line of the table can't mean."""
    found = []
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.id):
        found.append(f"id {case.id!r}")
    for value, known in ((case.group, GROUPS), (case.ends, ENDS), (case.play, plays)):
        if value not in known:
            found.append(f"{value!r} is none of {', '.join(known)}")
    return found


def read(text: str, group: str, plays: Sequence[str]) -> list[Case]:
    """Cases of a group in their order. ValueError: what is wrong in which line."""
    cases = []
    for entry in yaml.safe_load(text):
        words = {"with_" if key == "with" else str(key): value for key, value in entry.items()}
        if unknown := set(words) - {one.name for one in fields(Case)} - {"group"}:
            raise ValueError(f"{entry.get('id')}: no such key: {', '.join(sorted(unknown))}")
        case = Case(group=group, **words)
        if wrong := problems(case, plays):
            raise ValueError(f"{case.id}: {'; '.join(wrong)}")
        cases.append(case)
    return cases


def table(plays: Sequence[str], folder: Path = Path(__file__).parent / "cases") -> list[Case]:
    cases = [case for group in GROUPS for case in read((folder / f"{group}.yml").read_text(encoding="utf-8"), group, plays)]
    if len({case.id for case in cases}) != len(cases):
        raise ValueError("an id is there twice")
    return cases
