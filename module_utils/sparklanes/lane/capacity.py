# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What fits into the KV cache of a lane: context by requests at a time, and what one more GiB buys.

From the bytes a token that the lane's source measured (`lane_memory.kv_bytes_per_token`, on each rank, so decode
context parallelism is in it). The pool that an engine reports is never the whole truth, and never shown without that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.lane.budget import kv_given, token_bytes
from ansible.module_utils.sparklanes.lane.unknowns import lookup
from ansible.module_utils.sparklanes.lane.view import View

# As far as the pool that was printed may be from the one that the bytes of a token make, without a word.
ODD = 0.01
# Where nobody says how many requests run at a time.
AT_ONCE = 8

CAVEAT = (
    "reported: the cache over the bytes a token, which is how the engine's boot log counts: full windows times the window. It grows with "
    "the window without a byte more of memory, and rank 0 prints it while the least of all ranks counts."
)


@dataclass(frozen=True)
class Capacity:
    """Tokens that fit; None where it is not known."""

    gib: float | None
    source: str
    bytes_per_token: int | None
    ranks: int
    reported: int | None
    share: float | None
    share_source: str

    @property
    def filled(self) -> int | None:
        """Tokens that a careful person plans with."""
        return None if self.reported is None or self.share is None else int(self.reported * self.share)

    @property
    def tokens_per_gib(self) -> int | None:
        return int(GIB / self.bytes_per_token) if self.bytes_per_token else None


def capacity(lane: Mapping[str, Any]) -> Capacity:
    """The KV cache of a resolved lane in tokens."""
    view = View(lane)
    gib, source = kv_given(lane)
    known, _ = token_bytes(lane)
    per_token = None if known is None else int(known)
    reported = int(gib * GIB / per_token) if gib is not None and per_token else None
    share, why = _filled(view)
    return Capacity(gib, source, per_token, max(1, view.dcp or 1), reported, share, why)


def _filled(view: View) -> tuple[float | None, str]:
    printed, measured = (lookup(view.lane, f"lane_expect.kv_pool_tokens.{name}") for name in ("boot_log", "measured"))
    if all(isinstance(value, int | float) and value > 0 for value in (printed, measured)):
        return float(measured / printed), "as one long request of this lane filled it"
    told = view.lane["lane_memory"]
    if told["filled_share"] is not None:
        return told["filled_share"], told["filled_source"] or "as lane_memory.filled_share says"
    return None, "nobody filled it"


def rows(lane: Mapping[str, Any]) -> list[tuple[int, int, int | None]]:
    """Requests at a time, tokens of context for each as reported, and as filled; empty where it is not known."""
    found = capacity(lane)
    if found.reported is None:
        return []
    window, most = lane["lane_max_model_len"] or found.reported, lane["lane_max_num_seqs"] or AT_ONCE
    counts = sorted({count for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if count <= most} | {most})
    return [
        (count, min(window, found.reported // count), None if found.filled is None else min(window, found.filled // count))
        for count in counts
    ]


def text(lane: Mapping[str, Any]) -> list[str]:
    """The table for people, with what it does not say."""
    found = capacity(lane)
    cache = "unknown" if found.gib is None else f"{found.gib:.2f} GiB on each rank"
    token = "unknown" if found.bytes_per_token is None else f"{found.bytes_per_token:,} bytes a token"
    shared = f"{found.ranks} ranks share it" if found.ranks > 1 else "each rank holds all of it"
    lines = [f"KV cache: {cache} ({found.source}), {token}; {shared}"]
    table = rows(lane)
    if not table:
        return [*lines, "what fits is unknown: lane_memory.kv_bytes_per_token and the size of the cache give it"]
    cells = [(str(count), f"{context:,}", "?" if careful is None else f"{careful:,}") for count, context, careful in table]
    lines += columns([("at a time", "context each, reported", "filled"), *cells], right={0, 1, 2}, least=(0, 0, 10))
    lines.append(f"one more GiB on each rank: {found.tokens_per_gib:,} tokens, reported")
    lines.append(CAVEAT)
    share = "unknown" if found.share is None else f"{found.share:.0%} of it"
    lines.append(f"filled: {share}, {found.share_source}.")
    measured_at = lookup(lane, "lane_expect.context")
    printed = lookup(lane, "lane_expect.kv_pool_tokens.boot_log")
    if printed and found.reported and measured_at == lane["lane_max_model_len"] and abs(printed / found.reported - 1) > ODD:
        lines.append(f"The boot log of its source printed {printed:,}; the bytes a token are {lane['lane_memory']['source']}.")
    if measured_at and lane["lane_max_model_len"] and measured_at != lane["lane_max_model_len"]:
        lines.append(
            f"The bytes a token were measured with a window of {measured_at:,}; this one is {lane['lane_max_model_len']:,}."
        )
    return lines
