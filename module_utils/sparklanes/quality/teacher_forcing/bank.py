# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The files of teacher forcing: a corpus (token ids), records of scoring runs, and a bank of the reference.

A corpus is tokenised once, by the reference, and banked as ids; a candidate never tokenises it again.
A run is {"boot_id", "time", "docs": {id: {"lp": [...], "rank": [...], "cached": 0} or {"error": {...}}}};
position k of a document is its k-th token, and position 0 has no logprob.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.engine.api import CLAMPED_LOGPROB, NAN

CORPUS_SCHEMA = "sparklanes-tf-corpus/1"
BANK_SCHEMA = "sparklanes-tf-bank/1"
RECORD_SCHEMA = "sparklanes-tf-record/1"
NOTE = (
    "A bank proves sameness, not truth: it says that a lane computes what its reference computed, "
    "not that the reference was right."
)
CHAT = "chat"
CANARY_SHORT, CANARY_LONG = "canary-short", "canary-long"


def digest(data: Any) -> str:
    """sha256 of data as compact JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def document(id: str, kind: str, token_ids: Sequence[int], n_prompt: int | None = None) -> dict[str, Any]:
    """One document of a corpus. `n_prompt` tokens are given; what follows is the reference's own completion."""
    ids = [int(token) for token in token_ids]
    return {
        "id": id,
        "class": kind,
        "token_ids": ids,
        "n_prompt": len(ids) if n_prompt is None else n_prompt,
        "sha256": digest(ids),
    }


def corpus_sha256(corpus: Mapping[str, Any]) -> str:
    """What names a corpus: ids, classes and tokens of its documents, nothing else."""
    return digest([[doc["id"], doc["class"], doc["n_prompt"], doc["token_ids"]] for doc in corpus["documents"]])


def named(bank: Mapping[str, Any]) -> str:
    """What names a bank among those of a lane, for records and people: `1a2b3c4d5e6f, recorded 2026-11-30`."""
    runs = bank.get("runs")
    times = [str(run.get("time") or "")[:10] for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []
    days = [day for day in times if re.fullmatch(r"\d{4}-\d\d-\d\d", day)]
    return f"{digest(bank)[:12]}, recorded {max(days, default='at a time that it does not say')}"


def corpus_problems(corpus: Mapping[str, Any]) -> list[str]:
    """Why this is no corpus that can be scored; empty where it is one."""
    if corpus.get("schema") != CORPUS_SCHEMA:
        return [f"schema is {corpus.get('schema')!r}, expected {CORPUS_SCHEMA!r}"]
    problems = []
    documents = corpus.get("documents") or []
    if not documents:
        problems.append("it holds no documents")
    for doc in documents:
        if digest(doc["token_ids"]) != doc["sha256"]:
            problems.append(f"document {doc['id']}: the token ids don't have the digest that stands beside them")
        elif len(doc["token_ids"]) < 2:
            problems.append(f"document {doc['id']}: nothing can be scored in {len(doc['token_ids'])} tokens")
    doubled = [name for name, count in Counter(doc["id"] for doc in documents).items() if count > 1]
    problems += [f"document {name} is there twice" for name in doubled]
    return problems


def bank_problems(bank: Any) -> list[str]:
    """Why no lane can be judged by this bank, whatever was scored; empty where one can. Asked before anything is stopped."""
    return text_problems(bank) or runs_problems(bank)


def text_problems(bank: Any) -> list[str]:
    """As `bank_problems`, of what the bank holds of texts."""
    if not isinstance(bank, Mapping):
        return ["it is no bank"]
    if bank.get("schema") != BANK_SCHEMA:
        return [f"it is no bank (schema {bank.get('schema')!r})"]
    try:
        corpus = bank["corpus"]
        problems = [f"its corpus: {problem}" for problem in corpus_problems(corpus)]
        if not problems and corpus_sha256(corpus) != bank.get("corpus_sha256"):
            problems = ["its corpus does not have the digest that it names"]
        if not all(isinstance(token, int) for doc in corpus["documents"] for token in doc["token_ids"]):
            problems.append("it holds tokens that are no numbers")
    except _ODD as error:
        return [_odd(error)]
    return problems


def runs_problems(bank: Mapping[str, Any]) -> list[str]:
    """As `bank_problems`, of its runs, where its texts are what they should be."""
    try:
        corpus, runs = bank["corpus"], bank["runs"]
        ids = {doc["id"] for doc in corpus["documents"]}
        problems = [] if len(runs) > 1 else [f"it holds {len(runs)} run(s), and noise shows only between two"]
        for number, run in enumerate(runs, 1):
            if lack := ids - set(run["docs"]):
                problems.append(f"run {number} lacks {len(lack)} documents")
            elif wrong := run_problem(corpus, run, reference=True):
                problems.append(f"run {number}: {wrong}")
    except _ODD as error:
        return [_odd(error)]
    return problems


_ODD = (KeyError, TypeError, AttributeError)


def _odd(error: Exception) -> str:
    return f"a part of it is missing or of another kind ({type(error).__name__}: {error})"


def run_problem(corpus: Mapping[str, Any], run: Mapping[str, Any], reference: bool) -> str:
    """Why a run can't be compared, empty where it can. A document of a lane that could not be scored is judged by itself; one of a
    reference makes it none, but for the canary that tells of the scorer."""
    if run.get("cached_tokens") and not run.get("foreign_requests"):
        return f"{run['cached_tokens']} tokens came from a cache and were not computed"
    for doc in corpus["documents"]:
        scored = run["docs"].get(doc["id"])
        if scored is None:
            return f"document {doc['id']} is missing"
        if scored.get("error"):
            if reference and doc["id"] != CANARY_SHORT:
                return f"document {doc['id']}: {unusable(scored)}"
            continue
        if len(scored.get("lp") or []) != len(doc["token_ids"]):
            return f"document {doc['id']} has {len(scored.get('lp') or [])} logprobs for {len(doc['token_ids'])} tokens"
        if scored.get("cached"):
            return f"document {doc['id']}: {scored['cached']} tokens came from a cache and were not computed"
        if reference and unusable(scored) and doc["id"] != CANARY_SHORT:
            return f"document {doc['id']}: {unusable(scored)}"
    return ""


def make_bank(
    records: Iterable[Mapping[str, Any]], engine: Mapping[str, Any], limits: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A bank from the records of the reference (one a boot, each with its runs) and the identity of its engine."""
    held = list(records)
    corpora = {record.get("corpus_sha256") for record in held}
    if len(corpora) != 1:
        raise ValueError(f"a bank needs records of one corpus, these are of {len(corpora)}")
    corpus = next((record["corpus"] for record in held if record.get("corpus")), None)
    if corpus is None:
        raise ValueError("none of the records carries its corpus: score with build_corpus or give the corpus back")
    if corpus_sha256(corpus) not in corpora:
        raise ValueError("the corpus in the records is not the one that was scored")
    runs = [run for record in held for run in record["runs"]]
    texts: dict[str, str] = {}
    for record in held:
        texts.update(record.get("texts") or {})
    broken = {doc_id for run in runs for doc_id, doc in run["docs"].items() if unusable(doc)}
    if broken - ({CANARY_SHORT} if shielded(corpus) else set()):
        raise ValueError(f"the reference itself gave no finite logprobs for {', '.join(sorted(broken))}: it can't be a reference")
    return {
        "schema": BANK_SCHEMA,
        "note": NOTE,
        "corpus": corpus,
        "corpus_sha256": corpora.pop(),
        "engine": {**dict(engine), "versions": sorted({record.get("version") or "" for record in held} - {""})},
        "limits": dict(limits or {}),
        "texts": texts,
        "runs": runs,
    }


def shielded(corpus: Mapping[str, Any], chunk: int | None = None) -> bool:
    """Whether every document but the short canary is scored in chunks longer than that canary, so that a scorer
    which fails the canary (vLLM #53488) is right about the rest. `chunk`: the lane's max_num_batched_tokens."""
    size = int(corpus.get("chunk") or 0)
    short = next((len(doc["token_ids"]) for doc in corpus["documents"] if doc["id"] == CANARY_SHORT), 0)
    least = int(corpus.get("min_chunk") or 0)
    if not size or not short or least < short or (chunk or size) != size:
        return False
    return all((len(doc["token_ids"]) % size or size) > least for doc in corpus["documents"] if doc["id"] != CANARY_SHORT)


def finite(value: Any) -> bool:
    """A logprob that was computed: a number, not NaN, not the engine's stand-in for minus infinity."""
    return isinstance(value, (int, float)) and math.isfinite(value) and value > CLAMPED_LOGPROB


def unusable(doc: Mapping[str, Any]) -> str:
    """Why a scored document can't be compared, empty where it can."""
    error = doc.get("error")
    if error:
        return f"{error.get('kind', 'error')}: {error.get('message', '')}"
    values = doc.get("lp") or []
    for position, value in enumerate(values[1:], 1):
        if not finite(value):
            return f"{NAN}: position {position} has logprob {value!r}"
    return "" if len(values) > 1 else "it holds no logprobs"


def mode_problem(mode: str) -> str:
    """Why nothing that an engine with this --logprobs-mode (empty: its default) scores can be compared, empty where it can."""
    return f"--logprobs-mode {mode} gives logits" if mode.endswith("logits") else ""


def tokens_to_score(corpus: Mapping[str, Any]) -> int:
    return sum(len(doc["token_ids"]) - 1 for doc in corpus["documents"])


def iter_documents(corpus: Mapping[str, Any], runs: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(run, document) in scoring order: whole runs one after the other, as a drift of the engine must show between them."""
    for run in range(runs):
        for doc in corpus["documents"]:
            yield run, doc
