# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Score a corpus on a running engine: one request at a time, whole passes one after the other.

One at a time, because numbers depend on who shares the batch, and because scoring asks an engine for memory
that its profiling never saw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.engine.api import NAN, Engine, EngineError, Model
from ansible.module_utils.sparklanes.engine.metrics import EngineMetrics, engine_metrics, grown
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.records import Progress, Silent, dump, load, pick_model
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank
from ansible.module_utils.sparklanes.quality.teacher_forcing.corpus import Builder, Plan
from ansible.module_utils.sparklanes.quality.teacher_forcing.window import fitting

JOB = "score"
DECIMALS = 5


@dataclass
class Scorer:
    """One engine and one corpus."""

    engine: Engine
    model: Model
    corpus: Mapping[str, Any]
    runs: int
    timeout: float
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.time

    def record(self) -> dict[str, Any]:
        """K runs as a record, or a JobError where the engine gave up."""
        problems = teacher_forcing_bank.corpus_problems(self.corpus)
        if problems:
            raise JobError(f"this corpus can't be scored: {'; '.join(problems)}")
        limit = self.model.max_model_len
        corpus = fitting(self.corpus, limit)
        documents = corpus["documents"]
        if not documents:
            raise JobError(
                f"each of {len(self.corpus['documents'])} documents is longer than {self.model.id} takes (max_model_len {limit}, one slot "
                "must stay free). Build a corpus for this lane, or raise lane_max_model_len"
            )
        # Asked first: ids of another tokenizer mean nothing to this one, and some it doesn't know at all.
        tokenizer = self._tokenizer()
        runs = []
        texts: dict[int, str] = {}
        if tokenizer["ok"] is not False:
            self.progress.phase("score", len(documents) * self.runs, unit="documents")
            runs = [self._run(documents, texts) for _ in range(self.runs)]
        return {
            "schema": teacher_forcing_bank.RECORD_SCHEMA,
            "corpus_sha256": teacher_forcing_bank.corpus_sha256(corpus),
            "model": self.model.id,
            "max_model_len": limit,
            "version": self._version(),
            "tokenizer": tokenizer,
            "texts": {str(token): text for token, text in texts.items()},
            "runs": runs,
        }

    def _run(self, documents: list[Mapping[str, Any]], texts: dict[int, str]) -> dict[str, Any]:
        began, before = self.clock(), self._metrics()
        docs = {}
        for doc in documents:
            self.progress.update(file=doc["id"])
            docs[doc["id"]] = self._document(doc, texts)
            self.progress.update(add=1)
        after = self._metrics()
        boots = {side.boot_time for side in (before, after)}
        if len(boots) > 1:
            raise JobError("the engine was started anew while it was scored. Look why, then score again")
        return {
            "boot_id": _boot_id(before),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seconds": round(self.clock() - began, 3),
            "foreign_requests": grown(before.requests_finished, after.requests_finished, len(documents)),
            "cached_tokens": grown(before.cached_prompt_tokens, after.cached_prompt_tokens, 0),
            "docs": docs,
        }

    def _document(self, doc: Mapping[str, Any], texts: dict[int, str]) -> dict[str, Any]:
        ids = doc["token_ids"]
        try:
            scores = self.engine.score(self.model.id, ids, self.timeout)
        except EngineError as error:
            if error.kind == NAN:
                return {"error": {"kind": NAN, "message": error.message}}
            hint = "Read the engine's log"
            if error.status == 400:
                hint = "Its ids or its length are not of this lane: compare model, revision and vocabulary with the bank's"
            raise JobError(
                f"document {doc['id']} ({len(ids)} tokens, ids up to {max(ids)}) was not scored: {error.message}. {hint}"
            ) from error
        if scores.prompt_token_ids and scores.prompt_token_ids != ids:
            raise JobError(f"document {doc['id']}: the engine scored other tokens than it was sent. This API is not usable")
        texts.update(scores.texts)
        values: list[float | None] = [None]
        for position, value in enumerate(scores.logprobs[1:], 1):
            if not teacher_forcing_bank.finite(value):
                message = f"position {position} has logprob {value!r}"
                return {"error": {"kind": NAN, "message": message}}
            assert value is not None
            values.append(round(value, DECIMALS))
        return {"lp": values, "rank": scores.ranks, "cached": scores.cached_tokens or 0}

    def _metrics(self) -> EngineMetrics:
        try:
            return engine_metrics(self.engine.metrics())
        except EngineError:
            return engine_metrics("")  # an engine without metrics is scored all the same

    def _version(self) -> str:
        try:
            return str(self.engine.version())
        except EngineError:
            return ""

    def _tokenizer(self) -> dict[str, Any]:
        """Whether this lane's tokenizer gives the ids that are banked. `ok` None: it couldn't be asked."""
        check = self.corpus.get("tokenizer_check") or {}
        if not check.get("ids"):
            return {"ok": None, "message": "the corpus holds no text for it"}
        try:
            ids = self.engine.tokenize(self.model.id, check["text"], add_special_tokens=False)
        except EngineError as error:
            return {"ok": None, "message": error.message}
        if ids == check["ids"]:
            return {"ok": True, "message": ""}
        at = next(
            (i for i, (a, b) in enumerate(zip(ids, check["ids"], strict=False)) if a != b), min(len(ids), len(check["ids"]))
        )
        return {"ok": False, "message": f"{len(ids)} ids instead of {len(check['ids'])}, the first other one at {at}"}


def _boot_id(metrics: EngineMetrics) -> str:
    boot: float | None = metrics.boot_time
    return "unknown" if boot is None else f"{boot:.2f}"


def summary(record: Mapping[str, Any], path: str, size: int) -> dict[str, Any]:
    """What a task returns: what was done, not the numbers."""
    runs = record["runs"]
    broken = sorted({name for run in runs for name, doc in run["docs"].items() if teacher_forcing_bank.unusable(doc)})
    tokens = sum(len(doc.get("lp") or []) for doc in runs[0]["docs"].values()) if runs else 0
    return {
        "result_path": path,
        "bytes": size,
        "corpus_sha256": record["corpus_sha256"],
        "model": record["model"],
        "documents": len(runs[0]["docs"]) if runs else 0,
        "tokens": tokens,
        "runs": len(runs),
        "seconds": [run["seconds"] for run in runs],
        "not_finite": broken,
        "tokenizer_ok": record["tokenizer"]["ok"],
        "lacks": list((record.get("corpus") or {}).get("lacks") or []),
    }


def job(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """The job: score what `args` name, write the record, return its summary."""
    return run(args, secrets.get("api_key"), report)


def run(args: Mapping[str, Any], api_key: str | None, progress: Progress) -> dict[str, Any]:
    """Score a given corpus, or build one first; write the whole record to args["result_path"]."""
    engine = Engine(args["base_url"], api_key, args["timeout"])
    try:
        model = pick_model(engine.models(), args.get("model"), str(engine))
        carry = bool(args.get("build_corpus"))
        corpus = build(engine, model, args, progress) if carry else given(args["corpus"])
        record = Scorer(engine, model, corpus, args["runs"], args["timeout"], progress).record()
    except EngineError as error:
        raise JobError(f"{error.message}. Read the engine's log") from error
    record["engine"] = dict(args.get("engine") or {})
    if carry:
        record["corpus"] = corpus
    return summary(record, args["result_path"], dump(args["result_path"], record))


def given(corpus: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A corpus from a file or as data; a bank and the record of a reference bring theirs."""
    if isinstance(corpus, str):
        try:
            corpus = load(corpus)
        except (OSError, ValueError) as error:
            raise JobError(f"the corpus {corpus} can't be read: {error}. Copy it to this Spark first") from error
    if not isinstance(corpus, Mapping):
        raise JobError(f"a corpus is an object with documents, not a {type(corpus).__name__}")
    if corpus.get("schema") not in (teacher_forcing_bank.BANK_SCHEMA, teacher_forcing_bank.RECORD_SCHEMA):
        return corpus
    inner = corpus.get("corpus")
    if not isinstance(inner, Mapping):
        raise JobError("this record carries no corpus: give the bank, or the record that was made with build_corpus")
    return inner


def build(engine: Engine, model: Model, args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """A corpus for this lane, with the lane's own tokenizer."""
    options = dict(args["build_corpus"])
    source = options.pop("source")
    room = options.pop("max_model_len", None) or model.max_model_len
    if not room:
        raise JobError(f"{model.id} doesn't say its max_model_len: give build_corpus.max_model_len")
    plan = Plan(int(room), **{name: value for name, value in options.items() if value is not None})
    progress.phase("corpus", unit="documents")
    builder = Builder(engine, model.id, source, plan, lambda done, total: progress.update(done=done))
    try:
        corpus: dict[str, Any] = builder.build()
    except ValueError as error:
        raise JobError(f"no corpus could be made: {error}") from error
    return corpus
