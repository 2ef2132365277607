# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Teacher forcing: does this lane give the same tokens the same probabilities as its reference did?

A bank holds a corpus (token ids) and K runs of the reference over it; a record holds K runs of the
lane under test. `judge(bank, record)` compares the two against the reference's own run-to-run noise.
A bank proves sameness, not truth: a reference that was wrong stays wrong (docs/teacher-forcing.md).

Pure Python on plain dicts. Logprobs are natural.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import WARN
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import (
    CANARY_SHORT,
    shielded,
    unusable,
)
from ansible.module_utils.sparklanes.quality.teacher_forcing.identity import Compared, compare_identity, differences_of
from ansible.module_utils.sparklanes.quality.teacher_forcing.measures import MEASURES, finite, hint, scorer_fault
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import (
    Comparison,
    Limits,
    compare,
)
from ansible.module_utils.sparklanes.quality.teacher_forcing.verdict import (
    FAILED,
    INVALID,
    PASSED,
    SCORER,
    Findings,
    Verdict,
)
from ansible.module_utils.sparklanes.quality.teacher_forcing.window import fitted


def judge(
    bank: Mapping[str, Any],
    record: Mapping[str, Any],
    limits: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    host: str = "deployment",
) -> Verdict:
    """The verdict on a record. `identity` describes the lane under test as `bank["engine"]` does, with a list
    `ranks` of {rank, node, image, overlays, weights}; it is the record's own `engine` when left out."""
    gate = Findings(host)
    bank, left_out = fitted(bank, record.get("max_model_len"))
    engine = {**dict(record.get("engine") or {}), **dict(identity or {})}
    same_kv = (bank.get("engine") or {}).get("kv_cache_dtype") == engine.get("kv_cache_dtype")
    numbers = Limits.for_lane(same_kv, bank.get("limits"), limits)
    differences = [*differences_of(bank.get("engine") or {}, engine), *([left_out] if left_out else [])]

    def ended(
        verdict: str, reason: str, hint: str = "", comparison: Comparison | None = None, part: tuple[int, int] | None = None
    ) -> Verdict:
        documents = list((bank.get("corpus") or {}).get("documents") or [])
        texts = {**(bank.get("texts") or {}), **(record.get("texts") or {})}
        return Verdict(verdict, reason, gate.checks, hint, numbers, comparison, documents, texts, differences, part)

    compare_identity(gate, Compared(bank, record, engine, numbers), differences)
    if gate.inconclusive:
        return ended(INVALID, gate.inconclusive[0])
    if gate.failed:
        return ended(FAILED, gate.failed[0])
    finite(gate, record)
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
        scorer = scorer_fault(corpus, reference, candidate, comparison, numbers)
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
    for measure in MEASURES:
        measure(gate, comparison, numbers)
    pattern = hint(comparison, numbers, same_kv)
    if gate.failed:
        return ended(FAILED, gate.failed[0], pattern.text, comparison, pattern.part)
    if gate.inconclusive:
        return ended(INVALID, gate.inconclusive[0], "", comparison)
    total = comparison.total
    return ended(
        PASSED,
        f"{total.n} tokens: ratio {total.ratio(numbers.floor_min):.3f}, bias {total.bias:+.4f}, systematic "
        f"{total.sys_rms:.4f} (z {total.sys_z:.1f}); from {comparison.sensitivity(numbers):.3f} nat up it would have failed",
        pattern.text if any(check.status == WARN for check in gate.checks) else "",
        comparison,
    )
