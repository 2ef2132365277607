# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the KV cache: its type, and the proof of its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.view import View, number
from ansible.module_utils.sparklanes.traps.frame import ADVISE, REFUSE, Rules

RULES = Rules()

# What --kv-cache-dtype takes in vLLM 0.32.0; the images of the lanes know some of these.
KV_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "turboquant_3bit_nc",
    "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4", "ultraquant_4bit",
)  # fmt: skip
# A prompt of this length fills a chunk and more on every lane (Flash 2x README: 28,818 tokens proved a pin).
PROOF_TOKENS = 28_000


@RULES.add(
    "KV_DTYPE_NAME",
    REFUSE,
    want="a type that --kv-cache-dtype takes",
    remedy="Correct lane_kv_cache_dtype.",
    source="vLLM 0.32.0",
)
def dtype_name(view: View) -> Iterator[str]:
    """The KV cache has a type that the engine knows.

    The command line of each rank is refused, after the old ranks were stopped.
    """
    if view.kv_dtype not in (*KV_DTYPES, "bf16"):  # the latter has a rule of its own
        yield f"lane_kv_cache_dtype {view.kv_dtype!r}. {did_you_mean(view.kv_dtype, KV_DTYPES)}".strip()


@RULES.add(
    "KV_PIN_PROOF",
    ADVISE,
    want=f"lane_expect.kv_pin_proof: the pin in bytes, and a prompt of {PROOF_TOKENS:,} tokens or more that survived it",
    remedy=f"After launch, send a prompt of {PROOF_TOKENS:,} tokens or more; then write lane_expect_site: "
    "{kv_pin_proof: {bytes: PIN, prompt_tokens: TOKENS}}.",
    source="Flash 2x README: KV pool ceiling; 743B README: memory, point 2",
)
def pin_proof(view: View) -> Iterator[str]:
    """A pinned KV cache was proved by a long prompt.

    With a pin the engine never subtracts the peak of its activations. Boot, warm-up and short prompts succeed; the first
    long prompt ends it. Four different pins did.
    """
    proof = view.lane["lane_expect"].get("kv_pin_proof")
    proof = proof if isinstance(proof, Mapping) else {}
    long_enough = (number(proof.get("prompt_tokens")) or 0) >= PROOF_TOKENS
    if (
        view.pin
        and view.arch != "cpu"
        and not (0 < view.context < PROOF_TOKENS)
        and not (long_enough and proof.get("bytes") == view.pin)
    ):
        pinned = f"{view.pin / 2**30:.2f} GiB of KV cache a rank are pinned"
        yield f"{pinned}, and {'the proof is for another pin or a shorter prompt' if proof else 'no long prompt proved them'}"
