"""Logs of vLLM 0.23 on GPUs in two ranks: healthy boots, and how ranks die there (`fixtures/engine/gpu`)."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.engine import rank_log
from conftest import FIXTURES

RECORDED = FIXTURES / "engine" / "gpu"
HEALTHY = ("P1", "S1", "S2", "MOE", "D-", "H-", "E-util-tiny", "E-alone-head")


def read(name: str, transport: str = "socket") -> rank_log.RankLog:
    return engine_log.read((RECORDED / f"{name}.log").read_text(encoding="utf-8"), transport)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.log") if path.name.startswith(HEALTHY)))
def test_healthy_logs_have_no_failures(name: str) -> None:
    assert read(name).failures == []


def test_a_pinned_cache_and_the_version_of_nccl_are_read_on_every_rank() -> None:
    for name, tokens in (("P1.rank0", 524_288), ("P1.rank1", None)):
        log = read(name)
        assert (log.kv_cache_gib, log.kv_cache_tokens, log.nccl, log.version) == (3.0, tokens, "2.28.9", "0.23.0")
    assert read("E-util-tiny.rank0").kv_cache_gib == 0.27


# name, first code, consequence, death, words of its message
DEATHS = [
    ("K-kill-flight.rank0", "peer_lost", True, False, "another rank closed its connection (localhost)"),
    ("K-kill-idle.rank0", "peer_lost", True, False, "another rank closed its connection (localhost)"),
    ("K-killworker-flight.rank0", "peer_lost", True, False, "another rank closed its connection (localhost)"),
    ("K-killworker-flight.rank1", "worker_died", False, True, "VllmWorker-1 died without an exit code"),
    ("K-killhead-worker.rank0", "worker_died", False, True, "VllmWorker-0 died without an exit code"),
    ("K-killhead-worker.rank1", "peer_lost", True, False, "another rank closed its connection (localhost)"),
    ("E-bad-flag.rank0", "bad_flag", False, False, "unrecognized arguments: --no-such-flag 1"),
    ("E-bad-value.rank0", "bad_config", False, False, "(ModelConfig): Value error, User-specified max_model_len (999999) is greater"),
    ("E-ifname.rank0", "nccl_interface", False, False, "was not found, or has no address"),
    ("E-ifname.rank1", "peer_lost", True, False, "(127.0.0.1)"),
    ("E-kv-too-small.rank0", "kv_too_small", False, False, "8704 tokens needs 0.1 GiB of KV cache against 0.02"),
    ("E-no-gpu.rank0", "gpu_missing", False, False, "no GPU"),
    ("E-no-model.rank0", "model_not_found", False, False, "no model"),
    ("E-oom-kv.rank0", "gpu_oom", False, False, "ran out of memory"),
    ("E-startup-memory.rank0", "startup_memory", False, False, "only 0.92 of 139.8 GiB were free when the engine started, and its share of 0.9"),
    ("F-nan.rank0", "nan", False, False, "NaN"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "consequence", "death", "words"), DEATHS)
def test_how_ranks_die(name: str, code: str, consequence: bool, death: bool, words: str) -> None:
    first = read(name).failures[0]
    assert (first.code, first.consequence, first.death) == (code, consequence, death)
    assert words in first.message


def test_every_log_of_a_death_is_looked_at() -> None:
    known = {name for name, *_ in DEATHS}
    assert {path.stem for path in RECORDED.glob("*.log") if not path.name.startswith(HEALTHY)} == known


def test_no_log_has_two_causes_on_one_rank() -> None:
    for name, *_ in DEATHS:
        assert sum(not failure.consequence for failure in read(name).failures) <= 1, name


def test_the_end_that_comes_before_its_reason_does_not_hide_it() -> None:
    """`[shutdown] Executor` stands before the traceback of an engine core that lost its worker."""
    log = read("K-killhead-worker.rank0")
    assert log.ended
    assert not log.asked_to_end
    assert [failure.code for failure in log.failures] == ["worker_died", "engine_died"]
    asked = read("P1.rank0")
    assert (asked.asked_to_end, asked.failures) == (True, [])


def test_a_worker_that_ends_in_the_boot_without_a_word_was_ended() -> None:
    text = """INFO 11-30 22:16:30 [serve.py:1] Launching vLLM (v0.23.0) headless multiproc executor, with head node address 10.0.0.1:1
INFO 11-30 22:16:30 [multiproc_executor.py:428] [shutdown] Executor: waiting for worker exit count=1
Traceback (most recent call last):
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
"""
    first = engine_log.read(text).failures[0]
    assert (first.code, first.death, first.consequence) == ("worker_died", True, False)
    assert "said nothing" in first.message
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:21930\n"
    assert engine_log.read(lost + text.partition("\n")[2]).failures[0].code == "peer_lost"


@pytest.mark.parametrize(
    "raised", ["AssertionError: X", "AssertionError", "triton.compiler.errors.CompilationError: at 3:1", "Exception: no kernel"]
)
def test_an_exception_of_the_engine_core_is_said(raised: str) -> None:
    head = "(EngineCore pid=1) ERROR 11-30 22:16:07 [core.py:1195]"
    text = f"{head} EngineCore failed to start.\n{head} Traceback (most recent call last):\n{head} {raised}\n"
    text += "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    first = engine_log.read(text).failures[0]
    assert (first.code, first.message, first.consequence) == ("engine_died", f"the engine core raised {raised}", False)


def test_every_recorded_log_is_read_the_same_when_two_processes_share_a_line() -> None:
    glued = "(EngineCore pid=2) (APIServer pid=1) ERROR 11-30 22:08:39 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore"
    assert [failure.code for failure in engine_log.read(glued).failures] == ["engine_died"]
