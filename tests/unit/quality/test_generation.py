"""An engine that answers is not yet one that works: its text, its drafts, its sizes, against what a lane says of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.engine.log import read
from ansible.module_utils.sparklanes.engine.metrics import engine_metrics
from ansible.module_utils.sparklanes.quality import generation
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st
from lane_files import ALL, variables_of

HEALTHY = json.loads((FIXTURES / "quality" / "texts.json").read_text(encoding="utf-8"))
MTP = {"method": "mtp", "num_speculative_tokens": 2}


def the(made: list[Check]) -> Check:
    (check,) = made
    return check


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("!" * 16, "'!' over and over"),
        ("! " * 16, "'!' over and over"),
        # What a real NaN on a GPU wrote (tests/fixtures/quality/README.md).
        (HEALTHY["nan_on_a_gpu"], "'Q' over and over"),
        ("the the the the the the", "'the' over and over"),
        (" foo bar foo bar foo bar foo bar", "'foo' and 'bar' in turn"),
        ("ababababab", "'ab' over and over"),
        ("哈哈哈哈哈哈哈哈", "'哈' over and over"),
        ("a\ufffd\ufffdb harbour and", "U+FFFD 2 times"),
        ("0000000000000000", "digits only"),
        ("17 23 9981 2 33,5 1.7 8", "digits only"),
    ],
)
def test_what_no_working_model_writes(text: str, words: str) -> None:
    assert words in generation.oddity(text)
    for name in ("completion", "chat"):
        check = the(generation.text_checks("s1", {name: {"text": text}}, False))
        assert (check.id, check.status, check.host) == ("QUALITY.TEXT", "fail", "s1")
        assert check.found.startswith(f"{name}: ")
        assert check.remedy
        assert the(generation.text_checks("s1", {name: {"text": text}}, True)).status == "skip"


@pytest.mark.parametrize(
    "text",
    [*HEALTHY["healthy"], "A lighthouse guides ships safely at night.", "No", "ha ha ha", "", "\n" * 16, "灯台は船を導く\ufffd"],
)
def test_what_a_healthy_engine_wrote_is_no_oddity(text: str) -> None:
    assert generation.oddity(text) == ""


def test_reasoning_counts_as_text_and_errors_are_told_elsewhere() -> None:
    assert the(generation.text_checks("s1", {"chat": {"text": "", "reasoning": "!" * 16}}, False)).status == "fail"
    assert generation.text_checks("s1", {"chat": {"error": "nan"}, "completion": {"text": "  "}}, False) == []
    assert generation.checks("s1", {}, {"s1": None}, {}, {}) == []


@given(st.text(max_size=60))
def test_any_text_has_an_answer(text: str) -> None:
    assert isinstance(generation.oddity(text), str)


# --- drafts ----------------------------------------------------------------------------------------------------


def spec(drafts: int, tokens: int, accepted: int, at: list[int]) -> dict[str, Any]:
    return {
        "drafts": float(drafts),
        "draft_tokens": float(tokens),
        "accepted_tokens": float(accepted),
        "accepted_per_position": [float(n) for n in at],
    }


@pytest.mark.parametrize(
    ("counted", "status", "words"),
    [
        (None, "warn", "counts no drafts"),
        (spec(0, 0, 0, [0, 0]), "pass", "too few"),
        (spec(31, 62, 62, [31, 31]), "pass", "too few"),
        (spec(335, 670, 0, [0, 0]), "fail", "0 of 670 drafted tokens accepted: none"),
        (spec(335, 670, 670, [335, 335]), "fail", "670 of 670 drafted tokens accepted: each one"),
        (spec(335, 670, 300, [300, 0]), "fail", "none at position 2"),
        (spec(335, 670, 300, [0, 300]), "fail", "none at position 1"),
        (spec(335, 670, 669, [335, 334]), "pass", "669 of 670"),
        (spec(335, 670, 90, [80, 10]), "pass", "90 of 670"),
    ],
)
def test_drafts(counted: dict[str, Any] | None, status: str, words: str) -> None:
    check = the(generation.draft_checks("s1", counted, {}, MTP))
    assert (check.id, check.status) == ("QUALITY.DRAFTS", status)
    assert words in check.found
    assert generation.draft_checks("s1", counted, {}, {}) == []


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"method": "ngram"}, "warn"),
        ({"method": "ngram_gpu"}, "warn"),
        ({"method": "suffix"}, "warn"),
        ({"model": "[ngram]"}, "warn"),
        # What its file is called is not how it drafts.
        ({"method": "eagle3", "model": "/models/ngram-suffix-draft"}, "fail"),
        ({"model": "/models/ngram-suffix-draft"}, "fail"),
    ],
)
def test_a_guesser_may_be_right_always_or_never(told: dict[str, Any], status: str) -> None:
    assert the(generation.draft_checks("s1", spec(335, 670, 0, [0, 0]), {}, told)).status == status


@pytest.mark.parametrize(
    ("accepted", "fails", "status"), [(200, [], "warn"), (200, ["acceptance"], "fail"), (300, ["acceptance"], "pass")]
)
def test_drafts_against_what_the_lane_expects(accepted: int, fails: list[str], status: str) -> None:
    told = {"lane_expect": {"acceptance": {"c1": 0.52, "c6": 0.5, "position_4": 0.01}, "fails": fails}}
    assert the(generation.draft_checks("s1", spec(500, 1000, accepted, [accepted - 1, 1]), told, MTP)).status == status


def test_drafts_that_were_measured_in_other_ways_count_too_and_a_broken_capture_fails() -> None:
    told = {"lane_expect": {"acceptance": {"c1": 0.9}, "also": [{"acceptance": {"prose": 0.3}}, {"method": "x"}]}}
    assert the(generation.draft_checks("s1", spec(500, 1000, 160, [159, 1]), told, MTP)).status == "pass"
    assert the(generation.draft_checks("s1", spec(500, 1000, 140, [139, 1]), told, MTP)).status == "warn"
    broken = {"lane_expect": {"acceptance": {"lowest": 0.5}, "acceptance_broken": 0.15}}
    check = the(generation.draft_checks("s1", spec(500, 1000, 150, [149, 1]), broken, MTP))
    assert (check.status, "lane_expect.acceptance_broken" in check.expected) == ("fail", True)
    assert the(generation.draft_checks("s1", spec(500, 1000, 151, [150, 1]), broken, MTP)).status == "warn"
    assert the(generation.draft_checks("s1", spec(300, 600, 60, [59, 1]), broken, MTP)).status == "pass", "too few to judge"


def test_a_position_that_accepts_less_than_half_of_what_was_measured() -> None:
    told = {
        "lane_expect": {
            "acceptance": {"c1": 0.4, "position_1": 0.6, "position_2": 0.2},
            "also": [{"acceptance": {"position_2": 0.1}}],
        }
    }
    check = the(generation.draft_checks("s1", spec(1000, 2000, 720, [700, 20]), told, MTP))
    assert (check.status, "at position 2 0.020" in check.found) == ("warn", True)
    assert the(generation.draft_checks("s1", spec(1000, 2000, 760, [700, 60]), told, MTP)).status == "pass"
    assert the(generation.draft_checks("s1", spec(390, 780, 275, [273, 2]), told, MTP)).status == "pass", "39 were to be expected"


def test_real_counters_of_drafts() -> None:
    """The metrics of two real engines with a drafter, n-gram and another model, after a load."""
    for name in ("D-ngram", "D-draft"):
        text = (FIXTURES / "quality" / f"{name}-metrics-after.prom").read_text(encoding="utf-8")
        counted = engine_metrics(text).to_dict()["spec"]
        assert the(generation.draft_checks("s1", counted, {}, MTP)).status == "pass", counted


# --- sizes -----------------------------------------------------------------------------------------------------


def test_an_estimate_below_nothing() -> None:
    log = read("INFO 11-30 gpu_worker.py:1] Estimated CUDA graph memory: -20.19 GiB total").to_dict()
    assert log["graphs_guess_gib"] == -20.19
    check = the(generation.graph_checks({"s2": log}, {}))
    assert (check.id, check.host, check.status) == ("QUALITY.GRAPHS", "s2", "fail")
    assert "-20.19 GiB" in check.found
    assert the(generation.graph_checks({"s2": log}, {"lane_kv_cache_memory_bytes": 1})).status == "warn"
    assert the(generation.graph_checks({"s2": {"graphs_gib": 0.43}}, {})).status == "pass"
    assert the(generation.graph_checks({"s2": {"graphs_gib": -0.01}}, {})).status == "fail"
    assert generation.graph_checks({"s2": None, "s3": {}}, {}) == []


EXPECT: dict[str, Any] = {
    "context": 512,
    "kv_pool_tokens": {"boot_log": 65536, "cache_config_info": 60000},
    "weights_gib_per_rank": 47,
}
LANE: dict[str, Any] = {"lane_max_model_len": 512, "lane_expect": EXPECT}


def expected(logs: dict[str, Any], lane: dict[str, Any] = LANE, **probe: Any) -> list[tuple[str, str]]:
    return [(check.status, check.found) for check in generation.expected_checks("s1", probe, logs, lane)]


def test_expected_numbers() -> None:
    assert expected({"s1": {"kv_cache_tokens": 65536}, "s2": {"weights_gib": 47.5}}) == [
        ("pass", "kv_pool_tokens.boot_log 65,536"),
        ("pass", "weights_gib_per_rank 47.5"),
    ]
    assert expected({"s1": {"kv_cache_tokens": 40000, "weights_gib": 23.5}}, metrics={"kv_cache_tokens": 61000}) == [
        ("warn", "kv_pool_tokens.boot_log 40,000"),
        ("pass", "kv_pool_tokens.cache_config_info 61,000"),
        ("warn", "weights_gib_per_rank 23.5"),
    ]
    strict = {**LANE, "lane_expect": {**EXPECT, "fails": ["kv_pool_tokens"]}}
    assert expected({"s1": {"kv_cache_tokens": 40000}}, strict) == [("fail", "kv_pool_tokens.boot_log 40,000")]
    # Numbers of another window say nothing of this one, and one that nobody reported makes no row.
    assert expected({"s1": {"kv_cache_tokens": 1}}, {**LANE, "lane_max_model_len": 256}) == []
    assert expected({"s1": None, "s2": {}}) == []
    assert generation.expected_checks("s1", {}, {}, LANE) == []


def test_an_engine_that_changed_its_window() -> None:
    assert expected({}, models=[{"id": "x", "max_model_len": 256}]) == [("fail", "it serves 256 tokens of context")]
    (check,) = generation.expected_checks("s1", {"models": [{"max_model_len": 256}]}, {}, LANE)
    assert check.id == "QUALITY.EXPECTED"
    assert expected({}, models=[{"id": "x", "max_model_len": 512}]) == []


@pytest.mark.parametrize("name", ALL)
def test_what_shipped_lanes_expect_can_be_read(name: str) -> None:
    told = variables_of(name)
    counted = spec(1000, 2000, 1, [1, 0])
    probe = {"metrics": {"spec": counted}, "chat": {"text": "A lighthouse."}}
    assert generation.checks("s1", probe, {"s1": {"weights_gib": 1.0, "kv_cache_tokens": 1}}, told, MTP)
