# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a comparison with the reference is measured by, each measure a check: from NaN to single bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN
from ansible.module_utils.sparklanes.engine.api import NAN
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import CANARY_LONG, CANARY_SHORT, unusable
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import DIFFUSE, Cell, Comparison, Limits, band_name, canary
from ansible.module_utils.sparklanes.quality.teacher_forcing.verdict import SCORER, Findings, badness


def finite(gate: Findings, record: Mapping[str, Any]) -> None:
    """G1."""
    nan: list[str] = []
    other: list[str] = []
    for index, run in enumerate(record["runs"], 1):
        for name, doc in run["docs"].items():
            why = unusable(doc)
            if why.startswith(NAN) and name == CANARY_SHORT:
                continue  # alone it tells of the scorer, and is judged with its pair
            if why:
                (nan if why.startswith(NAN) else other).append(f"run {index}, {name}: {why}")
    if nan:
        gate.add(
            "TF.FINITE",
            FAIL,
            f"NaN in {len(nan)} document(s): {nan[0]}",
            "finite logprobs everywhere",
            "Verify weights and overlays in full on every rank, then the KV cache type; /health does not see this.",
        )
    elif other:
        gate.unjudged(
            "TF.FINITE",
            f"{len(other)} document(s) were not scored: {other[0]}",
            remedy="Read the engine's log, then score again.",
        )
    else:
        gate.add("TF.FINITE", PASS, "every logprob is finite")


def _coherence(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G2."""
    n = seen.total.n
    rise = (seen.nll_candidate - seen.nll_reference) / n
    expected = f"mean logprob of completions within {limits.completion_drop}, rank-1 share within {limits.rank1_drop:.0%}, NLL within +{limits.nll_rise}"
    if not seen.completion_n:
        gate.unjudged("TF.COHERENCE", "the corpus holds no chat completions", expected, "Build the corpus with chat prompts.")
        return
    drop = (seen.completion_reference - seen.completion_candidate) / seen.completion_n
    was, now = seen.rank1_reference / seen.completion_n, seen.rank1_candidate / seen.completion_n
    bad = drop > limits.completion_drop or was - now > limits.rank1_drop or rise > limits.nll_rise
    gate.add(
        "TF.COHERENCE",
        FAIL if bad else PASS,
        f"completions {-drop:+.3f} nat, rank-1 {now:.1%} (reference {was:.1%}, {seen.completion_n} tokens), NLL {rise:+.3f}",
        expected,
        "The lane produces other text than its reference: wrong weights, kernels, or one rank's share is garbage.",
    )


def _floor(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G3: the floor is the resolution of everything below."""
    n, sd = seen.total.n, seen.pair_sd
    expected = f"pair sd up to {limits.floor_accepted} on tokens with p < {DIFFUSE}, at least {limits.tokens_min} tokens"
    quieter = "Use a quieter gate profile (no drafter, eager, VLLM_MARLIN_USE_ATOMIC_ADD=0, one request at a time), more runs or a larger corpus."
    found = f"pair sd {sd:.3f} on {seen.diffuse_n} tokens; systematic differences below {seen.resolution:.3f} nat drown in it"
    if n < limits.tokens_min:
        gate.unjudged("TF.FLOOR", f"only {n} tokens were scored", expected, "Build a larger corpus.")
    elif seen.total.max_reference == 0.0:
        gate.add(
            "TF.FLOOR", PASS, f"the reference repeats itself exactly; {limits.floor_min} nat stands in for its noise", expected
        )
    elif seen.diffuse_n < limits.diffuse_min:
        gate.unjudged(
            "TF.FLOOR",
            f"only {seen.diffuse_n} tokens have p < {DIFFUSE}: the noise cannot be measured",
            expected,
            "Build a larger corpus.",
        )
    elif sd > limits.floor_max or seen.resolution > 2 * limits.sys_rms:
        gate.unjudged("TF.FLOOR", found, expected, quieter)
    elif sd > limits.floor_accepted or seen.resolution > limits.sys_rms:
        gate.add("TF.FLOOR", WARN, found, expected, quieter)
    else:
        gate.add("TF.FLOOR", PASS, found + ("" if sd <= limits.floor_good else " (accepted, not good)"), expected)


def _bias(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G4: two one-sided tests; equivalence is shown, not assumed."""
    total = seen.total
    half = 1.645 * total.bias_se
    low, high = total.bias - half, total.bias + half
    found, expected = f"mean difference {total.bias:+.4f} nat, 90 % between {low:+.4f} and {high:+.4f}", f"inside ±{limits.bias}"
    if -limits.bias < low and high < limits.bias:
        gate.add("TF.BIAS", PASS, found, expected)
    elif half > limits.bias and low < limits.bias and high > -limits.bias:
        gate.unjudged("TF.BIAS", f"{found}: {total.n} tokens are too few", expected, "Build a larger corpus or score more runs.")
    else:
        gate.add(
            "TF.BIAS",
            FAIL,
            found,
            expected,
            "The lane is surer or less sure than its reference: quantization, KV cache type or a kernel.",
        )


def _ratio(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G5."""
    total = seen.total
    ratio = total.ratio(limits.floor_min)
    found = f"{ratio:.3f} times the reference's own noise ({total.floor(limits.floor_min):.4f} nat)"
    expected = f"up to {limits.ratio}"
    if ratio <= limits.ratio:
        gate.add("TF.RATIO", PASS, found, expected)
    elif total.sys_z < limits.ratio_z:
        gate.add(
            "TF.RATIO",
            WARN,
            f"{found}, noisier but not systematic (z {total.sys_z:.1f})",
            expected,
            "Look for what makes this lane noisier: atomics, drafter, batch shapes.",
        )
    else:
        gate.add("TF.RATIO", FAIL, found, expected, "The lane differs from its reference more than the reference from itself.")


def _systematic(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G6: what remains after noise has cancelled."""
    total = seen.total
    bad = total.sys_rms > limits.sys_rms and total.sys_z > limits.sys_z
    gate.add(
        "TF.SYSTEMATIC",
        FAIL if bad else PASS,
        f"{total.sys_rms:.4f} nat (z {total.sys_z:.1f})",
        f"up to {limits.sys_rms} nat",
        "The same tokens differ in every run: wrong, not noisy. The bands below say where.",
    )


def _isolated_limit(total: Cell, limits: Limits) -> float:
    return float(max(limits.max_abs, limits.max_floor_factor * total.max_reference))


def _isolated(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G7: a few bad tokens drown in every mean."""
    total = seen.total
    limit = _isolated_limit(total, limits)
    worst = seen.worst[0]
    gate.add(
        "TF.ISOLATED",
        FAIL if total.max_delta > limit else PASS,
        f"largest {total.max_delta:.2f} nat at {worst.doc} position {worst.position} (token {worst.id})",
        f"up to {limit:.2f} nat",
        "Single tokens are wrong: corrupt embedding or head rows, KV slots, or replacement characters.",
    )


def _off(cell: Cell, limits: Limits) -> bool:
    """Whether one part of the corpus is wrong on its own."""
    systematic = cell.sys_rms > limits.band_sys_rms and cell.sys_z > limits.sys_z
    return bool(systematic or cell.ratio(limits.floor_min) > limits.band_ratio)


def _bands(gate: Findings, seen: Comparison, limits: Limits) -> None:
    """G8: documents and position bands one by one."""
    bad: list[tuple[float, str]] = []
    judged = small = 0
    for (name, band), cell in seen.cells.items():
        if cell.n < limits.band_tokens:
            small += 1
            continue
        judged += 1
        if _off(cell, limits):
            ratio = cell.ratio(limits.floor_min)
            text = f"{name} {band_name(band, limits.bands)}: ratio {ratio:.2f}, systematic {cell.sys_rms:.3f} (z {cell.sys_z:.1f}), {cell.n} tokens"
            bad.append((badness(cell, limits), text))
    deepest = max((band for (_, band), cell in seen.cells.items() if cell.n >= limits.band_tokens), default=None)
    expected = f"each systematic up to {limits.band_sys_rms}, ratio up to {limits.band_ratio}"
    left = f"; {small} with fewer than {limits.band_tokens} tokens not judged" if small else ""
    if deepest is None:
        gate.unjudged(
            "TF.BANDS",
            f"no document has {limits.band_tokens} tokens in one band",
            expected,
            "Build a corpus with longer documents.",
        )
    elif bad:
        worst = [text for _, text in sorted(bad, reverse=True)]
        more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
        gate.add(
            "TF.BANDS",
            FAIL,
            f"{len(bad)} of {judged} cells: {'; '.join(worst[:3])}{more}",
            expected,
            "Where it is wrong says what is wrong: see the hint.",
        )
    else:
        gate.add("TF.BANDS", PASS, f"{judged} cells, the deepest {band_name(deepest, limits.bands)}{left}", expected)


def scorer_fault(
    corpus: Mapping[str, Any],
    reference: Sequence[Mapping[str, Any]],
    candidate: Sequence[Mapping[str, Any]],
    seen: Comparison,
    limits: Limits,
) -> str:
    """Why the scorer itself is wrong, empty where it is not.

    The rule is 1 nat anywhere. A noisy stack passes 1 nat against itself (a public reference reached 8), so its
    own floor raises the bound for a single token; the mean over the canary still betrays a polluted one. Where
    only single tokens are off, and off in other documents too, the lane is to blame: G7 says so.
    """
    floor = seen.total
    anywhere = max(limits.canary, limits.max_floor_factor * floor.max_reference)
    on_average = max(limits.canary / 4, 3.0 * floor.floor())
    lane_too = any(
        cell.max_delta > _isolated_limit(floor, limits)
        for (name, _), cell in seen.cells.items()
        if name not in (CANARY_SHORT, CANARY_LONG)
    )
    for who, runs in (("this lane", candidate), ("the reference", reference)):
        for index, run in enumerate(runs, 1):
            found = canary(corpus, run)
            if found and (found[0] > on_average or (found[1] > anywhere and not lane_too)):
                return (
                    f"{SCORER}: in run {index} of {who} the same text scores "
                    f"{found[1]:.2f} nat apart at position {found[2]} ({found[0]:.3f} on average) in the short and the long canary"
                )
    return ""


@dataclass(frozen=True)
class Hint:
    """What a pattern points at: a sentence, empty where it is none, and the only part of the vocabulary that differs, of how many."""

    text: str
    part: tuple[int, int] | None = None


def hint(seen: Comparison, limits: Limits, same_kv: bool) -> Hint:
    """What the pattern of the differences points at."""
    total = seen.total
    ratio = total.ratio(limits.floor_min)
    bands = sorted({band for _, band in seen.cells if seen.band(band).n >= limits.band_tokens})
    bad_bands = [band for band in bands if _off(seen.band(band), limits)]
    parts = [part for part, cell in seen.quarters.items() if cell.n >= limits.band_tokens]
    bad_parts = [part for part in parts if _off(seen.quarters[part], limits)]
    if total.bias < -0.5 and bands == bad_bands:
        return Hint("much less likely everywhere: wrong weights or kernels")
    if len(parts) > 1 and len(bad_parts) == 1:
        part = (bad_parts[0], max(parts) + 1)
        return Hint(f"only tokens of vocabulary part {part[0]} of {part[1]}: the embedding or head shard of that rank", part)
    if bad_bands and bad_bands != bands and 0 not in bad_bands:
        kv = "" if same_kv else ", or the KV cache type"
        return Hint(
            f"only from position {limits.bands[bad_bands[0]]} up: the merge across ranks, the sparse indexer or an attention window{kv}"
        )
    documents = sorted({doc for doc, _ in seen.cells})
    bad_documents = [doc for doc in documents if seen.document(doc).n >= limits.band_tokens and _off(seen.document(doc), limits)]
    if bad_documents and len(bad_documents) < len(documents) and bad_bands != bands:
        return Hint(
            f"only in {', '.join(bad_documents)}: short sequences alone point at the scorer (vLLM #53488), others at what these documents share"
        )
    if bad_bands:
        return Hint("everywhere with little bias: weights, quantization, an overlay or one rank")
    if total.sys_rms > limits.sys_rms and total.sys_z > limits.sys_z:
        return Hint("a little everywhere: quantization, an overlay or one rank")
    if total.max_delta > _isolated_limit(total, limits):
        return Hint("only single tokens: corrupt rows of embedding or head, or KV slots")
    if ratio > limits.ratio and total.sys_z < limits.ratio_z:
        return Hint("noisier, not wrong")
    return Hint("")


# In the order in which a person reads them: the floor is the resolution of all that follow it.
MEASURES = (_coherence, _floor, _bias, _ratio, _systematic, _isolated, _bands)
