# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The name that a mistyped one most likely meant: near in spelling, word by word.

Words are what stands between `_`, `-` and `.`. A likeness of the whole is not enough: `--disable-log-requests` is spelled much as
`--enable-log-requests` and means the opposite, `lane_api_port` much as `lane_api_host` and means another thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None where none is near."""
    ranked = sorted((far, other) for other in set(known) if (far := _distance(name, other)) is not None)
    return ranked[0][1] if ranked else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean x?` or an empty text."""
    best = nearest(name, known)
    return f"Did you mean {best}?" if best else ""


def _distance(name: str, other: str) -> tuple[int, int] | None:
    """How far two names are apart, or None where too far: slips of the keyboard, then words left out or put in."""
    given, meant = _words(name), _words(other)
    joined = _typos("".join(given), "".join(meant))
    if len(given) == len(meant):
        slips = [_slip(one, two) for one, two in zip(given, meant, strict=True)]
        return None if None in slips else (sum(slip or 0 for slip in slips), 0)
    if joined is not None and joined <= 1:
        return joined, 0  # a separator more or less
    less, more = sorted((given, meant), key=len)
    # Two words in common at least, the prefix apart: `lane_max_len` may be lane_max_model_len, `lane_port` is not lane_api_port.
    if len(more) - len(less) == 1 and len(less) > 2 and _within(less, more):
        return 2, 0 if less is given else 1
    return None


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[_\-.\s]+", name.lower()) if word]


def _within(less: list[str], more: list[str]) -> bool:
    """Whether all words of the one stand in the other, in that order."""
    rest = iter(more)
    return all(word in rest for word in less)


def _slip(one: str, two: str) -> int | None:
    """How far two words are apart, or None where that is no slip. Cut short (`len` of `length`) or with its letters mixed up it is one."""
    cut = one.startswith(two) or two.startswith(one)
    if min(len(one), len(two)) > 2 and one[0] == two[0] and (cut or sorted(one) == sorted(two)):
        return int(one != two)
    return _typos(one, two)


def _typos(one: str, two: str) -> int | None:
    """Letters changed, left out, put in or swapped; None where they are more than slips: 1 of 2 to 5 letters, 2 of 6 and more."""
    most = 0 if max(len(one), len(two)) < 2 else 1 if max(len(one), len(two)) < 6 else 2
    if abs(len(one) - len(two)) > most:
        return None
    before: list[int] = []
    row = list(range(len(two) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(two, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == two[j - 2] and one[i - 2] == other:
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1] if row[-1] <= most else None
