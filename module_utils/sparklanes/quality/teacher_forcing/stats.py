# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The statistics of teacher forcing: one pass over the tokens of a lane and of its reference."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import CANARY_LONG, CANARY_SHORT, CHAT

# Bins of p(token) for the report; the noise of a logprob is about (1 - p) times the noise of the logits.
PROBABILITY_BINS = (0.0, 1e-4, 0.02, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0)
DIFFUSE = 0.1  # below this p the noise of a logprob is the noise of the logits
Z_CAP = 999.0  # JSON knows no infinity


@dataclass(frozen=True)
class Limits:
    """The numbers of the gate. Defaults are for a lane with the KV cache type of its reference.

    G2, G3, canary and the sample sizes are judgement. G4 to G8 were simulated with the noise of a public
    reference against itself (2 + 2 runs, 23,501 tokens): no false alarm in 300 runs, while a logit error of
    0.10, a bias of 0.03 nat, an error of 0.2 beyond position 8192 only, and 12 bad tokens were always seen.
    """

    completion_drop: float = 0.5  # G2: fall of the mean logprob of chat completions, nats
    rank1_drop: float = 0.05  # G2: fall of the share of completion tokens that are the argmax
    nll_rise: float = 0.5  # G2: rise of the mean negative logprob of the corpus, nats
    floor_good: float = 0.15  # G3: pair sd on tokens with p < 0.1 that resolves well
    floor_accepted: float = 0.35  # G3: … that is accepted, with its resolution said
    floor_max: float = 0.5  # G3: … above which nothing is judged
    bias: float = 0.02  # G4: bounds of the 90 % interval of the mean difference, nats (2 % perplexity)
    ratio: float = 1.10  # G5: mean |difference| over the floor; a public four-rank lane measured 1.013 and 1.055
    ratio_z: float = 3.0  # G5: below this z of the systematic part, a larger ratio is noise, not error
    sys_rms: float = 0.08  # G6: systematic part, nats (KL about 0.003)
    sys_z: float = 5.0  # G6, G8
    max_abs: float = 4.0  # G7: one run-averaged token, nats
    max_floor_factor: float = 2.0  # G7: or this many times the largest difference of the reference to itself
    band_sys_rms: float = 0.12  # G8
    band_ratio: float = 1.5  # G8
    band_tokens: int = 128  # G8: a cell with fewer tokens is not judged, and said to be so
    bands: tuple[int, ...] = (0, 512, 2048, 8192, 32768, 131072)
    # A deterministic engine repeats itself to the last bit: its floor is 0, and any ratio to it infinite. Below a
    # mean of 0.001 nat (what another prefill chunk size did to one bf16 model on one CPU) nothing is called different.
    floor_min: float = 0.001
    diffuse_min: int = 64  # G3: fewer tokens with p < 0.1 are no measure of noise
    tokens_min: int = 256  # fewer scored tokens are no basis for any verdict
    canary: float = 1.0  # nats between the two canaries: scorer, not lane
    reference_runs: int = 3  # of a bank, else its floor is called thin
    reference_boots: int = 2  # autotuning and graphs are chosen anew at each boot
    candidate_runs: int = 2

    @classmethod
    def for_lane(cls, same_kv: bool, *overrides: Mapping[str, Any] | None) -> Limits:
        """The defaults for this pair of KV cache types, then the overrides in order. Unknown names are errors.

        Another KV dtype is another rounding of every key and value: bias 0.05 and systematic part 0.15 are the
        recommendation; the band limit keeps its distance from the whole (0.12 is 1.5 times 0.08), and the ratio
        of 1.25 leaves the margin that the published lanes would have needed.
        """
        limits = cls() if same_kv else cls(bias=0.05, ratio=1.25, sys_rms=0.15, band_sys_rms=0.225)
        known = {item.name: item for item in fields(cls)}
        for override in overrides:
            for name, value in (override or {}).items():
                if name not in known:
                    raise ValueError(f"teacher forcing has no limit {name!r}; it has {', '.join(sorted(known))}")
                if name == "bands":
                    limits = replace(limits, bands=tuple(int(edge) for edge in value))
                else:
                    kind = int if known[name].type == "int" else float
                    changed: dict[str, Any] = {name: kind(value)}
                    limits = replace(limits, **changed)
        return limits


@dataclass
class Cell:
    """Sums over the tokens of one part of the corpus; cells add up.

    reference: |difference| of two runs of the reference (the floor); cross: of a run of the lane to one of the
    reference; delta: the lane's mean run minus the reference's; product: (c_a - r_x)(c_b - r_y) with independent
    runs on both sides, so that noise cancels in expectation and the systematic part remains.
    """

    n: int = 0
    reference: float = 0.0
    cross: float = 0.0
    delta: float = 0.0
    delta2: float = 0.0
    product: float = 0.0
    product2: float = 0.0
    max_reference: float = 0.0
    max_delta: float = 0.0

    def __add__(self, other: Cell) -> Cell:
        total = Cell(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))
        total.max_reference = max(self.max_reference, other.max_reference)
        total.max_delta = max(self.max_delta, other.max_delta)
        return total

    def floor(self, floor_min: float = 0.0) -> float:
        return max(self.reference / self.n, floor_min) if self.n else 0.0

    def ratio(self, floor_min: float) -> float:
        """Mean |lane - reference| over mean |reference - reference|, never over less than `floor_min`."""
        return (self.cross / self.n) / self.floor(floor_min) if self.n else 0.0

    @property
    def bias(self) -> float:
        return self.delta / self.n if self.n else 0.0

    @property
    def bias_se(self) -> float:
        return math.sqrt(max(0.0, self.delta2 / self.n - self.bias**2) / self.n) if self.n else 0.0

    @property
    def sys_rms(self) -> float:
        """Root of the mean product, with its sign: below zero is noise around zero."""
        mean = self.product / self.n if self.n else 0.0
        return math.copysign(math.sqrt(abs(mean)), mean)

    @property
    def sys_z(self) -> float:
        if not self.n:
            return 0.0
        mean = self.product / self.n
        return _z(mean, self.product2 / self.n - mean * mean, self.n)

    def to_dict(self, floor_min: float) -> dict[str, Any]:
        return {
            "n": self.n,
            "floor": round(self.floor(), 6),
            "ratio": round(self.ratio(floor_min), 4),
            "bias": round(self.bias, 6),
            "bias_se": round(self.bias_se, 6),
            "sys_rms": round(self.sys_rms, 5),
            "sys_z": round(self.sys_z, 2),
            "max_delta": round(self.max_delta, 4),
        }


def _z(mean: float, variance: float, n: int) -> float:
    if mean == 0.0:
        return 0.0
    spread = math.sqrt(max(0.0, variance) / n)
    return math.copysign(Z_CAP, mean) if spread == 0.0 else max(-Z_CAP, min(Z_CAP, mean / spread))


@dataclass(frozen=True)
class Token:
    """One token after comparison: what it took to say so."""

    doc: str
    position: int
    id: int
    reference: float
    candidate: float

    @property
    def delta(self) -> float:
        return self.candidate - self.reference


@dataclass
class Comparison:
    """All statistics of one record against one bank."""

    cells: dict[tuple[str, int], Cell] = field(default_factory=dict)  # (document, index of its band)
    bins: dict[int, Cell] = field(default_factory=dict)  # index in PROBABILITY_BINS
    quarters: dict[int, Cell] = field(default_factory=dict)
    worst: list[Token] = field(default_factory=list)
    first_bad: dict[str, int] = field(default_factory=dict)  # first position of a document beyond the token limit
    diffuse_n: int = 0
    diffuse_pairs: int = 0
    diffuse_sum2: float = 0.0
    nll_reference: float = 0.0
    nll_candidate: float = 0.0
    completion_n: int = 0
    completion_reference: float = 0.0
    completion_candidate: float = 0.0
    rank1_reference: float = 0.0
    rank1_candidate: float = 0.0

    @property
    def total(self) -> Cell:
        return sum(self.cells.values(), Cell())

    def document(self, id: str) -> Cell:
        return sum((cell for (doc, _), cell in self.cells.items() if doc == id), Cell())

    def band(self, index: int) -> Cell:
        return sum((cell for (_, band), cell in self.cells.items() if band == index), Cell())

    @property
    def pair_sd(self) -> float:
        """Run-to-run sd of the reference on tokens with p < 0.1, where it is the noise of the logits."""
        return math.sqrt(self.diffuse_sum2 / self.diffuse_pairs) if self.diffuse_pairs else 0.0

    @property
    def resolution(self) -> float:
        """The smallest systematic logit error that G6 sees reliably: sqrt(5 sd² / sqrt(n))."""
        n = self.total.n
        return math.sqrt(5.0 * self.pair_sd**2 / math.sqrt(n)) if n else math.inf

    def sensitivity(self, limits: Limits) -> float:
        """The systematic difference, as rms over these tokens, from which this comparison fails.

        TF.SYSTEMATIC fails above its limit, if noise lets it see that; TF.RATIO from where the error widens the
        noise by its limit: sqrt(1 + s²/sd²) = ratio. A quiet engine is judged by the latter.
        """
        by_ratio = max(self.resolution, self.pair_sd * math.sqrt(limits.ratio**2 - 1.0), limits.floor_min)
        return min(max(self.resolution, limits.sys_rms), by_ratio)


def _band(position: int, bands: Sequence[int]) -> int:
    return max(0, bisect_right(bands, position) - 1)


def band_name(index: int, bands: Sequence[int]) -> str:
    upper = str(bands[index + 1]) if index + 1 < len(bands) else "…"
    return f"[{bands[index]}, {upper})"


def _products(values: Sequence[float]) -> float:
    """Mean of v_a v_b over all pairs of different runs."""
    k = len(values)
    total = sum(values)
    return (total * total - sum(value * value for value in values)) / (k * (k - 1))


def compare(
    documents: Iterable[Mapping[str, Any]],
    reference: Sequence[Mapping[str, Any]],
    candidate: Sequence[Mapping[str, Any]],
    limits: Limits,
    vocab_size: int | None = None,
    parts: int = 4,
) -> Comparison:
    """Every statistic in one pass over the tokens. Runs are `{doc id: {"lp": [...], "rank": [...]}}`, all usable."""
    result = Comparison()
    documents = list(documents)
    largest = max((token for doc in documents for token in doc["token_ids"]), default=0)
    vocab = max(vocab_size or 0, largest + 1)
    pairs = [(a, b) for a in range(len(reference)) for b in range(a)]
    worst: list[Token] = []
    for doc in documents:
        name, ids, n_prompt = doc["id"], doc["token_ids"], doc["n_prompt"]
        refs = [run[name]["lp"] for run in reference]
        cands = [run[name]["lp"] for run in candidate]
        ref_ranks = [run[name].get("rank") or [] for run in reference]
        cand_ranks = [run[name].get("rank") or [] for run in candidate]
        for k in range(1, len(ids)):
            base = refs[0][k]
            # Offsets from the first run: identical runs give exact zeros, and large logprobs lose no digits.
            r = [values[k] - base for values in refs]
            c = [values[k] - base for values in cands]
            r_mean, c_mean = sum(r) / len(r), sum(c) / len(c)
            delta = c_mean - r_mean
            own = [abs(r[a] - r[b]) for a, b in pairs]
            own_mean = sum(own) / len(own)
            cross = sum(abs(x - y) for x in c for y in r) / (len(c) * len(r))
            product = _products(c) + _products(r) - 2.0 * c_mean * r_mean
            cell = Cell(
                1,
                own_mean,
                cross,
                delta,
                delta * delta,
                product,
                product * product,
                max(own),
                abs(delta),
            )
            mean = base + r_mean
            p = math.exp(min(0.0, mean))
            _into(result.cells, (name, _band(k, limits.bands)), cell)
            _into(result.quarters, min(parts - 1, ids[k] * parts // vocab), cell)
            _into(result.bins, min(bisect_right(PROBABILITY_BINS, p), len(PROBABILITY_BINS) - 1) - 1, cell)
            result.nll_reference -= mean
            result.nll_candidate -= mean + delta
            if p < DIFFUSE:
                result.diffuse_n += 1
                result.diffuse_pairs += len(own)
                result.diffuse_sum2 += sum(value * value for value in own)
            if doc["class"] == CHAT and k >= n_prompt:
                result.completion_n += 1
                result.completion_reference += mean
                result.completion_candidate += mean + delta
                result.rank1_reference += _rank1(ref_ranks, k)
                result.rank1_candidate += _rank1(cand_ranks, k)
            if len(worst) < 5 or abs(delta) > abs(worst[-1].delta):
                worst.append(Token(name, k, ids[k], mean, mean + delta))
                worst = sorted(worst, key=lambda token: -abs(token.delta))[:5]
            if abs(delta) > limits.max_abs:
                result.first_bad.setdefault(name, k)
    result.worst = worst
    return result


def _into(cells: dict[Any, Cell], key: Any, token: Cell) -> None:
    """Add one token to a cell in place: this runs for every token."""
    cell = cells.get(key)
    if cell is None:
        cells[key] = replace(token)
        return
    cell.n += 1
    cell.reference += token.reference
    cell.cross += token.cross
    cell.delta += token.delta
    cell.delta2 += token.delta2
    cell.product += token.product
    cell.product2 += token.product2
    cell.max_reference = max(cell.max_reference, token.max_reference)
    cell.max_delta = max(cell.max_delta, token.max_delta)


def _rank1(ranks: Sequence[Sequence[int | None]], k: int) -> float:
    return sum(1 for values in ranks if k < len(values) and values[k] == 1) / len(ranks)


def canary(corpus: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[float, float, int] | None:
    """(mean, largest, position) of |difference| between the two canaries of a run, None where it has no pair.

    Both are the start of one text, and only their lengths differ: below and above the size up to which CUDA
    graphs are captured. With a padded drafter the shorter one is scored from an overwritten buffer
    (vLLM #53488): HTTP 200, wrong numbers, while generation is fine.
    """
    names = {doc["id"] for doc in corpus["documents"]}
    if not {CANARY_SHORT, CANARY_LONG} <= names:
        return None
    short, long = (run[name].get("lp") or [] for name in (CANARY_SHORT, CANARY_LONG))
    gaps = [abs(short[k] - long[k]) for k in range(1, min(len(short), len(long)))]
    if not gaps:
        return None
    largest = max(gaps)
    return sum(gaps) / len(gaps), largest, gaps.index(largest) + 1
