# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a lane may be, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.sizes import MIB, TIB
from ansible.module_utils.sparklanes.engine.flags import canonical_flag
from ansible.module_utils.sparklanes.host import sysctl
from ansible.module_utils.sparklanes.lane.exclusions import exclusions
from ansible.module_utils.sparklanes.lane.partial import apart
from ansible.module_utils.sparklanes.lane.unknowns import lookup
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.memory.facts import SPARK_GIB

DAY = 86_400
_COUNT = (0.0, float("inf"))
_SOME = (1.0, float("inf"))
_MEMORY = (0.0, SPARK_GIB)
# Every number of a lane; a test compares. Beyond these a value is a slip of the keyboard.
RANGES: dict[str, tuple[float, float]] = {
    "lane_nodes": (1, 64),
    "lane_gpus_per_node": (1, 16),
    "lane_tensor_parallel_size": (1, 1024),
    "lane_pipeline_parallel_size": (1, 64),
    "lane_port": (1, 65_535),
    "lane_master_port": (1, 65_535),
    "lane_max_model_len": (1, 16 * MIB),
    "lane_max_num_seqs": (1, 65_536),
    "lane_max_num_batched_tokens": (1, 16 * MIB),
    "lane_kv_cache_memory_bytes": (MIB, TIB),
    "lane_gpu_memory_utilization": (0.001, 1.0),
    "lane_container.pids_limit": (0, 2**22),  # PID_MAX_LIMIT of the kernel
    "lane_swappiness": sysctl.RANGES["vm/swappiness"],
    "lane_swap_min_gib": (0, 256),
    "lane_engine_boots_warn": (0, 100_000),
    "lane_page_cache_interval_seconds": (1, DAY),
    "lane_page_cache_duration_seconds": (0, 365 * DAY),
    "lane_page_cache_floor_gib": (0.001, SPARK_GIB),
    "lane_min_free_gib": _MEMORY,
    "lane_min_blocks": _COUNT,
    "lane_settle_seconds": _COUNT,
    "lane_touch_probe_gib": _MEMORY,
    "lane_touch_margin_gib": _MEMORY,
    "lane_boot_timeout_seconds": (10, 7 * DAY),
    "lane_first_boot_timeout_seconds": (10, 7 * DAY),
    "lane_boot_stall_seconds": (10, 7 * DAY),
    "lane_boot_stagger_seconds": (0, DAY),
    "lane_memory.ranks": (1, 1024),
    "lane_memory.kv_ranks": (1, 1024),
    "lane_memory.kv_bytes_per_token": _SOME,
    "lane_memory.vocab_size": _SOME,
    "lane_memory.filled_share": (0.01, 1.0),
    **{
        f"lane_memory.{name}_gib": _COUNT
        for name in ("weights", "drafter", "graphs", "other", "parked", "reserve", "kv", "worker_less", "scoring")
    },
    "lane_memory.reported.*.from_max_model_len": (1, 16 * MIB),
    "lane_memory.reported.*.from_kv_gib": (0.001, 1024),
    **{
        f"{model}.expect.{guard}": (least, most)
        for model in ("lane_model", "lane_drafter")
        for guard, least, most in (("shards", 1, 10**5), ("tensors", 1, 10**8), ("bytes", 1, 2**50), ("scale_samples", 0, 10**6))
    },
}


def limit_checks(lane: Mapping[str, Any], host: str) -> list[Check]:
    """Numbers that can't be, and settings that exclude each other, in a resolved lane."""
    faults = apart((_steps, _exclusions, _both_ways, _graphs, _times), View(lane))
    conflicts: list[Check] = as_checks(faults, host, {"LANE.CONFLICT": "nothing excludes another thing"})
    return [*number_checks(lane, host), *conflicts]


def number_checks(lane: Mapping[str, Any], host: str) -> list[Check]:
    """Numbers that nothing could honour are refused on the controller, before anything is written anywhere."""
    faults = []
    for pattern, (least, most) in RANGES.items():
        for name, value in apart([_values], lane, pattern):
            if value is not None and not least <= value <= most:
                expected = f"{least:,.10g} to {most:,.10g}" if most != float("inf") else f"{least:,.10g} or more"
                remedy = f"Correct {name} in the lane or in your own file."
                faults.append(Fault("LANE.NUMBERS", f"{name} is {value:,.10g}", expected, remedy))
    checks: list[Check] = as_checks(faults, host, {"LANE.NUMBERS": "all possible"})
    return checks


def _values(lane: Mapping[str, Any], pattern: str) -> Iterator[tuple[str, Any]]:
    """The values at a dotted path, in which * stands for every element of a list."""
    head, star, tail = pattern.partition(".*.")
    if not star:
        yield pattern, lookup(lane, pattern)
        return
    for index, _ in enumerate(lookup(lane, head) or []):
        yield f"{head}.{index}.{tail}", lookup(lane, f"{head}.{index}.{tail}")


def _steps(view: View) -> Iterator[Fault]:
    lane = view.lane
    batched, seqs = lane["lane_max_num_batched_tokens"], lane["lane_max_num_seqs"]
    if batched and seqs and batched < seqs:
        yield _conflict(
            f"lane_max_num_batched_tokens {batched} is less than lane_max_num_seqs {seqs}",
            "at least one token a request",
            "The engine refuses it: raise the one or lower the other.",
        )
    if batched and view.context and batched < view.context and view.has("--no-enable-chunked-prefill"):
        yield _conflict(
            f"lane_max_num_batched_tokens {batched} is less than lane_max_model_len {view.context}, and chunked prefill is off",
            "a step that holds a whole prompt",
            "Remove --no-enable-chunked-prefill, or raise lane_max_num_batched_tokens.",
        )


def _exclusions(view: View) -> Iterator[Fault]:
    for found, expected, remedy in exclusions(view):
        yield _conflict(found, expected, remedy)


def _both_ways(view: View) -> Iterator[Fault]:
    for flag in view.lane["lane_engine_args"]:
        name = canonical_flag(flag)
        if name.startswith("--no-") and view.args.get(f"--{name[5:]}") is not None:
            yield _conflict(f"{flag} stands beside --{name[5:]}", "one of them", "Set the one that is not meant to null.")


def _graphs(view: View) -> Iterator[Fault]:
    mode = str(view.json("--compilation-config").get("cudagraph_mode") or "NONE").upper()
    if view.has("--enforce-eager") and mode != "NONE":
        yield _conflict(
            f"--enforce-eager beside cudagraph_mode {mode}",
            "graphs or none",
            "Set --enforce-eager: null to have graphs, or --compilation-config: null.",
        )


def _times(view: View) -> Iterator[Fault]:
    lane = view.lane
    if lane["lane_boot_stall_seconds"] > lane["lane_boot_timeout_seconds"]:
        yield _conflict(
            f"lane_boot_stall_seconds {lane['lane_boot_stall_seconds']} exceeds lane_boot_timeout_seconds {lane['lane_boot_timeout_seconds']}",
            "a stall that can be noticed before the time is over",
            "Raise lane_boot_timeout_seconds.",
        )
    if 0 < lane["lane_page_cache_duration_seconds"] < lane["lane_page_cache_interval_seconds"]:
        yield _conflict(
            "lane_page_cache_duration_seconds is shorter than lane_page_cache_interval_seconds",
            "at least one drop",
            "Raise the duration, or choose lane_page_cache_policy: off.",
        )


def _conflict(found: str, expected: str, remedy: str) -> Fault:
    return Fault("LANE.CONFLICT", found, expected, remedy)
