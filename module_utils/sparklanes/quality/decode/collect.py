# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Ask a running engine for the answers of each case, and then for the probabilities of the same tokens as a prompt: one record.

All answers of a case are generated before anything is scored: scoring reads no prefix cache, but writes one. What others ask of the engine meanwhile
is counted, not forbidden.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.engine.api import MALFORMED, Engine, EngineError, Model, parse_completion
from ansible.module_utils.sparklanes.engine.metrics import engine_metrics, grown
from ansible.module_utils.sparklanes.quality.decode.cases import BETWEEN, CASES, COLD, CONTINUED, HIT, Case, Plan
from ansible.module_utils.sparklanes.quality.records import Progress, Silent
from ansible.module_utils.sparklanes.quality.texts import Texts

SCHEMA = "sparklanes-decode-1"
KINDS = ("text", "code", "tools", "cjk")
DECIMALS = 6


@dataclass
class Collector:
    """One engine, one plan. `texts` makes prompts of exactly so many tokens with the engine's own tokenizer."""

    engine: Engine
    model: Model
    texts: Texts
    plan: Plan
    timeout: float
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.time

    def record(self) -> dict[str, Any]:
        """The answers of all cases, generated and scored, or an EngineError where the engine gave up."""
        cases, began, before = self.plan.cases(), self.clock(), engine_metrics(self.engine.metrics())
        # Nobody's cache holds what has this salt, not even that of an earlier look at the same boot.
        salt = f"sparklanes-{began:.6f}"
        self.progress.phase("decode", 2 * sum(case.generated for case in cases), unit="tokens")
        made: dict[str, list[dict[str, Any]]] = {}
        read: dict[str, int | None] = {}
        after = before
        for case in cases:
            made[case.name] = self.generated(case, self.prompts(case, cases, made.get(COLD) or []), salt)
            since, after = after, engine_metrics(self.engine.metrics())
            # An answer says what came from a cache only where vLLM was started with --enable-prompt-tokens-details; the counter always does.
            read[case.name] = grown(since.cached_prompt_tokens, after.cached_prompt_tokens, 0)
        for answers in made.values():
            for answer in answers:
                self.score(answer)
        last = engine_metrics(self.engine.metrics())
        own = sum(len(answer["ids"]) for answers in made.values() for answer in answers)
        return {
            "schema": SCHEMA,
            "model": self.model.id,
            "max_model_len": self.model.max_model_len,
            "block": self.plan.block,
            "seed": self.plan.seed,
            "boots": sorted({str(side.boot_time) for side in (before, after, last)}),
            "cache_dtype": str(before.cache.get("cache_dtype") or ""),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seconds": round(self.clock() - began, 3),
            "foreign_tokens": grown(before.generation_tokens, after.generation_tokens, own),
            "preemptions": grown(before.preemptions, after.preemptions, 0),
            "read": read,
            "lacks": list(self.plan.lacks),
            "cases": made,
        }

    def prompts(self, case: Case, cases: Sequence[Case], cold: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        if case.name == HIT:
            return [list(answer["prompt"]) for answer in cold]
        if case.name == CONTINUED:
            # Prompt, answer, and something new: what decode wrote into the cache is read by another request.
            return [
                [*answer["prompt"], *answer["ids"], *self.texts.ids(kind(index), BETWEEN, 7000 + index, special=False)]
                for index, answer in enumerate(cold[: case.requests])
            ]
        # What follows a cold prompt: its answer, and later new text and the answer that continues it.
        after = case.tokens + (
            BETWEEN + max((other.tokens for other in cases if other.name in (HIT, CONTINUED)), default=0)
            if case.name == COLD
            else 0
        )
        salt = 1000 * (1 + CASES.index(case.name.partition("-")[0]))
        return [self.texts.ids(kind(at), length, salt + at) for at, length in enumerate(self.plan.lengths(case.requests, after))]

    def generated(self, case: Case, prompts: Sequence[Sequence[int]], salt: str) -> list[dict[str, Any]]:
        """One answer to each prompt, `case.width` at once."""
        shared = case.name in (COLD, HIT, CONTINUED)

        def one(index: int) -> dict[str, Any]:
            body = {
                "model": self.model.id,
                "prompt": list(prompts[index]),
                "max_tokens": case.tokens,
                "temperature": case.temperature,
                "seed": self.plan.seed + index,
                "ignore_eos": True,
                "logprobs": 1,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                "cache_salt": f"{salt}-{index}" if shared else f"{salt}-{case.name}-{index}",
            }
            answer = parse(self.engine.post("/v1/completions", body, self.timeout))
            self.progress.update(add=len(answer["ids"]))
            return {"prompt": list(prompts[index]), "temperature": case.temperature, "wanted": case.tokens, **answer}

        with ThreadPoolExecutor(case.width) as pool:
            return list(pool.map(one, range(len(prompts))))

    def score(self, answer: dict[str, Any]) -> None:
        known = self.engine.score(self.model.id, [*answer["prompt"], *answer["ids"]], self.timeout)
        answer["prefill"] = [rounded(value) for value in known.logprobs[len(answer["prompt"]) :]]
        self.progress.update(add=len(answer["ids"]))


def kind(index: int) -> str:
    return KINDS[index % len(KINDS)]


def rounded(value: Any) -> float | None:
    """A logprob as it is kept; None for what is none, NaN included."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return round(float(value), DECIMALS) if known else None


def parse(data: Any) -> dict[str, Any]:
    """{ids, decode, top, cached} of an answer: for each token its id, its logprob, and the id that was the most likely."""
    told = parse_completion(data)
    choice = data["choices"][0].get("logprobs") or {}
    tops = choice.get("top_logprobs") or []
    if not told.token_ids or not len(told.token_ids) == len(told.logprobs) == len(tops):
        raise EngineError(
            MALFORMED,
            f"an answer of {len(told.token_ids)} token ids holds {len(told.logprobs)} logprobs and {len(tops)} lists of the most likely ones",
        )
    return {
        "ids": told.token_ids,
        "decode": [rounded(value) for value in told.logprobs],
        "top": [likeliest(top, own, token) for top, own, token in zip(tops, told.logprobs, told.token_ids, strict=True)],
        "cached": told.cached_tokens,
    }


def likeliest(top: Any, own: float | None, token: int) -> int | None:
    """The id with the largest logprob; the token's own where it is one of several that are equal. None: not said."""
    known = {name: value for name, value in top.items() if rounded(value) is not None} if isinstance(top, Mapping) else {}
    if not known:
        return None
    best = max(known, key=lambda name: known[name])
    if own is not None and known[best] <= own:
        return token
    digits = str(best).rpartition(":")[2]
    return int(digits) if digits.isdigit() else None
