"""Flags that exclude each other are refused on the controller, each as the engine would refuse it after the stop."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.engine import flags
from ansible.module_utils.sparklanes.lane.exclusions import APART, NEEDS, exclusions
from ansible.module_utils.sparklanes.lane.limits import limit_checks
from ansible.module_utils.sparklanes.lane.view import View
from lane_files import SHIPPED, resolved
from test_lanes import lane

MTP = {"method": "mtp", "num_speculative_tokens": 2}

EXCLUDED: list[tuple[dict[str, Any], str]] = [
    ({"--distributed-executor-backend": "ray"}, "--distributed-executor-backend ray on 2 nodes"),
    ({"--distributed_executor_backend": "ray"}, "--distributed-executor-backend ray on 2 nodes"),
    ({"--distributed-executor-backend": "my.Executor"}, "my.Executor on 2 nodes"),
    ({"--data-parallel-backend": "ray"}, "--data-parallel-backend ray on 2 nodes"),
    ({"--api-server-count": 2}, "--api-server-count 2 on 2 nodes"),
    ({"--ray-workers-use-nsight": True}, "without ray"),
    ({"--data-parallel-external-lb": True}, "--data-parallel-external-lb in a lane of one replica"),
    ({"--data-parallel-rank": 1}, "--data-parallel-rank in a lane of one replica"),
    ({"--enable-fault-tolerance": True}, "--enable-fault-tolerance"),
    ({"--prefill-context-parallel-size": 2}, "makes 4 ranks of a lane for 2"),
    ({"--enable-auto-tool-choice": True}, "--enable-auto-tool-choice without --tool-call-parser"),
    ({"--enable_auto_tool_choice": True}, "without --tool-call-parser"),
    ({"--enable-log-outputs": True}, "without --enable-log-requests"),
    ({"--numa-bind-cpus": ["0-3"]}, "without --numa-bind"),
    ({"--numa-bind-nodes": [0]}, "without --numa-bind"),
    ({"--enable-eplb": True}, "without --enable-expert-parallel"),
    ({"--enable-elastic-ep": True}, "without --enable-eplb"),
    ({"--eplb-config.num_redundant_experts": 4}, "without --enable-eplb"),
    ({"--enable-per-request-metrics": True, "--disable-log-stats": True}, "beside --disable-log-stats"),
    ({"--enable-return-routed-experts": True, "--no-enable-prefix-caching": True}, "beside --no-enable-prefix-caching"),
    ({"--enable-return-routed-experts": True, "--decode-context-parallel-size": 2}, "--decode-context-parallel-size 2"),
    ({"--enable-mamba-cache-stochastic-rounding": True}, "--mamba-ssm-cache-dtype auto"),
    ({"--long-prefill-token-threshold": 5000}, "exceeds lane_max_model_len 4096"),
    ({"--max-num-active-seqs": "9"}, "exceeds lane_max_num_seqs 8"),
    ({"--max-cpu-loras": 1, "--max-loras": 2}, "--max-cpu-loras 1 is less than --max-loras 2"),
    ({"--enable-lora": True, "--speculative-config": {"method": "mtp", "num_speculative_tokens": 4}}, "with --enable-lora"),
    ({"--speculative-config": {"method": "mtp", "num_speculative_tokens": 0}}, "num_speculative_tokens is 0"),
    ({"--spec-method": "mtp", "--spec-tokens": -1}, "num_speculative_tokens is -1"),
    ({"--speculative-config": {"method": "mtp", "num_speculative_tokens": "two"}}, "num_speculative_tokens is two"),
    ({"--enable-lora": True, "--spec-method": "mtp", "--spec-tokens": "4"}, "with --enable-lora"),
    ({"--speculative-config": {**MTP, "tensor_parallel_size": 1}}, "holds tensor_parallel_size"),
    ({"--speculative-config": {**MTP, "draft_tensor_parallel_size": 4}}, "draft_tensor_parallel_size is 4"),
    ({"--speculative-config": {**MTP, "max_model_len": 8192}}, "max_model_len 8192 exceeds lane_max_model_len 4096"),
    ({"--speculative-config": {"method": "ngram", "num_speculative_tokens": 2}, "--async-scheduling": True}, "drafter ngram"),
    ({"--speculative-config": {**MTP, "disable_padded_drafter_batch": True}, "--async-scheduling": True}, "padded"),
    ({"--structured-outputs-config": {"disable_any_whitespace": True}}, "with backend auto"),
    ({"--structured-outputs-config": '{"backend": "xgrammar", "disable_additional_properties": true}'}, "with backend xgrammar"),
    ({"--kv-transfer-config": {"kv_connector": "NixlConnector"}}, "no kv_role"),
    ({"--language-model-only": True, "--compilation-config": {"cudagraph_mm_encoder": True}}, "cudagraph_mm_encoder"),
    ({"--ssl-certfile": "/c.pem", "--ssl-keyfile": "/k.pem"}, "speak https"),
    ({"--ssl-keyfile": "/k.pem"}, "speak https"),
    ({"--uds": "/run/x.sock"}, "away from lane_port"),
    ({"--grpc": True}, "away from lane_port"),
]
ALLOWED: list[dict[str, Any]] = [
    {"--distributed-executor-backend": "mp"},
    {"--enable-auto-tool-choice": True, "--tool-call-parser": "glm47"},
    {"--tool-call-parser": "glm47"},
    {"--enable-log-outputs": True, "--enable-log-requests": True},
    {"--numa-bind": True, "--numa-bind-cpus": ["0-3"]},
    {"--enable-eplb": True, "--enable-expert-parallel": True, "--eplb-config.num_redundant_experts": 4},
    {"--enable-mamba-cache-stochastic-rounding": True, "--mamba-ssm-cache-dtype": "float16"},
    {"--long-prefill-token-threshold": 4096, "--max-num-active-seqs": 8},
    {"--enable-lora": True, "--speculative-config": MTP},
    {"--spec-method": "mtp", "--spec-tokens": "2"},
    {"--speculative-config": {**MTP, "draft_tensor_parallel_size": 1}, "--async-scheduling": True},
    {"--structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True}},
    {"--kv-transfer-config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
]
BASE: dict[str, Any] = {"lane_max_model_len": 4096, "lane_max_num_seqs": 8, "lane_max_num_batched_tokens": 32}


def found(args: dict[str, Any], **more: Any) -> list[str]:
    return [what for what, _, _ in exclusions(View(lane(**BASE, **more, lane_engine_args=args)))]


@pytest.mark.parametrize(("args", "words"), EXCLUDED)
def test_what_the_engine_would_refuse_after_the_stop(args: dict[str, Any], words: str) -> None:
    assert any(words in what for what in found(args)), found(args)
    failed = [check for check in limit_checks(lane(**BASE, lane_engine_args=args), "s1") if check.status == "fail"]
    assert failed, "it reaches preflight's table"
    assert all(check.id == "LANE.CONFLICT" and check.expected and check.remedy for check in failed)


@pytest.mark.parametrize("args", ALLOWED)
def test_what_goes_together(args: dict[str, Any]) -> None:
    assert found(args) == []


def test_one_node_may_have_other_executors() -> None:
    one = {"lane_nodes": 1, "lane_tensor_parallel_size": 1}
    assert (
        found({"--distributed-executor-backend": "ray", "--ray-workers-use-nsight": True, "--api-server-count": 2}, **one) == []
    )
    assert found({"--enable-eplb": True, "--enable-expert-parallel": True}, **one) == ["--enable-eplb on one GPU"]
    assert any(
        "pipeline parallel 2" in what
        for what in found({"--enable-return-routed-experts": True}, lane_tensor_parallel_size=1, lane_pipeline_parallel_size=2)
    )


def test_every_finding_is_said_at_once() -> None:
    assert len(found({"--distributed-executor-backend": "ray", "--enable-auto-tool-choice": True, "--uds": "/x"})) == 3


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_lane_excludes_itself(name: str) -> None:
    assert list(exclusions(View(resolved(name)))) == []


def test_only_flags_that_an_engine_has_are_named() -> None:
    for flag in [flag for pair in NEEDS for flag in pair] + [flag for one, other, _ in APART for flag in (one, other)]:
        assert flags.known(flag), flag
