# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A resolved lane as the engine will read it: what rules, limits and capacity look at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ansible.module_utils.sparklanes.engine.flags import FLAT_FLAGS, HEAD_FLAGS, canonical_flag
from ansible.module_utils.sparklanes.lane.partial import Partial

# Flags whose value is JSON.
JSON_FLAGS = {
    "--speculative-config",
    "--compilation-config",
    "--default-chat-template-kwargs",
    "--limit-mm-per-prompt",
    "--hf-overrides",
    "--override-generation-config",
    "--additional-config",
    "--mm-processor-kwargs",
    "--media-io-kwargs",
    "--kv-transfer-config",
    "--kv-events-config",
    "--attention-config",
    "--kernel-config",
    "--eplb-config",
    "--model-loader-extra-config",
    "--structured-outputs-config",
    "--reasoning-config",
}
# Flags that are short for a part of a JSON flag.
SHORTHANDS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}


def number(value: Any) -> float | None:
    """A value of a flag as a number, however it is spelled; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def mapping(value: Any) -> dict[str, Any]:
    """A value of a flag as a mapping: itself, or what its JSON says; empty where it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def keys_within(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a nested value with what it holds."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key), item
            yield from keys_within(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys_within(item)


@dataclass(frozen=True)
class View:
    """A resolved lane under the questions that rules ask.

    staged: model or drafter → what was read of it on a Spark (`weights.gist`), None where only the lane is known.
    """

    lane: Mapping[str, Any]
    staged: Mapping[str, Mapping[str, Any]] | None = None

    @cached_property
    def args(self) -> Mapping[str, Any]:
        """All flags by their usual names, those with a variable too; dotted ones folded into the JSON they belong to."""
        named = {**HEAD_FLAGS, **FLAT_FLAGS}
        wrong = self.lane.wrong if isinstance(self.lane, Partial) else frozenset()
        flags = {flag: self.lane[name] for flag, name in named.items() if name not in wrong and self.lane[name] is not None}
        for flag, value in self.lane["lane_engine_args"].items():
            first, *path = flag.split(".")
            name = canonical_flag(first)
            if name in SHORTHANDS and not path:
                name, path = "--speculative-config", [SHORTHANDS[name]]
            if not path:
                flags[name] = mapping(value) or value if name in JSON_FLAGS else value
                continue
            inner = flags[name] = dict(mapping(flags.get(name)))
            for key in path[:-1]:
                inner[key] = dict(mapping(inner.get(key)))
                inner = inner[key]
            inner[path[-1]] = value
        return Partial(flags, [flag for flag, name in named.items() if name in wrong]) if wrong else flags

    def json(self, flag: str) -> dict[str, Any]:
        return mapping(self.args.get(flag))

    def has(self, flag: str) -> bool:
        return self.args.get(flag) is True

    def number(self, flag: str) -> float | None:
        return number(self.args.get(flag))

    @property
    def env(self) -> dict[str, Any]:
        return dict(self.lane["lane_engine_env"])

    @property
    def arch(self) -> str:
        return str(self.lane["lane_gpu_arch"])

    @property
    def spark(self) -> bool:
        return self.arch == "sm_121"

    # --- model ---

    @property
    def repo(self) -> str:
        return str(self.lane["lane_model"]["repo"])

    # --- cache ---

    @property
    def kv_dtype(self) -> str:
        return str(self.lane["lane_kv_cache_dtype"] or "auto")

    @property
    def context(self) -> int:
        """Tokens of context, 0 where the engine decides."""
        return int(self.lane["lane_max_model_len"] or 0)

    @property
    def pin(self) -> int:
        """Bytes of KV cache a rank, 0 where the engine decides."""
        return int(self.lane["lane_kv_cache_memory_bytes"] or 0)

    @property
    def dcp(self) -> int | None:
        """Ranks that share a KV cache; None on a stack without the patch set for it."""
        size = self.number("--decode-context-parallel-size")
        return int(size) if size is not None and math.isfinite(size) else None

    @property
    def graph_mode(self) -> str:
        """How the engine captures CUDA graphs; empty where it decides."""
        if self.has("--enforce-eager"):
            return "NONE"
        return str(self.json("--compilation-config").get("cudagraph_mode") or "").upper()

    # --- speculation ---

    @cached_property
    def speculation(self) -> dict[str, Any]:
        return self.json("--speculative-config")

    @property
    def method(self) -> str:
        return str(self.speculation.get("method") or "")

    @property
    def drafted(self) -> float:
        """Tokens that are drafted for one step; 0 where that is no number."""
        return number(self.speculation.get("num_speculative_tokens")) or 0.0

    @property
    def dflash(self) -> bool:
        """The lane drafts with a block-diffusion drafter."""
        return bool(self.speculation) and (self.method.startswith("dflash") or "dflash" in self.drafter.lower())

    @property
    def drafter(self) -> str:
        return str((self.lane["lane_drafter"] or {}).get("repo") or "")

    # --- image ---

    @property
    def image(self) -> str:
        """Everything that names the image, for what a tag alone tells."""
        image = self.lane["lane_image"]
        return f"{image['repository']}:{image['tag'] or ''} {image['vllm'] or ''}"
