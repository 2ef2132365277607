# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Text of our own (banks/corpus) as token ids: exactly so many of one class, by the engine's own tokenizer.

Passages and sentences filled from word lists by a seeded generator: natural enough to be read, and with names, numbers and codes that nobody
can guess, as those are the tokens on which an error shows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

CLASSES = ("text", "code", "cjk", "tools")
CHARS_PER_TOKEN = 7  # more than any tokenizer needs for prose; the text grows where it is too short


class Tokenizer(Protocol):
    """What is asked of an engine (engine.api.Engine has it)."""

    def tokenize(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True)
class Texts:
    """`source`: class → {passages, templates, words}, as the filter `teacher_forcing_source` reads them."""

    engine: Tokenizer
    model: str
    source: Mapping[str, Any]
    seed: int

    def ids(self, kind: str, tokens: int, salt: int, special: bool = True) -> list[int]:
        """Exactly `tokens` ids of text of this class; another text for each `salt`. ValueError where the source has no such text."""
        part = self.source.get(kind)
        if not part:
            raise ValueError(f"the source of the corpus has no class {kind!r}; it needs {', '.join(CLASSES)} and chat")
        chars = tokens * CHARS_PER_TOKEN
        for _ in range(4):
            ids = self.engine.tokenize(self.model, compose(part, chars, self.seed + salt), add_special_tokens=special)
            if len(ids) >= tokens:
                return ids[:tokens]
            chars *= 2
        raise ValueError(f"{chars} characters of {kind} gave only {len(ids)} tokens, {tokens} were wanted")


def compose(part: Mapping[str, Any], chars: int, seed: int) -> str:
    """At least `chars` characters of one class: its passages in a seeded order, and filled sentences between and after."""
    draw = random.Random(seed)
    passages = list(part.get("passages") or [])
    draw.shuffle(passages)
    templates, words = list(part.get("templates") or []), part.get("words") or {}
    if not passages and not templates:
        raise ValueError("this class of the source has neither passages nor templates")
    pieces: list[str] = []
    size = 0
    while size < chars:
        if passages:
            pieces.append(passages.pop().strip())
            size += len(pieces[-1])
        elif not templates:
            # Nothing to fill: the text repeats itself, and its end is easy to guess. Only short classes do that.
            passages = list(part["passages"])
        if templates:
            pieces.append(" ".join(fill(draw.choice(templates), words, draw) for _ in range(draw.randint(4, 7))))
            size += len(pieces[-1])
    return "\n\n".join(pieces)


def fill(template: str, words: Mapping[str, Sequence[str]], draw: random.Random) -> str:
    """A template with its <slots> filled: a list of that name, or <number>, <code>, <time>."""

    def one(slot: re.Match[str]) -> str:
        name = slot[1]
        if name in words:
            return str(draw.choice(list(words[name])))
        if name == "number":
            return str(draw.choice((draw.randint(2, 99), draw.randint(100, 9999))))
        if name == "code":
            return "".join(draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(6))
        if name == "time":
            return f"{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}"
        return slot[0]

    return re.sub(r"<(\w+)>", one, template)
