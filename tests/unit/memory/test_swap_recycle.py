from __future__ import annotations

from typing import Any

import pytest
import swap_recycle
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.gpu.occupied import Seen
from conftest import RunModule

GIB = 1024**3


FILES = {"/swap.img": -2, "/dev/zram0": 100}


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Spark's swap; `calls` are the commands that were run, `fails` those that fail."""
    state: dict[str, Any] = {"used": 3 * GIB, "available": 20 * GIB, "on": dict(FILES), "calls": [], "fails": (), "holder": ""}

    def run(args: list[str], **_: Any) -> tuple[int, str, str]:
        state["calls"].append(" ".join(args))
        if args[0] in state["fails"]:
            return 1, "", f"{args[0]} failed: Cannot allocate memory"
        if args[0] == "swapoff":
            state["used"] = 0
            state["on"].clear()
        else:
            state["on"][args[-1]] = int(args[2]) if args[1] == "--priority" else -2
        return 0, "", ""

    monkeypatch.setattr(swap_recycle, "used_and_available", lambda: (state["used"], state["available"]))
    monkeypatch.setattr(swap_recycle.occupied, "look", lambda: Seen(unknown=state["holder"]))
    monkeypatch.setattr(swap_recycle, "swaps", lambda: dict(state["on"]))
    monkeypatch.setattr(commands, "run", run)
    return state


def test_swap_is_emptied_and_on_again(run_module: RunModule, spark: dict[str, Any]) -> None:
    """By name and with its priority: /etc/fstab need not know it, and what it knows besides stays off."""
    assert run_module(swap_recycle, {}, check=True)["changed"]
    assert spark["calls"] == []
    result = run_module(swap_recycle, {})
    assert (result["before"], result["after"]) == (3 * GIB, 0)
    assert spark["calls"] == ["swapoff --all", "swapon /swap.img", "swapon --priority 100 /dev/zram0"]
    assert spark["on"] == FILES
    assert not run_module(swap_recycle, {})["changed"]


def test_what_memory_cannot_hold_stays_where_it_is(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["available"] = 5 * GIB
    assert "only 5.0 GiB" in run_module(swap_recycle, {})["msg"]
    assert spark["calls"] == []


def test_swap_is_left_alone_under_a_rank(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["holder"] = "vllm_x runs"
    for check in (True, False):
        assert "vllm_x runs" in run_module(swap_recycle, {}, check=check)["msg"]
    assert spark["calls"] == []


@pytest.mark.parametrize("reserve", [-1, "nan", "inf"])
def test_a_reserve_that_can_not_be_is_refused(run_module: RunModule, spark: dict[str, Any], reserve: Any) -> None:
    assert "expected 0 or more" in run_module(swap_recycle, {"reserve_gib": reserve})["msg"]
    assert spark["calls"] == []


def test_swap_that_stayed_on_after_a_failure_is_left_on(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["fails"] = ("swapoff",)
    assert "could not be emptied: swapoff failed: Cannot allocate" in run_module(swap_recycle, {})["msg"]
    assert spark["calls"] == ["swapoff --all"]
    assert spark["on"] == FILES


def test_swap_that_stays_off_is_named(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["fails"] = ("swapon",)
    message = run_module(swap_recycle, {})["msg"]
    assert "could not be turned on again: /swap.img (swapon failed" in message
    assert "/dev/zram0" in message
