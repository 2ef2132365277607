"""The verdict on records: of real lanes, and of what a record can lack."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
from ansible.errors import AnsibleFilterError
from ansible.module_utils.sparklanes.gates.decoding import narrow
from ansible.module_utils.sparklanes.quality.decode.measures import Answer, measure, other_choice
from ansible.module_utils.sparklanes.quality.decode.verdict import IDS, Limits, judge
from ansible.module_utils.sparklanes.quality.records import load
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

LANES = ROOT / "tests" / "fixtures" / "quality" / "decode"
# lane: (without a bank, with the bank of a healthy lane of its kind, what fails with one)
EXPECTED = {
    "H-tp1": ("pass", "pass", ()),
    "H-tp2": ("pass", "pass", ()),
    "H-eager": ("pass", "pass", ()),
    "H-draft": ("pass", "pass", ()),
    "H-fp8kv": ("pass", "pass", ()),
    "F-hit": ("fail", "fail", ("DECODE.CONTINUED", "DECODE.HIT")),
    "F-late": ("fail", "fail", ("DECODE.LONG",)),
    "F-batch16": ("fail", "fail", ("DECODE.CROWD",)),
    "F-noisesample": ("fail", "fail", ("DECODE.GREEDY",)),
    "F-scale1": ("inconclusive", "fail", ("DECODE.COLD", "DECODE.HIT")),
    "F-r1-head": ("fail", "fail", ("DECODE.COLD", "DECODE.CONTINUED", "DECODE.HIT")),
    "F-kv8-rope": ("fail", "fail", ("DECODE.COLD", "DECODE.CONTINUED", "DECODE.HIT")),
}


@pytest.fixture(scope="module")
def lanes() -> dict[str, dict[str, Any]]:
    return {name: load(LANES / f"{name}.json.gz") for name in EXPECTED}


def failed(checks: list[Any]) -> tuple[str, ...]:
    return tuple(sorted({check.id for check in checks if check.status == "fail"}))


def test_each_recorded_lane_has_its_line() -> None:
    assert {path.name.removesuffix(".json.gz") for path in LANES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_lanes_of_a_real_engine(name: str, lanes: dict[str, dict[str, Any]]) -> None:
    bare, banked, ids = EXPECTED[name]
    record = lanes[name]
    bank = lanes["H-fp8kv" if record["cache_dtype"] == "fp8" else "H-tp1"]
    assert judge(record).verdict == bare
    verdict = judge(record, bank)
    assert (verdict.verdict, failed(verdict.checks)) == (banked, ids)
    for check in verdict.checks:
        assert bool(check.remedy) == (check.status != "pass")


def test_weights_of_eight_bits_have_a_limit_of_their_own(lanes: dict[str, dict[str, Any]]) -> None:
    record = {**lanes["H-fp8kv"], "cache_dtype": "auto"}
    assert judge(record).verdict != "pass"
    assert judge(record, narrow=True).verdict == "pass"


@pytest.mark.parametrize(
    ("lane", "small"),
    [
        ({"lane_engine_args": {"--quantization": "fp8"}}, True),
        ({"lane_engine_args": {}, "lane_model": {"repo": "org/Model-NVFP4"}}, True),
        ({"lane_model": {"repo": "org/Model-W4A16"}}, True),
        ({"lane_model": {"repo": "org/Model"}}, False),
        ({}, False),
    ],
)
def test_what_has_eight_bits(lane: dict[str, Any], small: bool) -> None:
    assert narrow(lane) is small


def without(record: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(record), **more}


def answers(record: dict[str, Any], case: str, change: Any) -> dict[str, Any]:
    made = copy.deepcopy(record)
    for answer in made["cases"][case]:
        answer.update(change(answer))
    return made


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        (lambda r: without(r, boots=["1", "2"]), "inconclusive", "started anew"),
        (lambda r: without(r, cases={}, lacks=["everything: no room"]), "inconclusive", "no room"),
        (lambda r: without(r, cases={}), "inconclusive", "no case was asked"),
        (lambda r: answers(r, "long", lambda a: {"wanted": 1301}), "inconclusive", "long: 2 of 2 answers ended early"),
        (lambda r: answers(r, "greedy", lambda a: {"wanted": 65}), "inconclusive", "the first after 64 of 65 tokens"),
        (lambda r: answers(r, "hit", lambda a: {"cached": 0}), "inconclusive", "0 of "),
        (lambda r: answers(r, "hit", lambda a: {"cached": None}), "inconclusive", "an unknown number of "),
        (lambda r: answers(r, "continued", lambda a: {"cached": 0}), "inconclusive", "continued: 0 of "),
        (lambda r: answers(r, "crowd", lambda a: {"cached": a["prompt_tokens"]}), "inconclusive", "crowd: "),
        (lambda r: without(r, block=512), "inconclusive", "three blocks"),
        (lambda r: answers(r, "cold", lambda a: {"decode": [None, *a["decode"][1:]]}), "fail", "no numbers"),
        (lambda r: answers(r, "cold", lambda a: {"prefill": [math.nan, *a["prefill"][1:]]}), "fail", "no numbers"),
        (lambda r: answers(r, "greedy", lambda a: {"top": [None] * len(a["ids"])}), "inconclusive", "only 0 tokens"),
        (lambda r: without(r, cases={"cold": r["cases"]["cold"][:2]}), "inconclusive", "only 192 tokens"),
    ],
)
def test_what_proves_nothing_is_no_pass(lanes: dict[str, dict[str, Any]], change: Any, verdict: str, said: str) -> None:
    made = judge(change(lanes["H-tp1"]))
    assert made.verdict == verdict
    assert made.reason.startswith(("DECODE.ASKED: ", "DECODE.FINITE: ", *(f"{id}: " for id in IDS.values())))
    assert said in made.reason or any(said in f"{check.found} {check.expected}" for check in made.checks), made.reason


def test_counters_tell_of_hits_where_answers_do_not(lanes: dict[str, dict[str, Any]]) -> None:
    quiet = answers(lanes["H-tp1"], "hit", lambda a: {"cached": None})
    whole = sum(answer["prompt_tokens"] for answer in quiet["cases"]["hit"])
    assert judge({**quiet, "read": {"hit": whole}}).verdict == "pass"
    assert judge({**quiet, "read": {"hit": whole // 2}}).verdict == "inconclusive"


@pytest.mark.parametrize(("foreign", "status"), [(0, "pass"), (40, "warn"), (None, "warn")])
def test_requests_of_others_are_said(lanes: dict[str, dict[str, Any]], foreign: int | None, status: str) -> None:
    made = judge({**lanes["H-tp1"], "foreign_tokens": foreign})
    assert next(check.status for check in made.checks if check.id == "DECODE.ALONE") == status
    assert made.verdict == "pass"


def off(record: dict[str, Any], nat: float) -> dict[str, Any]:
    """The same lane with an engine whose decode lies so far from its prefill at each token; 0: equal to the last bit."""
    made = copy.deepcopy(record)
    for case in made["cases"].values():
        for answer in case:
            answer["decode"] = [value + nat * (-1) ** at for at, value in enumerate(answer["prefill"])]
    return made


def test_a_bank_without_any_noise_judges_too(lanes: dict[str, dict[str, Any]]) -> None:
    """As the CPU's engine in 32 bits gives it: there was nothing to divide by."""
    exact = off(lanes["H-tp1"], 0.0)
    assert judge(exact).verdict == "pass"
    assert judge(exact, exact).verdict == "pass"
    assert judge(off(exact, 0.0002), exact).verdict == "pass"
    assert judge(lanes["H-tp1"], exact).verdict == "fail"


def test_a_request_is_named_though_one_before_it_said_nothing(lanes: dict[str, dict[str, Any]]) -> None:
    record = without(lanes["F-hit"])
    silent = {name: [] for name in ("ids", "decode", "prefill", "top")}
    whole = next(check.found for check in judge(record).checks if "by themselves" in check.found)
    record["cases"]["hit"].insert(0, {**record["cases"]["hit"][0], **silent})
    assert whole in [check.found for check in judge(record).checks]


def test_a_wrong_bank_does_not_excuse_what_no_healthy_lane_shows(lanes: dict[str, dict[str, Any]]) -> None:
    assert judge(lanes["F-kv8-rope"], lanes["F-kv8-rope"]).verdict == "fail"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({"schema": "x"},), "make it by decode_score"),
        (({"schema": "sparklanes-decode-1", "model": "a"}, {"schema": "y"}), "the bank has the schema 'y'"),
        (
            ({"schema": "sparklanes-decode-1", "model": "a"}, {"schema": "sparklanes-decode-1", "model": "b"}),
            "the bank is of 'b'",
        ),
        (({"schema": "sparklanes-decode-1", "model": "a", "cases": {}}, None, {"fial": 2}), "there is no limit 'fial'"),
        (({"schema": "sparklanes-decode-1", "model": "a", "cases": {}}, None, {"fail": -1}), "not a number above 0"),
        (({"schema": "sparklanes-decode-1", "model": "a", "cases": {}}, None, {"fail": True}), "not a number above 0"),
    ],
)
def test_what_cannot_be_judged_says_so(arguments: Any, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match="decode could not be judged") as caught:
        filters.decode_judge(*arguments)
    assert said in str(caught.value)


def test_a_file_that_is_no_record_is_named(tmp_path: Any) -> None:
    (tmp_path / "r.json.gz").write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(AnsibleFilterError, match=r"r\.json\.gz can't be read"):
        filters.decode_judge(str(tmp_path / "r.json.gz"))


def answer(*pairs: tuple[float, float]) -> Answer:
    decode, prefill = zip(*pairs, strict=True)
    return Answer(1.0, 64, 0, [0] * len(pairs), decode, prefill, [None] * len(pairs))


def test_noise_is_measured_in_units_of_doubt() -> None:
    """d of 0.1 √(1 − p) at each token is an R of 0.1, however sure the tokens are."""
    logprobs = [-0.01, -0.5, -3.0] * 100
    seen = measure([answer(*((p + 0.1 * math.sqrt(1 - math.exp(p)), p) for p in logprobs)).part()])
    assert seen is not None
    assert seen.r == pytest.approx(0.1)
    assert seen.scatter < 1e-6
    assert seen.tokens == 300


def test_tokens_that_are_all_certain() -> None:
    sure = measure([answer(*[(0.0, 0.0)] * 80).part()])
    assert sure is not None
    assert (sure.r, sure.scatter, sure.least()) == (0.0, 0.0, 0.0)
    off = measure([answer(*[(-0.1, 0.0)] * 80).part()])
    assert off is not None
    assert math.isinf(off.r)
    assert off.to_dict()["r"] is None


def test_one_piece_alone_proves_nothing() -> None:
    seen = measure([answer(*[(-1.1, -1.0)] * 40).part()])
    assert seen is not None
    assert seen.least() == 0.0


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), max_size=200))
def test_any_logprobs_have_a_measure(pairs: list[tuple[float, float]]) -> None:
    seen = measure([answer(*pairs).part()] if pairs else [])
    assert (seen is None) == (not pairs)
    if seen:
        assert 0 <= seen.least() <= seen.r
        assert seen.k3 >= -1e-9


def test_only_temperature_zero_tells_of_the_sampler() -> None:
    lively = Answer(1.0, 64, 0, [1, 2], [-1.0, -1.0], [-1.0, -1.0], [3, 3])
    dull = Answer(0.0, 64, 0, [1, 2, 3], [-1.0] * 3, [-1.0] * 3, [1, 3, None])
    assert other_choice([lively, dull]) == (2, 1)


def test_limits_are_changed_by_name() -> None:
    assert Limits.of({"fail": 2}).fail == 2
    assert Limits.of(None) == Limits()
