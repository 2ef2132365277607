# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How far decode lies from prefill: numbers over the tokens that one engine generated and then read again.

d is the logprob of a token when it was generated, less the logprob of the same token when the whole sequence was a prompt; natural, in nat.
The noise of d grows with √(1 − p): a token that is sure has next to none. So R = rms(d) / √mean(1 − p), p by prefill, says the same of
dull and of lively text. A fault adds to it in squares, so one that adds less than the noise is not seen by any of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Tokens that are drawn together: noise is not independent from one token to the next, but from one such piece to the next it nearly is.
PIECE = 64
# exp() of a difference beyond this says no more than that it is large.
LARGE = 20.0
# Standard errors of a one-sided bound that holds with 99.5 %.
Z = 2.576


@dataclass(frozen=True)
class Answer:
    """One generated answer. `decode`, `prefill`: a logprob for each token of it, in order; None where the engine gave none."""

    temperature: float
    prompt_tokens: int
    cached_tokens: int | None
    ids: Sequence[int]
    decode: Sequence[float | None]
    prefill: Sequence[float | None]
    top: Sequence[int | None]  # the id that decode found the most likely at each position
    wanted: int = 0  # tokens that were asked for; 0: not told

    def finite(self) -> bool:
        return all(value is not None and math.isfinite(value) for value in (*self.decode, *self.prefill))

    def part(self, first: int = 0, last: int | None = None) -> list[tuple[float, float]]:
        """(d, 1 − p) of the tokens from `first` up to before `last`."""
        pairs = zip(self.decode[first:last], self.prefill[first:last], strict=True)
        return [(was - now, 1 - math.exp(min(0.0, now))) for was, now in pairs if was is not None and now is not None]


@dataclass(frozen=True)
class Measure:
    """What is known of one set of tokens. `scatter`: the standard error of ln R; k3: mean of e^−d − 1 + d, the estimate of the divergence
    of prefill from decode that reinforcement learning watches (0.0025 to 0.008 is usual there)."""

    tokens: int
    r: float
    scatter: float
    rms: float
    mean: float
    most: float
    k3: float

    def least(self, other: float = 0.0) -> float:
        """What R is at least, with 99.5 %; `other`: the scatter of what it is to be compared with."""
        return self.r * math.exp(-Z * math.hypot(self.scatter, other)) if math.isfinite(self.scatter) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows numbers: what is beyond all of them is null."""
        return {
            name: (round(value, 6) if math.isfinite(value) else None) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def measure(parts: Iterable[Sequence[tuple[float, float]]]) -> Measure | None:
    """Of several answers' tokens, as `Answer.part` gives them; None where there is no token."""
    pieces = [part[at : at + PIECE] for part in parts for at in range(0, len(part), PIECE)]
    sums = [(sum(d * d for d, _ in piece), sum(q for _, q in piece)) for piece in pieces if piece]
    tokens = [d for piece in pieces for d, _ in piece]
    if not tokens:
        return None
    squares, doubt = sum(s for s, _ in sums), sum(q for _, q in sums)
    r = _ratio(squares, doubt)
    return Measure(
        tokens=len(tokens),
        r=r,
        scatter=_scatter(sums, squares, doubt),
        rms=math.sqrt(squares / len(tokens)),
        mean=sum(tokens) / len(tokens),
        most=max(map(abs, tokens)),
        k3=sum(math.exp(min(-d, LARGE)) - 1 + d for d in tokens) / len(tokens),
    )


def _ratio(squares: float, doubt: float) -> float:
    # Tokens that are all certain, with no difference at all: nothing is off. With one, everything is.
    return math.sqrt(squares / doubt) if doubt > 0 else (math.inf if squares > 0 else 0.0)


def _scatter(sums: Sequence[tuple[float, float]], squares: float, doubt: float) -> float:
    """The standard error of ln R, by leaving out each piece once (a jackknife). One piece alone says nothing of its scatter."""
    if len(sums) < 2 or squares <= 0 or doubt <= 0:
        return math.inf if squares > 0 else 0.0
    logs = []
    for own_squares, own_doubt in sums:
        less, rest = squares - own_squares, doubt - own_doubt
        if less <= 0 or rest <= 0:
            return math.inf  # everything that differs is in this piece
        logs.append(0.5 * math.log(less / rest))
    mean = sum(logs) / len(logs)
    return math.sqrt((len(logs) - 1) / len(logs) * sum((value - mean) ** 2 for value in logs))


def other_choice(answers: Iterable[Answer]) -> tuple[int, int]:
    """(tokens, how many of them were not what decode itself found the most likely), of answers at temperature 0: the sampler's part."""
    tokens = other = 0
    for answer in answers:
        if answer.temperature != 0:
            continue
        for token, top in zip(answer.ids, answer.top, strict=True):
            if top is not None:
                tokens += 1
                other += token != top
    return tokens, other
