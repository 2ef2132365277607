# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What teacher forcing is told of a lane and its ranks: kept with the scores, and the size of a corpus that suits the lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, answered


def engine(hostvars: HostVars, hosts: Sequence[str], specs: Facts, lane: Facts) -> dict[str, Any]:
    """What is known of the lane. Logprobs cannot name a rank, so the ranks' images and weights are compared by this."""
    flags = lane.get("lane_engine_args") or {}
    return {
        "vllm_version": (lane.get("lane_image") or {}).get("vllm") or "",
        "kv_cache_dtype": lane.get("lane_kv_cache_dtype") or "auto",
        "tensor_parallel_size": lane["lane_tensor_parallel_size"],
        "max_num_batched_tokens": lane.get("lane_max_num_batched_tokens") or 0,
        "enforce_eager": "--enforce-eager" in flags,
        "speculative_config": flags.get("--speculative-config") or "",
        "ranks": [identity(host, specs[host], hostvars[host].get("model_weights_result")) for host in hosts],
    }


def identity(host: str, spec: Facts, staged: Any) -> dict[str, Any]:
    """What one rank runs and reads: {rank, node, image, overlays, weights}. `staged`: its result of model_stage."""
    return {
        "rank": spec["rank"],
        "node": host,
        "image": str(spec["image"]).rpartition("@")[2],
        "overlays": sorted(str(mount["source"]) for mount in spec["mounts"] if "/overlays/" in str(mount["source"])),
        "weights": weights_of(answered(staged) or {}),
    }


def weights_of(result: Facts) -> list[Any]:
    """What names the models that a staging result found complete."""
    return [[model.get("name"), model.get("revision"), model.get("manifest_sha256")] for model in result.get("models") or []]


def corpus(lane: Facts, texts: Mapping[str, Any], max_doc_tokens: int, chat_tokens: int) -> dict[str, Any]:
    """What module teacher_forcing_score makes a corpus of. `texts`: file name → texts; the rest in tokens."""
    flags = lane.get("lane_engine_args") or {}
    asked = {
        "source": dict(texts),
        "max_doc_tokens": int(max_doc_tokens),
        "chat_tokens": int(chat_tokens),
        "chunk": lane.get("lane_max_num_batched_tokens") or 2048,
        # vLLM issue 53488: with a drafter and captured graphs, chunks of up to the largest captured size are scored wrong.
        "min_chunk": 512 if flags.get("--speculative-config") and "--enforce-eager" not in flags else 0,
    }
    longest = lane.get("lane_max_model_len")
    return {**asked, "max_model_len": longest} if longest else asked
