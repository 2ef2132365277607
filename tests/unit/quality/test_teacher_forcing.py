"""The gate: its rules one by one, on a simulated engine whose noise is that of a public reference."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from ansible.module_utils.sparklanes.gates import forcing
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank
from ansible.module_utils.sparklanes.quality.teacher_forcing import judge as teacher_forcing_judge
from ansible.module_utils.sparklanes.quality.teacher_forcing import report as teacher_forcing_report
from ansible.module_utils.sparklanes.quality.teacher_forcing import verdict as teacher_forcing_verdict
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import Cell, Limits, compare
from noisy_engine import NoisyEngine

SMALL = (700, 2100)


@pytest.fixture(scope="module")
def engine() -> NoisyEngine:
    return NoisyEngine(7, SMALL)


@pytest.fixture(scope="module")
def bank(engine: NoisyEngine) -> dict[str, Any]:
    return engine.bank()


@pytest.fixture(scope="module")
def quiet() -> NoisyEngine:
    """An engine that repeats itself to the last bit, as vLLM on CPU does."""
    return NoisyEngine(8, SMALL, sd=0.0)


def statuses(verdict: teacher_forcing_verdict.Verdict) -> dict[str, str]:
    return {check.id: check.status for check in verdict.checks}


def failed(verdict: teacher_forcing_verdict.Verdict) -> set[str]:
    return {check.id for check in verdict.checks if check.status == "fail"}


# --- statistics ---------------------------------------------------------------------------------------


def one_document(reference: list[list[float]], candidate: list[list[float]]) -> teacher_forcing_judge.Comparison:
    ids = list(range(len(reference[0]) + 1))
    doc = teacher_forcing_bank.document("d", "text", ids)

    def runs(values: list[list[float]]) -> list[dict[str, Any]]:
        return [{"d": {"lp": [None, *run], "rank": [None] + [1] * len(run)}} for run in values]

    return compare([doc], runs(reference), runs(candidate), Limits())


def test_statistics_by_hand() -> None:
    seen = one_document([[-1.0, -2.0], [-1.2, -2.0]], [[-1.5, -2.0], [-1.3, -2.4]])
    total = seen.total
    assert total.n == 2
    assert total.reference / 2 == pytest.approx((0.2 + 0.0) / 2)
    assert total.cross / 2 == pytest.approx(((0.5 + 0.3 + 0.3 + 0.1) / 4 + (0 + 0.4) / 2) / 2)
    assert total.bias == pytest.approx((-0.3 - 0.2) / 2)
    # (c1-r1)(c2-r2) averaged over both ways to pair the runs
    first = ((-0.5) * (-0.1) + (-0.3) * (-0.3)) / 2
    second = (0.0 * -0.4 + 0.0 * -0.4) / 2
    assert total.product / 2 == pytest.approx((first + second) / 2)


def test_identical_runs_are_exactly_zero() -> None:
    seen = one_document([[-25.123, -0.1]] * 2, [[-25.123, -0.1]] * 2)
    total = seen.total
    assert (total.bias, total.sys_rms, total.sys_z, total.max_delta, total.ratio(0.001)) == (0, 0, 0, 0, 0)


def test_a_difference_without_any_noise_has_a_capped_z() -> None:
    seen = one_document([[-1.0, -2.0]] * 2, [[-1.5, -2.5]] * 2)
    assert seen.total.sys_rms == pytest.approx(0.5)
    assert seen.total.sys_z == 999.0
    assert math.isfinite(seen.total.ratio(0.001))


def test_cells_add_up() -> None:
    seen = one_document([[-1.0] * 600, [-1.1] * 600], [[-1.3] * 600, [-1.2] * 600])
    assert sorted(band for _, band in seen.cells) == [0, 1]
    parts = list(seen.cells.values())
    assert parts[0] + parts[1] == seen.total
    assert seen.document("d") == seen.total
    assert Cell() + parts[0] == parts[0]


# --- the verdict --------------------------------------------------------------------------------------


def test_the_same_lane_passes(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(), host="sparks")
    assert verdict.verdict == teacher_forcing_verdict.PASSED
    assert failed(verdict) == set()
    ids = [check.id for check in verdict.checks]
    assert ids == ["TF." + name for name in
                   ("IDENTITY", "FINITE", "COHERENCE", "FLOOR", "BIAS", "RATIO", "SYSTEMATIC", "ISOLATED", "BANDS")]  # fmt: skip
    assert {check.host for check in verdict.checks} == {"sparks"}
    data = verdict.to_dict()
    assert data["exit_code"] == 0
    assert "sameness, not truth" in data["note"]
    assert "sameness, not truth" in teacher_forcing_report.report(verdict)


def test_the_report_names_cells_tokens_and_a_hint(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, {**engine.record(engine.polluted("chat-3")), "texts": {"5": "x"}})
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert "chat-3" in verdict.hint
    numbers = verdict.to_dict()["statistics"]
    assert numbers["worst_cells"][0]["document"] == "chat-3"
    assert numbers["worst_cells"][0]["first_bad_position"] == 1
    assert {token["document"] for token in numbers["worst_tokens"]} == {"chat-3"}
    assert sum(row["n"] for row in numbers["probability_bins"]) == numbers["total"]["n"]
    assert sum(row["n"] for row in numbers["vocabulary_parts"]) == numbers["total"]["n"]
    text = teacher_forcing_report.report(verdict)
    assert "FAIL" in text
    assert "chat-3" in text


def test_soup(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(engine.soup()))
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert {"TF.COHERENCE", "TF.BIAS", "TF.RATIO", "TF.SYSTEMATIC", "TF.ISOLATED", "TF.BANDS"} <= failed(verdict)
    assert verdict.hint == "much less likely everywhere: wrong weights or kernels"


def test_noisier_is_a_warning(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(noise=1.5))
    assert statuses(verdict)["TF.RATIO"] == "warn"
    assert verdict.verdict == teacher_forcing_verdict.PASSED
    assert verdict.hint == "noisier, not wrong"


def test_a_broken_merge_is_named_by_its_band() -> None:
    engine = NoisyEngine(9, (700, 4000))
    verdict = teacher_forcing_judge.judge(engine.bank(), engine.record(engine.logit_error(0.4, 2048)))
    assert "TF.BANDS" in failed(verdict)
    assert verdict.hint.startswith("only from position 2048 up")
    other = teacher_forcing_judge.judge(
        engine.bank(engine=engine.engine(kv_cache_dtype="nvfp4")), engine.record(engine.logit_error(0.6, 2048))
    )
    assert "KV cache type" in other.hint


def test_one_wrong_head_shard_is_named(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(engine.vocabulary_part(2, 4, 0.6)))
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert "vocabulary part 2 of 4" in verdict.hint
    told = verdict.to_dict()
    assert told["vocabulary_part"] == {"part": 2, "of": 4}
    assert forcing.said(told, ["s0", "s1", "s2", "s3"]).startswith("s2: only tokens of vocabulary part 2 of 4")
    other = teacher_forcing_judge.judge(bank, engine.record(engine.soup())).to_dict()
    assert other["vocabulary_part"] is None
    assert forcing.said(other, ["s0", "s1", "s2", "s3"]).startswith(other["hint"])


def test_a_short_bad_canary_blames_the_scorer(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(engine.polluted(teacher_forcing_bank.CANARY_SHORT)))
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "53488" in verdict.reason
    assert verdict.to_dict()["exit_code"] == 2


def test_a_bad_canary_in_the_reference_is_invalid_too(engine: NoisyEngine) -> None:
    bank = engine.bank()
    bank["runs"][1] = engine.run(engine.polluted(teacher_forcing_bank.CANARY_SHORT))
    verdict = teacher_forcing_judge.judge(bank, engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "of the reference" in verdict.reason


def test_a_corpus_of_long_chunks_is_judged_without_the_bad_canary() -> None:
    engine = NoisyEngine(13, (2100, 3000), chat=(520, 200))
    engine.corpus.update(chunk=8192, min_chunk=512)
    assert teacher_forcing_bank.shielded(engine.corpus)
    assert teacher_forcing_bank.shielded(engine.corpus, 8192)
    assert not teacher_forcing_bank.shielded(engine.corpus, 2048)  # another chunk size leaves other last chunks
    bank = engine.bank()
    polluted = engine.record(engine.polluted(teacher_forcing_bank.CANARY_SHORT))
    silent = engine.record()
    silent["runs"][0]["docs"][teacher_forcing_bank.CANARY_SHORT] = {"error": {"kind": "nan", "message": "HTTP 400"}}
    for record in (polluted, silent):
        verdict = teacher_forcing_judge.judge(bank, record)
        assert verdict.verdict == teacher_forcing_verdict.PASSED, verdict.reason
        assert verdict.checks[0].status == "warn"
        assert "53488" in verdict.checks[0].found
        assert teacher_forcing_bank.CANARY_SHORT not in {doc for doc, _ in verdict.comparison.cells}  # type: ignore[union-attr]
        assert (
            teacher_forcing_judge.judge(bank, record, identity={"max_num_batched_tokens": 2048}).verdict
            == teacher_forcing_verdict.INVALID
        )
    worse = engine.record(engine.polluted(teacher_forcing_bank.CANARY_SHORT, "chat-3"))
    assert teacher_forcing_judge.judge(bank, worse).verdict == teacher_forcing_verdict.FAILED
    # A reference with that scorer can be banked, too.
    assert teacher_forcing_bank.make_bank([{**silent, "corpus": engine.corpus}], {})["runs"]


def test_nan_in_the_short_canary_alone_blames_the_scorer(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    record = engine.record()
    record["runs"][0]["docs"][teacher_forcing_bank.CANARY_SHORT] = {"error": {"kind": "nan", "message": "HTTP 400"}}
    verdict = teacher_forcing_judge.judge(bank, record)
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "only the short canary" in verdict.reason
    record["runs"][0]["docs"]["chat-1"] = {"error": {"kind": "nan", "message": "HTTP 400"}}
    assert teacher_forcing_judge.judge(bank, record).verdict == teacher_forcing_verdict.FAILED


def test_a_quiet_scorer_may_not_differ_by_a_nat_anywhere(quiet: NoisyEngine) -> None:
    record = quiet.record()
    record["runs"][0]["docs"][teacher_forcing_bank.CANARY_SHORT]["lp"][17] -= 1.2
    verdict = teacher_forcing_judge.judge(quiet.bank(), record)
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "position 17" in verdict.reason


def test_bad_tokens_in_canary_and_elsewhere_blame_the_lane(quiet: NoisyEngine) -> None:
    verdict = teacher_forcing_judge.judge(quiet.bank(), quiet.record(quiet.bad_tokens(300)))
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert "TF.ISOLATED" in failed(verdict)


def test_nan_fails_and_names_the_document(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    for broken in (
        {"error": {"kind": "nan", "message": "HTTP 400 not JSON compliant"}},
        {"lp": [None, *[-1.0] * 50, -9999.0, *[-1.0] * 183], "rank": []},
        {"lp": [None, *[-1.0] * 50, None, *[-1.0] * 183], "rank": []},
        {"lp": [None, *[-1.0] * 50, math.nan, *[-1.0] * 183], "rank": []},
    ):
        record = engine.record()
        record["runs"][1]["docs"]["chat-2"] = broken
        verdict = teacher_forcing_judge.judge(bank, record)
        assert verdict.verdict == teacher_forcing_verdict.FAILED
        assert failed(verdict) == {"TF.FINITE"}
        assert "chat-2" in verdict.reason


def test_what_was_not_scored_is_invalid(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    record = engine.record()
    record["runs"][0]["docs"]["chat-2"] = {"error": {"kind": "timeout", "message": "no answer"}}
    assert teacher_forcing_judge.judge(bank, record).verdict == teacher_forcing_verdict.INVALID


def change(record: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**copy.deepcopy(record), **values}


def test_identity_is_judged_before_anything_else(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    record = engine.record(engine.soup())
    other = NoisyEngine(99, SMALL)
    cached = copy.deepcopy(record)
    cached["runs"][0]["docs"]["chat-1"]["cached"] = 128
    short = copy.deepcopy(record)
    short["runs"][0]["docs"]["chat-1"]["lp"].pop()
    missing = copy.deepcopy(record)
    del missing["runs"][1]["docs"]["chat-1"]
    served = copy.deepcopy(record)
    served["runs"][0]["cached_tokens"] = 256
    for wrong, part in (
        (change(record, schema="x"), "schema"),
        (other.record(), "another corpus"),
        (change(record, runs=record["runs"][:1]), "scored 1 time"),
        (cached, "128 tokens came from a cache"),
        (served, "256 tokens came from a cache"),
        (short, "234 logprobs for 235 tokens"),
        (missing, "chat-1 is missing"),
        (change(record, engine=engine.engine(logprobs_mode="processed_logits")), "gives logits"),
        (change(record, engine=engine.engine(ranks=[])), "nothing was said of the ranks"),
        (change(record, tokenizer={"ok": None, "message": "HTTP 404"}), "HTTP 404"),
    ):
        verdict = teacher_forcing_judge.judge(bank, wrong)
        assert verdict.verdict == teacher_forcing_verdict.INVALID, part
        assert part in verdict.reason
        assert failed(verdict) == {"TF.IDENTITY"}


def test_a_rank_that_differs_is_named(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    identity = copy.deepcopy(engine.engine())
    identity["ranks"][2]["overlays"] = "other"
    verdict = teacher_forcing_judge.judge(bank, engine.record(), identity=identity)
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert "rank 2 (spark-3) has other" in verdict.reason
    identity["ranks"] = identity["ranks"][1:3]
    assert (
        "rank 1 (spark-2) has bb, rank 2 (spark-3) has other"
        in teacher_forcing_judge.judge(bank, engine.record(), identity=identity).reason
    )
    for nothing in (None, [], ""):
        unknown = copy.deepcopy(engine.engine())
        for rank in unknown["ranks"]:
            rank["weights"] = nothing
        verdict = teacher_forcing_judge.judge(bank, engine.record(), identity=unknown)
        assert verdict.verdict == teacher_forcing_verdict.FAILED
        assert "none known" in verdict.reason
    bare = copy.deepcopy(engine.engine())
    for rank in bare["ranks"]:
        rank["overlays"] = []
    assert teacher_forcing_judge.judge(bank, engine.record(), identity=bare).verdict == teacher_forcing_verdict.PASSED


def test_another_tokenizer_fails(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(
        bank, change(engine.record(), tokenizer={"ok": False, "message": "12 ids instead of 14"})
    )
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert "12 ids instead of 14" in verdict.reason


def test_differences_to_the_bank_and_a_thin_bank_are_said(engine: NoisyEngine) -> None:
    thin = engine.bank(runs=2, engine=engine.engine(max_num_batched_tokens=2048))
    record = engine.record()
    record["runs"][0]["foreign_requests"] = 3
    verdict = teacher_forcing_judge.judge(thin, record, identity={"max_num_batched_tokens": 512})
    check = verdict.checks[0]
    assert check.status == "warn"
    assert "max_num_batched_tokens: the reference had 2048, this lane has 512" in check.found
    assert "2 runs of 2 boot(s)" in check.found
    assert "3 request(s) of others" in check.found
    identity = copy.deepcopy(engine.engine())
    for rank in identity["ranks"]:
        rank["image"] = "sha256:ee"
    other = teacher_forcing_judge.judge(engine.bank(), engine.record(), identity=identity)
    assert other.differences == ["image: the reference had sha256:aa, this lane has sha256:ee"]
    assert other.verdict == teacher_forcing_verdict.PASSED


def test_a_single_reference_run_is_no_bank(engine: NoisyEngine) -> None:
    verdict = teacher_forcing_judge.judge(engine.bank(runs=1), engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "1 run(s)" in verdict.reason


def test_a_tampered_bank_is_invalid(engine: NoisyEngine) -> None:
    bank = engine.bank()
    bank["corpus"] = copy.deepcopy(bank["corpus"])
    bank["corpus"]["documents"][0]["token_ids"][3] += 1
    assert "digest" in teacher_forcing_judge.judge(bank, engine.record()).reason


def _in_run(number: int, doc: str, **change: Any) -> Any:
    def damage(bank: dict[str, Any]) -> None:
        run = bank["runs"][number]
        bank["runs"][number] = {**run, "docs": {**run["docs"], doc: {**run["docs"][doc], **change}}}

    return damage


def _drop(bank: dict[str, Any]) -> None:
    bank["runs"][0] = {**bank["runs"][0], "docs": {"chat-0": bank["runs"][0]["docs"]["chat-0"]}}


def _cached(bank: dict[str, Any]) -> None:
    bank["runs"][1] = {**bank["runs"][1], "cached_tokens": 64}


DAMAGE: dict[str, tuple[Any, str]] = {
    "short": (_in_run(1, "chat-0", lp=[None, -1.0]), "run 2: document chat-0 has 2 logprobs for 235 tokens"),
    "no list": (_in_run(0, "chat-0", lp=None), "run 1: document chat-0 has 0 logprobs for 235 tokens"),
    "error": (_in_run(2, "chat-0", error={"kind": "http", "message": "HTTP 500"}), "run 3: document chat-0: http: HTTP 500"),
    "not a number": (_in_run(0, "chat-0", lp=[None, math.nan, *[-1.0] * 233]), "run 1: document chat-0: nan: position 1"),
    "from a cache": (_in_run(0, "chat-0", cached=5), "run 1: document chat-0: 5 tokens came from a cache"),
    "run from a cache": (_cached, "run 2: 64 tokens came from a cache"),
    "missing": (_drop, "run 1 lacks "),
    "one run": (lambda bank: bank.update(runs=bank["runs"][:1]), "1 run(s)"),
    "no runs": (lambda bank: bank.update(runs=None), "another kind"),
    "odd run": (lambda bank: bank.update(runs=[5, 6]), "another kind"),
    "odd documents": (lambda bank: bank.update(runs=[{"docs": []}, {"docs": None}]), "another kind"),
    "schema": (lambda bank: bank.update(schema="x"), "no bank (schema 'x')"),
    "digest": (lambda bank: bank.update(corpus_sha256="0"), "the digest that it names"),
    "no corpus": (lambda bank: bank.pop("corpus"), "missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_no_lane_can_be_judged_by_is_known_before_the_stop(engine: NoisyEngine, kind: str) -> None:
    """One list of problems for the gate before the stop and for the judge after the boot."""
    bank = engine.bank()
    assert teacher_forcing_bank.bank_problems(bank) == []
    damage, words = DAMAGE[kind]
    damage(bank)
    problems = "; ".join(teacher_forcing_bank.bank_problems(bank))
    assert words in problems
    (row,) = forcing.bank_checks("pair", "b.json.gz", bank, "", {})
    assert (row.id, row.status, row.found) == ("BANK.READ", "fail", f"b.json.gz: {problems}")
    verdict = teacher_forcing_judge.judge(bank, engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert f"the bank: {problems}" in verdict.reason


def test_a_short_canary_without_numbers_leaves_a_bank_one(engine: NoisyEngine) -> None:
    """It tells of the scorer, and is judged with its pair; nothing else may lack a number."""
    bank = engine.bank()
    _in_run(0, teacher_forcing_bank.CANARY_SHORT, error={"kind": teacher_forcing_bank.NAN, "message": "x"})(bank)
    assert teacher_forcing_bank.bank_problems(bank) == []
    _in_run(0, teacher_forcing_bank.CANARY_LONG, error={"kind": teacher_forcing_bank.NAN, "message": "x"})(bank)
    assert "canary-long" in "; ".join(teacher_forcing_bank.bank_problems(bank))


# --- floor, small corpora, deterministic engines --------------------------------------------------------


def test_a_loud_reference_judges_nothing() -> None:
    engine = NoisyEngine(3, SMALL, sd=0.6)
    verdict = teacher_forcing_judge.judge(engine.bank(), engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "TF.FLOOR" in failed(verdict)
    assert "cannot be judged" in next(check.found for check in verdict.checks if check.id == "TF.FLOOR")


def test_a_coarse_resolution_is_said() -> None:
    engine = NoisyEngine(11, (700,))  # some 3,600 tokens at sd 0.3 resolve 0.087, and the limit is 0.08
    verdict = teacher_forcing_judge.judge(engine.bank(), engine.record())
    check = next(check for check in verdict.checks if check.id == "TF.FLOOR")
    assert check.status == "warn"
    assert "drown in it" in check.found
    assert verdict.verdict == teacher_forcing_verdict.PASSED


def test_a_soup_fails_even_where_the_floor_is_too_high() -> None:
    engine = NoisyEngine(3, SMALL, sd=0.6)
    assert teacher_forcing_judge.judge(engine.bank(), engine.record(engine.soup())).verdict == teacher_forcing_verdict.FAILED


def test_a_corpus_too_small_to_judge_is_said() -> None:
    engine = NoisyEngine(4, ())
    keep = [doc for doc in engine.corpus["documents"] if doc["id"] == "chat-0"]
    engine.corpus["documents"] = keep
    verdict = teacher_forcing_judge.judge(engine.bank(), engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "only 234 tokens" in verdict.reason


def test_cells_too_small_to_judge_are_counted(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    check = next(check for check in teacher_forcing_judge.judge(bank, engine.record()).checks if check.id == "TF.BANDS")
    assert "not judged" in check.found
    none = teacher_forcing_judge.judge(bank, engine.record(), limits={"band_tokens": 10_000})
    assert none.verdict == teacher_forcing_verdict.INVALID
    assert "no document has 10000 tokens" in none.reason


def test_no_chat_completions_cannot_be_judged() -> None:
    engine = NoisyEngine(5, (2100, 2100 + 1))
    engine.corpus["documents"] = [doc for doc in engine.corpus["documents"] if doc["class"] != teacher_forcing_bank.CHAT]
    verdict = teacher_forcing_judge.judge(engine.bank(), engine.record())
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "no chat completions" in verdict.reason


def test_bias_that_can_not_be_measured_is_not_passed(engine: NoisyEngine, bank: dict[str, Any]) -> None:
    verdict = teacher_forcing_judge.judge(bank, engine.record(), limits={"bias": 0.001})
    assert verdict.verdict == teacher_forcing_verdict.INVALID
    assert "too few" in verdict.reason


def test_a_deterministic_engine_passes_against_itself(quiet: NoisyEngine) -> None:
    bank = quiet.bank()
    verdict = teacher_forcing_judge.judge(bank, quiet.record())
    assert verdict.verdict == teacher_forcing_verdict.PASSED
    floor = next(check for check in verdict.checks if check.id == "TF.FLOOR")
    assert "repeats itself exactly" in floor.found
    assert teacher_forcing_report.floor_report(bank)["pair_sd"] == 0


def test_a_deterministic_engine_tolerates_another_order_of_sums(quiet: NoisyEngine) -> None:
    assert (
        teacher_forcing_judge.judge(quiet.bank(), quiet.record(lambda doc, k, p: 2e-6 * (-1) ** k)).verdict
        == teacher_forcing_verdict.PASSED
    )


def test_a_deterministic_engine_resolves_what_noise_would_hide(quiet: NoisyEngine) -> None:
    verdict = teacher_forcing_judge.judge(quiet.bank(), quiet.record(quiet.logit_error(0.02)))
    assert verdict.verdict == teacher_forcing_verdict.FAILED
    assert {"TF.RATIO", "TF.BANDS"} <= failed(verdict)
    assert verdict.hint


@pytest.mark.parametrize(("sd", "expected"), [(0.3, 0.08), (0.1, 0.0458), (0.02, 0.0092), (0.0, 0.001)])
def test_sensitivity_follows_the_noise(sd: float, expected: float) -> None:
    engine = NoisyEngine(21, (2100, 4000), sd=sd)
    runs = [engine.run()["docs"] for _ in range(2)]
    seen = compare(engine.corpus["documents"], runs, runs, Limits())
    assert seen.sensitivity(Limits()) == pytest.approx(expected, rel=0.06)
    quiet = engine.bank()
    above = teacher_forcing_judge.judge(quiet, engine.record(engine.logit_error(2.5 * expected)))
    assert above.verdict == teacher_forcing_verdict.FAILED


# --- limits -------------------------------------------------------------------------------------------


def test_limits_by_kv_cache_type_bank_and_lane() -> None:
    assert Limits.for_lane(True) == Limits()
    other = Limits.for_lane(False)
    assert (other.bias, other.sys_rms) == (0.05, 0.15)
    assert Limits.for_lane(False, {"sys_rms": 0.1}, {"sys_rms": 0.2, "band_tokens": "64"}).sys_rms == 0.2
    assert Limits.for_lane(True, {"bands": [0, 100]}).bands == (0, 100)
    with pytest.raises(ValueError, match="no limit 'sys_rsm'"):
        Limits.for_lane(True, {"sys_rsm": 1})


def test_another_kv_type_gets_wider_limits(engine: NoisyEngine) -> None:
    bank = engine.bank(engine=engine.engine(kv_cache_dtype="auto"))
    verdict = teacher_forcing_judge.judge(bank, engine.record(engine.bias(0.03)))
    assert verdict.limits.bias == 0.05
    assert "TF.BIAS" not in failed(verdict)
    assert "kv_cache_dtype: the reference had 'auto', this lane has 'fp8'" in verdict.differences


# --- files --------------------------------------------------------------------------------------------


def test_a_bank_is_made_of_records_of_one_corpus(engine: NoisyEngine) -> None:
    record = engine.record(carry_corpus=True)
    made = teacher_forcing_bank.make_bank([record, engine.record()], {"kv_cache_dtype": "fp8"})
    assert len(made["runs"]) == 4
    assert "sameness, not truth" in made["note"]
    with pytest.raises(ValueError, match="one corpus"):
        teacher_forcing_bank.make_bank([record, NoisyEngine(98, SMALL).record()], {})
    with pytest.raises(ValueError, match="carries its corpus"):
        teacher_forcing_bank.make_bank([engine.record()], {})
    record["runs"][0]["docs"]["chat-0"] = {"error": {"kind": "nan", "message": "x"}}
    with pytest.raises(ValueError, match="chat-0"):
        teacher_forcing_bank.make_bank([record], {})


def test_problems_of_a_corpus(engine: NoisyEngine) -> None:
    assert teacher_forcing_bank.corpus_problems(engine.corpus) == []
    assert "schema" in teacher_forcing_bank.corpus_problems({})[0]
    broken = copy.deepcopy(engine.corpus)
    broken["documents"] += [broken["documents"][0], teacher_forcing_bank.document("tiny", "text", [1])]
    problems = " ".join(teacher_forcing_bank.corpus_problems(broken))
    assert "twice" in problems
    assert "nothing can be scored" in problems
