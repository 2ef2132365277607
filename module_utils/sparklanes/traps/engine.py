# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the engine: its flags and how they are spelled, graphs, kernels, loaders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ansible.module_utils.sparklanes.common.suggest import nearest
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.engine.flags import canonical_flag
from ansible.module_utils.sparklanes.lane.view import JSON_FLAGS, View, keys_within
from ansible.module_utils.sparklanes.traps.frame import ADVISE, NOTE, REFUSE, Rules

RULES = Rules()

# The 743B kernels that run on GB10, and the switches of the engine that make it use them.
KERNELS = ("sm12x_mqa.py", "b12x_sparse_helpers.py", "sparse_mla_kernels.py")
SWITCHES = ("GLM52_BIND_HOST_TRITON", "GLM52_MQA_LOGITS_TRITON", "GLM52_PAGED_MQA_TRITON", "GLM52_B12X_MLA")


@RULES.add(
    "FLAG_UNKNOWN",
    REFUSE,
    want="a flag of `vllm serve`",
    remedy="Correct the flag. If your engine has it all the same, accept the trap with its version.",
    source="vLLM 0.32.0; the recorded launchers",
)
def unknown(view: View) -> Iterator[str]:
    """Every flag is one that an engine knows.

    The command line of each rank is refused, after the old ranks were stopped.
    """
    for flag in view.lane["lane_engine_args"]:
        name = canonical_flag(flag.split(".")[0])
        if not engine_flags.known(name):
            near = nearest(name, engine_flags.names())
            yield f"no engine that we know has {flag}{f'; did you mean {near}?' if near else ''}"


@RULES.add(
    "FLAG_SPELLING",
    REFUSE,
    want="the spelling of this engine",
    remedy="Say it in lane_flag_names, as --kv-cache-memory-bytes: --kv-cache-memory.",
    source="743B launchers; Flash 2x notes; SM121 image repository",
)
def spelling(view: View) -> Iterator[str]:
    """A flag is spelled as the image's engine spells it.

    The Flash fork of day 0 knows --kv-cache-memory, the 743B engine and newer ones --kv-cache-memory-bytes.
    """
    rendered = {canonical_flag(flag): flag for flag in view.args} | {
        flag: str(own) for flag, own in view.lane["lane_flag_names"].items()
    }
    for flag, own in engine_flags.spellings(str(view.lane["lane_image"]["vllm"] or "")).items():
        if flag in view.args and rendered.get(flag, flag) != own:
            yield f"{rendered.get(flag, flag)} for {view.lane['lane_image']['vllm']}, which spells it {own}"


@RULES.add(
    "FLAG_JSON",
    REFUSE,
    want="a mapping, or text that is JSON",
    remedy='Write it as a YAML mapping, as --speculative-config: {method: mtp, num_speculative_tokens: 2}. Inside JSON quotes are ".',
    source="743B README: notes on single-quoted JSON; FP8 TP4 recipe",
)
def quoted(view: View) -> Iterator[str]:
    """Flags that take JSON get JSON.

    Quotes that a shell would have removed reach the engine here, and its parser ends: no shell stands between.
    """
    for flag, value in view.lane["lane_engine_args"].items():
        if canonical_flag(flag) in JSON_FLAGS and not _is_json(value):
            yield f"{flag} is {str(value)!r:.60}"


def _is_json(value: Any) -> bool:
    if isinstance(value, str):
        try:
            return isinstance(json.loads(value), dict)
        except (ValueError, RecursionError):
            return False
    return isinstance(value, dict)


@RULES.add(
    "FLAG_SHELL",
    REFUSE,
    want="the value itself",
    remedy="Write the value. What differs per Spark comes from the fabric: lane_fabric_env.",
    source="FP8 TP4 recipe: its variables stand inside single quotes",
)
def shell(view: View) -> Iterator[str]:
    """No value holds a variable of a shell or a placeholder.

    Nothing expands it: the engine would look for a model called $MODEL_PATH.
    """
    for where in ("lane_engine_args", "lane_engine_env"):
        for name, value in view.lane[where].items():
            for text in _texts(value):
                if re.search(r"\$\{?[A-Za-z_]|\$\(|`|^<[a-z][^<>]*>$", text):
                    yield f"{name} in {where} is {text!r:.60}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


@RULES.add(
    "BLOCK_SIZE",
    REFUSE,
    want="--block-size: 2304",
    remedy="Set --block-size: 2304 in lane_engine_args.",
    source="Flash 2x README: serve-flag landmines; cfontes TP4 README",
)
def block_size(view: View) -> Iterator[str]:
    """On GB10 the block size of Flash is 2304.

    The aligner's own choice tiles the pool by 32 entries; the paged MQA kernel of this GPU takes pages of 64 only.
    2304 is a multiple of that and of the MLA alignment.
    """
    if view.spark and view.flash and view.number("--block-size") != 2304 and not view.unknown("lane_engine_args"):
        yield f"--block-size is {view.args.get('--block-size', 'left to the engine')}"


@RULES.add(
    "KPOOL_OVERLAY",
    REFUSE,
    want="an overlay over sparse_attn_indexer_kpool.py, or an image that holds the fix",
    remedy="Mount the fixed sparse_attn_indexer_kpool.py (hash in lane flash_nvfp4_dflash2_tp2), or use an image with -topkfix.",
    source="Flash 2x README: quickstart, step 3",
)
def kpool(view: View) -> Iterator[str]:
    """On GB10 the published Flash images need the fixed top-k of the indexer.

    Their own kernel kills the engine on any decode beyond about 24,000 tokens of context.
    """
    published = re.search(r"(tonyd2wild|radixark)/vllm-glm53-flash|vllm-glm53-flash-base", view.image)
    if view.spark and published and "topkfix" not in view.image and not view.overlay("sparse_attn_indexer_kpool.py"):
        yield f"{view.image.split()[0]} without that overlay"


@RULES.add(
    "KERNEL_SWITCHES",
    REFUSE,
    want=f"overlays {', '.join(KERNELS)} with {', '.join(SWITCHES)}",
    remedy="Take the overlays and the environment of family glm53_743b together.",
    source="743B README: DFlash2, the real blocker; serving",
)
def switches(view: View) -> Iterator[str]:
    """On GB10 the 743B model has its kernels and their GLM52_* switches, both or it does not run.

    Stock kernels fault there. With the kernels but not the switches, or the other way round, the answer to every prompt is
    the same soup of digits, or the GPU spins at 10 W.
    """
    if not view.big or not view.spark:
        return
    lacking = [name for name in KERNELS if not view.overlay(name)]
    if lacking:
        yield f"no overlay over {', '.join(lacking)}"
    off = [name for name in SWITCHES if str(view.env.get(name, "0")) != "1"]
    if off:
        yield f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} not 1"


@RULES.add(
    "KERNEL_FALLBACK_PLACE",
    NOTE,
    want="backends/mla/sm12x_deep_gemm_fallbacks.py",
    remedy="Mount it where the newer launchers do.",
    source="743B launchers: bare, MTP and DCP differ",
)
def fallbacks(view: View) -> Iterator[str]:
    """The DeepGEMM fallbacks of the 743B kernels lie where the image imports them.

    Older launchers mount the file below ops/deepseek_v4_ops, where nothing reads it.
    """
    if view.big and view.overlay("ops/deepseek_v4_ops/sm12x_deep_gemm_fallbacks.py"):
        yield "sm12x_deep_gemm_fallbacks.py is mounted below ops/deepseek_v4_ops; the image imports it from backends/mla"


@RULES.add(
    "GRAPHS_SIZES",
    REFUSE,
    want="cudagraph_capture_sizes: [6, 12, 18, 24, 30, 36]",
    remedy="Add cudagraph_capture_sizes to --compilation-config.",
    source="743B launchers: RESULTS-nvfp4-kv. The DCP stack runs FULL without sizes",
)
def capture_sizes(view: View) -> Iterator[str]:
    """The NVFP4 lanes without the DCP patch set pin the sizes of their CUDA graphs.

    Unpinned FULL ended the engine on the first concurrent chat request (KeyError: chatcmpl-…), while plain completions
    went on.
    """
    sizes = view.json("--compilation-config").get("cudagraph_capture_sizes") or view.args.get("--cudagraph-capture-sizes")
    if view.big and view.kv_dtype == "nvfp4_ds_mla" and view.dcp is None and view.graph_mode == "FULL" and not sizes:
        yield "cudagraph_mode FULL without cudagraph_capture_sizes on an NVFP4 KV cache"


@RULES.add(
    "GRAPHS_BARE",
    REFUSE,
    want="cudagraph_mode: NONE",
    remedy="Set --compilation-config: {cudagraph_mode: NONE}, as the published numbers of this stage were made.",
    source="743B README: notes, bare mode is not the safe one",
)
def bare(view: View) -> Iterator[str]:
    """The 743B model without speculation has no CUDA graphs.

    Its attention backend turns FULL into FULL_AND_PIECEWISE, two sets of graphs, whose memory took a node down. With
    uniform batches, that is with drafts, one set is captured.
    """
    if view.big and view.spark and not view.speculation and view.graph_mode != "NONE":
        yield f"cudagraph_mode {view.graph_mode or 'of the engine'} without --speculative-config"


@RULES.add(
    "GRAPHS_TOPKFIX",
    REFUSE,
    want="--enforce-eager",
    remedy="Set --enforce-eager: true and no --compilation-config.",
    source="Flash 4x notes",
)
def topkfix(view: View) -> Iterator[str]:
    """The image with the top-k fix baked in runs eagerly.

    With FULL_AND_PIECEWISE all workers freeze at "Breakable CUDA graph enabled", at 96 % and 18 W.
    """
    if view.spark and view.flash and "topkfix" in view.image and view.graph_mode != "NONE":
        yield f"cudagraph_mode {view.graph_mode or 'of the engine'} on {view.image.split()[0]}"


@RULES.add(
    "ATTENTION_SM90",
    REFUSE,
    want="--attention-backend: FLASH_ATTN_MLA_SPARSE",
    remedy="Add --attention-backend: FLASH_ATTN_MLA_SPARSE to lane_engine_args.",
    source="W4A16 card: serving on SM90, upstream nightly",
)
def attention_sm90(view: View) -> Iterator[str]:
    """On SM90 an upstream build names its attention backend.

    Its own choice, FLASHINFER_MLA_SPARSE_SM90, accesses illegal memory from prompts of about 131,000 tokens on.
    """
    upstream = "nightly" in view.image or (view.version is not None and view.version >= (0, 28))
    long = not view.context or view.context >= 131_000
    if (
        view.arch == "sm_90"
        and view.flash
        and upstream
        and long
        and view.args.get("--attention-backend") != "FLASH_ATTN_MLA_SPARSE"
    ):
        yield f"{view.image.strip()} with attention backend {view.args.get('--attention-backend', 'of the engine')}"


@RULES.add(
    "ATTENTION_SM120",
    REFUSE,
    want="the SM90 backend for MLA without positions, which the images extend to this GPU",
    remedy="Remove --attention-backend.",
    source="FP8 TP4 recipe: why the obvious backend is the wrong one",
)
def attention_sm120(view: View) -> Iterator[str]:
    """Flash never uses the backend FLASHINFER_MLA_SPARSE_SM120.

    It holds 64 positional dimensions, of which the model has none. With faked shapes it compiles, loads and wedges the GPU.
    """
    if view.flash and view.args.get("--attention-backend") == "FLASHINFER_MLA_SPARSE_SM120":
        yield "--attention-backend FLASHINFER_MLA_SPARSE_SM120"
    if view.flash and any(key == "qk_rope_head_dim" for key, _ in keys_within(view.json("--hf-overrides"))):
        yield "--hf-overrides fakes qk_rope_head_dim"


@RULES.add(
    "LOADER_INSTANTTENSOR",
    REFUSE,
    want="another --load-format",
    remedy="Remove --load-format: instanttensor.",
    source="Flash 2x README; cfontes TP4 README; eugr/spark-vllm-docker 377",
)
def instanttensor(view: View) -> Iterator[str]:
    """InstantTensor loads on one node only.

    On several, a rank dies without a word, even right after the start-up is complete.
    """
    if view.nodes > 1 and str(view.args.get("--load-format", "")).lower() == "instanttensor":
        yield f"--load-format instanttensor on {view.nodes} nodes"


@RULES.add(
    "LOADER_FASTSAFETENSORS",
    ADVISE,
    want="another --load-format",
    remedy="Remove --load-format: fastsafetensors.",
    source="field reports: eugr/spark-vllm-docker 29; sparkring 173",
)
def fastsafetensors(view: View) -> Iterator[str]:
    """fastsafetensors is not proved on several Sparks.

    It hung in clusters, and stalls where memory is fragmented.
    """
    if view.spark and view.nodes > 1 and str(view.args.get("--load-format", "")).lower() == "fastsafetensors":
        yield f"--load-format fastsafetensors on {view.nodes} nodes"


@RULES.add(
    "MOE_TUNING",
    ADVISE,
    want="no tuned configs, or such for every shape",
    remedy="Remove the tuned configs, or make them for prefill and all batch sizes too.",
    source="cfontes TP4 README: learnings",
)
def moe_tuning(view: View) -> Iterator[str]:
    """MoE kernels are tuned for every shape or for none.

    A partial set snaps the other shapes to wrong configs: 10 % slower than none.
    """
    mounts = [item["target"] for item in view.lane["lane_overlays"]] + [
        item["target"] for item in view.lane["lane_container"]["mounts"]
    ]
    if "VLLM_TUNED_CONFIG_FOLDER" in view.env:
        yield "VLLM_TUNED_CONFIG_FOLDER is set"
    for target in mounts:
        if "fused_moe/configs" in target:
            yield f"{target} is mounted"


@RULES.add(
    "CHUNKED_PREFILL",
    NOTE,
    want="one change at a time",
    remedy="If fewer drafts are accepted than expected, remove --enable-chunked-prefill first.",
    source="cfontes TP4 README: what did not work. Against it: FP8 TP4 recipe uses it",
)
def chunked_prefill(view: View) -> Iterator[str]:
    """Chunked prefill is suspected of feeding the drafter partial context.

    A lane with it, a pinned cache and template arguments accepted 25 % less; which of them it was is not known.
    """
    if view.flash and view.dflash and view.has("--enable-chunked-prefill"):
        yield "--enable-chunked-prefill beside a DFlash drafter: it may cost acceptance"


@RULES.add(
    "PREFIX_CACHE_HOPPER",
    NOTE,
    want="--no-enable-prefix-caching",
    remedy="Set --no-enable-prefix-caching: true where prompts share nothing.",
    source="W4A16 card: serving on SM90",
)
def prefix_hopper(view: View) -> Iterator[str]:
    """On Hopper prefix caching costs Flash 2 to 5 %.

    Measured on prompts that share nothing.
    """
    if view.arch == "sm_90" and view.flash and not view.has("--no-enable-prefix-caching"):
        yield "prefix caching is on: 2 to 5 % slower on prompts that share nothing"


@RULES.add(
    "PREFIX_CACHE_V11",
    ADVISE,
    want="an image with the repair of the drafter's group",
    remedy="Remove --enable-prefix-caching, or rebuild with patch_prefix_cache_draft_group.",
    source="Flash 2x notes: issues 13 and 18",
)
def prefix_v11(view: View) -> Iterator[str]:
    """The published v11 image has no repaired prefix cache.

    It was built on 2026-08-28, before the patch that lets prefix caching and the drafter's KV group go together.
    """
    if view.dflash and view.has("--enable-prefix-caching") and re.search(r"sm121-v11-dflash2(?![\w-])", view.image):
        yield f"--enable-prefix-caching on {view.image.split()[0]}"


@RULES.add(
    "PIPELINE",
    ADVISE,
    want="lane_pipeline_parallel_size: 1",
    remedy="Use tensor parallelism over all Sparks.",
    source="vLLM 0.32.0, two nodes on CPUs",
)
def pipeline(view: View) -> Iterator[str]:
    """Ranks are parallel by tensor.

    With a pipeline over two nodes the engine booted, was healthy, and answered every request with 500.
    """
    if view.nodes > 1 and view.lane["lane_pipeline_parallel_size"] > 1:
        yield f"lane_pipeline_parallel_size {view.lane['lane_pipeline_parallel_size']} over {view.nodes} nodes"
