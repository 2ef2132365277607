"""Each trap: a lane that walks into it, and its nearest neighbour that does not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import view as lane_view
from ansible.module_utils.sparklanes.traps import frame as traps_frame
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from conftest import ROOT
from lane_files import read
from trap_files import ALL

OPTIONS = lane_schema.schema(yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8")))
SOURCES = yaml.safe_load((ROOT / "docs/traps_elsewhere.yml").read_text(encoding="utf-8"))["sources"]
Lane = dict[str, Any]

PARSERS = {"--reasoning-parser": "glm45", "--tool-call-parser": "glm47", "--enable-auto-tool-choice": True}
DRAFTER = {"repo": "incoai/GLM-5.3-Flash-DFlash2", "path": "/srv/draft", "container_path": "/models/draft"}
DFLASH = {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7}
MTP = {"method": "mtp", "num_speculative_tokens": 4}
LOW = {"reasoning_effort": "low"}
OVERLAYS = [
    {"source": "k/sm12x_mqa.py", "target": "/vllm/ops/sm12x_mqa.py"},
    {"source": "k/b12x_sparse_helpers.py", "target": "/vllm/ops/b12x_sparse_helpers.py"},
    {"source": "k/sparse_mla_kernels.py", "target": "/vllm/mla/sparse_mla_kernels.py"},
]
NVFP4 = [*OVERLAYS, {"source": "n/flashmla_sparse.py", "target": "/vllm/mla/flashmla_sparse.py", "markers": ["nvfp4_ds_mla"]}]
INDEXER = [
    *OVERLAYS,
    {"source": "d/indexer.py", "target": "/vllm/backends/mla/indexer.py"},
    {"source": "d/sparse_attn_indexer.py", "target": "/vllm/layers/sparse_attn_indexer.py"},
]
SWITCHES = {f"GLM52_{name}": "1" for name in ("BIND_HOST_TRITON", "MQA_LOGITS_TRITON", "PAGED_MQA_TRITON", "B12X_MLA")}

BIG: Lane = {
    "lane_id": "big",
    "lane_nodes": 4,
    "lane_tensor_parallel_size": 4,
    "lane_image": {"repository": "vllm-glm52-b12x", "tag": "dflash2-port2", "vllm": "0.23.1rc1.dev190+gab6660699"},
    "lane_model": {"repo": "2wild4tv/GLM-5.3-Int4-Int8Mix", "path": "/srv/big", "container_path": "/models/big"},
    "lane_drafter": {**DRAFTER, "repo": "incoai/GLM-5.3-DFlash2"},
    "lane_overlays": OVERLAYS,
    "lane_served_model_name": ["glm-5.3"],
    "lane_max_model_len": 270_000,
    "lane_max_num_seqs": 6,
    "lane_max_num_batched_tokens": 8192,
    "lane_gpu_memory_utilization": 0.91,
    "lane_kv_cache_dtype": "fp8",
    "lane_swappiness": 10,
    "lane_engine_env": SWITCHES,
    "lane_engine_args": {
        **PARSERS,
        "--speculative-config": DFLASH,
        "--kv-cache-dtype-skip-layers": "sliding_window",
        "--compilation-config": {"cudagraph_mode": "FULL"},
        "--default-chat-template-kwargs": LOW,
    },
}
FLASH: Lane = {
    "lane_id": "flash",
    "lane_nodes": 2,
    "lane_tensor_parallel_size": 2,
    "lane_image": {
        "repository": "ghcr.io/tonyd2wild/vllm-glm53-flash",
        "tag": "sm121-v11-dflash2",
        "vllm": "0.1.dev20051+g487ecf187",
        "pins": {"flashinfer": "0.6.18.dev20260819", "nccl": "2.30.7", "cutlass_dsl": "4.6.2"},
    },
    "lane_model": {"repo": "RedHatAI/GLM-5.3-Flash-NVFP4", "path": "/srv/flash", "container_path": "/models/flash"},
    "lane_drafter": DRAFTER,
    "lane_overlays": [{"source": "f/sparse_attn_indexer_kpool.py", "target": "/vllm/layers/sparse_attn_indexer_kpool.py"}],
    "lane_served_model_name": ["glm-5.3-flash"],
    "lane_max_model_len": 262_144,
    "lane_max_num_seqs": 6,
    "lane_max_num_batched_tokens": 8192,
    "lane_gpu_memory_utilization": 0.85,
    "lane_kv_cache_dtype": "fp8_e4m3",
    "lane_flag_names": {"--kv-cache-memory-bytes": "--kv-cache-memory"},
    "lane_swappiness": 0,
    "lane_boot_stagger_seconds": 25,
    "lane_engine_args": {
        **PARSERS,
        "--block-size": 2304,
        "--speculative-config": DFLASH,
        "--enforce-eager": True,
        "--default-chat-template-kwargs": {**LOW, "enable_thinking": False},
    },
}
HOPPER: Lane = {
    "lane_id": "hopper",
    "lane_gpu_arch": "sm_90",
    "lane_nodes": 4,
    "lane_tensor_parallel_size": 4,
    "lane_image": {"repository": "vllm/vllm-openai", "tag": "glm53-flash-x86_64-cu130", "vllm": "0.1.dev20051+g487ecf187"},
    "lane_model": {"repo": "canada-quant/GLM-5.3-Flash-W4A16-MTP", "path": "/srv/w4", "container_path": "/models/w4"},
    "lane_served_model_name": ["glm53-w4"],
    "lane_max_model_len": 262_144,
    "lane_max_num_seqs": 512,
    "lane_engine_args": {
        **PARSERS,
        "--block-size": 64,
        "--speculative-config": {**MTP, "num_speculative_tokens": 2},
        "--default-chat-template-kwargs": {**LOW, "clear_thinking": True},
        "--no-enable-prefix-caching": True,
        "--chat-template": "/extras/mm.jinja",
    },
}
SM120: Lane = {**HOPPER, "lane_id": "sm120", "lane_gpu_arch": "sm_120", "lane_kv_cache_dtype": "fp8", "lane_max_num_seqs": 64}
BASES = {"big": BIG, "flash": FLASH, "hopper": HOPPER, "sm120": SM120}
# Whose traps they are held against.
FAMILIES = {"big": "glm53_743b", "flash": "glm53_flash", "hopper": "glm53_flash_x86", "sm120": "glm53_flash_x86"}


def args(**flags: Any) -> Lane:
    """Flags over those of the base: a_b is --a-b, None removes."""
    return {"lane_engine_args_override": {f"--{name.replace('_', '-')}": value for name, value in flags.items()}}


def spec(**keys: Any) -> Lane:
    return args(speculative_config=keys)


def image(**keys: Any) -> Lane:
    return {"lane_image_override": keys}


def model(**keys: Any) -> Lane:
    return {"lane_model_override": keys}


def container(**keys: Any) -> Lane:
    return {"lane_container": keys}


NO_DRAFTER: Lane = {"lane_drafter": {}, **spec(method="mtp", model=None)}
W4A16 = model(repo="canada-quant/GLM-5.3-Flash-W4A16-MTP")
HOPPER_DFLASH: Lane = {
    "lane_drafter": DRAFTER,
    "lane_image": {"repository": "e", "tag": "dflash2"},
    **args(speculative_config=DFLASH),
}
NVFP4_BIG: Lane = {"lane_kv_cache_dtype": "nvfp4_ds_mla", "lane_overlays": NVFP4}
SIZES = [6, 12, 18, 24, 30, 36]
PIN = 6 * 2**30
PROVED = {"kv_pin_proof": {"bytes": PIN, "prompt_tokens": 28_818}}


def staged(model: Lane | None = None, tensors: list[str] | None = None, drafter: Lane | None = None) -> Lane:
    """What a Spark holds: config.json of the model, the names of its tensors, config.json of the drafter."""
    return {"staged": {"model": {"config": model or {}, "tensors": tensors or []}, "drafter": {"config": drafter or {}}}}


def quantized(*tensors: str, **config: Any) -> Lane:
    return staged({"quantization_config": config}, list(tensors))


W4A4 = {
    "config_groups": {"group_0": {"input_activations": {"num_bits": 4, "dynamic": "local"}}},
    "format": "nvfp4-pack-quantized",
}
BIG_DRAFT = {"architectures": ["DFlash2DraftModel"], "hidden_size": 6144}
FLASH_DRAFT = {**BIG_DRAFT, "hidden_size": 4096}
QWEN = model(repo="Qwen/Qwen3-30B-A3B")

Case = tuple[str, Lane]
# id → lanes that walk into it, near misses that don't
CASES: dict[str, tuple[list[Case], list[Case]]] = {
    "SPEC_METHOD": (
        [("big", spec(method="dflash2")), ("flash", spec(method=None)), ("flash", spec(method="mtp"))],
        [("flash", NO_DRAFTER), ("flash", args(speculative_config=None) | {"lane_drafter": {}})],
    ),
    "SPEC_TOKENS": (
        [("flash", spec(num_speculative_tokens=8)), ("flash", spec(num_speculative_tokens=5)), ("big", spec(num_speculative_tokens=None))],
        [("flash", spec(num_speculative_tokens="7")), ("flash", NO_DRAFTER), ("flash", {"lane_drafter_site": {"repo": "z-lab/other-dflash"}, **spec(num_speculative_tokens=15)})],
    ),
    "SPEC_DRAFTER": (
        [("flash", spec(model="/models/elsewhere")), ("flash", spec(model=None)), ("flash", {"lane_drafter": {}})],
        [("flash", spec(model="/models/draft/")), ("flash", NO_DRAFTER)],
    ),
    "SPEC_SKIP_LAYERS": (
        [("big", args(kv_cache_dtype_skip_layers=None)), ("big", {"lane_kv_cache_dtype": None, **args(kv_cache_dtype_skip_layers="0,1")})],
        [("big", args(kv_cache_dtype_skip_layers=["0", "sliding_window"])), ("flash", {}), ("big", {**NO_DRAFTER, "lane_engine_args_host": {"--kv-cache-dtype-skip-layers": None}})],
    ),
    "SPEC_PAGE_PADDED": (
        [("big", args(additional_config={"drafter": [{"page_size_padded": 4096}]}))],
        [("big", args(additional_config={"drafter": {"page_size_padded": None}}))],
    ),
    "SPEC_DRAFT_SAMPLING": (
        [("big", spec(draft_sample_method="probabilistic"))],
        [("big", spec(draft_sample_method="greedy")), ("flash", spec(draft_sample_method="probabilistic"))],
    ),
    "SPEC_RENAMED": (
        [("big", args(hf_overrides={"architectures": ["DFlashDraftModel"]})), ("flash", spec(hf_overrides={"architectures": ["X"]}))],
        [("big", args(hf_overrides={"rope_theta": 1}))],
    ),
    "SPEC_ENGINE": (
        [("flash", image(tag="sm121-v8")), ("big", image(tag="probe-modded"))],
        [("big", image(tag="upstream", vllm="0.28.0")), ("big", image(tag="own", vllm=None)), ("flash", {**NO_DRAFTER, **image(tag="sm121-v8")})],
    ),
    "SPEC_BROKEN_WINDOW": (
        [("flash", image(tag="nightly-2026-08-22-dflash")), ("flash", image(tag="dflash", vllm="0.28.1rc1.d20260825"))],
        [("flash", image(tag="dflash-20260826")), ("flash", image(tag="dflash-2026-08-21")), ("flash", {**NO_DRAFTER, **image(tag="20260823")})],
    ),
    "SPEC_ADMISSION": (
        [("hopper", {**HOPPER_DFLASH, "lane_engine_args_host": {"--block-size": block}}) for block in (2304, 1024, 64, None)],
        [
            ("hopper", {**HOPPER_DFLASH, "lane_engine_args_host": {"--block-size": 1536}}),
            ("hopper", {**HOPPER_DFLASH, "lane_engine_args_host": {"--block-size": 2304}, "lane_max_model_len": 15_000}),
            ("hopper", {}),
            ("flash", {}),  # the same drafter and block size on GB10 serve 1M
            ("flash", {**W4A16, "lane_max_model_len": 1_048_576}),
        ],
    ),
    "SPEC_NVFP4_TP2": (
        [("flash", {"lane_kv_cache_dtype": "nvfp4"})],
        [("flash", {**NO_DRAFTER, "lane_kv_cache_dtype": "nvfp4"}), ("flash", {"lane_kv_cache_dtype": "nvfp4", "lane_nodes": 4, "lane_tensor_parallel_size": 4})],
    ),
    "SPEC_MTP_NVIDIA": (
        [("flash", {**NO_DRAFTER, **model(repo="nvidia/GLM-5.3-Flash-NVFP4")})],
        [("flash", NO_DRAFTER), ("flash", model(repo="nvidia/GLM-5.3-Flash-NVFP4"))],
    ),
    "SPEC_MTP_BF16": (
        [("flash", {**NO_DRAFTER, "lane_kv_cache_dtype": "auto"}), ("flash", {**NO_DRAFTER, "lane_kv_cache_dtype": None})],
        [("flash", NO_DRAFTER), ("flash", {**NO_DRAFTER, **W4A16, "lane_kv_cache_dtype": "auto"})],
    ),
    "SPEC_MTP_HOPPER": ([("hopper", spec(num_speculative_tokens=5))], [("hopper", {}), ("sm120", spec(num_speculative_tokens=5))]),
    "KV_DTYPE_NAME": (
        [("flash", {"lane_kv_cache_dtype": "fp8_e4m4"}), ("flash", {"lane_kv_cache_dtype": "fp8 e4m3"})],
        [("flash", {"lane_kv_cache_dtype": "fp8_e5m2"}), ("flash", {"lane_kv_cache_dtype": ""})],
    ),
    "KV_DTYPE_E4M3": ([("big", {"lane_kv_cache_dtype": "fp8_e4m3"})], [("big", {"lane_kv_cache_dtype": "fp8_ds_mla"}), ("flash", {})]),
    "KV_DTYPE_PACKED": ([("flash", {"lane_kv_cache_dtype": "fp8_ds_mla"})], [("big", {"lane_kv_cache_dtype": "fp8_ds_mla"})]),
    "KV_DTYPE_BF16": (
        [("sm120", {"lane_kv_cache_dtype": "bf16"}), ("sm120", {"lane_kv_cache_dtype": "bfloat16"}), ("big", {"lane_kv_cache_dtype": "bf16"})],
        [("sm120", {"lane_kv_cache_dtype": "auto"}), ("big", {"lane_kv_cache_dtype": "bfloat16"})],
    ),
    "KV_NVFP4_OVERLAY": (
        [("big", {**NVFP4_BIG, "lane_overlays": OVERLAYS}), ("big", {**NVFP4_BIG, "lane_overlays": [{**item, "markers": []} for item in NVFP4]})],
        [("big", NVFP4_BIG), ("big", {})],
    ),
    "KV_FP8_SM120": (
        [("sm120", {"lane_kv_cache_dtype": "auto"}), ("sm120", {"lane_kv_cache_dtype": None})],
        [("sm120", {"lane_kv_cache_dtype": "auto", "lane_max_model_len": 131_072}), ("hopper", {})],
    ),
    "KV_PIN_PROOF": (
        [
            ("flash", {"lane_kv_cache_memory_bytes": PIN}),
            ("flash", {"lane_kv_cache_memory_bytes": PIN + 1, "lane_expect": PROVED}),
            ("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_expect": {"kv_pin_proof": {"bytes": PIN, "prompt_tokens": 3000}}}),
            ("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_expect": {"kv_pin_proof": "yes"}}),
        ],
        [("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_expect": PROVED}), ("flash", {}), ("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_max_model_len": 8192})],
    ),
    "KV_PIN_UTILIZATION": (
        [("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_gpu_memory_utilization": None})],
        [("flash", {"lane_kv_cache_memory_bytes": PIN}), ("flash", {"lane_gpu_memory_utilization": None})],
    ),
    "KV_PIN_LARGE": (
        [("flash", {"lane_nodes": 4, "lane_tensor_parallel_size": 4, "lane_kv_cache_memory_bytes": "32GiB"})],
        [("flash", {"lane_nodes": 4, "lane_tensor_parallel_size": 4, "lane_kv_cache_memory_bytes": "24GiB"}), ("flash", {"lane_kv_cache_memory_bytes": "32GiB"})],
    ),
    "KV_CONTEXT_TP2": (
        [("flash", {"lane_max_model_len": 1_048_576})],
        [("flash", {**W4A16, "lane_max_model_len": 1_048_576}), ("flash", {"lane_max_model_len": 1_048_576, "lane_nodes": 4, "lane_tensor_parallel_size": 4})],
    ),
    "KV_UTILIZATION_LOW": (
        [("flash", {"lane_gpu_memory_utilization": 0.78})],
        [("flash", {"lane_gpu_memory_utilization": 0.795, "lane_kv_cache_memory_bytes": "3GiB"}), ("flash", {"lane_gpu_memory_utilization": 0.75, "lane_nodes": 4, "lane_tensor_parallel_size": 4})],
    ),
    "SEQS_HYBRID": (
        [("flash", {"lane_max_num_seqs": 513}), ("hopper", {"lane_max_num_seqs": None})],
        [("flash", {"lane_max_num_seqs": 512}), ("big", {"lane_max_num_seqs": 1024}), ("hopper", {"lane_max_num_seqs": None, "lane_unknowns": [{"what": "w", "fill": "lane_max_num_seqs: 6"}]})],
    ),
    "SEQS_SM120": ([("sm120", {"lane_max_num_seqs": 128})], [("sm120", {}), ("hopper", {})]),
    "BATCHED_TOKENS_DCP": (
        [("big", args(decode_context_parallel_size=4)), ("big", {"lane_max_num_batched_tokens": None, **args(decode_context_parallel_size=2)})],
        [("big", {"lane_max_num_batched_tokens": 2048, **args(decode_context_parallel_size=4)}), ("big", args(decode_context_parallel_size=1))],
    ),
    "BATCHED_TOKENS_LONG": (
        [("sm120", {"lane_max_num_batched_tokens": 32_768, "lane_max_model_len": 524_288})],
        [("sm120", {"lane_max_num_batched_tokens": 16_384, "lane_max_model_len": 524_288}), ("sm120", {"lane_max_num_batched_tokens": 32_768}), ("hopper", {"lane_max_num_batched_tokens": 32_768, "lane_max_model_len": 524_288})],
    ),
    "INDEXER_WIDTH": (
        [("big", {"lane_max_model_len": 80_000}), ("big", {"lane_max_model_len": 262_144}), ("big", {"lane_max_model_len": 79_936})],
        [("big", {"lane_max_model_len": 80_000, "lane_overlays": INDEXER}), ("big", {"lane_max_model_len": 270_000}), ("big", {"lane_max_model_len": 80_000, **NO_DRAFTER}), ("big", {"lane_max_model_len": 80_001}), ("big", {"lane_max_model_len": None})],
    ),
    "DCP_PREFILL": ([("big", {"lane_max_num_batched_tokens": 2048, **args(decode_context_parallel_size=4)})], [("big", {})]),
    "FLAG_UNKNOWN": (
        [("flash", args(enable_prefix_cachign=True)), ("flash", args(no_block_size=True))],
        [("flash", args(enable_prefix_caching=True)), ("flash", args(no_enable_prefix_caching=True)), ("flash", {"lane_engine_args_site": {"--compilation-config.cudagraph_mode": "NONE"}})],
    ),
    "FLAG_SPELLING": (
        [("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_flag_names": {}, "lane_flag_names_override": {}}), ("big", {"lane_kv_cache_memory_bytes": PIN, "lane_flag_names": {"--kv-cache-memory-bytes": "--kv-cache-memory"}})],
        [("flash", {"lane_kv_cache_memory_bytes": PIN}), ("big", {"lane_kv_cache_memory_bytes": PIN}), ("flash", {"lane_flag_names": {}}), ("flash", {"lane_kv_cache_memory_bytes": PIN, "lane_flag_names": {}, **image(vllm=None)})],
    ),
    "FLAG_JSON": (
        [("flash", args(limit_mm_per_prompt="'{\"image\": 2}'")), ("flash", args(limit_mm_per_prompt="{'image': 2}")), ("flash", args(hf_overrides=True))],
        [("flash", args(limit_mm_per_prompt='{"image": 2}')), ("flash", args(limit_mm_per_prompt={"image": 2}))],
    ),
    "FLAG_SHELL": (
        [("flash", spec(draft="$DRAFT_PATH")), ("flash", args(chat_template="<path of the template>")), ("flash", {"lane_engine_env": {"A": "${HOME}/x"}}), ("flash", args(middleware=["`id`"]))],
        [("flash", args(chat_template="/extras/a.jinja")), ("flash", {"lane_engine_env": {"A": "costs 5$"}})],
    ),
    "BLOCK_SIZE": (
        [("flash", args(block_size=64)), ("flash", args(block_size=None))],
        [("flash", args(block_size="2304")), ("hopper", {}), ("sm120", args(block_size=None)), ("big", {})],
    ),
    "KPOOL_OVERLAY": (
        [("flash", {"lane_overlays": []})],
        [("flash", {"lane_overlays": [], **image(tag="sm121-v12-dflash2-topkfix")}), ("flash", {"lane_overlays": [], **image(repository="ghcr.io/canada-quant/vllm-glm53-flash-sm121", tag="v2-w4a16-dflash2e")}), ("hopper", {})],
    ),
    "KERNEL_SWITCHES": (
        [("big", {"lane_overlays": OVERLAYS[1:]}), ("big", {"lane_engine_env_override": {"GLM52_B12X_MLA": None}}), ("big", {"lane_engine_env_override": {"GLM52_B12X_MLA": "0"}})],
        [("big", {}), ("flash", {}), ("big", {"lane_overlays": [], "lane_gpu_arch": "sm_90"})],
    ),
    "KERNEL_FALLBACK_PLACE": (
        [("big", {"lane_overlays": [*OVERLAYS, {"source": "s", "target": "/vllm/ops/deepseek_v4_ops/sm12x_deep_gemm_fallbacks.py"}]})],
        [("big", {"lane_overlays": [*OVERLAYS, {"source": "s", "target": "/vllm/backends/mla/sm12x_deep_gemm_fallbacks.py"}]})],
    ),
    "GRAPHS_SIZES": (
        [("big", NVFP4_BIG)],
        [
            ("big", {**NVFP4_BIG, **args(compilation_config={"cudagraph_capture_sizes": SIZES})}),
            ("big", {**NVFP4_BIG, "lane_max_num_batched_tokens": 2048, **args(decode_context_parallel_size=4)}),
            ("big", {**NVFP4_BIG, **args(compilation_config={"cudagraph_mode": "NONE"})}),
            ("big", {}),
        ],
    ),
    "GRAPHS_BARE": (
        [("big", {"lane_drafter": {}, **args(speculative_config=None)}), ("big", {"lane_drafter": {}, **args(speculative_config=None, compilation_config=None)})],
        [("big", {"lane_drafter": {}, **args(speculative_config=None, compilation_config={"cudagraph_mode": "none"})}), ("big", {"lane_drafter": {}, **args(speculative_config=None, enforce_eager=True)}), ("big", {})],
    ),
    "GRAPHS_TOPKFIX": (
        [("flash", {**image(tag="sm121-v12-dflash2-topkfix"), **args(enforce_eager=None)})],
        [("flash", image(tag="sm121-v12-dflash2-topkfix")), ("flash", args(enforce_eager=None))],
    ),
    "ATTENTION_SM90": (
        [("hopper", image(tag="nightly-x86_64", vllm=None)), ("hopper", image(vllm="0.28.1rc1.dev516+gabc", tag=None))],
        [("hopper", {}), ("hopper", {**image(tag="nightly-x86_64"), **args(attention_backend="FLASH_ATTN_MLA_SPARSE")}), ("hopper", {**image(tag="nightly-x86_64"), "lane_max_model_len": 65_536})],
    ),
    "ATTENTION_SM120": (
        [("sm120", args(attention_backend="FLASHINFER_MLA_SPARSE_SM120")), ("flash", args(hf_overrides={"text_config": {"qk_rope_head_dim": 64}}))],
        [("flash", args(attention_backend="FLASHINFER_MLA_SPARSE_SM90")), ("big", args(attention_backend="FLASHINFER_MLA_SPARSE_SM120"))],
    ),
    "LOADER_INSTANTTENSOR": ([("flash", args(load_format="instanttensor"))], [("flash", args(load_format="safetensors")), ("flash", {**args(load_format="instanttensor"), "lane_nodes": 1})]),
    "LOADER_FASTSAFETENSORS": ([("flash", args(load_format="fastsafetensors"))], [("hopper", args(load_format="fastsafetensors"))]),
    "MOE_TUNING": (
        [("flash", {"lane_engine_env": {"VLLM_TUNED_CONFIG_FOLDER": "/t"}}), ("flash", container(mounts=[{"source": "/t", "target": "/vllm/layers/fused_moe/configs/E=288.json"}]))],
        [("flash", container(mounts=[{"source": "/t", "target": "/cache"}]))],
    ),
    "CHUNKED_PREFILL": ([("flash", args(enable_chunked_prefill=True))], [("flash", {}), ("hopper", args(enable_chunked_prefill=True))]),
    "PREFIX_CACHE_HOPPER": ([("hopper", args(no_enable_prefix_caching=None))], [("hopper", {}), ("sm120", args(no_enable_prefix_caching=None))]),
    "PREFIX_CACHE_V11": ([("flash", args(enable_prefix_caching=True))], [("flash", {}), ("flash", {**args(enable_prefix_caching=True), **image(tag="sm121-v11-dflash2-repaired")})]),
    "PIPELINE": ([("flash", {"lane_tensor_parallel_size": 1, "lane_pipeline_parallel_size": 2})], [("flash", {"lane_pipeline_parallel_size": 1}), ("flash", {"lane_pipeline_parallel_size": 2, "lane_nodes": 1})]),
    "PIN_FLASHINFER": (
        [("flash", image(pins={"flashinfer": "0.6.17"}))],
        [("flash", image(pins={"flashinfer": "0.6.18.dev20260819"})), ("sm120", image(pins={"flashinfer": "0.6.17"})), ("flash", image(pins={"flashinfer": None}))],
    ),
    "PIN_NCCL": (
        [("flash", image(pins={"nccl": "2.29.7"}))],
        [("flash", {}), ("big", {**image(pins={"nccl": "2.29.7"}), "lane_engine_env_override": {"LD_PRELOAD": "/x/nccl-2.30.4/libnccl.so.2"}}), ("hopper", image(pins={"nccl": "2.29.7"}))],
    ),
    "PIN_CUTLASS": ([("flash", image(pins={"cutlass_dsl": "4.7.0 and 4.6.2"}))], [("flash", image(pins={"cutlass_dsl": "4.7.0"})), ("flash", {})]),
    "PIN_PDL": (
        [("flash", image(pins={"pdl": True})), ("sm120", {"lane_engine_env": {"TRTLLM_ENABLE_PDL": "1"}})],
        [("flash", image(pins={"pdl": False})), ("hopper", image(pins={"pdl": True})), ("flash", {"lane_engine_env": {"TRTLLM_ENABLE_PDL": "0"}})],
    ),
    "IMAGE_OLD": ([("flash", image(tag="sm121-v6-dflash2")), ("flash", image(repository="vllm/vllm-openai", tag="glm53-flash-arm64-cu130"))], [("flash", {}), ("hopper", {})]),
    "IMAGE_NIGHTLY_GB10": ([("flash", image(vllm="0.28.1rc1.dev580+g385dce36b"))], [("hopper", image(vllm="0.28.1rc1.dev580+g385dce36b")), ("flash", image(vllm="0.28.1rc1.dev581+gabcdef012"))]),
    "WEIGHTS_MODELOPT": (
        [
            ("flash", model(repo="LibertAIDAI/GLM-5.3-Flash-NVFP4")),
            ("flash", model(repo="zai-org/GLM-5.3-Flash-NVFP4", expect={"shards": 120})),
            ("flash", quantized(quant_method="modelopt", ignore=["lm_head", "model.layers.*.mlp.gate"])),
            ("flash", {**model(repo="me/GLM-5.3-Flash-mine"), **quantized(quant_method="modelopt", exclude_modules=["lm_head"])}),
        ],
        [
            ("flash", {}),
            ("flash", W4A16),
            ("flash", model(repo="zai-org/GLM-5.3-Flash-NVFP4", expect={"shards": 33})),
            ("flash", quantized(quant_method="compressed-tensors")),
            ("flash", quantized(quant_method="modelopt", ignore=["lm_head", "model.layers.*.self_attn.q_proj"])),
            ("big", quantized(quant_method="modelopt")),
        ],
    ),
    "NVFP4_INPUT_SCALE": (
        [
            ("flash", quantized("a.*.weight", "a.*.weight_scale_2", quant_method="modelopt", quant_algo="NVFP4")),
            ("flash", quantized("a.*.weight_packed", **W4A4)),
        ],
        [
            ("flash", {}),
            ("flash", quantized("a.*.weight", "a.*.input_scale", quant_algo="NVFP4")),
            ("flash", quantized("a.*.weight", quant_algo="W4A16_NVFP4")),
            ("flash", quantized("a.*.weight", quant_algo="NVFP4", activation_scheme="dynamic")),
            ("flash", quantized("a.*.weight_packed", "a.*.input_global_scale", **W4A4)),
            ("flash", quantized("a.*.weight_packed", format="nvfp4-pack-quantized", config_groups={"group_0": {"input_activations": None}})),
            ("flash", quantized("a.*.weight_packed", quant_method="compressed-tensors", format="pack-quantized")),
        ],
    ),
    "LOADER_PRELOADED": (
        [("flash", args(load_format="ipc_cache")), ("flash", container(command_prefix=["vllm", "preload"])), ("hopper", args(load_format="ipc_cache"))],
        [("flash", args(load_format="auto")), ("flash", container(command_prefix=["vllm", "serve"]))],
    ),
    "SPEC_DRAFTER_RENAMED": (
        [("flash", staged(drafter={**FLASH_DRAFT, "architectures": ["DFlashDraftModel"]}))],
        [("flash", staged(drafter=FLASH_DRAFT)), ("flash", staged(drafter={})), ("flash", {"lane_drafter_site": {"repo": "z-lab/other-dflash"}, **staged(drafter={"architectures": ["X"]})})],
    ),
    "SPEC_DRAFTER_OTHER": (
        [
            ("flash", {"lane_drafter_site": {"repo": "incoai/GLM-5.3-DFlash2"}}),
            ("big", {"lane_drafter_site": {"repo": "incoai/GLM-5.3-Flash-DFlash2"}}),
            ("flash", QWEN),
            ("big", QWEN),
            ("flash", staged(drafter=BIG_DRAFT)),
            ("big", staged(drafter=FLASH_DRAFT)),
        ],
        [
            ("flash", {}),
            ("big", {}),
            ("flash", {**QWEN, "lane_drafter_site": {"repo": "z-lab/Qwen3-DFlash"}}),
            ("flash", staged(drafter=FLASH_DRAFT)),
            ("big", staged(drafter=BIG_DRAFT)),
            ("flash", staged(drafter={"architectures": ["DFlash2DraftModel"]})),
            ("flash", {**NO_DRAFTER, **staged(drafter=BIG_DRAFT)}),
        ],
    ),
    "SPEC_MTP_PREFIX_GRAPHS": (
        [("flash", {**NO_DRAFTER, "lane_engine_args_host": {"--enable-prefix-caching": True, "--enforce-eager": None}}), ("big", {"lane_drafter": {}, **args(speculative_config={"method": "mtp", "model": None}, enable_prefix_caching=True)})],
        [("flash", {**NO_DRAFTER, "lane_engine_args_host": {"--enable-prefix-caching": True}}), ("flash", {**NO_DRAFTER, "lane_engine_args_host": {"--enforce-eager": None}}), ("big", args(enable_prefix_caching=True)), ("hopper", args(enable_prefix_caching=True))],
    ),
    "THINKING_BUDGET": (
        [("big", args(override_generation_config={"max_new_tokens": 512})), ("hopper", args(override_generation_config='{"max_tokens": 4095}'))],
        [("big", args(override_generation_config={"max_new_tokens": 4096})), ("flash", args(override_generation_config={"max_new_tokens": 512})), ("big", {})],
    ),
    "TEMPERATURE_DRAFTS": ([("flash", {}), ("big", {})], [("hopper", {}), ("flash", NO_DRAFTER)]),
    "THINKING_PROSE": ([("flash", {})], [("big", {}), ("hopper", {}), ("flash", QWEN)]),
    "WEIGHTS_W4A4": ([("flash", {})], [("flash", W4A16), ("flash", model(repo="nvidia/GLM-5.3-Flash-NVFP4"))]),
    "WEIGHTS_VISION": ([("hopper", {})], [("hopper", args(language_model_only=True)), ("flash", W4A16)]),
    "PREFIX_RETENTION": (
        [("flash", image(repository="aidendle94/sparkrun-vllm-glm53-gb10", tag="production-1.2")), ("flash", {**image(repository="aidendle94/sparkrun-vllm-glm53-gb10"), **container(entrypoint="vllm", command_prefix=["serve"])})],
        [("flash", {**image(repository="aidendle94/sparkrun-vllm-glm53-gb10"), **container(entrypoint="bash", command_prefix=["-lc", 'unset VLLM_PREFIX_CACHE_RETENTION_INTERVAL; exec vllm serve "$@"', "vllm"])}), ("flash", {})],
    ),
    "IMAGE_KERNELS": (
        [("big", NVFP4_BIG), ("big", {**NVFP4_BIG, **image(tag="dflash2-port2")})],
        [("big", {**NVFP4_BIG, **image(tag="nvfp4-dflash2-p2")}), ("big", {**NVFP4_BIG, **image(repository="mine/engine", tag="v1")}), ("big", {})],
    ),
    "IMAGE_FLASH": ([("big", image(repository="keys-vllm-glm53", tag="b12x-dflash2-v1")), ("big", image(repository="ghcr.io/tonyd2wild/vllm-glm53-flash"))], [("big", {}), ("flash", {})]),
    "IMAGE_743B": ([("flash", image(repository="vllm-glm52-b12x", tag="dflash2-port2"))], [("flash", {}), ("big", {})]),
    "SPEC_CORRUPTION_SM90": ([("hopper", HOPPER_DFLASH)], [("hopper", {}), ("flash", {})]),
    "GRAPHS_CAPTURE_SM90": ([("hopper", {}), ("hopper", args(max_cudagraph_capture_size=512))], [("hopper", args(max_cudagraph_capture_size=1536)), ("hopper", {"lane_max_num_seqs": 170}), ("sm120", {"lane_max_num_seqs": 512})]),
    "REPLICAS_SM90": ([("hopper", {"lane_tensor_parallel_size": 8, "lane_nodes": 8})], [("hopper", {}), ("sm120", {"lane_tensor_parallel_size": 8})]),
    "SPEC_MTP_SM120": ([("sm120", args(speculative_config=None))], [("sm120", {}), ("hopper", args(speculative_config=None))]),
    "THINKING_WALL_SM120": ([("sm120", {})], [("hopper", {}), ("sm120", args(default_chat_template_kwargs={"enable_thinking": False}))]),
    "WEIGHTS_CONFIG_OLD": ([("hopper", model(config_sha256="92ae6f37" + "0" * 56)), ("hopper", model(sha256={"config.json": "92ae6f37" + "0" * 56}))], [("hopper", model(config_sha256="a" * 64))]),
    "MEMORY_SIZES": (
        [("flash", container(memory="112 gigs")), ("flash", container(memory="112g", memory_swap="64g")), ("flash", container(memory_swap="64g")), ("flash", container(shm_size="0"))],
        [("flash", container(memory="112g", memory_swap="112g")), ("flash", container(memory="112g", memory_swap="-1")), ("flash", container(shm_size="10gb"))],
    ),
    "MEMORY_CAP": ([("flash", container(memory="128g"))], [("flash", container(memory="118g")), ("hopper", container(memory="900g"))]),
    "PORT_RANGE": ([("flash", {"lane_port": 80}), ("flash", {"lane_master_port": 40_000})], [("flash", {"lane_port": 8210, "lane_master_port": 29_513}), ("flash", {"lane_port": 61_000})]),
    "SWAPPINESS_743B": ([("big", {"lane_swappiness": 1})], [("big", {"lane_swappiness": 60}), ("flash", {})]),
    "SWAPPINESS_FLASH": ([("flash", {"lane_swappiness": 10})], [("flash", {**W4A16, "lane_swappiness": 10}), ("big", {})]),
    "PAGE_CACHE": (
        [("flash", {"lane_page_cache_policy": "off"}), ("big", {"lane_page_cache_policy": "floor"})],
        [("flash", {"lane_page_cache_policy": "floor"}), ("hopper", {"lane_page_cache_policy": "off"})],
    ),
    "COMPILE_JOBS": ([("flash", {"lane_engine_env": {"MAX_JOBS": "20"}})], [("flash", {"lane_engine_env": {"MAX_JOBS": "2"}}), ("hopper", {"lane_engine_env": {"MAX_JOBS": "20"}})]),
    "BOOT_STAGGER": ([("flash", {"lane_boot_stagger_seconds": 10})], [("flash", {"lane_boot_stagger_seconds": 30}), ("big", {})]),
    "PARSERS": (
        [("flash", args(reasoning_parser=None)), ("big", args(tool_call_parser="hermes")), ("hopper", args(enable_auto_tool_choice=None))],
        [("flash", {}), ("flash", {**args(reasoning_parser=None), "lane_unknowns": [{"what": "flags", "fill": "lane_engine_args: flags"}]})],
    ),
    "TEMPLATE_THINKING": (
        [("big", args(default_chat_template_kwargs={"enable_thinking": False}))],
        [("big", args(default_chat_template_kwargs={"enable_thinking": False}, chat_template="/extras/t.jinja")), ("big", {}), ("flash", {})],
    ),
    "TEMPLATE_IMAGES": ([("flash", {})], [("flash", args(chat_template="/extras/mm.jinja")), ("flash", args(language_model_only=True)), ("big", {})]),
    "EFFORT_VALUE": ([("big", args(default_chat_template_kwargs={"reasoning_effort": "medium"})), ("flash", args(default_chat_template_kwargs='{"reasoning_effort": "max"}'))], [("big", args(default_chat_template_kwargs={"reasoning_effort": "high"}))]),
    "EFFORT_UNSET": (
        [("hopper", args(default_chat_template_kwargs=None)), ("big", args(default_chat_template_kwargs={"reasoning_effort": None}))],
        [("hopper", {}), ("flash", args(default_chat_template_kwargs={"reasoning_effort": None}))],
    ),
    "EFFORT_CONTRADICTION": (
        [("flash", args(default_chat_template_kwargs={"reasoning_effort": None})), ("flash", args(default_chat_template_kwargs={"reasoning_effort": "high"}))],
        [("flash", {}), ("flash", args(default_chat_template_kwargs={"enable_thinking": True}))],
    ),
    "CLEAR_THINKING": ([("big", {})], [("hopper", {}), ("flash", {})]),
}  # fmt: skip


def resolve(base: str, more: Lane) -> Lane:
    more = {name: value for name, value in more.items() if name != "staged"}
    made, wrong = lane_schema.resolve({**read("sparks/traps"), **known_of(FAMILIES[base]), **BASES[base], **more}, OPTIONS, "s1")
    assert [check for check in wrong if check.status != "pass"] == []
    return made


def known_of(family: str) -> Lane:
    return {name: value for name, value in read(f"family_{family}").items() if name.startswith("lane_traps")}


def found(base: str, more: Lane, id: str) -> list[str]:
    lane = resolve(base, more)
    rules, faults = traps_rules.rules_of(lane, OPTIONS)
    assert faults == []
    views = [lane_view.View(lane), *([lane_view.View(lane, more["staged"])] if "staged" in more else [])]
    return [text for view in views for rule in rules if rule.id == id for text in rule.find(view)]


TRIPS = [(id, base, more) for id, (trips, _) in CASES.items() for base, more in trips]
MISSES = [(id, base, more) for id, (_, misses) in CASES.items() for base, more in misses]


def test_every_rule_has_a_lane_that_trips_it_and_one_that_nearly_does() -> None:
    assert {f"TRAP.{id}" for id in CASES} == {rule.id for rule in ALL}
    assert all(trips and misses for trips, misses in CASES.values())


@pytest.mark.parametrize(("id", "base", "more"), TRIPS, ids=[f"{id}-{n}" for n, (id, _, _) in enumerate(TRIPS)])
def test_a_lane_that_walks_into_it(id: str, base: str, more: Lane) -> None:
    texts = found(base, more, f"TRAP.{id}")
    assert texts
    assert all(text == text.strip() and "\n" not in text for text in texts)


@pytest.mark.parametrize(("id", "base", "more"), MISSES, ids=[f"{id}-{n}" for n, (id, _, _) in enumerate(MISSES)])
def test_a_lane_that_does_not(id: str, base: str, more: Lane) -> None:
    assert found(base, more, f"TRAP.{id}") == []


@pytest.mark.parametrize("base", BASES)
def test_a_good_lane_walks_into_none(base: str) -> None:
    lane = resolve(base, {})
    count = len(traps_rules.rules_of(lane, OPTIONS)[0])
    assert count > len(traps_rules.RULES)
    assert traps_rules.trap_checks(lane, "s1", OPTIONS) == [Check("LANE.TRAPS", "s1", "pass", f"none of {count} traps")]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_a_rule_says_what_why_and_who(rule: traps_frame.Rule) -> None:
    assert rule.what.endswith(".")
    assert rule.why.endswith(".")
    assert rule.remedy.endswith(".")
    assert rule.want
    assert not rule.want.endswith(".")
    assert any(name in rule.source for name in (*SOURCES, "Linux")), rule.source
    assert rule.severity in (traps_frame.REFUSE, traps_frame.ADVISE, traps_frame.NOTE)


# --- what only a Spark shows -----------------------------------------------------------------------------------

NO_SCALES = quantized("a.*.weight", quant_algo="NVFP4")["staged"]


def test_what_a_spark_holds_is_judged_there_and_what_the_lane_says_is_not_said_again() -> None:
    lane = resolve("flash", model(repo="LibertAIDAI/GLM-5.3-Flash-NVFP4"))
    assert [check.id for check in traps_rules.trap_checks(lane, "s1", OPTIONS)] == ["TRAP.WEIGHTS_MODELOPT"]
    assert traps_rules.measured_checks(lane, "s1", OPTIONS, None, {}) == []
    (check,) = traps_rules.measured_checks(lane, "s1", OPTIONS, NO_SCALES, {})
    assert (check.id, check.host, check.status) == ("TRAP.NVFP4_INPUT_SCALE", "s1", "fail")
    assert "W4A16_NVFP4" in check.remedy
    accepted = {**lane, "lane_accept": {"TRAP.NVFP4_INPUT_SCALE": "Marlin reads none"}}
    (check,) = traps_rules.measured_checks(accepted, "s1", OPTIONS, NO_SCALES, {})
    assert (check.status, check.found.endswith("Accepted: Marlin reads none")) == ("warn", True)


def test_versions_that_an_image_really_has_walk_into_traps_that_the_lane_does_not_state() -> None:
    lane = resolve("flash", image(pins={"nccl": None, "flashinfer": None}))
    assert traps_rules.trap_checks(lane, "s1", OPTIONS)[0].id == "LANE.TRAPS"
    found = traps_rules.measured_checks(
        lane, "s1", OPTIONS, None, {"nccl": "2.29.7", "flashinfer": "0.6.17", "cutlass_dsl": "4.7.0, 4.6.2"}
    )
    assert {check.id for check in found} == {"TRAP.PIN_NCCL", "TRAP.PIN_FLASHINFER"}, (
        "what the lane states is IMAGE.PINS' to compare"
    )
    assert traps_rules.measured_checks(lane, "s1", OPTIONS, None, {"nccl": "2.30.7", "flashinfer": "0.6.18"}) == []


# --- exceptions ------------------------------------------------------------------------------------------------


def test_an_accepted_refusal_becomes_a_warning_that_shows_the_reason() -> None:
    more = {**spec(num_speculative_tokens=5), "lane_accept": {"TRAP.SPEC_TOKENS": "five beat seven\nat four streams"}}
    (check,) = traps_rules.trap_checks(resolve("flash", more), "s1", OPTIONS)
    assert (check.id, check.status) == ("TRAP.SPEC_TOKENS", "warn")
    assert check.found.endswith("Accepted: five beat seven at four streams")


def test_an_accepted_warning_is_skipped_with_its_reason() -> None:
    more = {"lane_swappiness": 10, "lane_accept": {"TRAP.SWAPPINESS_FLASH": "measured"}}
    (check,) = traps_rules.trap_checks(resolve("flash", more), "s1", OPTIONS)
    assert (check.status, check.found) == ("skip", "lane_swappiness 10. Accepted: measured")


@pytest.mark.parametrize(
    ("accept", "words"),
    [
        ({"TRAP.SPEC_TOKEN": "x"}, "Did you mean TRAP.SPEC_TOKENS?"),
        ({"LANE.WORLD": "x"}, "no trap"),
        ({"TRAP.SPEC_TOKENS": ""}, "no reason"),
        ({"TRAP.SPEC_TOKENS": " "}, "no reason"),
    ],
)
def test_an_exception_names_a_trap_and_a_reason(accept: Lane, words: str) -> None:
    (check,) = traps_rules.trap_checks(resolve("flash", {"lane_accept": accept}), "s1", OPTIONS)
    assert (check.id, check.status) == ("LANE.ACCEPT", "fail")
    assert words in f"{check.found} {check.remedy}"


def test_notes_are_no_checks() -> None:
    assert any("TRAP.TEMPLATE_IMAGES" in note for note in traps_rules.notes(resolve("flash", {}), OPTIONS))


# --- what rules look at ----------------------------------------------------------------------------------------


def test_dotted_flags_and_shorthands_are_read_as_the_json_that_they_belong_to() -> None:
    view = lane_view.View(
        resolve(
            "flash",
            {
                "lane_engine_args": {
                    "--compilation-config.cudagraph_mode": "full",
                    "--compilation-config.pass_config.fuse": True,
                    "--spec-method": "dflash",
                    "--speculative_config.num_speculative_tokens": 7,
                }
            },
        )
    )
    assert view.graph_mode == "FULL"
    assert view.args["--compilation-config"]["pass_config"] == {"fuse": True}
    assert view.speculation == {"method": "dflash", "num_speculative_tokens": 7}


def test_flags_of_the_engine() -> None:
    assert len(engine_flags.names()) > 350
    for flag in (
        *engine_flags.FLAT_FLAGS,
        *engine_flags.HEAD_FLAGS,
        "--kv-cache-memory",
        "--no-enable-prefix-caching",
        "--headless",
    ):
        assert engine_flags.known(flag), flag
    assert engine_flags.spellings("0.1.dev20051+g487ecf187") == {"--kv-cache-memory-bytes": "--kv-cache-memory"}
    assert engine_flags.spellings("0.1.dev200512") == {}
    assert engine_flags.spellings("") == {}
