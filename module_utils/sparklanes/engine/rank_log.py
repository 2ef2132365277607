# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the log of one rank said in its last boot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

PHASES = ("init", "rendezvous", "weights", "profiling", "kv_cache", "graphs", "warmup", "serving")


@dataclass
class Failure:
    """One classified cause: its first line in the log (shortened), and how often it was seen."""

    code: str
    message: str
    remedy: str
    line: str
    hardware_or_memory: bool
    consequence: bool
    death: bool = False
    # Addresses of the others that it names.
    peers: list[str] = field(default_factory=list)
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class RankLog:
    """What one boot of one rank said. None: it didn't say."""

    phase: str = "init"
    boots: int = 0
    headless: bool = False
    rank: int | None = None
    world_size: int | None = None
    version: str | None = None
    nccl: str | None = None
    network: str | None = None
    hcas: list[str] = field(default_factory=list)
    weights_done: int | None = None
    weights_total: int | None = None
    graphs_done: int | None = None
    graphs_total: int | None = None
    weights_seconds: float | None = None
    load_seconds: float | None = None
    weights_gib: float | None = None
    kv_cache_device: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    compile_seconds: float | None = None
    graphs_seconds: float | None = None
    graphs_gib: float | None = None
    graphs_guess_gib: float | None = None
    init_seconds: float | None = None
    memory: list[str] = field(default_factory=list)
    last_timestamp: str | None = None
    last_line: str = ""
    ended: bool = False
    asked_to_end: bool = False
    broadcast_waits: int = 0
    nv_no_memory: int = 0
    exception: str | None = None
    failures: list[Failure] = field(default_factory=list)

    @property
    def stalled(self) -> bool:
        """The broadcast block was missing again, and nothing else was said in between: one such line is normal."""
        return self.broadcast_waits > 1

    @property
    def failed(self) -> bool:
        return bool(self.failures)

    @property
    def hardware_or_memory(self) -> bool:
        return any(failure.hardware_or_memory for failure in self.failures)

    @property
    def progress(self) -> str:
        """One line for a person who waits."""
        if self.failures:
            return f"failed: {self.failures[0].message}"
        if self.ended:
            return "ended"
        return {
            "init": "starting",
            "rendezvous": f"waiting for the other ranks (rank {self.rank} of {self.world_size})",
            "weights": f"loading weights{_of(self.weights_done, self.weights_total)}",
            "profiling": "weights loaded, profiling memory and compiling",
            "kv_cache": f"KV cache made{f' ({self.kv_cache_tokens:,} tokens)' if self.kv_cache_tokens else ''}",
            "graphs": f"capturing graphs{_of(self.graphs_done, self.graphs_total)}",
            "warmup": "warming up",
            "serving": "serving",
        }[self.phase] + (" — no message from the workers for minutes" if self.stalled else "")

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data.update(
            stalled=self.stalled,
            failed=self.failed,
            hardware_or_memory=self.hardware_or_memory,
            progress=self.progress,
        )
        return data


def _of(done: int | None, total: int | None) -> str:
    return "" if done is None else f" {done}/{total}"
