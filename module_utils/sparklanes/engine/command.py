# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The words of `[vllm serve] MODEL --flag value …`, as the engine's own parser takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible.module_utils.sparklanes.engine.flags import SHORT, canonical_flag, switches

# A flag as it was spelled (short ones in their long form), and its values.
Flag = tuple[str, list[str]]

_LEVEL = re.compile(r"-O([0-9])")  # -O2: the one flag that is written together with its value
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")


def flags_and_words(words: Iterable[str]) -> tuple[list[str], list[Flag]]:
    """The words that belong to no flag (`vllm`, `serve`, the model), and the flags in their order, repeated ones too.

    A switch has no value, so that what follows it is a word of its own; what a flag that nobody knows may take is left to it.
    """
    before: list[str] = []
    flags: list[Flag] = []
    takes, is_switch = False, False
    for word in words:
        name, equals, value = word.partition("=")
        level = _LEVEL.fullmatch(word)
        if level:
            flags.append(("--optimization-level", [level[1]]))
            takes = False
        elif name in SHORT or re.match(r"--[A-Za-z]", word):
            flags.append((SHORT.get(name, name), [value] if equals else []))
            is_switch = canonical_flag(flags[-1][0]) in switches()
            takes = not equals
        elif takes and (not is_switch or word.lower() in ("true", "false")):
            flags[-1][1].append(word)
            takes = not is_switch
        else:
            before.append(word)
    return before, flags


def whole_number(text: str) -> int:
    """`262144`, `256K` (binary) and `262k` (decimal), as the engine reads a number of tokens or bytes. ValueError for anything else."""
    found = _HUMAN.fullmatch(text.strip())
    if not found:
        return int(text)
    number, unit = found[1], found[2]
    if unit in _BINARY:
        return int(number) * _BINARY[unit]  # the engine has no 1.5K
    return int(float(number) * _DECIMAL[unit])
