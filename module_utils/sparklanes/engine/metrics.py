# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Read an engine's /metrics: the Prometheus text format, and the vllm: names that we use.

Facts it is built for: the order of labels varies; every counter has a `_created` twin that is a
time and must not be summed; numbers in labels can be the text "None"; a name is matched whole
(`num_requests_waiting` is not `num_requests_waiting_by_reason`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    """The samples of a metrics page. Lines that are none are skipped: exporters add their own."""
    samples = []
    for line in text.splitlines():
        sample = _parse_line(line.strip())
        if sample:
            samples.append(sample)
    return samples


def _parse_line(line: str) -> Sample | None:
    name = _NAME.match(line)
    if not name:  # comments and blank lines, too
        return None
    at = name.end()
    labels: dict[str, str] = {}
    if line[at : at + 1] == "{":
        at += 1
        while label := _LABEL.match(line, at):
            labels[label[1]] = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), label[2])
            at = label.end()
        rest = line[at:].lstrip()
        if not rest.startswith("}"):
            return None
        at = len(line) - len(rest) + 1
    words = line[at:].split()
    try:
        return Sample(name[1], labels, float(words[0]))
    except (IndexError, ValueError):
        return None


def total(samples: Iterable[Sample], *names: str) -> float | None:
    """The sum over all engines and labels of the first of `names` that occurs; None where none does."""
    held = list(samples)
    for name in names:
        values = [sample.value for sample in held if sample.name == name]
        if values:
            return sum(values)
    return None


def number(text: str | None) -> float | None:
    """A number that stands in a label, None for "None" and what isn't one."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def grown(before: float | None, after: float | None, own: int) -> int | None:
    """By how much a counter grew beyond our own share; None where it isn't there."""
    return None if before is None or after is None else max(0, int(after - before) - own)


@dataclass(frozen=True)
class Spec:
    """Speculative decoding, as counters since boot."""

    drafts: float
    draft_tokens: float
    accepted_tokens: float
    accepted_per_position: list[float] = field(default_factory=list)

    def since(self, before: Spec | None) -> Spec:
        """What happened after `before` was taken."""
        if before is None:
            return self
        old = before.accepted_per_position + [0.0] * len(self.accepted_per_position)
        return Spec(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            [new - was for new, was in zip(self.accepted_per_position, old, strict=False)],
        )

    @property
    def acceptance(self) -> float | None:
        """Accepted of drafted tokens. Exactly 1 is as suspicious as 0 (vLLM #53030)."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_length(self) -> float | None:
        """Tokens a verify step: the accepted ones and the one the target adds."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def per_position(self) -> list[float]:
        return [accepted / self.drafts for accepted in self.accepted_per_position] if self.drafts else []


@dataclass(frozen=True)
class EngineMetrics:
    """What an engine says of itself. None: it doesn't say."""

    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    preemptions: float | None
    prompt_tokens: float | None
    cached_prompt_tokens: float | None
    generation_tokens: float | None
    requests_finished: float | None
    boot_time: float | None  # of the API server: names a boot
    spec: Spec | None
    cache: dict[str, str]

    @property
    def kv_cache_tokens(self) -> int | None:
        """The pool in tokens. Boot log and load give other numbers: three that disagree (docs).

        vLLM 0.23 has no label for it; blocks by their size are what its boot log says of a model with one kind of attention.
        """
        value = number(self.cache.get("kv_cache_size_tokens"))
        blocks, size = number(self.cache.get("num_gpu_blocks")), number(self.cache.get("block_size"))
        if value is None and blocks is not None and size is not None:
            value = blocks * size
        return None if value is None else int(value)

    @property
    def kv_blocks(self) -> int | None:
        value = number(self.cache.get("num_gpu_blocks"))
        return None if value is None else int(value)

    @property
    def idle(self) -> bool:
        """No request runs or waits; unknown is not idle."""
        return self.running == 0 and self.waiting == 0

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data.update(kv_cache_tokens=self.kv_cache_tokens, kv_blocks=self.kv_blocks)
        if self.spec:
            data["spec"].update(
                acceptance=self.spec.acceptance,
                mean_length=self.spec.mean_length,
                per_position=self.spec.per_position,
            )
        return data


def engine_metrics(text: str) -> EngineMetrics:
    """The metrics of a vLLM engine from its /metrics page."""
    samples = parse(text)
    drafts = total(samples, "vllm:spec_decode_num_drafts_total")
    spec = None
    if drafts is not None:
        spec = Spec(
            drafts,
            total(samples, "vllm:spec_decode_num_draft_tokens_total") or 0.0,
            total(samples, "vllm:spec_decode_num_accepted_tokens_total") or 0.0,
            _per_position(samples),
        )
    cache = next((sample.labels for sample in samples if sample.name == "vllm:cache_config_info"), {})
    return EngineMetrics(
        running=total(samples, "vllm:num_requests_running"),
        waiting=total(samples, "vllm:num_requests_waiting"),
        kv_cache_usage=total(samples, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        preemptions=total(samples, "vllm:num_preemptions_total"),
        prompt_tokens=total(samples, "vllm:prompt_tokens_total"),
        cached_prompt_tokens=total(samples, "vllm:prompt_tokens_cached_total"),
        generation_tokens=total(samples, "vllm:generation_tokens_total"),
        requests_finished=total(samples, "vllm:request_success_total"),
        boot_time=total(samples, "process_start_time_seconds"),
        spec=spec,
        cache=dict(cache),
    )


def _per_position(samples: Iterable[Sample]) -> list[float]:
    found: dict[int, float] = {}
    for sample in samples:
        position = sample.labels.get("position", "")
        if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total" and position.isdigit():
            found[int(position)] = found.get(int(position), 0.0) + sample.value
    return [found.get(position, 0.0) for position in range(max(found, default=-1) + 1)]
