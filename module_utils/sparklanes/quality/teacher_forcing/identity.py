# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a record may be compared with a bank at all: the same texts, tokens, model and settings, on every rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import (
    RECORD_SCHEMA,
    mode_problem,
    run_problem,
    runs_problems,
    text_problems,
)
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import Limits
from ansible.module_utils.sparklanes.quality.teacher_forcing.verdict import RERUN, Findings

ID = "TF.IDENTITY"
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


def differences_of(reference: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
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


@dataclass(frozen=True)
class Compared:
    """A record, the bank that it is held against, the lane under test as `bank["engine"]` describes one, and the limits."""

    bank: Mapping[str, Any]
    record: Mapping[str, Any]
    engine: Mapping[str, Any]
    limits: Limits

    @property
    def reference(self) -> Sequence[Mapping[str, Any]]:
        return self.bank.get("runs") or []

    @property
    def runs(self) -> Sequence[Mapping[str, Any]]:
        return self.record.get("runs") or []

    @property
    def corpus(self) -> Mapping[str, Any]:
        return self.bank.get("corpus") or {}


def compare_identity(gate: Findings, pair: Compared, differences: Sequence[str]) -> None:
    """G0: is it the same corpus, scored as it must be, by ranks that run the same thing?

    The first question that nothing can be judged after ends it; what is plainly different is said with what follows.
    """
    for question in (_corpus, _tokenizer, _reference, _enough_runs, _whole_runs, _logprobs, _ranks):
        question(gate, pair)
        # Another tokenizer was not scored at all: what follows would only complain of that.
        if gate.inconclusive or (question is _tokenizer and gate.failed):
            return
    if not gate.failed:
        _remarks(gate, pair, differences)


def _corpus(gate: Findings, pair: Compared) -> None:
    bank, record = pair.bank, pair.record
    problems = [f"the bank: {problem}" for problem in text_problems(bank)]
    if record.get("schema") != RECORD_SCHEMA:
        problems.append(f"the record's schema is {record.get('schema')!r}, not {RECORD_SCHEMA!r}")
    if not problems and record.get("corpus_sha256") != bank.get("corpus_sha256"):
        problems.append(
            f"another corpus was scored ({str(record.get('corpus_sha256'))[:12]}) than the bank holds ({str(bank['corpus_sha256'])[:12]})"
        )
    if problems:
        gate.unjudged(ID, "; ".join(problems), remedy=RERUN)


def _reference(gate: Findings, pair: Compared) -> None:
    problems = runs_problems(pair.bank)
    if problems:
        gate.unjudged(ID, f"the bank: {'; '.join(problems)}", remedy="Record the reference again, and make the bank anew.")


def _enough_runs(gate: Findings, pair: Compared) -> None:
    least = max(2, pair.limits.candidate_runs)
    if len(pair.runs) < least:
        gate.unjudged(ID, f"this lane was scored {len(pair.runs)} time(s)", f"{least} runs", "Score it again with more runs.")


def _whole_runs(gate: Findings, pair: Compared) -> None:
    for index, run in enumerate(pair.runs, 1):
        if wrong := run_problem(pair.corpus, run, reference=False):
            gate.unjudged(ID, f"run {index} of the record: {wrong}", remedy=RERUN)
            return


def _logprobs(gate: Findings, pair: Compared) -> None:
    if wrong := mode_problem(str(pair.engine.get("logprobs_mode") or "")):
        gate.unjudged(ID, wrong, "raw_logprobs", "Remove --logprobs-mode from the lane.")


def _tokenizer(gate: Findings, pair: Compared) -> None:
    tokenizer = pair.record.get("tokenizer") or {}
    expected = "the ids that the bank holds for the same text"
    if tokenizer.get("ok") is None:
        gate.unjudged(ID, f"the tokenizer of this lane: {tokenizer.get('message') or 'it was not checked'}", expected, RERUN)
    elif not tokenizer["ok"]:
        gate.add(
            ID,
            FAIL,
            f"the tokenizer of this lane is another: {tokenizer.get('message')}",
            expected,
            "Compare tokenizer files and revision with the reference; ids of one tokenizer mean nothing to another.",
        )


def _ranks(gate: Findings, pair: Compared) -> None:
    ranks = pair.engine.get("ranks") or []
    if not ranks:
        gate.unjudged(
            ID,
            "nothing was said of the ranks' images, overlays and weights",
            "one identity a rank",
            "Give `identity` with its list `ranks`: logprobs cannot name a rank.",
        )
        return
    odd = [f"{name}: {who}" for name in _SAME_ON_RANKS if (who := _odd_ranks(ranks, name))]
    if odd:
        gate.add(ID, FAIL, "; ".join(odd), "the same on all ranks", "Stage that rank again, and launch again.")


def _remarks(gate: Findings, pair: Compared, differences: Sequence[str]) -> None:
    """What makes the comparison coarser without making it wrong."""
    limits, reference = pair.limits, pair.reference
    boots = {run.get("boot_id") for run in reference}
    notes, remedies = list(differences), []
    if differences:
        remedies.append("Differences to the bank count as noise here; a bank with this lane's settings judges more finely.")
    foreign = sum(run.get("foreign_requests") or 0 for run in pair.runs)
    if foreign:
        notes.append(f"{foreign} request(s) of others ran meanwhile: they share batches and add noise")
        remedies.append("Score while nobody else asks.")
    if len(reference) < limits.reference_runs or len(boots) < limits.reference_boots:
        notes.append(f"the bank holds {len(reference)} runs of {len(boots)} boot(s): its floor may be too low")
        remedies.append("Record the reference again after another boot, and make the bank of both records.")
    alike = f"{len(pair.engine['ranks'])} ranks alike, {len(pair.corpus['documents'])} documents, nothing from a cache"
    gate.add(
        ID,
        WARN if notes else PASS,
        "; ".join(notes) or alike,
        f"one identity, {limits.reference_runs} runs of {limits.reference_boots} boots in the bank",
        " ".join(remedies),
    )
