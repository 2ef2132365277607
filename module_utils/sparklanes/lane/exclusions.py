# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Flags that exclude each other, or that need another one: what the engine refuses once a rank starts, after the old one was stopped.

From the checks of its arguments in vLLM 0.32.0 (`cli_args`, `arg_utils`, `config/*.py`); the last three are of this project: a launch
asks the API by http on lane_port. What an engine only checks against the model's config is not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ansible.module_utils.sparklanes.lane.partial import apart
from ansible.module_utils.sparklanes.lane.view import View

# Found, expected, remedy.
Exclusion = tuple[str, str, str]

# Flag, the flag that it needs.
NEEDS = (
    ("--enable-auto-tool-choice", "--tool-call-parser"),
    ("--enable-log-outputs", "--enable-log-requests"),
    ("--numa-bind-nodes", "--numa-bind"),
    ("--numa-bind-cpus", "--numa-bind"),
    ("--enable-eplb", "--enable-expert-parallel"),
    ("--enable-elastic-ep", "--enable-eplb"),
)
# Flags of which only one may be there, with the reason.
APART = (
    ("--enable-per-request-metrics", "--disable-log-stats", "the metrics of a request are made from these statistics"),
    ("--enable-return-routed-experts", "--no-enable-prefix-caching", "routed experts need the prefix cache"),
)
# Executors that the engine takes with several nodes; its others stay within one.
EXECUTORS = ("mp", "uni", "external_launcher")
# Methods of speculation that plan a step before the last one ended.
ASYNC_UNFIT = ("ngram", "medusa", "mlp_speculator", "suffix")


def exclusions(view: View) -> list[Exclusion]:
    """What in this lane excludes something else."""
    return apart((_pairs, _world, _numbers, _speculation, _json, _api), view)


def _given(view: View, flag: str) -> bool:
    return view.args.get(flag) not in (None, False, "", [])


def _pairs(view: View) -> Iterator[Exclusion]:
    for flag, needed in NEEDS:
        if _given(view, flag) and not _given(view, needed):
            yield (
                f"{flag} without {needed}",
                f"both, or neither: the engine refuses {flag} alone",
                f"Add {needed}, or remove {flag}.",
            )
    for one, other, why in APART:
        if _given(view, one) and _given(view, other):
            yield f"{one} beside {other}", f"one of them: {why}", f"Set {one} or {other} to null."
    if _given(view, "--enable-mamba-cache-stochastic-rounding") and view.args.get("--mamba-ssm-cache-dtype") != "float16":
        found = f"--enable-mamba-cache-stochastic-rounding with --mamba-ssm-cache-dtype {view.args.get('--mamba-ssm-cache-dtype') or 'auto'}"
        yield found, "--mamba-ssm-cache-dtype float16", "Add it, or remove the rounding."


def _world(view: View) -> Iterator[Exclusion]:
    lane = view.lane
    nodes, ranks = lane["lane_nodes"] or 1, (lane["lane_nodes"] or 1) * lane["lane_gpus_per_node"]
    backend = str(view.args.get("--distributed-executor-backend") or "mp")
    if nodes > 1 and backend not in EXECUTORS:
        found = f"--distributed-executor-backend {backend} on {nodes} nodes"
        yield (
            found,
            "mp: ranks find each other by --nnodes",
            "Write --distributed-executor-backend: mp.",
        )
    if nodes > 1 and _given(view, "--api-server-count"):
        found = f"--api-server-count {view.args['--api-server-count']} on {nodes} nodes"
        yield found, "not given: the ranks after the first are headless and refuse it", "Set --api-server-count: null."
    if nodes > 1 and view.args.get("--data-parallel-backend") not in (None, "mp"):
        found = f"--data-parallel-backend {view.args['--data-parallel-backend']} on {nodes} nodes"
        yield found, "mp", "Set --data-parallel-backend: null."
    if _given(view, "--ray-workers-use-nsight") and backend != "ray":
        yield "--ray-workers-use-nsight without ray", "workers of ray", "Set --ray-workers-use-nsight: null."
    for flag in ("--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--data-parallel-rank", "--enable-fault-tolerance"):
        if _given(view, flag):
            yield (
                f"{flag} in a lane of one replica",
                "no data parallelism",
                f"Set {flag}: null; a second replica is a second deployment.",
            )
    if _given(view, "--enable-eplb") and ranks < 2:
        yield "--enable-eplb on one GPU", "experts on several GPUs", "Set --enable-eplb: null."
    prefill = view.number("--prefill-context-parallel-size") or 1
    pairs = (lane["lane_tensor_parallel_size"] or 1) * lane["lane_pipeline_parallel_size"]
    if prefill > 1 and pairs * prefill != ranks:
        found = f"--prefill-context-parallel-size {prefill:g} makes {pairs * prefill:g} ranks of a lane for {ranks}"
        yield found, "tensor × pipeline × prefill context parallel is the number of GPUs", "Set it to null, or change the shape."
    for flag in ("--enable-elastic-ep", "--enable-return-routed-experts"):
        if _given(view, flag) and lane["lane_pipeline_parallel_size"] > 1:
            yield (
                f"{flag} with pipeline parallel {lane['lane_pipeline_parallel_size']}",
                "pipeline parallel 1",
                f"Set {flag}: null.",
            )
    if _given(view, "--enable-return-routed-experts") and (view.dcp or 1) > 1:
        found = f"--enable-return-routed-experts with --decode-context-parallel-size {view.dcp}"
        yield found, "no context parallelism", "Set --enable-return-routed-experts: null."


def _numbers(view: View) -> Iterator[Exclusion]:
    lane = view.lane
    bounds = (
        ("--long-prefill-token-threshold", "lane_max_model_len", view.context),
        ("--max-num-active-seqs", "lane_max_num_seqs", lane["lane_max_num_seqs"]),
    )
    for flag, name, most in bounds:
        size = view.number(flag)
        if size is not None and most and size > most:
            yield f"{flag} {size:g} exceeds {name} {most}", f"≤ {most}", f"Lower {flag}, or raise {name}."
    most_cpu, most_gpu = view.number("--max-cpu-loras"), view.number("--max-loras") or 1
    if most_cpu is not None and 0 < most_cpu < most_gpu:
        yield f"--max-cpu-loras {most_cpu:g} is less than --max-loras {most_gpu:g}", "no less", "Raise --max-cpu-loras."
    drafted = view.drafted
    batched, seqs = lane["lane_max_num_batched_tokens"], lane["lane_max_num_seqs"]
    if _given(view, "--enable-lora") and drafted and batched and seqs and batched < seqs * (drafted + 1):
        found = (
            f"lane_max_num_batched_tokens {batched} for {seqs} requests of {drafted:g} drafted tokens and one, with --enable-lora"
        )
        yield found, f"≥ {seqs * (drafted + 1):g}", "Raise lane_max_num_batched_tokens, or draft fewer tokens."


def _speculation(view: View) -> Iterator[Exclusion]:
    told, name = view.speculation, "--speculative-config"
    if "num_speculative_tokens" in told and not view.drafted > 0:
        yield (
            f"{name}.num_speculative_tokens is {told['num_speculative_tokens']}",
            "1 or more",
            "Correct it, or remove the drafter.",
        )
    if told.get("tensor_parallel_size") is not None:
        yield f"{name} holds tensor_parallel_size", "draft_tensor_parallel_size", "Rename it."
    draft, ranks = told.get("draft_tensor_parallel_size"), view.lane["lane_tensor_parallel_size"]
    if draft is not None and draft not in (1, ranks):
        yield f"{name}.draft_tensor_parallel_size is {draft}", f"1 or {ranks}, that of the lane", "Correct it."
    length = told.get("max_model_len")
    if isinstance(length, int) and view.context and length > view.context:
        found = f"{name}.max_model_len {length} exceeds lane_max_model_len {view.context}"
        yield found, f"≤ {view.context}", "Lower it, or leave it out."
    if _given(view, "--async-scheduling") and view.method in ASYNC_UNFIT:
        yield f"--async-scheduling with the drafter {view.method}", "one of them", "Set --async-scheduling: null."
    if _given(view, "--async-scheduling") and told.get("disable_padded_drafter_batch"):
        yield f"--async-scheduling with {name}.disable_padded_drafter_batch", "one of them", "Set one of them to null."


def _json(view: View) -> Iterator[Exclusion]:
    name, outputs = "--structured-outputs-config", view.json("--structured-outputs-config")
    backend = str(outputs.get("backend") or "auto")
    for part, backends in (
        ("disable_any_whitespace", ("xgrammar", "guidance")),
        ("disable_additional_properties", ("guidance",)),
    ):
        if outputs.get(part) and backend not in backends:
            yield f"{name}.{part} with backend {backend}", f"backend {' or '.join(backends)}", "Name that backend, or remove it."
    transfer = view.json("--kv-transfer-config")
    if transfer.get("kv_connector") and not transfer.get("kv_role"):
        yield (
            "--kv-transfer-config names a kv_connector and no kv_role",
            "both",
            "Add kv_role: kv_producer, kv_consumer or kv_both.",
        )
    experts = view.json("--eplb-config")
    if experts.get("num_redundant_experts") and not _given(view, "--enable-eplb"):
        yield "--eplb-config.num_redundant_experts without --enable-eplb", "both, or neither", "Add --enable-eplb: true."
    if _given(view, "--language-model-only") and view.json("--compilation-config").get("cudagraph_mm_encoder"):
        found = "--language-model-only beside --compilation-config.cudagraph_mm_encoder"
        yield found, "one of them", "Set one of them to null."


def _api(view: View) -> Iterator[Exclusion]:
    for flag in ("--ssl-certfile", "--ssl-keyfile"):
        if _given(view, flag):
            yield (
                f"{flag} makes the API speak https",
                "http, which the gates ask",
                f"Set {flag}: null; TLS belongs to a proxy before it.",
            )
            break
    for flag in ("--uds", "--grpc"):
        if _given(view, flag):
            yield f"{flag} takes the API away from lane_port", "http on lane_port, which the gates ask", f"Set {flag}: null."
