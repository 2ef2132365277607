# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which answers are asked for, and why: each case found a fault that no other one saw (docs/decode.md).

Lengths of prompts follow the blocks of the KV cache: a prompt is at least three whole ones, so that a hit reads a first, a middle and a last block,
and what is left over in the last one (its residue) is 0, 1 and one less than a block in each run, and others in turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

COLD, HIT, CONTINUED, CROWD, LONG, GREEDY = "cold", "hit", "continued", "crowd", "long", "greedy"
CASES = (COLD, HIT, CONTINUED, CROWD, LONG, GREEDY)
# An answer is judged from this token on in the case `long`: faults were seen that begin there.
LATE = 1000
BLOCK = 16  # where the engine does not say
BLOCKS = 3
WIDTH = 8
# Tokens of new text between an answer and the one that continues it.
BETWEEN = 48
# Tokens of the longest prompt where three blocks are shorter, and of all prompts of one case: each is read three times, and a lane reads
# some thousand tokens a second.
LONGEST, PROMPTS = 1024, 60_000
# Tokens that all answers of a case hold. With fewer than 2,048 the noise itself would scatter by more than a quarter.
GENERATED = 2304


@dataclass(frozen=True)
class Case:
    """Requests of one kind. `tokens`: of each answer; `width`: how many at once."""

    name: str
    requests: int
    tokens: int
    temperature: float
    width: int

    @property
    def generated(self) -> int:
        return self.requests * self.tokens


@dataclass(frozen=True)
class Plan:
    """What a lane has room for. `seqs`: its max_num_seqs; `long_form`: one answer of 12,288 tokens more; `seed` draws the residues."""

    window: int
    block: int = BLOCK
    seqs: int = 32
    hits: bool = True  # whether the engine keeps a prefix cache
    long_form: bool = False
    seed: int = 0
    only: Sequence[str] = ()  # these cases, with `cold` where one needs it; all, when empty

    def cases(self) -> list[Case]:
        """In the order in which they are asked for; hits come before anything is scored, or scoring could have written what they read."""
        wanted = {*self.only, *([COLD] if {HIT, CONTINUED} & set(self.only) else [])} or set(CASES)
        return [case for case in self._split()[0] if case.tokens >= 16 and case.name.partition("-")[0] in wanted]

    @property
    def lacks(self) -> list[str]:
        """What this lane can't be asked, and why."""
        return self._split()[1]

    def _split(self) -> tuple[list[Case], list[str]]:
        """The cases that there is room for, and the others by name."""
        room = self.window - self.shortest - 1
        if room < 32:
            return [], [f"everything: three blocks of {self.block} tokens and an answer do not fit into {self.window}"]
        lacks: list[str] = []
        prompts = max(8, min(48, PROMPTS // max(self.shortest, LONGEST // 2)))
        made = [Case(COLD, prompts, min(room, -(-GENERATED // prompts)), 1.0, WIDTH)]
        if self.hits:
            made.append(Case(HIT, prompts, min(room, max(64, -(-GENERATED // prompts))), 1.0, WIDTH))
            made.append(Case(CONTINUED, 16, min(room - made[0].tokens - BETWEEN, -(-GENERATED // 16)), 1.0, WIDTH))
        else:
            lacks.append("hit, continued: the engine keeps no prefix cache")
        if self.seqs > WIDTH:
            crowd = min(self.seqs, 64)
            made.append(Case(CROWD, crowd, min(room, max(32, -(-GENERATED // crowd))), 1.0, crowd))
        else:
            lacks.append(f"crowd: the lane takes {self.seqs} at once, as many as the other cases have")
        if room >= LATE + 128:
            made.append(Case(LONG, 2, min(room, 1300), 1.0, 2))
        else:
            lacks.append(f"long: a window of {self.window} tokens leaves {room} for an answer, judged from {LATE} on")
        if self.long_form and room >= 12_288:
            made.append(Case(f"{LONG}-12k", 1, 12_288, 1.0, 1))
        elif self.long_form and room >= LATE + 128:
            lacks.append(f"long-12k: a window of {self.window} tokens leaves {room} for an answer")
        made.append(Case(GREEDY, 8, min(room, 64), 0.0, WIDTH))
        return made, lacks

    @property
    def shortest(self) -> int:
        """Three blocks and the residue of nearly one more."""
        return (BLOCKS + 1) * self.block

    def lengths(self, count: int, after: int) -> list[int]:
        """Tokens of `count` prompts: three blocks at least, over all residues that have a turn. `after`: tokens that follow in the window."""
        draw = random.Random(self.seed)
        most = min(max(LONGEST, self.shortest), self.window - after - 1)
        others = list(range(2, self.block - 1))
        draw.shuffle(others)
        turn = [0, 1 % self.block, self.block - 1, *others]
        lengths = []
        for index in range(count):
            left = turn[index % len(turn)]
            lengths.append(draw.randint(BLOCKS, max(BLOCKS, (most - left) // self.block)) * self.block + left)
        return lengths


def residues(lengths: Sequence[int], block: int) -> str:
    """How many residues were tried, as a person reads it."""
    return f"{len({length % block for length in lengths})} of {block} residues"
