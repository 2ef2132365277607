# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Teacher forcing: does this lane give the same tokens the same probabilities as its reference did?

A bank holds a corpus (token ids) and K runs of the reference over it; a record holds K runs of the
lane under test. `judge(bank, record)` compares the two against the reference's own run-to-run noise.
A bank proves sameness, not truth: a reference that was wrong stays wrong (docs/teacher-forcing.md).

Pure Python on plain dicts. Logprobs are natural.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.engine.api import NAN
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import (
    BANK_SCHEMA,
    CANARY_LONG,
    CANARY_SHORT,
    NOTE,
    RECORD_SCHEMA,
    corpus_problems,
    corpus_sha256,
    shielded,
    unusable,
)
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import (
    DIFFUSE,
    PROBABILITY_BINS,
    Cell,
    Comparison,
    Limits,
    band_name,
    canary,
    compare,
)

SCORER = "scorer corrupted by drafter or CUDA graph (vLLM #53488)"
PASSED, FAILED, INVALID = "pass", "fail", "invalid"
EXIT_CODES = {PASSED: 0, FAILED: 1, INVALID: 2}


@dataclass
class Verdict:
    """What the gate says. `invalid` is no pass: nothing was shown."""

    verdict: str
    reason: str
    checks: list[Check]
    hint: str = ""
    limits: Limits = field(default_factory=Limits)
    comparison: Comparison | None = None
    documents: list[Mapping[str, Any]] = field(default_factory=list)
    texts: Mapping[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "verdict": self.verdict,
            "exit_code": EXIT_CODES[self.verdict],
            "reason": self.reason,
            "hint": self.hint,
            "note": NOTE,
            "checks": [check.to_dict() for check in self.checks],
            "differences": self.differences,
            "limits": {**asdict(self.limits), "bands": list(self.limits.bands)},
        }
        if self.comparison:
            data["statistics"] = statistics(self.comparison, self.limits, self.documents, self.texts)
        return data


def statistics(
    comparison: Comparison, limits: Limits, documents: Iterable[Mapping[str, Any]], texts: Mapping[str, str]
) -> dict[str, Any]:
    """The numbers behind a verdict, small enough for a log."""
    floor_min = limits.floor_min
    total = comparison.total
    classes = {doc["id"]: doc["class"] for doc in documents}
    cells = sorted(comparison.cells.items(), key=lambda item: -_badness(item[1], limits))
    return {
        "total": total.to_dict(floor_min),
        "pair_sd": round(comparison.pair_sd, 5),
        "diffuse_tokens": comparison.diffuse_n,
        "resolution": round(comparison.resolution, 5) if total.n else None,
        "sensitivity": round(comparison.sensitivity(limits), 5) if total.n else None,
        "nll_reference": round(comparison.nll_reference / total.n, 5) if total.n else None,
        "nll_candidate": round(comparison.nll_candidate / total.n, 5) if total.n else None,
        "worst_cells": [
            {
                "document": name,
                "class": classes.get(name, ""),
                "band": band_name(band, limits.bands),
                "first_bad_position": comparison.first_bad.get(name),
                **cell.to_dict(floor_min),
            }
            for (name, band), cell in cells[:5]
        ],
        "worst_tokens": [
            {
                "document": token.doc,
                "position": token.position,
                "id": token.id,
                "text": texts.get(str(token.id)),
                "reference": round(token.reference, 4),
                "candidate": round(token.candidate, 4),
            }
            for token in comparison.worst
        ],
        "probability_bins": [
            {"from": PROBABILITY_BINS[i], "to": PROBABILITY_BINS[i + 1], **cell.to_dict(floor_min)}
            for i, cell in sorted(comparison.bins.items())
        ],
        "vocabulary_parts": [
            {"part": part, **comparison.quarters[part].to_dict(floor_min)} for part in sorted(comparison.quarters)
        ],
        "bands": [
            {"band": band_name(band, limits.bands), **comparison.band(band).to_dict(floor_min)}
            for band in sorted({band for _, band in comparison.cells})
        ],
    }


def _badness(cell: Cell, limits: Limits) -> float:
    if cell.n < limits.band_tokens:
        return float(cell.n) / 1e9  # listed last: it proves nothing
    return float(max(cell.sys_rms / limits.band_sys_rms, cell.ratio(limits.floor_min) / limits.band_ratio))


@dataclass
class _Gate:
    """Collects checks. A check either judges (pass, warn, fail) or says why nothing can be judged."""

    host: str
    checks: list[Check] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, id: str, status: str, found: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.host, status, found, expected, remedy if status != PASS else ""))
        if status == FAIL:
            self.failed.append(f"{id}: {found}")

    def unjudged(self, id: str, why: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.host, FAIL, f"cannot be judged: {why}", expected, remedy))
        self.inconclusive.append(f"{id}: {why}")

    def warn_too(self, id: str, found: str) -> None:
        """Say one more thing in a check that is there already."""
        at = next(index for index, check in enumerate(self.checks) if check.id == id)
        said = self.checks[at]
        before = f"{said.found}; " if said.status == WARN else ""
        self.checks[at] = replace(said, status=WARN, found=before + found)


RERUN = "Make the bank anew, or score this lane again with the bank's corpus."


def judge(
    bank: Mapping[str, Any],
    record: Mapping[str, Any],
    limits: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    host: str = "deployment",
) -> Verdict:
    """The verdict on a record. `identity` describes the lane under test as `bank["engine"]` does, with a list
    `ranks` of {rank, node, image, overlays, weights}; it is the record's own `engine` when left out."""
    gate = _Gate(host)
    engine = {**dict(record.get("engine") or {}), **dict(identity or {})}
    same_kv = (bank.get("engine") or {}).get("kv_cache_dtype") == engine.get("kv_cache_dtype")
    numbers = Limits.for_lane(same_kv, bank.get("limits"), limits)
    differences = _differences(bank.get("engine") or {}, engine)

    def ended(verdict: str, reason: str, hint: str = "", comparison: Comparison | None = None) -> Verdict:
        documents = list((bank.get("corpus") or {}).get("documents") or [])
        texts = {**(bank.get("texts") or {}), **(record.get("texts") or {})}
        return Verdict(verdict, reason, gate.checks, hint, numbers, comparison, documents, texts, differences)

    _identity(gate, bank, record, engine, numbers, differences)
    if gate.inconclusive:
        return ended(INVALID, gate.inconclusive[0])
    if gate.failed:
        return ended(FAILED, gate.failed[0])
    _finite(gate, record)
    if gate.failed:
        return ended(FAILED, gate.failed[0], "NaN comes from weights, quantization, an overlay or a KV slot of some rank")
    if gate.inconclusive:
        return ended(INVALID, gate.inconclusive[0])

    corpus = bank["corpus"]
    reference = [run["docs"] for run in bank["runs"]]
    candidate = [run["docs"] for run in record["runs"]]

    def compared(documents: Iterable[Mapping[str, Any]]) -> Comparison:
        vocab = engine.get("vocab_size") or corpus.get("vocab_size")
        return compare(documents, reference, candidate, numbers, vocab, int(engine.get("tensor_parallel_size") or 4))

    without = [doc for doc in corpus["documents"] if doc["id"] != CANARY_SHORT]
    short = [run[CANARY_SHORT] for run in [*reference, *candidate] if CANARY_SHORT in run]
    if nan := next((why for doc in short if (why := unusable(doc))), ""):
        comparison = compared(without)
        scorer = f"{SCORER}: only the short canary gave no logprobs ({nan})"
    else:
        comparison = compared(corpus["documents"])
        scorer = _canary(corpus, reference, candidate, comparison, numbers)
    if scorer and shielded(corpus, int(engine.get("max_num_batched_tokens") or 0) or None):
        comparison = compared(without)
        gate.warn_too("TF.IDENTITY", f"{scorer}; it is left out, every other document is scored in longer chunks")
    elif scorer:
        gate.unjudged(
            "TF.IDENTITY",
            scorer,
            f"both canaries within {numbers.canary} nat",
            "Score a profile without speculative decoding or with enforce_eager, or build the corpus with a min_chunk "
            "of the largest captured graph.",
        )
        return ended(INVALID, scorer, "the scorer is wrong, the lane may be right", comparison)
    _coherence(gate, comparison, numbers)
    _floor(gate, comparison, numbers)
    _bias(gate, comparison, numbers)
    _ratio(gate, comparison, numbers)
    _systematic(gate, comparison, numbers)
    _isolated(gate, comparison, numbers)
    _bands(gate, comparison, numbers)
    hint = _hint(comparison, numbers, same_kv)
    if gate.failed:
        return ended(FAILED, gate.failed[0], hint, comparison)
    if gate.inconclusive:
        return ended(INVALID, gate.inconclusive[0], "", comparison)
    total = comparison.total
    return ended(
        PASSED,
        f"{total.n} tokens: ratio {total.ratio(numbers.floor_min):.3f}, bias {total.bias:+.4f}, systematic "
        f"{total.sys_rms:.4f} (z {total.sys_z:.1f}); from {comparison.sensitivity(numbers):.3f} nat up it would have failed",
        hint if any(check.status == WARN for check in gate.checks) else "",
        comparison,
    )


# Facts of an engine that change numbers without being wrong; a difference to the bank is said, not judged.
_COMPARED = (
    "vllm_version",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "decode_context_parallel_size",
    "max_num_batched_tokens",
    "speculative_config",
    "enforce_eager",
    "logprobs_mode",
)
# What must be the same on every rank.
_SAME_ON_RANKS = ("image", "overlays", "weights")


def _differences(reference: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    found = [
        f"{name}: the reference had {reference.get(name)!r}, this lane has {engine.get(name)!r}"
        for name in _COMPARED
        if (name in reference or name in engine) and reference.get(name) != engine.get(name)
    ]
    for name in _SAME_ON_RANKS:
        was, now = (sorted({str(rank.get(name)) for rank in side.get("ranks") or []}) for side in (reference, engine))
        if was and now and was != now:
            found.append(f"{name}: the reference had {', '.join(was)}, this lane has {', '.join(now)}")
    return found


def _odd_ranks(ranks: Sequence[Mapping[str, Any]], name: str) -> str:
    """Which ranks differ from the others in `name`, empty where all agree. Two ranks: nobody knows which is right.

    Nothing is a value only for overlays: an image or weights of which nothing is known are not alike.
    """
    known = [rank.get(name) is not None if name == "overlays" else bool(rank.get(name)) for rank in ranks]
    values = [json.dumps(rank.get(name), sort_keys=True) for rank in ranks]
    counts = Counter(value for value, there in zip(values, known, strict=True) if there)
    if all(known) and len(counts) == 1:
        return ""
    usual, count = counts.most_common(1)[0] if counts else ("", 0)
    clear = 2 * count > len(values)
    odd = [rank for rank, value in zip(ranks, values, strict=True) if not clear or value != usual]
    return ", ".join(f"rank {rank.get('rank')} ({rank.get('node')}) has {rank.get(name) or 'none known'}" for rank in odd)


def _identity(
    gate: _Gate,
    bank: Mapping[str, Any],
    record: Mapping[str, Any],
    engine: Mapping[str, Any],
    limits: Limits,
    differences: Sequence[str],
) -> None:
    """G0: is it the same corpus, scored as it must be, by ranks that run the same thing?"""
    id = "TF.IDENTITY"
    corpus = bank.get("corpus") or {}
    problems = [] if bank.get("schema") == BANK_SCHEMA else [f"the bank's schema is {bank.get('schema')!r}, not {BANK_SCHEMA!r}"]
    problems += [f"the bank's corpus: {problem}" for problem in corpus_problems(corpus)] if not problems else []
    if record.get("schema") != RECORD_SCHEMA:
        problems.append(f"the record's schema is {record.get('schema')!r}, not {RECORD_SCHEMA!r}")
    if not problems and corpus_sha256(corpus) != bank.get("corpus_sha256"):
        problems.append("the bank's corpus does not have the digest that the bank names")
    if not problems and record.get("corpus_sha256") != bank.get("corpus_sha256"):
        problems.append(
            f"another corpus was scored ({str(record.get('corpus_sha256'))[:12]}) than the bank holds ({str(bank['corpus_sha256'])[:12]})"
        )
    if problems:
        gate.unjudged(id, "; ".join(problems), remedy=RERUN)
        return
    reference, runs = bank.get("runs") or [], record.get("runs") or []
    if len(reference) < 2:
        gate.unjudged(
            id,
            f"the bank holds {len(reference)} run(s), and noise shows only between two",
            remedy="Record more runs of the reference.",
        )
        return
    if len(runs) < limits.candidate_runs or len(runs) < 2:
        gate.unjudged(
            id,
            f"this lane was scored {len(runs)} time(s)",
            f"{max(2, limits.candidate_runs)} runs",
            "Score it again with more runs.",
        )
        return
    for what, held in (("the bank", reference), ("the record", runs)):
        for index, run in enumerate(held, 1):
            wrong = _run_problem(corpus, run, what)
            if wrong:
                gate.unjudged(id, f"run {index} of {what}: {wrong}", remedy=RERUN)
                return
    if str(engine.get("logprobs_mode") or "").endswith("logits"):
        gate.unjudged(
            id, f"logprobs_mode {engine['logprobs_mode']} gives logits", "raw_logprobs", "Remove logprobs_mode from the lane."
        )
        return
    tokenizer = record.get("tokenizer") or {}
    if tokenizer.get("ok") is None:
        why = tokenizer.get("message") or "it was not checked"
        gate.unjudged(id, f"the tokenizer of this lane: {why}", "the ids that the bank holds for the same text", RERUN)
        return
    if not tokenizer["ok"]:
        gate.add(
            id,
            FAIL,
            f"the tokenizer of this lane is another: {tokenizer.get('message')}",
            "the ids that the bank holds for the same text",
            "Compare tokenizer files and revision with the reference; ids of one tokenizer mean nothing to another.",
        )
    ranks = engine.get("ranks") or []
    if not ranks:
        gate.unjudged(
            id,
            "nothing was said of the ranks' images, overlays and weights",
            "one identity a rank",
            "Give `identity` with its list `ranks`: logprobs cannot name a rank.",
        )
        return
    odd = [f"{name}: {who}" for name in _SAME_ON_RANKS if (who := _odd_ranks(ranks, name))]
    if odd:
        gate.add(id, FAIL, "; ".join(odd), "the same on all ranks", "Stage that rank again, and launch again.")
    if gate.failed:
        return
    boots = {run.get("boot_id") for run in reference}
    notes, remedies = list(differences), []
    if differences:
        remedies.append("Differences to the bank count as noise here; a bank with this lane's settings judges more finely.")
    foreign = sum(run.get("foreign_requests") or 0 for run in runs)
    if foreign:
        notes.append(f"{foreign} request(s) of others ran meanwhile: they share batches and add noise")
        remedies.append("Score while nobody else asks.")
    if len(reference) < limits.reference_runs or len(boots) < limits.reference_boots:
        notes.append(f"the bank holds {len(reference)} runs of {len(boots)} boot(s): its floor may be too low")
        remedies.append("Record the reference again after another boot, and make the bank of both records.")
    gate.add(
        id,
        WARN if notes else PASS,
        "; ".join(notes) or f"{len(ranks)} ranks alike, {len(corpus['documents'])} documents, nothing from a cache",
        f"one identity, {limits.reference_runs} runs of {limits.reference_boots} boots in the bank",
        " ".join(remedies),
    )


def _run_problem(corpus: Mapping[str, Any], run: Mapping[str, Any], what: str) -> str:
    if run.get("cached_tokens") and not run.get("foreign_requests"):
        return f"{run['cached_tokens']} tokens came from a cache and were not computed"
    for doc in corpus["documents"]:
        scored = run["docs"].get(doc["id"])
        if scored is None:
            return f"document {doc['id']} is missing"
        if scored.get("error"):
            if what == "the bank" and doc["id"] != CANARY_SHORT:
                return f"document {doc['id']}: {unusable(scored)}"
            continue
        if len(scored.get("lp") or []) != len(doc["token_ids"]):
            return f"document {doc['id']} has {len(scored.get('lp') or [])} logprobs for {len(doc['token_ids'])} tokens"
        if scored.get("cached"):
            return f"document {doc['id']}: {scored['cached']} tokens came from a cache and were not computed"
        if what == "the bank" and unusable(scored) and doc["id"] != CANARY_SHORT:
            return f"document {doc['id']}: {unusable(scored)}"
    return ""


def _finite(gate: _Gate, record: Mapping[str, Any]) -> None:
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


def _coherence(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _floor(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _bias(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _ratio(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _systematic(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _isolated(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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


def _bands(gate: _Gate, seen: Comparison, limits: Limits) -> None:
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
            bad.append((_badness(cell, limits), text))
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


def _canary(
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


def _hint(seen: Comparison, limits: Limits, same_kv: bool) -> str:
    """What the pattern of the differences points at."""
    total = seen.total
    ratio = total.ratio(limits.floor_min)
    bands = sorted({band for _, band in seen.cells if seen.band(band).n >= limits.band_tokens})
    bad_bands = [band for band in bands if _off(seen.band(band), limits)]
    parts = [part for part, cell in seen.quarters.items() if cell.n >= limits.band_tokens]
    bad_parts = [part for part in parts if _off(seen.quarters[part], limits)]
    if total.bias < -0.5 and bands == bad_bands:
        return "much less likely everywhere: wrong weights or kernels"
    if len(parts) > 1 and len(bad_parts) == 1:
        return f"only tokens of vocabulary part {bad_parts[0]} of {max(parts) + 1}: the embedding or head shard of that rank"
    if bad_bands and bad_bands != bands and 0 not in bad_bands:
        kv = "" if same_kv else ", or the KV cache type"
        return f"only from position {limits.bands[bad_bands[0]]} up: the merge across ranks, the sparse indexer or an attention window{kv}"
    documents = sorted({doc for doc, _ in seen.cells})
    bad_documents = [doc for doc in documents if seen.document(doc).n >= limits.band_tokens and _off(seen.document(doc), limits)]
    if bad_documents and len(bad_documents) < len(documents) and bad_bands != bands:
        return f"only in {', '.join(bad_documents)}: short sequences alone point at the scorer (vLLM #53488), others at what these documents share"
    if bad_bands:
        return "everywhere with little bias: weights, quantization, an overlay or one rank"
    if total.sys_rms > limits.sys_rms and total.sys_z > limits.sys_z:
        return "a little everywhere: quantization, an overlay or one rank"
    if total.max_delta > _isolated_limit(total, limits):
        return "only single tokens: corrupt rows of embedding or head, or KV slots"
    if ratio > limits.ratio and total.sys_z < limits.ratio_z:
        return "noisier, not wrong"
    return ""


def report(verdict: Verdict) -> str:
    """The verdict for a person: the reason, the hint, and where the lane differs most."""
    lines = [f"teacher forcing: {verdict.verdict.upper()}: {verdict.reason}"]
    if verdict.hint:
        lines.append(f"  points at: {verdict.hint}")
    if verdict.comparison and verdict.verdict != PASSED:
        numbers = statistics(verdict.comparison, verdict.limits, verdict.documents, verdict.texts)
        lines.append("  where it differs most (document, positions, tokens, ratio to noise, systematic part and its z):")
        lines += [
            f"    {cell['document']:<16} {cell['band']:<14} n {cell['n']:<6} ratio {cell['ratio']:<8} sys {cell['sys_rms']:+.3f} (z {cell['sys_z']})"
            for cell in numbers["worst_cells"]
        ]
        lines.append("  the tokens that differ most (logprob in the reference → here):")
        lines += [
            f"    {token['document']:<16} position {token['position']:<6} id {token['id']:<7} {token['text']!r:<14} {token['reference']:.3f} → {token['candidate']:.3f}"
            for token in numbers["worst_tokens"]
        ]
        lines.append("  by probability of the token (noise of the reference, ratio to it):")
        lines += [
            f"    p {row['from']:g} to {row['to']:g}: n {row['n']}, noise {row['floor']:.4f}, ratio {row['ratio']:.2f}"
            for row in numbers["probability_bins"]
        ]
    lines += [f"  differs from the bank: {text}" for text in verdict.differences]
    lines.append(f"  {NOTE}")
    return "\n".join(lines)


def floor_report(bank: Mapping[str, Any]) -> dict[str, Any]:
    """The noise of a bank's reference against itself: what a new bank can resolve."""
    runs = [run["docs"] for run in bank["runs"]]
    if len(runs) < 2:
        raise ValueError("noise shows only between two runs")
    limits = Limits()
    seen = compare(bank["corpus"]["documents"], runs, runs, limits)
    return {
        "tokens": seen.total.n,
        "runs": len(runs),
        "boots": len({run.get("boot_id") for run in bank["runs"]}),
        "mean": round(seen.total.floor(), 6),
        "largest": round(seen.total.max_reference, 4),
        "pair_sd": round(seen.pair_sd, 5),
        "resolution": round(seen.resolution, 5),
    }
