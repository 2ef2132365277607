# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Does a lane fit a Spark, and what is the highest share of its memory that the engine can get?

CPU and GPU share one pool, so everything counts against it: weights, drafter, KV cache, graphs, processes,
the system. What a lane takes is measured by its source and stands in `lane_memory`; what nobody measured is
unknown and named, and never taken for nothing. A rule fails only where the least possible sum does not fit,
and passes only where the most does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.sizes import GIB, size_bytes
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.lane.partial import apart
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.memory.facts import SPARK_GIB, droppable

# The most that CUDA was seen to have free, caches dropped (743B recipe: 105 to 113), and the most on another
# pair of Sparks (GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 47: 101.3 to 102.2).
BEST_CUDA_GIB = 113.0
POOR_CUDA_GIB = 101.3
# A Spark without a rank: MemTotal less MemAvailable, in two public reports (nvitop PR 208 and another).
IDLE_GIB = 8.6
IDLE_MOST_GIB = 11.4
# The most that any lane measured beside weights, drafter, graphs and KV cache (743B, DCP4 with NVFP4 cache).
OTHER_MOST_GIB = 16.71
# Logits and their logarithms of a row, for a moment, seen by no profile (vLLM 52054); the 743B lanes have 154,880 rows and steps of 2,048 tokens.
SCORING_BYTES = 2 + 4
SCORING_ROWS, SCORING_TOKENS = 154_880, 2_048
# The most that any recorded lane computes in one step (Flash, TP4 with a window of a million).
MOST_TOKENS = 16_384
# The largest that a measured lane serves with; 64 GB was suspected in sudden power-offs (field report of DeepSeek-v4-Flash, issue 31).
SHM_GIB = 32.0

Lane = Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """What one Spark says of its memory, in GiB.

    idle: no rank and nothing on its GPU, so what is in use stays in use. cache: what a flush may free. returns: what the ranks that
    serve hold and give back when they stop, None where nobody knows.
    """

    total: float | None = None
    available: float | None = None
    free: float | None = None
    idle: bool = False
    cache: float = 0.0
    returns: float | None = None

    @property
    def most(self) -> float | None:
        """The most that may be free without ending anything: MemAvailable, or what is free and all cache, where that is more."""
        told = [self.available, None if self.free is None else self.free + self.cache]
        return max((one for one in told if one is not None), default=None)

    @classmethod
    def of(cls, meminfo: Mapping[str, int] | None, idle: bool, returns: float | None = None) -> Node:
        """meminfo: as `readiness_info` parsed it, bytes by name; None where it was not read."""
        known = meminfo or {}
        total, available, free = (
            None if name not in known else known[name] / GIB for name in ("MemTotal", "MemAvailable", "MemFree")
        )
        return cls(total or None, available, free, idle, droppable(known) / GIB, returns)


@dataclass(frozen=True)
class Row:
    """One line of the budget; `gib` is None where nobody knows."""

    item: str
    gib: float | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {"item": self.item, "gib": None if self.gib is None else round(self.gib, 2), "source": self.source}


@dataclass(frozen=True)
class Budget:
    """The sum of a rank: what is taken at least and at most, of what there is."""

    rows: tuple[Row, ...]
    unknown: tuple[str, ...]
    least: float
    # None where a part is unknown, so that there is no upper bound.
    most: float | None
    # Whether `most` is this lane's own measurement rather than the most of any other.
    measured: bool
    have: float | None
    reserve: float
    kv: float | None


# GPUs with memory of their own: nothing here is true of them.
APART = ("sm_90", "sm_120")


def _eager(lane: Lane) -> bool:
    return bool((lane.get("lane_engine_args") or {}).get("--enforce-eager"))


def total_of(lane: Lane, node: Node | None) -> float | None:
    """The memory of the Spark; before one was asked, that of every published one. Without a GPU it may be any machine."""
    if node is not None:
        return node.total
    return SPARK_GIB if lane.get("lane_gpu_arch") == "sm_121" else None


def ranks_of(lane: Lane) -> int:
    """Over how many GPUs a lane spreads its weights."""
    return max(1, (lane.get("lane_tensor_parallel_size") or 1) * (lane.get("lane_pipeline_parallel_size") or 1))


def reshaped(lane: Lane) -> tuple[int, int] | None:
    """For how many ranks the numbers of lane_memory were taken and how many this lane has, where these are not the same."""
    recorded, now = lane["lane_memory"]["ranks"], ranks_of(lane)
    return (recorded, now) if recorded and recorded != now else None


def weights_given(lane: Lane, said: str) -> tuple[float | None, float | None, str]:
    """GiB of weights on a rank at least and at most, and who says so. In another shape than the recorded one they are spread anew."""
    gib, shape = lane["lane_memory"]["weights_gib"], reshaped(lane)
    if gib is None or shape is None:
        return gib, gib, said
    spread = gib * shape[0] / shape[1]
    # What each rank holds alike (norms, routers, a drafter) does not shrink with more of them.
    return (
        spread,
        max(gib, spread),
        f"{gib:g} on each of {shape[0]} ranks is {gib * shape[0]:.1f} GiB, over {shape[1]} here; {said}",
    )


def kv_given(lane: Lane) -> tuple[float | None, str]:
    """GiB of KV cache that the worst rank has, and who says so."""
    if lane.get("lane_kv_cache_memory_bytes"):
        return lane["lane_kv_cache_memory_bytes"] / GIB, "lane_kv_cache_memory_bytes"
    memory = lane["lane_memory"]
    if memory["kv_gib"] is None:
        return None, "sized by the engine, lane_memory.kv_gib is unknown"
    if shape := reshaped(lane):
        return None, f"sized by the engine, lane_memory.kv_gib is of {shape[0]} ranks"
    less = memory["worker_less_gib"] if (lane.get("lane_nodes") or 1) > 1 else 0.0
    return max(0.0, memory["kv_gib"] - less), "lane_memory.kv_gib" + (f", a worker {less:g} GiB less" if less else "")


def token_bytes(lane: Lane) -> tuple[float | None, str]:
    """Bytes of KV cache that a token takes on a rank of this lane, and why they are not known."""
    memory, now = lane["lane_memory"], str(lane.get("lane_kv_cache_dtype") or "auto")
    if not memory["kv_bytes_per_token"]:
        return None, "lane_memory.kv_bytes_per_token"
    if memory["kv_dtype"] and memory["kv_dtype"] != now:
        return None, f"lane_memory.kv_bytes_per_token was measured with {memory['kv_dtype']}, and lane_kv_cache_dtype is {now}"
    shared = max(1, View(lane).dcp or 1)
    return memory["kv_bytes_per_token"] * (memory["kv_ranks"] or shared) / shared, ""


def scoring(lane: Lane) -> tuple[float, str]:
    """GiB that the teacher-forcing gate takes of a rank for a moment."""
    memory = lane["lane_memory"]
    if memory["scoring_gib"] is not None:
        return memory["scoring_gib"], "lane_memory.scoring_gib"
    tokens, rows = lane.get("lane_max_num_batched_tokens") or 0, memory["vocab_size"]
    if not (tokens and rows) and tokens <= MOST_TOKENS:
        return SCORING_TOKENS * SCORING_ROWS * SCORING_BYTES / GIB, "as on the 743B lanes; not measured here"
    # A document is scored by itself, so a step never holds more than the context.
    step, rows = min(tokens, lane.get("lane_max_model_len") or tokens), rows or SCORING_ROWS
    return step * rows * SCORING_BYTES / GIB, f"{step:,} tokens × {rows:,} rows × {SCORING_BYTES} bytes"


def budget(lane: Lane, node: Node | None = None) -> Budget:
    """What the worst rank of a resolved lane takes. `node`: one Spark as it is now; without it, a Spark as published."""
    memory = lane["lane_memory"]
    said = str(memory["source"] or "lane_memory")
    total = total_of(lane, node)
    kv, kv_source = kv_given(lane)
    weights, weights_most, weights_source = weights_given(lane, said)
    drafter = 0.0 if memory["drafter_gib"] is None and not lane.get("lane_drafter") else memory["drafter_gib"]
    graphs = 0.0 if memory["graphs_gib"] is None and _eager(lane) else memory["graphs_gib"]
    share = lane.get("lane_gpu_memory_utilization")
    if kv is None and share is not None and total is not None and weights is not None and drafter is not None:
        kv = max(0.0, share * total - weights - drafter)
        kv_source = f"what lane_gpu_memory_utilization {share:g} leaves, activations included"
    parts = {"weights": weights, "drafter": drafter, "graphs": graphs, "kv cache": kv}
    sources = {
        "weights": weights_source,
        "drafter": said,
        "graphs": "--enforce-eager" if _eager(lane) else said,
        "kv cache": kv_source,
    }
    rows = [Row(name, gib, sources[name] if gib is not None else "unknown") for name, gib in parts.items()]
    unknown = tuple(
        f"lane_memory.{name}_gib" if name != "kv cache" else "lane_memory.kv_gib" for name in parts if parts[name] is None
    )
    known = sum(gib for gib in parts.values() if gib is not None)
    extra = _beyond_idle(node)
    if extra:
        rows.append(Row("in use beyond an idle Spark", extra, f"MemTotal less MemAvailable, less {IDLE_MOST_GIB:g}"))
    other = memory["other_gib"]
    if other is not None:
        rows.append(Row("all else", other, said))
        least = most = known + extra + other
    else:
        less = memory["worker_less_gib"] if (lane.get("lane_nodes") or 1) > 1 else 0.0
        rows.append(Row("all else", None, f"unknown: {IDLE_GIB:g} on an idle Spark, {OTHER_MOST_GIB:g} the most of any lane"))
        least, most = known + extra + IDLE_GIB, known + extra + less + OTHER_MOST_GIB
    most += (weights_most or 0.0) - (weights or 0.0)
    rows.append(Row("kept free", memory["reserve_gib"], "lane_memory.reserve_gib"))
    taken, why = scoring(lane)
    rows.append(Row("scoring, for a moment", taken, why))
    have = None
    if total is not None:
        have = total + memory["parked_gib"]
        rows.append(Row("memory of the Spark", total, "its MemTotal" if node else "every published Spark"))
        if memory["parked_gib"]:
            rows.append(Row("parked in swap by design", memory["parked_gib"], said))
    return Budget(
        tuple(rows), unknown, least, None if unknown else most, other is not None, have, memory["reserve_gib"], kv_given(lane)[0]
    )


def _beyond_idle(node: Node | None) -> float:
    """What other programs of an idle Spark hold. A Spark whose ranks still run tells nothing about it."""
    if node is None or not node.idle or node.total is None or node.available is None:
        return 0.0
    return max(0.0, node.total - node.available - IDLE_MOST_GIB)


def rows_of(lane: Lane, node: Node | None = None) -> list[dict[str, Any]]:
    """The budget as a table: item, gib (None: unknown), source. For people and for JSON."""
    return [row.to_dict() for row in budget(lane, node).rows]


def text(lane: Lane, node: Node | None = None) -> list[str]:
    """The same as lines."""
    rows = budget(lane, node).rows
    return columns(
        [(row.item, "? GiB" if row.gib is None else f"{row.gib:.2f} GiB", row.source) for row in rows], right={1}, least=(0, 10)
    )


def highest_utilization(obtainable: float, total: float) -> float:
    """The highest lane_gpu_memory_utilization that passes the engine's check at its start, in hundredths."""
    share = min(obtainable / total, 1.0) if total > 0 else 0.0  # of a total next to nothing it is infinite
    return max(0, int(share * 100 + 1e-9)) / 100


def left_when_serving(lane: Lane) -> tuple[float | None, float | None]:
    """(GiB that the lane leaves of a Spark's memory once it serves, GiB of that memory); None where nobody measured it."""
    if not lane.get("lane_memory"):
        return None, SPARK_GIB
    sum_, total = budget(lane), total_of(lane, None) or SPARK_GIB
    return (None if sum_.have is None or sum_.unknown else max(0.0, sum_.have - sum_.least)), total


# --- rules -----------------------------------------------------------------------------------------------------


def checks(lane: Lane, host: str, node: Node | None = None) -> list[Check]:
    """Whether the lane may boot on this Spark; without `node`, on any Spark (preflight)."""
    made = apart((check_context, check_reported), lane, host)
    if lane.get("lane_gpu_arch") in APART:
        return made
    utilization = check_utilization if node is None else partial(check_utilization_to_come, node=node)
    made += apart(
        [partial(check_fit, node=node), utilization, partial(check_scoring, node=node), partial(check_shm, node=node)], lane, host
    )
    return made


def check_fit(lane: Lane, host: str, node: Node | None = None) -> list[Check]:
    """All that a rank takes against all that there is."""
    sum_ = budget(lane, node)
    if sum_.have is None:
        if node is None:
            return []  # a lane without a GPU may run on any machine; gate A asks it
        remedy = f"Look at /proc/meminfo of {host}."
        return [Check("BUDGET.FIT", host, FAIL, "MemTotal was not measured", "MemTotal", remedy)]
    room = sum_.have - sum_.reserve
    expected = f"≤ {room:.1f} GiB"
    over = sum_.least - room
    least = f"{'' if sum_.measured and not sum_.unknown else 'at least '}{sum_.least:.1f} GiB"
    if over > 1e-6:
        # What is pinned is the one part that a person can make smaller without another checkpoint.
        pin = sum_.kv is not None and lane.get("lane_kv_cache_memory_bytes") and sum_.kv > over
        remedy = (
            f"Set lane_kv_cache_memory_bytes to at most {max(0.0, (sum_.kv or 0) - over):.2f}GiB, or end what else uses this Spark's memory."
            if pin
            else "Take smaller weights or more Sparks, or end what else uses this Spark's memory."
        )
        return [Check("BUDGET.FIT", host, FAIL, f"{_parts(sum_)}: {least}", expected, remedy)]
    if sum_.unknown:
        remedy = f"Nobody measured it. Once the lane ran, write the number into {', '.join(sum_.unknown)}."
        return [Check("BUDGET.FIT", host, WARN, f"{_parts(sum_)}: {least}; unknown: {', '.join(sum_.unknown)}", expected, remedy)]
    if sum_.most is not None and sum_.most > room + 1e-6:
        remedy = "Watch MemAvailable during the boot, and write what it falls to as lane_memory.other_gib."
        return [Check("BUDGET.FIT", host, WARN, f"{_parts(sum_)}: {least}, at most {sum_.most:.1f} GiB", expected, remedy)]
    return [Check("BUDGET.FIT", host, PASS, f"{_parts(sum_)}: {least}", expected)]


def _parts(sum_: Budget) -> str:
    taken = [
        row for row in sum_.rows if row.item in ("weights", "drafter", "graphs", "kv cache", "all else") or "beyond" in row.item
    ]
    return " + ".join(f"{row.item} {'?' if row.gib is None else format(row.gib, '.1f')}" for row in taken if row.gib != 0)


def check_context(lane: Lane, host: str) -> list[Check]:
    """One request of the full context fits the KV cache: the engine refuses to start otherwise, after it loaded the weights."""
    tokens, (per_token, unknown) = lane.get("lane_max_model_len"), token_bytes(lane)
    given, source = kv_given(lane)
    if not tokens:
        return []
    if given is None or not per_token:
        lacks = " and ".join(name for name, value in ((unknown, per_token), ("lane_memory.kv_gib", given)) if not value)
        return [
            Check(
                "BUDGET.CONTEXT",
                host,
                WARN,
                f"unknown for {tokens:,} tokens: {lacks}",
                "one request of lane_max_model_len fits the KV cache",
                "Take it from the engine's boot log: the size of the KV cache over its tokens.",
            )
        ]
    needed = tokens * per_token / GIB
    fits = int(given * GIB / per_token)
    found = f"{tokens:,} tokens need {needed:.2f} GiB of KV cache on each rank"
    expected = f"≤ {given:.2f} GiB ({source})"
    if fits >= tokens:
        return [Check("BUDGET.CONTEXT", host, PASS, found, expected)]
    remedy = f"Set lane_max_model_len to at most {fits:,}, or give the cache {needed:.2f} GiB where BUDGET.FIT has the room."
    return [Check("BUDGET.CONTEXT", host, FAIL, found, expected, remedy)]


def _wanted_at_start(lane: Lane, node: Node | None) -> tuple[float, float, str] | None:
    """(GiB that the engine wants free at its start, GiB of the whole, both as a sentence); None where the lane sets no share."""
    share, total = lane.get("lane_gpu_memory_utilization"), total_of(lane, node)
    if share is None or total is None:
        return None
    return share * total, total, f"lane_gpu_memory_utilization {share:g} of {total:.2f} GiB is {share * total:.1f} GiB"


def check_utilization(lane: Lane, host: str, node: Node | None = None) -> list[Check]:
    """At its start the engine wants this share of the whole to be free, pinned KV cache or not. What is free is MemFree: CUDA drops no cache.

    With `node` as it is once nothing runs any more and memory has settled (gate B); without it, by what published Sparks gave.
    """
    known = _wanted_at_start(lane, node)
    if known is None:
        return []
    if node is None:
        wanted, _, found = known
        best = highest_utilization(BEST_CUDA_GIB, SPARK_GIB)
        expected = f"≤ {BEST_CUDA_GIB:g} GiB, the most that CUDA ever had free; another pair got {POOR_CUDA_GIB:g}"
        remedy = f"Set lane_gpu_memory_utilization to at most {best:.2f}."
        return [Check("BUDGET.UTILIZATION", host, PASS if wanted <= BEST_CUDA_GIB else FAIL, found, expected, remedy)]
    if not node.idle:
        # What the ranks hold comes back with the stop; gate B measures.
        return []
    free, name = (node.free, "MemFree") if node.free is not None else (node.available, "MemAvailable")
    return [_utilization(host, known, free, f" of {name}")]


def _utilization(host: str, known: tuple[float, float, str], obtainable: float | None, whose: str) -> Check:
    """known: of `_wanted_at_start`. obtainable: GiB, None where nothing was measured."""
    wanted, total, found = known
    if obtainable is None:
        said = f"{found}; neither MemFree nor MemAvailable was measured"
        return Check("BUDGET.UTILIZATION", host, FAIL, said, "MemFree", f"Look at /proc/meminfo of {host}.")
    best = highest_utilization(obtainable, total)
    remedy = f"End what uses the memory of {host}, or set lane_gpu_memory_utilization to {best:.2f}: the engine ends at its start otherwise."
    status = PASS if wanted <= obtainable else FAIL
    expected = f"≤ {obtainable:.1f} GiB{whose}, so at most {best:.2f}"
    return Check("BUDGET.UTILIZATION", host, status, found, expected, "" if status == PASS else remedy)


def check_utilization_to_come(lane: Lane, host: str, node: Node) -> list[Check]:
    """The same before the stop (gate A), against the most that can be free after it: all cache dropped, and what the own ranks hold given back.

    It fails only what cannot fit, since how much cache goes shows after the stop. Nothing where ranks hold an amount that nobody knows.
    """
    known = _wanted_at_start(lane, node)
    if known is None or (not node.idle and node.returns is None):
        return []
    back = 0.0 if node.idle else node.returns or 0.0
    obtainable = None if node.most is None else min(known[1], node.most + back)
    return [_utilization(host, known, obtainable, ", after the stop at most")]


def check_scoring(lane: Lane, host: str, node: Node | None = None) -> list[Check]:
    """What the gates need besides: a lane may serve well and die of being scored. Only a warning, since scoring is a choice."""
    sum_, (taken, source) = budget(lane, node), scoring(lane)
    if sum_.have is None:
        return []  # BUDGET.FIT says what is unknown
    if (lane.get("lane_max_num_batched_tokens") or 0) > MOST_TOKENS and lane["lane_memory"]["scoring_gib"] is None:
        return [_many_tokens(lane, host, taken, source, sum_.have - sum_.least)]
    if sum_.most is None:
        return []
    left = sum_.have - sum_.most
    found = f"scoring takes {taken:.2f} GiB of each rank for a moment ({source}), {max(0.0, left):.2f} GiB are left"
    if left >= taken:
        return [Check("BUDGET.SCORING", host, PASS, found)]
    remedy = (
        "A rank can die while it is scored. Launch once with less: lane_kv_cache_memory_bytes 2GiB smaller, "
        "or lane_max_num_batched_tokens of 512 to 1024."
    )
    return [Check("BUDGET.SCORING", host, WARN, found, f"≤ {max(0.0, left):.2f} GiB", remedy)]


def _many_tokens(lane: Lane, host: str, taken: float, source: str, left: float) -> Check:
    """A step of more tokens than any recorded lane's: what the logprobs of one document take, beside what is left at most."""
    rows = lane["lane_memory"]["vocab_size"] or SCORING_ROWS
    fits = max(SCORING_TOKENS, int(left * GIB / (rows * SCORING_BYTES)) // 1024 * 1024)
    found = (
        f"lane_max_num_batched_tokens {lane['lane_max_num_batched_tokens']:,}, {MOST_TOKENS:,} are the most of any recorded lane: scoring takes "
        f"{taken:.1f} GiB of each rank for a moment ({source}), at most {max(0.0, left):.1f} GiB are left"
    )
    remedy = f"Set lane_max_num_batched_tokens to at most {min(fits, MOST_TOKENS):,}; what was measured goes into lane_memory.scoring_gib."
    return Check("BUDGET.SCORING", host, FAIL if taken > left else WARN, found, f"≤ {max(0.0, left):.1f} GiB", remedy)


def check_shm(lane: Lane, host: str, node: Node | None = None) -> list[Check]:
    """Shared memory is of the same pool. It counts as it fills; a size that could push the GPU out is warned of."""
    try:
        size = max(0, size_bytes((lane.get("lane_container") or {}).get("shm_size"))) / GIB
    except ValueError:
        return []  # the container's own rule says so
    sum_ = budget(lane, node)
    if not size or sum_.have is None:
        return []
    could = sum_.least + size
    found = f"up to {size:.1f} GiB of shared memory beside {sum_.least:.1f} GiB"
    if size <= SHM_GIB or could <= sum_.have:
        return [Check("BUDGET.SHM", host, PASS, found)]
    return [
        Check(
            "BUDGET.SHM",
            host,
            WARN,
            found,
            f"≤ {SHM_GIB:g} GiB, the most of a measured lane, or ≤ {sum_.have:.1f} GiB in sum",
            "Filled, it takes the memory of the GPU: set lane_container.shm_size to 10g.",
        )
    ]


def check_reported(lane: Lane, host: str) -> list[Check]:
    """Failures that a source tells of. Where another source disagrees, a person decides."""
    tokens = lane.get("lane_max_model_len") or 0
    pinned = (lane.get("lane_kv_cache_memory_bytes") or 0) / GIB
    made = []
    for case in lane["lane_memory"]["reported"]:
        length, size = case["from_max_model_len"], case["from_kv_gib"]
        if (length is not None and tokens < length) or (size is not None and pinned < size - 1e-6):
            continue
        limits = [f"lane_max_model_len < {length:,}"] if length is not None else []
        limits += [f"lane_kv_cache_memory_bytes < {size:g} GiB"] if size is not None else []
        made.append(
            Check(
                "BUDGET.REPORTED",
                host,
                WARN if case["disputed"] else FAIL,
                f"{case['what']} ({case['source']})",
                " or ".join(limits) or "sources that agree",
                "Sources disagree: watch memory on every rank during this boot."
                if case["disputed"]
                else "Stay below it, or remove the entry of lane_memory.reported once it holds no longer.",
            )
        )
    if not made and lane["lane_memory"]["reported"]:
        made.append(
            Check("BUDGET.REPORTED", host, PASS, f"like none of {len(lane['lane_memory']['reported'])} reported failures")
        )
    return made
