# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The flags of `vllm serve`: which exist, and how an engine spells those that changed.

The names are those of vLLM 0.32.0's own command line. Every flag of the recorded launchers is
among them, but for the spellings below, so one list serves the older engines too.
"""

from __future__ import annotations

import functools

# [no-] marks a switch, which can be turned off by --no-NAME.
_NAMES = """
additional-config aggregate-engine-logging all2all-backend [no-]allow-credentials [no-]allow-deprecated-quantization
allowed-headers allowed-local-media-path allowed-media-domains allowed-methods allowed-origins
anthropic-disabled-thinking-effort api-key api-server-count [no-]async-scheduling attention-backend attention-config
aux-output-config block-size chat-template chat-template-content-format code-revision cohere-format
[no-]cohere-is-reasoning-model collect-detailed-traces compilation-config config config-format convert
cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params cudagraph-capture-sizes
[no-]cudagraph-metrics custom-histogram-buckets data-parallel-address data-parallel-backend [no-]data-parallel-external-lb
[no-]data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port data-parallel-size
data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size [no-]dcp-q-replicate decode-context-parallel-size
default-chat-template-kwargs default-mm-loras device-ids device-memory-utilization diffusion-config
disable-access-log-for-endpoints [no-]disable-cascade-attn [no-]disable-chunked-mm-input [no-]disable-custom-all-reduce
[no-]disable-fastapi-docs [no-]disable-hybrid-kv-cache-manager disable-log-stats [no-]disable-nccl-for-dp-synchronization
[no-]disable-sliding-window [no-]disable-uvicorn-access-log distributed-executor-backend distributed-timeout-seconds
download-dir dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size [no-]enable-auto-tool-choice
[no-]enable-batch-sharded-sampling [no-]enable-chunked-prefill [no-]enable-cumem-allocator [no-]enable-dbo
[no-]enable-elastic-ep [no-]enable-ep-weight-filter [no-]enable-eplb [no-]enable-expert-parallel [no-]enable-fault-tolerance
[no-]enable-flash-late-interaction [no-]enable-flashinfer-autotune [no-]enable-force-include-usage [no-]enable-hc-sp
[no-]enable-layerwise-nvtx-tracing [no-]enable-log-deltas [no-]enable-log-outputs [no-]enable-log-requests
[no-]enable-logging-iteration-details [no-]enable-lora [no-]enable-mamba-cache-stochastic-rounding
[no-]enable-mamba-shared-prefix-checkpoint [no-]enable-mfu-metrics [no-]enable-mixed-moe-lora-format [no-]enable-mm-embeds
[no-]enable-moe-shared-loras [no-]enable-nccl-comm-suspend [no-]enable-offline-docs [no-]enable-per-request-metrics
[no-]enable-prefix-caching [no-]enable-prompt-embeds [no-]enable-prompt-tokens-details [no-]enable-request-id-headers
[no-]enable-return-routed-experts [no-]enable-scale-out [no-]enable-server-load-tracking [no-]enable-shm-tensor-arena
[no-]enable-sleep-mode [no-]enable-ssl-refresh [no-]enable-tokenizer-info-endpoint [no-]enable-tower-connector-lora
[no-]enable-trace-replay [no-]enforce-eager engram-config eplb-config [no-]exclude-tools-when-tool-choice-none
expert-placement-strategy [no-]fail-on-environ-validation fault-tolerance-config fingerprint-mode fingerprint-value
[no-]fully-sharded-loras gdn-prefill-backend generation-config gpu-memory-utilization grpc grpc-port h11-max-header-count
h11-max-incomplete-event-size headless help hf-config-path hf-overrides hf-token host ignore-patterns
[no-]interleave-mm-strings io-processor-plugin ir-op-priority jit-monitor-mode [no-]jit-monitor-verbose kda-decode-backend
kda-prefill-backend kernel-config kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes [no-]kv-cache-metrics
kv-cache-metrics-sample kv-events-config kv-offloading-backend kv-offloading-size [no-]kv-sharing-fast-prefill
kv-transfer-config [no-]language-model-only limit-mm-per-prompt linear-backend load-format log-config-file
[no-]log-error-stack log-level logging-config logits-processors logprobs-mode long-prefill-token-threshold
[no-]long-prefill-token-threshold-adaptive lora-dtype lora-modules lora-target-modules mamba-backend mamba-block-size
mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port
max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-lora-cls-labels max-lora-rank max-loras max-model-len
max-num-active-seqs max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs
max-parallel-loading-workers media-io-kwargs middleware [no-]mm-device-do-normalize mm-encoder-attn-backend
mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path
[no-]mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-override [no-]numa-bind numa-bind-cpus numa-bind-nodes
offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step optimization-level
otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics performance-mode pipeline-parallel-size
pooler-config port prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval
prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location quantization quantization-config
[no-]ray-workers-use-nsight reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers
replayssm-buffer-len response-role [no-]return-sampling-mask [no-]return-tokens-as-token-ids revision root-path runner
safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
[no-]scheduler-reserve-full-isl scheduling-policy seed served-model-name show-hidden-metrics-for-version shutdown-timeout
[no-]skip-mm-profiling [no-]skip-tokenizer-init [no-]sleep-mode-offload-cudagraph sleep-preserve-parameter-names
sparse-indexer-topk-backend spec-method spec-model spec-tokens [no-]specialize-active-lora speculative-config
sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
structured-outputs-config [no-]swa-bounded-replay tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision
[no-]tokens-only tool-call-parser tool-parser-plugin tool-server tool-strict-level [no-]trust-remote-code
[no-]trust-request-chat-template [no-]trust-request-mm-kwargs ubatch-size uds [no-]use-fp64-gumbel [no-]use-replayssm
[no-]use-tqdm-on-load uvicorn-log-level video-pruning-method video-pruning-rate watermark watermark-config
weight-transfer-config worker-cls worker-extension-cls
"""

# Engine version (its beginning) → flag → its own spelling.
_SPELLINGS = {
    # The Flash fork of day 0, as in images sm121-v8 to -v12 (Flash 2x notes).
    "0.1.dev20051": {"--kv-cache-memory-bytes": "--kv-cache-memory"},
    # The engine of the 743B images (743B launchers).
    "0.23.1rc1.dev190": {"--kv-cache-memory-bytes": "--kv-cache-memory-bytes"},
    # Upstream builds of 2026-09 (SM121 image repository) and the release that the sandbox runs.
    "0.28": {"--kv-cache-memory-bytes": "--kv-cache-memory-bytes"},
    "0.32": {"--kv-cache-memory-bytes": "--kv-cache-memory-bytes"},
}
# The flags that people override, each with the one variable that spells it.
HEAD_FLAGS = {"--host": "lane_api_host", "--port": "lane_port"}
FLAT_FLAGS = {
    "--served-model-name": "lane_served_model_name",
    "--tensor-parallel-size": "lane_tensor_parallel_size",
    "--pipeline-parallel-size": "lane_pipeline_parallel_size",
    "--max-model-len": "lane_max_model_len",
    "--max-num-seqs": "lane_max_num_seqs",
    "--max-num-batched-tokens": "lane_max_num_batched_tokens",
    "--gpu-memory-utilization": "lane_gpu_memory_utilization",
    "--kv-cache-memory-bytes": "lane_kv_cache_memory_bytes",
    "--kv-cache-dtype": "lane_kv_cache_dtype",
}
# Other spellings that engines know for them.
SAME_FLAG = {"--kv-cache-memory": "--kv-cache-memory-bytes"}
# Flags that engines had once, or that people write out of habit: what to write instead. Names of vLLM's own deprecations and releases.
GONE = {
    "--disable-log-requests": "remove it: requests are logged only with --enable-log-requests",
    "--enable-reasoning": "--reasoning-parser alone",
    "--guided-decoding-backend": "--structured-outputs-config: {backend: NAME}",
    "--guided-decoding-disable-fallback": "remove it: a backend that is named has no fallback",
    "--guided-decoding-disable-any-whitespace": "--structured-outputs-config: {disable_any_whitespace: true}",
    "--guided-decoding-disable-additional-properties": "--structured-outputs-config: {disable_additional_properties: true}",
    "--speculative-model": "--speculative-config: {model: PATH}",
    "--num-speculative-tokens": "--speculative-config: {num_speculative_tokens: N}",
    "--speculative-draft-tensor-parallel-size": "--speculative-config: {draft_tensor_parallel_size: N}",
    "--ngram-prompt-lookup-max": "--speculative-config: {prompt_lookup_max: N}",
    "--ngram-prompt-lookup-min": "--speculative-config: {prompt_lookup_min: N}",
    "--task": "--runner and --convert",
    "--override-pooler-config": "--pooler-config",
    "--rope-scaling": "--hf-overrides: {rope_parameters: {…}}",
    "--rope-theta": "--hf-overrides: {rope_parameters: {rope_theta: N}}",
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    "--disable-mm-preprocessor-cache": "--mm-processor-cache-gb: 0",
    "--enable-multimodal-encoder-data-parallel": "--mm-encoder-tp-mode: data",
    "--num-redundant-experts": "--eplb-config: {num_redundant_experts: N}",
    "--eplb-window-size": "--eplb-config: {window_size: N}",
    "--eplb-step-interval": "--eplb-config: {step_interval: N}",
    "--eplb-log-balancedness": "--eplb-config: {log_balancedness: true}",
    "--worker-use-ray": "--distributed-executor-backend",
    "--engine-use-ray": "--distributed-executor-backend",
    "--swap-space": "remove it: this engine recomputes and swaps no cache",
    "--num-scheduler-steps": "remove it: --async-scheduling took its place",
    "--use-v2-block-manager": "remove it",
    "--num-lookahead-slots": "remove it: it follows from --speculative-config",
    "--preemption-mode": "remove it: this engine recomputes",
    "--calculate-kv-scales": "remove it: scales of an fp8 cache come from the checkpoint",
    "--device": "remove it: the image decides",
}
# What follows from the deployment, and where it comes from.
DERIVED_FLAGS = {
    "--nnodes": "it is lane_nodes",
    "--node-rank": "it is the place of the host in its deployment's group",
    "--master-addr": "it is the fabric address of rank 0",
    "--master-port": "it is lane_master_port",
    "--headless": "each rank but the first has it",
    "--model": "it is lane_model.container_path",
    "--api-key": "a secret: name VLLM_API_KEY in lane_secret_env",
    "--hf-token": "a secret, and staging needs it, not the engine",
    "--data-parallel-size": "ranks of one deployment serve one replica; a second replica is a second deployment",
}
# Flags without a value that no --no-NAME turns off, those of older engines too.
_BARE = """
aggregate-engine-logging calculate-kv-scales disable-log-requests disable-log-stats disable-mm-preprocessor-cache enable-reasoning
engine-use-ray grpc guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
guided-decoding-disable-fallback headless help use-v2-block-manager worker-use-ray
"""
# Short spellings of the engine, as its own parser knows them.
SHORT = {
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
}


@functools.cache
def names() -> frozenset[str]:
    """Every known flag, switches in both forms."""
    found = set()
    for word in _NAMES.split():
        name = word.removeprefix("[no-]")
        found.add(f"--{name}")
        if name != word:
            found.add(f"--no-{name}")
    return frozenset(found)


@functools.cache
def switches() -> frozenset[str]:
    """The flags that take no value."""
    both = {word.removeprefix("[no-]") for word in _NAMES.split() if word.startswith("[no-]")}
    return frozenset(f"--{name}" for name in (*both, *(f"no-{name}" for name in both), *_BARE.split()))


def known(flag: str) -> bool:
    """An engine has the flag, under its usual name or one of its own."""
    return flag in names() or any(flag in own.values() for own in _SPELLINGS.values())


def successor(flag: str) -> str:
    """What to write instead of a flag that is gone, empty where nobody knows."""
    return GONE.get(base_flag(flag), "")


def spellings(version: str) -> dict[str, str]:
    """How the engine of this version spells flags that have several spellings; empty where that is not known."""
    for start, own in _SPELLINGS.items():
        if version == start or version.startswith((f"{start}.", f"{start}+")):
            return own
    return {}


def canonical_flag(flag: str) -> str:
    """One spelling for the ways in which the engine accepts a flag (`--max_model_len`, `--kv-cache-memory`)."""
    name = flag.replace("_", "-")
    return SAME_FLAG.get(name, name)


def base_flag(flag: str) -> str:
    """The one spelling of the flag to which a nested option (`--speculative-config.method`) belongs."""
    return canonical_flag(flag.partition(".")[0])
