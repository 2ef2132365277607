# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a rule about traps is, as code or made from data.

A rule in code is a generator over a `View` that yields what it found. Its docstring says the rule in one
line and, below, what happens to those who break it. `source` begins with a short name of docs/traps_elsewhere.yml.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN
from ansible.module_utils.sparklanes.lane.view import View

# What a rule that found something does: refuses, warns, or says something good to know.
REFUSE, ADVISE, NOTE = FAIL, WARN, PASS

Find = Callable[[View], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """A trap: what must hold, what happens otherwise, who says so, what to do."""

    id: str
    severity: str
    what: str
    why: str
    want: str
    remedy: str
    source: str
    find: Find


class Rules(list[Rule]):
    """The rules of one file, in their order."""

    def add(self, id: str, severity: str, want: str, remedy: str, source: str) -> Callable[[Find], Find]:
        """A decorator: the function becomes a rule."""

        def keep(find: Find) -> Find:
            what, _, why = inspect.cleandoc(find.__doc__ or "").partition("\n")
            self.append(Rule(f"TRAP.{id}", severity, what, " ".join(why.split()), want, remedy, source, find))
            return find

        return keep
