"""What is asked: within the window, over the residues, never more than was promised."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.quality.decode.cases import BETWEEN, CASES, LONG, Plan
from hypothesis import given
from hypothesis import strategies as st

MOST = 14_000  # generated tokens of a check that a launch waits for


def test_a_large_lane_is_asked_everything() -> None:
    plan = Plan(window=131_072)
    assert [case.name for case in plan.cases()] == list(CASES)
    assert plan.lacks == []
    assert sum(case.generated for case in plan.cases()) <= MOST


def test_the_long_form_asks_for_one_very_long_answer() -> None:
    assert (f"{LONG}-12k", 12_288) in [(case.name, case.tokens) for case in Plan(window=131_072, long_form=True).cases()]
    small = Plan(window=8192, long_form=True)
    assert all(case.tokens <= 1300 for case in small.cases())
    assert any(lack.startswith("long-12k") for lack in small.lacks)


@pytest.mark.parametrize(
    ("plan", "lacks"),
    [
        (Plan(window=512, block=128), "everything"),
        (Plan(window=1024), "long"),
        (Plan(window=8192, hits=False), "hit, continued"),
        (Plan(window=8192, seqs=4), "crowd"),
    ],
)
def test_what_there_is_no_room_for_is_named(plan: Plan, lacks: str) -> None:
    names = [case.name for case in plan.cases()]
    assert plan.lacks
    assert plan.lacks[0].startswith(lacks)
    assert not set(names) & set(lacks.split(", "))


def test_some_cases_alone() -> None:
    assert [case.name for case in Plan(window=8192, only=("hit",)).cases()] == ["cold", "hit"]
    assert [case.name for case in Plan(window=8192, only=("greedy",)).cases()] == ["greedy"]


@given(
    window=st.integers(64, 300_000),
    block=st.sampled_from([1, 2, 16, 64, 128, 528, 2096]),
    seqs=st.integers(1, 512),
    seed=st.integers(0, 30_000),
)
def test_nothing_is_longer_than_the_window(window: int, block: int, seqs: int, seed: int) -> None:
    plan = Plan(window=window, block=block, seqs=seqs, seed=seed)
    cases = {case.name: case for case in plan.cases()}
    later = max((case.tokens for name, case in cases.items() if name in ("hit", "continued")), default=0)
    for name, case in cases.items():
        after = case.tokens + (BETWEEN + later if name == "cold" else 0)
        lengths = plan.lengths(case.requests, after)
        assert len(lengths) == case.requests
        assert min(lengths) >= 3 * block
        if name not in ("hit", "continued"):
            assert max(lengths) + case.tokens < window
        if name == "cold" and "continued" in cases:
            assert max(lengths) + case.tokens + BETWEEN + cases["continued"].tokens < window
    assert sum(case.generated for case in cases.values()) <= MOST


def test_each_run_has_the_ends_of_a_block_and_days_have_the_rest() -> None:
    block = 64
    seen = set()
    for seed in range(40):
        left = {length % block for length in Plan(window=32_768, block=block, seed=seed).lengths(48, 200)}
        assert {0, 1, block - 1} <= left
        seen |= left
    assert seen == set(range(block))
