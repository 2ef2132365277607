from __future__ import annotations

from typing import Any

import pytest
import swap_recycle
from conftest import RunModule

GIB = 1024**3


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Spark's swap; `calls` are the commands that were run, `rc` their exit status."""
    state: dict[str, Any] = {"used": 3 * GIB, "available": 20 * GIB, "calls": [], "rc": 0, "holder": ""}

    def run(_: Any, args: list[str], **__: Any) -> tuple[int, str, str]:
        state["calls"].append(args[0])
        if args[0] == "swapoff" and state["rc"] == 0:
            state["used"] = 0
        return (state["rc"] if args[0] == "swapoff" else 0), "", "swapoff failed: Cannot allocate memory"

    monkeypatch.setattr(swap_recycle, "used_and_available", lambda: (state["used"], state["available"]))
    monkeypatch.setattr(swap_recycle, "occupied", lambda *_: state["holder"])
    monkeypatch.setattr(swap_recycle.AnsibleModule, "run_command", run)
    return state


def test_swap_is_emptied_and_on_again(run_module: RunModule, spark: dict[str, Any]) -> None:
    assert run_module(swap_recycle, {}, check=True)["changed"]
    assert spark["calls"] == []
    result = run_module(swap_recycle, {})
    assert (result["before"], result["after"], spark["calls"]) == (3 * GIB, 0, ["swapoff", "swapon"])
    assert not run_module(swap_recycle, {})["changed"]


def test_what_memory_cannot_hold_stays_where_it_is(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["available"] = 5 * GIB
    assert "only 5.0 GiB" in run_module(swap_recycle, {})["msg"]
    assert spark["calls"] == []


def test_swap_is_on_again_also_after_a_failure(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["rc"] = 1
    assert "Cannot allocate" in run_module(swap_recycle, {})["msg"]
    assert spark["calls"] == ["swapoff", "swapon"]


def test_swap_is_left_alone_under_a_rank(run_module: RunModule, spark: dict[str, Any]) -> None:
    spark["holder"] = "vllm_x runs"
    for check in (True, False):
        assert "vllm_x runs" in run_module(swap_recycle, {}, check=check)["msg"]
    assert spark["calls"] == []


@pytest.mark.parametrize("reserve", [-1, "nan", "inf"])
def test_a_reserve_that_can_not_be_is_refused(run_module: RunModule, spark: dict[str, Any], reserve: Any) -> None:
    assert "expected 0 or more" in run_module(swap_recycle, {"reserve_gib": reserve})["msg"]
    assert spark["calls"] == []
