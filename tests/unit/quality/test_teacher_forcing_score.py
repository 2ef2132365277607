"""Scoring, from building a corpus to a verdict, against an engine in this process."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
import teacher_forcing_score
from ansible.module_utils.sparklanes.jobs.reporter import JobFunction, name_of
from ansible.module_utils.sparklanes.jobs.runner import Jobs, Started
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.records import dump, load
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank
from ansible.module_utils.sparklanes.quality.teacher_forcing.score import given, run
from conftest import RunModule
from fake_engine import FakeEngine

IDENTITY = {
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 2,
    "ranks": [{"rank": rank, "node": f"spark-{rank + 1}", "image": "i", "overlays": "o", "weights": "w"} for rank in range(2)],
}
SOURCE = {
    name: {"passages": ["A short passage about a harbour.", "Another one, about bread."], "templates": ["Seal <code> at <time>."]}
    for name in ("text", "code", "cjk", "tools")
} | {"chat": {"prompts": ["Why?", "How?"]}}


def arguments(fake: FakeEngine, path: Path, **more: Any) -> dict[str, Any]:
    return {"base_url": fake.url, "result_path": str(path), "timeout": 10, "runs": 2, **more}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three runs over a corpus made for the fake lane."""
    path = tmp_path_factory.mktemp("bank") / "reference.json.gz"
    with FakeEngine() as engine:
        args = arguments(engine, path, build_corpus={"source": SOURCE}, engine=IDENTITY)
        run({**args, "runs": 3}, None, teacher_forcing_score.Silent())
    record: dict[str, Any] = load(path)
    return record


@pytest.fixture(scope="module")
def bank(reference: dict[str, Any]) -> dict[str, Any]:
    return filters.teacher_forcing_bank([reference], IDENTITY)


def small(bank: dict[str, Any]) -> dict[str, Any]:
    """Three documents of the corpus: what most tests need."""
    corpus = copy.deepcopy(bank["corpus"])
    corpus["documents"] = corpus["documents"][:3]
    return corpus


def test_build_score_bank_and_judge(reference: dict[str, Any], bank: dict[str, Any], tmp_path: Path) -> None:
    assert reference["runs"][0]["boot_id"] == "1000.00"
    assert reference["runs"][0]["foreign_requests"] == 0
    path = tmp_path / "bank.json.gz"
    noise = filters.teacher_forcing_bank([reference], IDENTITY, None, str(path))
    assert noise["mean"] == 0
    assert noise["path"] == str(path)
    with FakeEngine() as same, FakeEngine(weights=1.02) as other:
        for engine, expected in ((same, "pass"), (other, "fail")):
            record = tmp_path / f"{expected}.json"
            summary = run(arguments(engine, record, corpus=str(path), engine=IDENTITY), None, teacher_forcing_score.Silent())
            assert summary["documents"] == len(bank["corpus"]["documents"])
            assert summary["tokenizer_ok"] is True
            verdict = filters.teacher_forcing_judge(str(path), str(record), None, None, "sparks")
            assert verdict["verdict"] == expected, verdict["reason"]
            json.dumps(verdict)
    assert verdict["statistics"]["worst_tokens"][0]["text"]
    assert "teacher forcing: FAIL" in verdict["report"][0]


def test_values_are_rounded_and_the_first_is_null(reference: dict[str, Any]) -> None:
    doc = next(iter(reference["runs"][0]["docs"].values()))
    assert doc["lp"][0] is None
    assert all(value == round(value, 5) for value in doc["lp"][1:])
    assert doc["rank"][1] >= 1


def test_nan_is_recorded_and_the_rest_is_scored(bank: dict[str, Any], tmp_path: Path) -> None:
    corpus = small(bank)
    with FakeEngine() as engine:
        engine.nan_in = {len(corpus["documents"][1]["token_ids"])}
        summary = run(arguments(engine, tmp_path / "r.json", corpus=corpus), None, teacher_forcing_score.Silent())
    assert summary["not_finite"] == [corpus["documents"][1]["id"]]
    record = load(tmp_path / "r.json")
    assert record["runs"][0]["docs"][corpus["documents"][1]["id"]]["error"]["kind"] == "nan"
    assert record["runs"][0]["docs"][corpus["documents"][2]["id"]]["lp"]


def test_another_tokenizer_is_seen(bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine() as engine:
        engine.tokenizer_shift = 1
        summary = run(arguments(engine, tmp_path / "r.json", corpus=small(bank)), None, teacher_forcing_score.Silent())
    assert summary["tokenizer_ok"] is False


@pytest.mark.parametrize(("behaviour", "part"), [("dies", "EngineCore"), ("drops", "ended without an answer")])
def test_an_engine_that_gives_up_ends_the_job(bank: dict[str, Any], tmp_path: Path, behaviour: str, part: str) -> None:
    with FakeEngine() as engine:
        engine.generation = behaviour
        with pytest.raises(JobError, match=part):
            run(arguments(engine, tmp_path / "r.json", corpus=small(bank)), None, teacher_forcing_score.Silent())
    assert not (tmp_path / "r.json").exists()


def test_a_restart_while_scoring_is_no_result(bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine() as engine:
        engine.reboot_after = 2
        with pytest.raises(JobError, match="started anew"):
            run(arguments(engine, tmp_path / "r.json", corpus=small(bank)), None, teacher_forcing_score.Silent())


def test_a_lane_that_takes_no_document_is_refused_with_both_numbers(bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine(max_model_len=2) as engine, pytest.raises(JobError, match=r"each of \d+ documents.*max_model_len 2"):
        run(arguments(engine, tmp_path / "r.json", corpus=bank), None, teacher_forcing_score.Silent())


def test_documents_longer_than_the_lane_are_left_out_of_both_sides(bank: dict[str, Any], tmp_path: Path) -> None:
    """A window that takes all but the longest documents is judged by the rest, and a fault is still seen."""
    lengths = sorted(len(doc["token_ids"]) for doc in bank["corpus"]["documents"])
    window = lengths[-1]
    taken = [doc["id"] for doc in bank["corpus"]["documents"] if len(doc["token_ids"]) < window]
    assert 0 < len(taken) < len(lengths)
    with FakeEngine(max_model_len=window) as same, FakeEngine(max_model_len=window, weights=1.02) as other:
        for engine, expected in ((same, "pass"), (other, "fail")):
            path = tmp_path / f"{expected}.json"
            run(arguments(engine, path, corpus=bank, engine=IDENTITY), None, teacher_forcing_score.Silent())
            record = load(path)
            assert set(record["runs"][0]["docs"]) == set(taken)
            made = filters.teacher_forcing_judge(bank, record, None, IDENTITY)
            assert made["verdict"] == expected, made["reason"]
            assert any(f"{len(lengths) - len(taken)} of {len(lengths)} are left out" in text for text in made["differences"])


def test_a_record_can_not_choose_what_is_left_out(bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine() as engine:
        run(arguments(engine, tmp_path / "r.json", corpus=small(bank), engine=IDENTITY), None, teacher_forcing_score.Silent())
    made = filters.teacher_forcing_judge(bank, load(tmp_path / "r.json"), None, IDENTITY)
    assert made["verdict"] == "invalid"
    assert "another corpus" in made["reason"]


def test_another_tokenizer_is_asked_first_and_nothing_is_scored(bank: dict[str, Any], tmp_path: Path) -> None:
    class Other(FakeEngine):
        def tokens(self, text: str) -> list[int]:
            return [token + 1 for token in super().tokens(text)]

    with Other() as engine:
        summary = run(arguments(engine, tmp_path / "r.json", corpus=bank, engine=IDENTITY), None, teacher_forcing_score.Silent())
        assert [path for path, _ in engine.requests if path == "/v1/completions"] == []
    assert summary["runs"] == 0
    assert summary["tokenizer_ok"] is False
    made = filters.teacher_forcing_judge(bank, load(tmp_path / "r.json"), None, IDENTITY)
    assert made["verdict"] == "fail"
    assert "the tokenizer of this lane is another" in made["reason"]
    assert len([check for check in made["checks"] if check["status"] == "fail"]) == 1


def test_other_clients_are_counted(bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine() as engine:
        original = engine.completion

        def busy(body: dict[str, Any]) -> tuple[int, Any]:
            engine.finished += 1  # somebody else's
            return original(body)

        engine.completion = busy  # type: ignore[method-assign]
        run(arguments(engine, tmp_path / "r.json", corpus=small(bank)), None, teacher_forcing_score.Silent())
    assert load(tmp_path / "r.json")["runs"][0]["foreign_requests"] == 3


def test_given_corpora(bank: dict[str, Any], reference: dict[str, Any], tmp_path: Path) -> None:
    assert given(reference) == bank["corpus"]
    with pytest.raises(JobError, match="carries no corpus"):
        given({name: part for name, part in reference.items() if name != "corpus"})
    dump(tmp_path / "b.json.gz", bank)
    assert given(str(tmp_path / "b.json.gz")) == bank["corpus"]
    assert given(bank["corpus"]) == bank["corpus"]
    with pytest.raises(JobError, match="can't be read"):
        given(str(tmp_path / "none.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(JobError, match="not a list"):
        given(str(tmp_path / "list.json"))


def test_the_same_record_makes_the_same_file(reference: dict[str, Any], tmp_path: Path) -> None:
    dump(tmp_path / "a.json.gz", reference)
    dump(tmp_path / "b.json.gz", reference)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


# --- the module ---------------------------------------------------------------------------------------


def test_module_scores_here_and_reports_its_state(run_module: RunModule, bank: dict[str, Any], tmp_path: Path) -> None:
    with FakeEngine() as engine:
        engine.key = "s3cret-key"
        result = run_module(
            teacher_forcing_score,
            {"base_url": engine.url, "api_key": "s3cret-key", "corpus_data": small(bank), "runs": 1,
             "result_path": str(tmp_path / "r.json"), "state_path": str(tmp_path / "state.json")},
        )  # fmt: skip
    assert result["changed"] is True
    assert result["documents"] == 3
    assert "Scored 3 documents" in result["actions"][0]
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["phase"], state["done"], state["total"], state["finished"]) == ("score", 3, 3, True)
    assert state["beat"] > 0
    assert "s3cret-key" not in (tmp_path / "r.json").read_text()


def test_module_in_check_mode_asks_nothing(run_module: RunModule, tmp_path: Path) -> None:
    with FakeEngine() as engine:
        result = run_module(
            teacher_forcing_score,
            {"base_url": engine.url, "corpus": "/bank.json", "result_path": str(tmp_path / "r.json")},
            check=True,
        )
        assert engine.requests == []
    assert result["changed"] is True
    assert result["actions"] == [f"Would score /bank.json on {engine.url} 2 times"]


def test_module_fails_with_the_cause(run_module: RunModule, bank: dict[str, Any], tmp_path: Path) -> None:
    args = {"corpus_data": small(bank), "result_path": str(tmp_path / "r.json"), "state_path": str(tmp_path / "s.json")}
    with FakeEngine() as engine:
        result = run_module(teacher_forcing_score, {**args, "base_url": engine.url, "model": "other"})
    assert result["failed"]
    assert "serves tiny, not 'other'" in result["msg"]
    state = json.loads((tmp_path / "s.json").read_text())
    assert state["failed"]
    assert "other" in state["error"]
    assert run_module(teacher_forcing_score, {**args, "base_url": "http://127.0.0.1:9", "runs": 0})["failed"]
    assert run_module(teacher_forcing_score, {"base_url": "x", "result_path": "/x"})["failed"]


def test_module_starts_a_job(
    run_module: RunModule, bank: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []

    def start(self: Jobs, job: str, function: JobFunction, args: Any, secrets: Any = None, **more: Any) -> Started:
        started.append((job, function, args, secrets))
        return Started(job, "r1", True)

    monkeypatch.setattr(Jobs, "start", start)
    path = tmp_path / "bank.json"
    path.write_text("one bank")
    options = {"base_url": "http://h:1", "api_key": "k", "corpus": str(path), "result_path": "/r.json", "detach": True}
    result = run_module(teacher_forcing_score, {**options, "jobs_dir": str(tmp_path)})
    assert (result["job"], result["job_run"], result["attached"], result["changed"]) == ("score", "r1", False, True)
    job, function, args, secrets = started[0]
    assert (job, name_of(function), secrets) == ("score", "quality.teacher_forcing.score:job", {"api_key": "k"})
    assert args["corpus"] == str(path)
    assert "api_key" not in args
    path.write_text("another bank at the same place")
    run_module(teacher_forcing_score, {**options, "jobs_dir": str(tmp_path)})
    assert started[1][2] != args, "who scores the first bank would be attached to"


# --- filters ------------------------------------------------------------------------------------------


def test_filters_explain_what_they_cannot_do(bank: dict[str, Any], reference: dict[str, Any], tmp_path: Path) -> None:
    error = filters.AnsibleFilterError
    with pytest.raises(error, match=r"bank .* can't be read"):
        filters.teacher_forcing_judge(str(tmp_path / "none"), reference)
    with pytest.raises(error, match="no limit 'x'"):
        filters.teacher_forcing_judge(bank, reference, {"x": 1})
    with pytest.raises(error, match="no bank can be made"):
        filters.teacher_forcing_bank([{**reference, "corpus": None}], IDENTITY)
    with pytest.raises(error, match=r"text\.yml"):
        filters.corpus_texts(str(tmp_path))
    assert filters.teacher_forcing_judge(bank, {})["verdict"] == "invalid"


def test_the_bank_says_what_it_is(bank: dict[str, Any]) -> None:
    assert bank["note"] == teacher_forcing_bank.NOTE
    assert bank["engine"]["versions"] == ["0.32.0"]
