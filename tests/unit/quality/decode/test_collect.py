"""Asking an engine in this process: what each case asks for, and what the judge makes of the engine's faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import decode_score
import pytest
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.decode.score import run
from ansible.module_utils.sparklanes.quality.decode.verdict import judge
from ansible.module_utils.sparklanes.quality.records import Silent, load
from conftest import RunModule
from fake_engine import FakeEngine

SOURCE = {
    name: {"passages": [f"A short passage of {name} about a harbour."], "templates": ["Seal <code> at <time>, then <number>."]}
    for name in ("text", "code", "cjk", "tools")
}
NOISE = 0.0136  # the R of a healthy 16-bit lane (docs/decode.md)


class Engine(FakeEngine):
    """With the counters of a real one, its noise, and few contexts: thousands of tokens take seconds."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"max_model_len": 1600, **more})
        self.known: dict[int, list[float]] = {}
        self.decode_noise = lambda prompt, position, hit, running: NOISE

    def logprobs(self, context: tuple[int, int]) -> list[float]:
        key = (context[0] + 3 * context[1]) % 61
        if key not in self.known:
            self.known[key] = super().logprobs((key, 7))
        return self.known[key]

    def metrics(self) -> str:
        cache = 'block_size="16",cache_dtype="auto",enable_prefix_caching="True"'
        return super().metrics() + f"vllm:cache_config_info{{{cache}}} 1\nvllm:generation_tokens_total {self.generated}\n"


def record_of(engine: FakeEngine, path: Path, **more: Any) -> dict[str, Any]:
    args = {
        "base_url": engine.url,
        "source": SOURCE,
        "max_num_seqs": 16,
        "long_form": False,
        "seed": 5,
        "timeout": 20,
        "result_path": str(path / "record.json.gz"),
    }
    run({**args, **more}, None, Silent())
    record: dict[str, Any] = load(path / "record.json.gz")
    return record


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with Engine() as engine:
        return record_of(engine, tmp_path_factory.mktemp("healthy"))


def test_a_healthy_engine_passes(healthy: dict[str, Any]) -> None:
    verdict = judge(healthy)
    assert verdict.verdict == "pass", verdict.reason
    assert list(healthy["cases"]) == ["cold", "hit", "continued", "crowd", "long", "greedy"]
    assert healthy["foreign_tokens"] == 0
    assert (healthy["read"]["cold"], healthy["read"]["long"]) == (0, 0)


def test_no_answer_is_scored_before_all_are_generated(tmp_path: Path) -> None:
    with Engine() as engine:
        record_of(engine, tmp_path, cases=["hit", "greedy"])
        kinds = ["prompt_logprobs" in body for path, body in engine.requests if path == "/v1/completions"]
    assert kinds == sorted(kinds)
    assert kinds.count(False) == kinds.count(True) == 48 + 48 + 8


def test_a_second_look_at_the_same_boot_is_cold_again(tmp_path: Path) -> None:
    with Engine() as engine:
        record_of(engine, tmp_path, cases=["cold"])
        assert record_of(engine, tmp_path, cases=["cold"])["read"] == {"cold": 0}


# What an engine does wrong, and where alone it shows.
@pytest.mark.parametrize(
    ("fault", "cases", "ids"),
    [
        (lambda prompt, position, hit, running: 0.2 if hit else NOISE, ["hit"], {"DECODE.HIT"}),
        (lambda prompt, position, hit, running: 0.5 if hit and prompt % 16 == 1 else NOISE, ["hit"], {"DECODE.HIT"}),
        (lambda prompt, position, hit, running: 0.2 if running > 8 else NOISE, ["crowd"], {"DECODE.CROWD"}),
        (lambda prompt, position, hit, running: 0.2 if position >= 1000 else NOISE, ["long"], {"DECODE.LONG"}),
        (lambda prompt, position, hit, running: 0.2, ["cold"], {"DECODE.COLD"}),
    ],
    ids=["hits", "hits of one residue", "neighbours", "late", "everywhere"],
)
def test_a_fault_is_found_where_it_is(fault: Any, cases: list[str], ids: set[str], tmp_path: Path) -> None:
    with Engine() as engine:
        engine.decode_noise = fault
        engine.batch = 16 if "crowd" in cases else 1
        verdict = judge(record_of(engine, tmp_path, cases=cases))
    assert {check.id for check in verdict.checks if check.status == "fail"} == ids
    assert verdict.verdict == "fail"


def test_a_sampler_that_slips(tmp_path: Path) -> None:
    with Engine() as engine:
        engine.sampler_slips = 16
        verdict = judge(record_of(engine, tmp_path, cases=["greedy"]))
    assert (verdict.verdict, verdict.reason[:13]) == ("fail", "DECODE.GREEDY")


def test_an_engine_whose_cache_gives_nothing_shows_nothing(tmp_path: Path) -> None:
    with Engine() as engine:
        engine.prefix_cache = False
        verdict = judge(record_of(engine, tmp_path, cases=["hit"]))
    assert verdict.verdict == "inconclusive"
    assert "came from the prefix cache" in verdict.reason


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "EngineCore encountered an issue"),
        ("nan", "computed NaN"),
        ("drops", "ended without an answer"),
        ("empty", "no numbers"),
    ],
)
def test_an_engine_that_gives_up(fault: str, said: str, tmp_path: Path) -> None:
    with Engine() as engine:
        engine.generation = fault
        if fault == "empty":
            assert said in judge(record_of(engine, tmp_path, cases=["greedy"])).reason
            return
        with pytest.raises(JobError, match=said):
            record_of(engine, tmp_path, cases=["greedy"])
    assert list(tmp_path.iterdir()) == []


def test_the_module(run_module: RunModule, tmp_path: Path) -> None:
    with Engine() as engine:
        args = {
            "base_url": engine.url,
            "source": SOURCE,
            "cases": ["greedy"],
            "seed": 5,
            "result_path": str(tmp_path / "r.json.gz"),
        }
        said = run_module(decode_score, args, check=True)
        assert said["changed"] is True
        assert engine.requests == []
        said = run_module(decode_score, args)
        assert said["tokens"] == {"greedy": 512}
        assert said["actions"] == [f"Generated and scored 512 tokens into {tmp_path}/r.json.gz"]
    said = run_module(decode_score, args)
    assert said["failed"] is True
    assert "nothing answers at" in said["msg"]
    for name in ("max_num_seqs", "max_model_len"):
        said = run_module(decode_score, {**args, name: 0})
        assert said["msg"] == f"{name} is 0: a lane takes 1 or more"
