# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Make a corpus for teacher forcing: our own text, tokenised once by the reference, banked as ids.

Lengths follow what breaks at which length: 2,048 (a sparse indexer that keeps 2,048 tokens does nothing
below), more than 4,000 between a span and its copy, and the largest prefill chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank
from ansible.module_utils.sparklanes.quality.texts import Texts, Tokenizer, compose

# (class, tokens) where the lane has room for them.
LADDER = (
    ("text", 700),
    ("code", 1900),
    ("text", 2100),
    ("cjk", 1200),
    ("tools", 900),
    ("code", 4096),
    ("text", 8192),
    ("text", 16384),
    ("text", 32768),
)
# (class, share of the room) for a lane that has room for little.
SMALL_LADDER = (("text", 0.95), ("text", 0.6), ("code", 0.7), ("cjk", 0.6), ("tools", 0.6))
SMALL_ROOM = 2200
COPY_TOKENS, COPY_GAP, COPY_SPAN = 6000, 4200, 300
CANARY_TOKENS = (400, 700)  # CUDA graphs are captured up to 512 by default
CHAT_TOKENS = 200
TOKENIZER_TEXT = 'Pack 17 crates: naïve façade, 数据库 데이터 データ, snake_case(x) == 3.14159; \t"quoted" — end.\n'


class Chatter(Tokenizer, Protocol):
    """What the builder asks of an engine besides."""

    def tokenize_chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None
    ) -> list[int]: ...

    def generate(self, model: str, token_ids: Sequence[int], max_tokens: int, timeout: float | None = None) -> list[int]: ...


@dataclass(frozen=True)
class Plan:
    """What limits the lengths. `min_chunk`: every scheduled chunk, also the last, is longer than this (0: no matter);
    with a padded drafter and CUDA graphs it must be the largest captured graph (vLLM #53488)."""

    max_model_len: int
    max_doc_tokens: int = 16384
    chat_tokens: int = CHAT_TOKENS  # of each chat completion
    chunk: int = 2048  # max_num_batched_tokens
    min_chunk: int = 0
    seed: int = 20260101
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """A prompt of exactly max_model_len is refused: one slot is for the token that must be generated."""
        return min(self.max_model_len - 1, self.max_doc_tokens)

    def fit(self, tokens: int) -> int:
        """The length nearest to `tokens` that fits the lane, and whose last chunk is long enough."""
        tokens = min(tokens, self.room)
        if not self.min_chunk:
            return tokens
        full, last = divmod(tokens, self.chunk)
        if last == 0 or last > self.min_chunk:
            return tokens
        return full * self.chunk if full else min(self.min_chunk + 1, self.room)

    def too_short(self, tokens: int) -> bool:
        return 0 < (tokens % self.chunk or self.chunk) <= self.min_chunk or tokens <= self.min_chunk


def lengths(plan: Plan) -> list[tuple[str, int]]:
    """(class, tokens) of the plain documents."""
    if plan.room < SMALL_ROOM:
        wanted = [(kind, int(plan.room * share)) for kind, share in SMALL_LADDER]
    else:
        wanted = [(kind, tokens) for kind, tokens in LADDER if tokens <= plan.room]
    return [(kind, plan.fit(tokens)) for kind, tokens in wanted]


@dataclass
class Builder:
    """Builds one corpus with one engine."""

    engine: Chatter
    model: str
    source: Mapping[str, Any]
    plan: Plan
    progress: Callable[[int, int], None] = lambda done, total: None
    lacks: list[str] = field(default_factory=list)

    def build(self) -> dict[str, Any]:
        prompts = list((self.source.get("chat") or {}).get("prompts") or [])
        plain = lengths(self.plan)
        total = len(plain) + len(prompts) + 3
        documents: list[dict[str, Any]] = []

        def add(*made: dict[str, Any] | None) -> None:
            documents.extend(doc for doc in made if doc)
            self.progress(len(documents), total)

        for index, (kind, tokens) in enumerate(plain):
            add(teacher_forcing_bank.document(f"{kind}-{tokens}", kind, self.ids(kind, tokens, index)))
        add(self.copy())
        add(*self.canaries())
        for index, prompt in enumerate(prompts, 1):
            add(self.chat(index, str(prompt)))
        return {
            "schema": teacher_forcing_bank.CORPUS_SCHEMA,
            "model": self.model,
            "max_model_len": self.plan.max_model_len,
            "chunk": self.plan.chunk,
            "min_chunk": self.plan.min_chunk,
            "tokenizer_check": {
                "text": TOKENIZER_TEXT,
                "ids": self.engine.tokenize(self.model, TOKENIZER_TEXT, add_special_tokens=False),
            },
            "lacks": self.lacks,
            "documents": documents,
        }

    def ids(self, kind: str, tokens: int, salt: int, special: bool = True) -> list[int]:
        return Texts(self.engine, self.model, self.source, self.plan.seed).ids(kind, tokens, salt, special)

    def copy(self) -> dict[str, Any]:
        """A span that nobody can guess, and far behind it the same span: only who attends that far is sure of it.

        The copy repeats the ids, not the text, so that no tokenizer splits it otherwise.
        """
        length = self.plan.fit(COPY_TOKENS)
        small = length < COPY_TOKENS
        span_tokens = max(16, length // 8) if small else COPY_SPAN
        gap = length - 2 * span_tokens if small else COPY_GAP
        head = self.ids("text", length - gap - 2 * span_tokens, 101) if not small else []
        span = self.ids("tools", span_tokens, 102, special=not head)
        filler = self.ids("text", gap, 103, special=False)
        ids = [*head, *span, *filler, *span]
        made: dict[str, Any] = teacher_forcing_bank.document(f"copy-{len(ids)}", "copy", ids)
        return made

    def canaries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """One text at two lengths, below and above the size up to which CUDA graphs are captured."""
        short, long = CANARY_TOKENS
        if self.plan.room < long:
            short, long = int(self.plan.room * 0.45), int(self.plan.room * 0.8)
            self.lacks.append(
                f"canaries of {CANARY_TOKENS[0]} and {CANARY_TOKENS[1]} tokens: the lane has room for {self.plan.room}, they are {short} and {long}"
            )
        ids = self.ids("text", self.plan.fit(long), 104)
        return teacher_forcing_bank.document(
            teacher_forcing_bank.CANARY_SHORT, "canary", ids[:short]
        ), teacher_forcing_bank.document(teacher_forcing_bank.CANARY_LONG, "canary", ids)

    def chat(self, index: int, prompt: str) -> dict[str, Any] | None:
        """A prompt and the reference's own greedy completion of it, as ids."""
        name = f"chat-{index}"
        room, wanted = self.plan.room, self.plan.chat_tokens
        ids = self.chat_ids(prompt)
        for attempt in range(1, 5):  # longer until every chunk is long enough
            if not self.plan.too_short(len(ids) + wanted):
                break
            lead = compose(self.source["text"], attempt * self.plan.min_chunk * 4, self.plan.seed + 200 + index)
            ids = self.chat_ids(f"{lead}\n\n{prompt}")
        budget = min(wanted, room - len(ids))
        if budget < 32:
            self.lacks.append(f"{name}: its prompt has {len(ids)} tokens, the lane has room for {room}")
            return None
        completion = self.engine.generate(self.model, ids, budget)
        if not completion:
            self.lacks.append(f"{name}: the reference generated no token ids")
            return None
        made: dict[str, Any] = teacher_forcing_bank.document(name, teacher_forcing_bank.CHAT, [*ids, *completion], len(ids))
        return made

    def chat_ids(self, prompt: str) -> list[int]:
        return self.engine.tokenize_chat(self.model, [{"role": "user", "content": prompt}], self.plan.template)
