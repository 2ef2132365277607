"""What fits into a KV cache, against what the sources measured."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import capacity as lane_capacity
from conftest import ROOT
from lane_files import SHIPPED, resolved, variables_of
from sparklanes import lane_rank_text  # filter_plugins/sparklanes.py

EXPECTED: dict[str, tuple[int, int]] = {
    # lane → tokens of the boot log, of the request that filled it
    "glm53_dcp4_nvfp4": (689_772, 650_000),
    "glm53_dcp4_nvfp4_512k": (594_532, 580_000),
    "glm53_dcp4_fp8": (462_308, 433_900),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tokens_are_those_that_the_source_saw(name: str) -> None:
    printed, filled = EXPECTED[name]
    found = lane_capacity.capacity(resolved(name))
    assert found.reported == pytest.approx(printed, rel=1e-3)
    assert found.filled == pytest.approx(filled, rel=1e-3)
    assert found.ranks == 4


@pytest.mark.parametrize("name", [name for name in SHIPPED if resolved(name)["lane_memory"]["kv_bytes_per_token"]])
def test_bytes_a_token_are_pin_over_pool(name: str) -> None:
    """One number of a lane follows from two others; whoever corrects one corrects all."""
    lane = resolved(name)
    printed = lane["lane_expect"].get("kv_pool_tokens", {}).get("boot_log")
    # Two engines said what a longer context would have taken, which is more a token than their pools make it.
    near = 0.06 if "refusal" in lane["lane_memory"]["source"] else 1e-3
    assert lane_capacity.capacity(lane).reported == pytest.approx(printed, rel=near)


def test_a_pool_that_is_not_what_the_boot_log_printed_says_so() -> None:
    odd = lane_capacity.text(resolved("glm53_dflash2"))
    assert any(
        line.startswith("The boot log of its source printed 179,479; the bytes a token are the engine's refusal") for line in odd
    )
    assert not any("printed" in line for line in lane_capacity.text(resolved("glm53_mtp")) if line != lane_capacity.CAVEAT)
    assert not any("179,479" in line for line in lane_capacity.text(resolved("glm53_dflash2", lane_max_model_len=70_000)))


def test_a_flash_pool_counts_half() -> None:
    assert lane_capacity.capacity(resolved("flash_nvfp4_dflash2_tp2")).share == 0.5
    assert lane_capacity.capacity(resolved("glm53_mtp")).share == 0.94


def test_context_by_requests_at_a_time() -> None:
    table = lane_capacity.rows(resolved("glm53_dcp4_nvfp4"))
    assert [count for count, _, _ in table] == [1, 2, 4, 6]
    assert table[0] == (1, 262_144, 262_144)
    assert table[-1][1] == pytest.approx(689_772 / 6, rel=1e-3)
    assert table[-1][2] == pytest.approx(650_000 / 6, rel=1e-3)


def test_what_an_override_buys() -> None:
    before = lane_capacity.capacity(resolved("glm53_dcp4_nvfp4"))
    more = lane_capacity.capacity(resolved("glm53_dcp4_nvfp4", lane_kv_cache_memory_bytes=7_000_000_000 + 2**30))
    assert before.reported is not None
    assert more.reported is not None
    assert more.reported - before.reported == pytest.approx(before.tokens_per_gib, abs=1)


def test_what_nobody_measured_stays_unknown() -> None:
    lane = resolved("flash_fp8_dflash2_tp4_393k")
    assert lane_capacity.rows(lane) == []
    assert "what fits is unknown" in lane_capacity.text(lane)[-1]
    assert lane_capacity.capacity(lane).filled is None


def test_no_lane_shows_a_pool_without_its_caveat() -> None:
    for name in SHIPPED:
        lines = lane_capacity.text(resolved(name))
        assert (lane_capacity.CAVEAT in lines) == bool(lane_capacity.rows(resolved(name))), name
        assert all(line == line.rstrip() for line in lines)


def test_another_window_than_the_measured_one_is_said() -> None:
    lines = lane_capacity.text(resolved("flash_w4a16_dflash2_tp2_262k", lane_max_model_len=131_072))
    assert "measured with a window of 262,144; this one is 131,072" in lines[-1]
    assert "measured with a window" not in lane_capacity.text(resolved("flash_w4a16_dflash2_tp2_262k"))[-1]


def test_it_stands_as_comments_above_the_command_of_the_head() -> None:
    hosts = ["s1", "s2", "s3", "s4"]
    fabric = {"ifname": "enp1s0f0np0", "rails": [], "env": {}}
    hostvars = {
        host: {**variables_of("glm53_dcp4_nvfp4"), "roce_fabric": {**fabric, "host_ip": f"10.0.0.{number}"}}
        for number, host in enumerate(hosts, 1)
    }
    head, worker = (lane_rank_text(hostvars, host, {"sparks": hosts}) for host in hosts[:2])
    above = head.partition("docker create")[0]
    assert all(line.startswith("#") for line in above.splitlines())
    for words in (
        "# What fits:",
        "172,447",
        "# Memory of the worst rank:",
        "# Good to know:",
        "TRAP.DCP_PREFILL",
        lane_capacity.CAVEAT,
    ):
        assert words in above
    assert "What fits" not in worker
    subprocess.run(["bash", "-n", "-c", head], check=True)


def test_the_sandbox_too() -> None:
    lane: dict[str, Any] = yaml.safe_load((ROOT / "group_vars/lane_sandbox_tiny.yml").read_text(encoding="utf-8"))
    assert 64 * 2**20 / lane["lane_memory"]["kv_bytes_per_token"] == lane["lane_expect"]["kv_pool_tokens"]["boot_log"]
