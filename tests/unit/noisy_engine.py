"""An engine in simulation: logprobs with the run-to-run noise that a public reference shows against itself.

The noise is logit noise: its sd is `sd` for a pair of runs on tokens with p < 0.5 and shrinks with (1 - p) above
(table "what the real noise looks like", docs/teacher-forcing.md); tails are Student's t with 8 degrees of freedom.
Everything is seeded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank

VOCAB = 150_000
PAIR_SD = 0.30
POOL = 50_021  # prime: strides through it meet every value

# (doc, position, p) -> shift of the logprob that a fault causes, before noise.
Fault = Callable[[dict[str, Any], int, float], float]


def scale(p: float) -> float:
    """How much of the logits' noise reaches the logprob of a token of probability p."""
    return (1.0 - p) * 1.8 if p > 0.5 else 1.0


class NoisyEngine:
    """A corpus with true probabilities, and runs over it."""

    def __init__(
        self,
        seed: int = 0,
        lengths: tuple[int, ...] = (700, 2100, 4000, 15000),
        sd: float = PAIR_SD,
        chat: tuple[int, int] = (35, 200),
    ) -> None:
        self.random = random.Random(seed)
        self.sd = sd
        draw = self.random
        self.pool = [draw.gauss(0, 1) / math.sqrt(draw.gammavariate(4, 0.25)) / math.sqrt(8 / 6) for _ in range(POOL)]
        documents = []
        self.p: dict[str, list[float]] = {}
        for index in range(8):
            documents.append(self._document(f"chat-{index}", teacher_forcing_bank.CHAT, *chat))
        for length in lengths:
            documents.append(self._document(f"text-{length}", "text", length, 0))
        long = self._document(teacher_forcing_bank.CANARY_LONG, "canary", 700, 0)
        short = teacher_forcing_bank.document(teacher_forcing_bank.CANARY_SHORT, "canary", long["token_ids"][:400])
        self.p[teacher_forcing_bank.CANARY_SHORT] = self.p[teacher_forcing_bank.CANARY_LONG][:400]
        self.corpus = {
            "schema": teacher_forcing_bank.CORPUS_SCHEMA,
            "vocab_size": VOCAB,
            "documents": [*documents, short, long],
        }

    def _document(self, name: str, kind: str, prompt: int, completion: int) -> dict[str, Any]:
        draw = self.random
        p = [math.exp(-abs(draw.gauss(3.7, 1.2)) - 0.5) for _ in range(prompt)]
        p += [1.0 - draw.betavariate(0.12, 1.2) for _ in range(completion)]
        self.p[name] = [min(1 - 1e-9, max(1e-9, value)) for value in p]
        ids = [draw.randrange(VOCAB) for _ in p]
        return teacher_forcing_bank.document(name, kind, ids, prompt)

    def run(self, fault: Fault | None = None, boot: str = "boot-1", noise: float = 1.0) -> dict[str, Any]:
        docs = {}
        sd = noise * self.sd / math.sqrt(2)
        for doc in self.corpus["documents"]:
            p = self.p[doc["id"]]
            at, stride = self.random.randrange(POOL), self.random.randrange(1, POOL)
            lp: list[float | None] = [None]
            rank: list[int | None] = [None]
            for k in range(1, len(p)):
                at = (at + stride) % POOL
                value = math.log(p[k]) + sd * scale(p[k]) * self.pool[at]
                if fault:
                    value += fault(doc, k, p[k])
                lp.append(round(value, 5))
                rank.append(1 if value > -0.7 else 7)
            docs[doc["id"]] = {"lp": lp, "rank": rank, "cached": 0}
        return {"boot_id": boot, "time": "2026-01-01T00:00:00Z", "docs": docs}

    def bank(self, runs: int = 3, engine: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        records = [self.record(runs=1, boot=f"boot-{index % 2}", carry_corpus=True) for index in range(runs)]
        return {**teacher_forcing_bank.make_bank(records, engine or self.engine()), **more}

    def record(
        self, fault: Fault | None = None, runs: int = 2, boot: str = "boot-9", noise: float = 1.0, carry_corpus: bool = False
    ) -> dict[str, Any]:
        data = {
            "schema": teacher_forcing_bank.RECORD_SCHEMA,
            "corpus_sha256": teacher_forcing_bank.corpus_sha256(self.corpus),
            "version": "0.32.0",
            "tokenizer": {"ok": True},
            "texts": {},
            "engine": self.engine(),
            "runs": [self.run(fault, boot, noise) for _ in range(runs)],
        }
        if carry_corpus:
            data["corpus"] = self.corpus
        return data

    def engine(self, **changes: Any) -> dict[str, Any]:
        rank = {"image": "sha256:aa", "overlays": "bb", "weights": "cc"}
        return {
            "kv_cache_dtype": "fp8",
            "tensor_parallel_size": 4,
            "ranks": [{"rank": index, "node": f"spark-{index + 1}", **rank} for index in range(4)],
            **changes,
        }

    # --- faults: the same error in every run of the lane, as a wrong weight gives --------------------

    def _fixed(self, seed: int) -> random.Random:
        return random.Random(seed)

    def logit_error(self, size: float, from_position: int = 0, seed: int = 1) -> Fault:
        """A random but fixed error of `size` in the logits, with the small loss that any error costs."""
        values = self._fixed(seed)
        fixed = [values.gauss(0, 1) for _ in range(POOL)]

        def fault(doc: dict[str, Any], k: int, p: float) -> float:
            if k < from_position:
                return 0.0
            noise = fixed[(hash_of(doc["id"]) + 7 * k) % POOL]
            return scale(p) * (size * noise - 0.5 * size * size)

        return fault

    def bias(self, size: float) -> Fault:
        return lambda doc, k, p: -size * scale(p)

    def polluted(self, *names: str) -> Fault:
        """Whole documents scored from a foreign buffer."""
        return lambda doc, k, p: -abs(8 + 3 * self.pool[(k * 31) % POOL]) if doc["id"] in names else 0.0

    def bad_tokens(self, every: int) -> Fault:
        return lambda doc, k, p: -10.0 if (hash_of(doc["id"]) + k) % every == 0 else 0.0

    def soup(self) -> Fault:
        return lambda doc, k, p: math.log(1 / VOCAB) - math.log(p) + 2 * self.pool[(k * 17) % POOL]

    def vocabulary_part(self, part: int, parts: int, size: float) -> Fault:
        """One rank's shard of the head is wrong."""
        error = self.logit_error(size)

        def fault(doc: dict[str, Any], k: int, p: float) -> float:
            return error(doc, k, p) if doc["token_ids"][k] * parts // VOCAB == part else 0.0

        return fault


def hash_of(text: str) -> int:
    """A stable hash: Python's own changes with every process."""
    return sum((index + 1) * 7919 * ord(letter) for index, letter in enumerate(text)) % POOL
