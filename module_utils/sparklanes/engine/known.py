# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What it takes to know a failure by a line of an engine's log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Words = Mapping[str, str]


@dataclass(frozen=True)
class Known:
    """A failure that we can name. Named groups of the pattern, and what `more` makes of them, fill message and remedy.

    hardware_or_memory: it doesn't restore by itself, a person looks first. consequence: something else happened before, in this
    log or in that of another rank. death: a process was ended from outside, or ended itself. where: what the line has to hold
    besides, anywhere. follows: how many of the next lines belong to the message. Groups `peer` and `host` are addresses of others.

    A pattern begins with a literal and has no repetition without an end but at its own: lines are written by others, and a long
    one must not cost more than its length (a test).
    """

    code: str
    pattern: re.Pattern[str]
    message: str
    remedy: str
    hardware_or_memory: bool = False
    consequence: bool = False
    death: bool = False
    where: re.Pattern[str] | None = None
    follows: int = 0
    more: Callable[[Words], Words] | None = None

    def search(self, line: str) -> re.Match[str] | None:
        found = self.pattern.search(line)
        return found if found and (self.where is None or self.where.search(line)) else None


def known(
    code: str,
    pattern: str,
    message: str,
    remedy: str,
    *,
    hw: bool = False,
    after: bool = False,
    death: bool = False,
    where: str = "",
    follows: int = 0,
    more: Callable[[Words], Words] | None = None,
) -> Known:
    place = re.compile(where) if where else None
    return Known(code, re.compile(pattern), message, remedy, hw, after, death, place, follows, more)


def named(words: Words) -> Words:
    """The address of the peer in brackets, where the line names one."""
    return {"told": f" ({words['peer']})" if words.get("peer") else ""}
