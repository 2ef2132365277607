"""What all ranks must have in common: a rank that was told something else is named, with the flag and both values."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.engine.flags import FLAT_FLAGS, base_flag
from ansible.module_utils.sparklanes.gates.deployments import agreement_checks
from ansible.module_utils.sparklanes.lane.agreement import PER_RANK_ENV, disagreements
from lane_files import SHIPPED, resolved
from test_lanes import lane

MTP = {"method": "mtp", "num_speculative_tokens": 2}
BASE: dict[str, Any] = {
    "lane_kv_cache_dtype": "fp8",
    "lane_max_num_batched_tokens": 2048,
    "lane_engine_args": {"--speculative-config": MTP, "--dtype": "bfloat16"},
    "lane_engine_env": {"VLLM_ATTENTION_BACKEND": "A", "NCCL_DEBUG": "WARN"},
    "lane_overlays": [{"source": "a.py", "sha256": "a" * 64, "target": "/app/a.py"}],
}


def rows(*worker: dict[str, Any]) -> list[Check]:
    lanes = {f"s{number}": lane(**{**BASE, **more}) for number, more in enumerate([{}, *worker], 1)}
    made: list[Check] = agreement_checks("sparks", lanes)
    return made


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lane_kv_cache_dtype": "auto"}, "lane_kv_cache_dtype (--kv-cache-dtype) is fp8 on s1, but auto on s2"),
        ({"lane_kv_cache_dtype": None}, "lane_kv_cache_dtype (--kv-cache-dtype) is fp8 on s1, but absent on s2"),
        ({"lane_max_num_batched_tokens": 8192}, "(--max-num-batched-tokens) is 2048 on s1, but 8192 on s2"),
        ({"lane_kv_cache_memory_bytes": "1GiB"}, "(--kv-cache-memory-bytes) is absent on s1, but 1073741824 on s2"),
        ({"lane_engine_args_host": {"--speculative-config": None}}, '--speculative-config is {"method": "mtp", "num_speculative_tokens": 2} on s1, but absent on s2'),
        ({"lane_engine_args_host": {"--dtype": "float16"}}, "--dtype is bfloat16 on s1, but float16 on s2"),
        ({"lane_engine_args_host": {"--enforce-eager": True}}, "--enforce-eager is absent on s1, but true on s2"),
        ({"lane_engine_env_host": {"VLLM_ATTENTION_BACKEND": "B"}}, "VLLM_ATTENTION_BACKEND is A on s1, but B on s2"),
        ({"lane_engine_env_host": {"NEW": "1"}}, "NEW is absent on s1, but 1 on s2"),
        ({"lane_fabric_env": {"TP_IP": "host_ip"}}, "TP_IP is absent on s1, but the fabric's host_ip on s2"),
        ({"lane_secret_env": ["VLLM_API_KEY"]}, "lane_secret_env is absent on s1"),
        ({"lane_flag_names": {"--dtype": "--data-type"}}, "lane_flag_names.--dtype is absent on s1, but --data-type on s2"),
        ({"lane_image_host": {"digest": "sha256:" + "c" * 64}}, "lane_image.digest is sha256:aaaa"),
        ({"lane_model_host": {"revision": "c" * 40}}, "lane_model.revision is bbbb"),
        ({"lane_overlays_host": {"/app/a.py": {"sha256": "c" * 64}}}, "the mount /app/a.py is /var/lib/sparklanes/overlays/aaaa"),
        ({"lane_container_host": {"mounts": [{"source": "/srv/x", "target": "/x"}]}}, "the mount /x is absent on s1"),
        ({"lane_container_host": {"command_prefix": ["serve", "x"]}}, "lane_container.command_prefix"),
        ({"lane_container_host": {"devices": ["/dev/x"]}}, "lane_container.devices is absent on s1"),
        ({"lane_container_host": {"cap_add": ["IPC_LOCK"]}}, "lane_container.cap_add is absent on s1"),
        ({"lane_container_host": {"ulimits": ["memlock=-1:-1"]}}, "lane_container.ulimits is absent on s1"),
        ({"lane_container_host": {"shm_size": "1g"}}, "lane_container.shm_size is absent on s1"),
        ({"lane_port": 8001}, "lane_port is 8000 on s1, but 8001 on s2"),
    ],
)  # fmt: skip
def test_a_rank_that_was_told_something_else(more: dict[str, Any], words: str) -> None:
    (row,) = rows(more)
    assert (row.id, row.status) == ("DEPLOYMENT.AGREE", "fail")
    assert words in row.found
    assert "lane_per_rank" in row.remedy


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lane_api_host": "10.0.0.2"},
        {"lane_model_host": {"path": "/mnt/models/tiny"}},
        {"lane_container_host": {"memory": "100g"}},
        {"lane_engine_env_host": {"NCCL_DEBUG": "INFO"}},
        # One flag, spelled in two ways.
        {"lane_engine_args_host": {"--dtype": None, "--speculative-config": None}, "lane_engine_args_override": {"--spec-method": "mtp", "--spec-tokens": 2, "--dtype": "bfloat16"}},
    ],
)  # fmt: skip
def test_what_belongs_to_a_host_may_differ(more: dict[str, Any]) -> None:
    assert [check.status for check in rows(more)] == ["pass"]


def test_every_difference_is_a_row_and_every_value_has_its_hosts() -> None:
    made = rows(
        {"lane_kv_cache_dtype": "auto", "lane_max_num_batched_tokens": 64},
        {"lane_kv_cache_dtype": "auto"},
        {"lane_kv_cache_dtype": "nvfp4"},
    )
    assert {check.found for check in made} == {
        "lane_kv_cache_dtype (--kv-cache-dtype) is fp8 on s1, but auto on s2, s3, but nvfp4 on s4",
        "lane_max_num_batched_tokens (--max-num-batched-tokens) is 2048 on s1, s3, s4, but 64 on s2",
    }


def test_what_is_declared_may_differ_on_all_ranks_that_declare_it() -> None:
    declared = {"lane_per_rank": {"--dtype": "rank 1 is being debugged"}}
    lanes = {"s1": lane(**BASE, **declared), "s2": lane(**BASE, **declared, lane_engine_args_host={"--dtype": "float16"})}
    assert [check.status for check in agreement_checks("sparks", lanes)] == ["pass"]
    alone = {"s1": lane(**BASE), "s2": lanes["s2"]}
    assert [check.status for check in agreement_checks("sparks", alone)] == ["fail"], "one rank's word is not the deployment's"


def told_apart(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return list(disagreements({"s1": one, "s2": other}))


@pytest.mark.parametrize("name", SHIPPED)
def test_whatever_one_rank_of_a_shipped_lane_lacks_is_named(name: str) -> None:
    """Each flag of its command and each variable of its environment, taken from the second rank alone."""
    one = resolved(name)
    for flag, variable in FLAT_FLAGS.items():
        if one[variable] is not None:
            assert told_apart(one, {**one, variable: None}) == [flag], "the variable of a flag"
    for flag in one["lane_engine_args"]:
        rest = {other: value for other, value in one["lane_engine_args"].items() if other != flag}
        assert told_apart(one, {**one, "lane_engine_args": rest}) == [base_flag(flag)]
    for variable in one["lane_engine_env"]:
        rest = {other: value for other, value in one["lane_engine_env"].items() if other != variable}
        expected = [] if variable in PER_RANK_ENV else [variable]
        assert told_apart(one, {**one, "lane_engine_env": rest}) == expected
    for overlay in one["lane_overlays"]:
        rest = [other for other in one["lane_overlays"] if other != overlay]
        assert told_apart(one, {**one, "lane_overlays": rest}) == [f"the mount {overlay['target']}"]
