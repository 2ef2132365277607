# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the KV cache: its types, its size, and what shares it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.view import View, number
from ansible.module_utils.sparklanes.traps.frame import ADVISE, NOTE, REFUSE, Rules

RULES = Rules()

# What --kv-cache-dtype takes in vLLM 0.32.0; the images of the lanes know some of these.
KV_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "turboquant_3bit_nc",
    "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4", "ultraquant_4bit",
)  # fmt: skip
# A prompt of this length fills a chunk and more on every lane (Flash 2x README: 28,818 tokens proved a pin).
PROOF_TOKENS = 28_000
# Linear-attention state of Flash has 512 slots (W4A16 card: serving).
STATE_BLOCKS = 512
# DCP gathers a float32 accumulator, four times the memory a token; the patch set was proved with this many.
DCP_BATCHED_TOKENS = 2048


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
    "KV_DTYPE_E4M3",
    REFUSE,
    want="fp8",
    remedy="Set lane_kv_cache_dtype: fp8, which the engine turns into fp8_ds_mla for these layers.",
    source="743B README: DFlash2; lane 1",
)
def e4m3(view: View) -> Iterator[str]:
    """On the 743B model fp8 is spelled `fp8`.

    fp8_e4m3 is not among the types of the sparse MLA backend: no valid attention backend is found.
    """
    if view.big and view.kv_dtype in ("fp8_e4m3", "fp8_e5m2"):
        yield f"KV cache of {view.kv_dtype} on {view.repo}"


@RULES.add(
    "KV_DTYPE_PACKED",
    REFUSE,
    want="fp8_e4m3 or auto",
    remedy="Set lane_kv_cache_dtype: fp8_e4m3.",
    source="Flash 2x README: why a patched image; FP8 TP4 recipe: the wrong backend",
)
def packed(view: View) -> Iterator[str]:
    """Flash has no packed MLA cache.

    The layout of *_ds_mla holds 64 positional dimensions; this model has none. The warm-up asserts, and with faked
    shapes it loads and then wedges the GPU.
    """
    if view.flash and view.kv_dtype.endswith("_ds_mla"):
        yield f"KV cache of {view.kv_dtype} on {view.repo}"


@RULES.add(
    "KV_DTYPE_BF16",
    REFUSE,
    want="auto",
    remedy="Set lane_kv_cache_dtype: auto, which is the bf16 cache of these engines.",
    source="W4A16 card: KV dtype at batch, on SM120",
)
def bf16(view: View) -> Iterator[str]:
    """A bf16 KV cache is spelled `auto`.

    `bf16` is no type of vLLM, and `bfloat16` fails on the SM120 image of Flash.
    """
    if view.kv_dtype == "bf16" or (view.kv_dtype == "bfloat16" and view.flash and view.arch == "sm_120"):
        yield f"lane_kv_cache_dtype {view.kv_dtype}"


@RULES.add(
    "KV_NVFP4_OVERLAY",
    REFUSE,
    want="an overlay over flashmla_sparse.py with the marker nvfp4_ds_mla",
    remedy="Mount the NVFP4 set: its flashmla_sparse.py declares the type, and markers: [nvfp4_ds_mla] proves that it does.",
    source="743B README: NVFP4 KV cache",
)
def nvfp4_overlay(view: View) -> Iterator[str]:
    """nvfp4_ds_mla needs the overlay that declares it.

    The image alone does not have it, nor does the plain kernel set: the switch is the overlay directory. Without it no
    backend is selected.
    """
    overlay = view.overlay("flashmla_sparse.py")
    if view.big and view.kv_dtype == "nvfp4_ds_mla" and "nvfp4_ds_mla" not in ((overlay or {}).get("markers") or []):
        yield f"KV cache of nvfp4_ds_mla, and {'an' if overlay else 'no'} overlay over flashmla_sparse.py{' without that marker' if overlay else ''}"


@RULES.add(
    "KV_FP8_SM120",
    ADVISE,
    want="fp8",
    remedy="Set lane_kv_cache_dtype: fp8, or accept the trap with the memory that you measured.",
    source="W4A16 card: serving on SM120. Against it: its own bf16 rows at 524,288 tokens and one stream",
)
def fp8_sm120(view: View) -> Iterator[str]:
    """On cards of 96 GB, 262,144 tokens of Flash want an fp8 KV cache.

    A bf16 cache of that length leaves little for anything else.
    """
    if view.arch == "sm_120" and view.flash and view.context >= 262_144 and not view.kv_dtype.startswith("fp8"):
        yield f"{view.context:,} tokens with a KV cache of {view.kv_dtype}"


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


@RULES.add(
    "KV_PIN_UTILIZATION",
    ADVISE,
    want="lane_gpu_memory_utilization beside the pin",
    remedy="Set lane_gpu_memory_utilization: the engine still compares it with the free memory before it loads.",
    source="field reports: NVIDIA/xr-ai 440 and 462; vLLM 48140",
)
def pin_utilization(view: View) -> Iterator[str]:
    """Who pins the KV cache still says how much of the memory is the engine's.

    The admission check at start uses it, with a default of about 0.9 that a Spark with page cache does not have free.
    """
    if (
        view.pin
        and view.spark
        and view.lane["lane_gpu_memory_utilization"] is None
        and not view.unknown("lane_gpu_memory_utilization")
    ):
        yield "lane_kv_cache_memory_bytes without lane_gpu_memory_utilization"


@RULES.add(
    "KV_PIN_LARGE",
    REFUSE,
    want="less than 32 GiB",
    remedy="Set lane_kv_cache_memory_bytes: 24GiB, the largest pin that was proved.",
    source="Flash 4x notes",
)
def pin_large(view: View) -> Iterator[str]:
    """On four Sparks, Flash pins less than 32 GiB of KV cache a rank.

    32 GiB died under three concurrent prefills.
    """
    if view.spark and view.flash and view.tp == 4 and view.pin >= 32 * 2**30:
        yield f"{view.pin / 2**30:.2f} GiB a rank"


@RULES.add(
    "KV_CONTEXT_TP2",
    REFUSE,
    want="at most 262,144 tokens",
    remedy="Set lane_max_model_len: 262144, use four Sparks, or the W4A16 weights.",
    source="Flash 2x notes, 2026-09-01. W4A16 weights serve 1,048,576 tokens there (W4A16 card)",
)
def context_tp2(view: View) -> Iterator[str]:
    """On two Sparks, Flash in NVFP4 stays at 262,144 tokens.

    With 1M of context the fleet went down three times; the weights alone take 91 GiB a node.
    """
    if view.spark and view.flash and view.nvfp4 and view.tp == 2 and view.context > 262_144:
        yield f"{view.context:,} tokens on two Sparks with {view.repo}"


@RULES.add(
    "KV_UTILIZATION_LOW",
    ADVISE,
    want="0.85",
    remedy="Set lane_gpu_memory_utilization: 0.85, or pin the KV cache.",
    source="Flash 2x README: serve-flag landmines. Against it: cfontes TP4 README, 0.75 on four Sparks",
)
def utilization_low(view: View) -> Iterator[str]:
    """On two Sparks, an engine that sizes the KV cache of Flash itself gets 0.85 of the memory.

    0.78 to 0.80 starve the cache from 131,072 tokens on.
    """
    share = view.lane["lane_gpu_memory_utilization"]
    if (
        view.spark
        and view.flash
        and view.tp == 2
        and not view.pin
        and share is not None
        and share <= 0.8
        and view.context >= 131_072
    ):
        yield f"lane_gpu_memory_utilization {share:g} with {view.context:,} tokens and no pin"


@RULES.add(
    "SEQS_HYBRID",
    REFUSE,
    want=f"1 to {STATE_BLOCKS}",
    remedy=f"Set lane_max_num_seqs: {STATE_BLOCKS} or less; the engine's own default is 1024 on large GPUs.",
    source="W4A16 card: serving on SM90",
)
def seqs(view: View) -> Iterator[str]:
    """A lane of Flash says how many requests run at a time, at most 512.

    Its linear-attention layers have 512 blocks of state; more, and the engine's own default of 1024, end at start.
    """
    given = view.lane["lane_max_num_seqs"]
    if view.flash and not view.unknown("lane_max_num_seqs") and (given is None or given > STATE_BLOCKS):
        yield f"lane_max_num_seqs is {given if given is not None else 'left to the engine'}"


@RULES.add(
    "SEQS_SM120",
    ADVISE,
    want="64 (48 or 36 where memory is short)",
    remedy="Set lane_max_num_seqs: 64.",
    source="W4A16 card: serving on SM120",
)
def seqs_sm120(view: View) -> Iterator[str]:
    """On cards of 96 GB, 64 requests of Flash at a time are proved.

    More may not leave memory for the prefill of a long prompt.
    """
    given = view.lane["lane_max_num_seqs"] or 0
    if view.arch == "sm_120" and view.flash and given > 64:
        yield f"lane_max_num_seqs {given}"


@RULES.add(
    "BATCHED_TOKENS_DCP",
    REFUSE,
    want=f"at most {DCP_BATCHED_TOKENS}",
    remedy=f"Set lane_max_num_batched_tokens: {DCP_BATCHED_TOKENS}. 4096 is untested and the first thing to try: accept the trap for it.",
    source="743B README: findings of the DCP lanes",
)
def batched_dcp(view: View) -> Iterator[str]:
    """Under decode context parallelism a step has at most 2,048 batched tokens.

    The gathered float32 accumulator takes four times the memory a token.
    """
    given = view.lane["lane_max_num_batched_tokens"]
    if (view.dcp or 1) > 1 and (given is None or given > DCP_BATCHED_TOKENS) and not view.unknown("lane_max_num_batched_tokens"):
        yield f"lane_max_num_batched_tokens is {given if given is not None else 'left to the engine'} with DCP {view.dcp}"


@RULES.add(
    "BATCHED_TOKENS_LONG",
    REFUSE,
    want="at most 16384",
    remedy="Set lane_max_num_batched_tokens: 8192; 16384 is proved too and as fast.",
    source="W4A16 card: long prefill at batch",
)
def batched_long(view: View) -> Iterator[str]:
    """On cards of 96 GB a step has at most 16,384 batched tokens when prompts are long.

    With 32,768 a prompt of 486,000 tokens ran out of memory: 3.98 GiB were needed and 1.70 free.
    """
    given = view.lane["lane_max_num_batched_tokens"] or 0
    if view.arch == "sm_120" and view.flash and given > 16_384 and (not view.context or view.context >= 486_000):
        yield f"lane_max_num_batched_tokens {given:,} with {view.context:,} tokens of context"


@RULES.add(
    "INDEXER_WIDTH",
    REFUSE,
    want="the indexer files of the DCP set, or another context",
    remedy="Mount glm-dcp/indexer.py and glm-dcp/sparse_attn_indexer.py, or set lane_max_model_len to a length that was served, as 270000.",
    source="743B README: issue 6. vLLM PR 50302 is the fix upstream",
)
def indexer(view: View) -> Iterator[str]:
    """At 80,000 tokens the indexer of the 743B images is one column wider than the runner's block table.

    1251 meets 1250 as soon as a step mixes the tail of a short prefill with drafts, and the engine dies. At 270,000 both
    are 4220; other lengths were not compared.
    """
    fixed = view.overlay("mla/indexer.py") and view.overlay("sparse_attn_indexer.py")
    if view.big and view.dflash and view.context == 80_000 and not fixed:
        yield "80,000 tokens with a drafter and the image's own indexer"


@RULES.add(
    "DCP_PREFILL",
    NOTE,
    want="prompts that share a prefix, or patience",
    remedy="Keep --enable-prefix-caching on.",
    source="743B README: what DCP costs",
)
def dcp_prefill(view: View) -> Iterator[str]:
    """Decode context parallelism costs prefill.

    340 to 415 tokens a second at every length: a cold prompt of 100,000 tokens takes four and a half minutes.
    """
    if view.big and (view.dcp or 1) > 1:
        yield "prefill runs at 340 to 415 tokens a second: a cold prompt of 100,000 tokens takes about 4.5 minutes"
