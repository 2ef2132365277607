"""Settling: bounded waiting, flush, compaction, touch. Played histories; the probe and the module for real."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import memory_settle
import pytest
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory import facts as memory_facts
from ansible.module_utils.sparklanes.memory import processes as memory_processes
from ansible.module_utils.sparklanes.memory import settle, touch
from ansible.module_utils.sparklanes.memory.settle import Request
from ansible.module_utils.sparklanes.memory.touch import Touch
from conftest import FIXTURES, RunModule
from hypothesis import given
from hypothesis import strategies as st

MIB = 1024**2
FRESH = (FIXTURES / "memory/buddyinfo-fresh.SYNTHETIC.txt").read_text()
TORN = (FIXTURES / "memory/buddyinfo-fragmented.SYNTHETIC.txt").read_text()
KHO = (FIXTURES / "memory/meminfo-kho-bug.txt").read_text()


class Played:
    """A Spark whose memory follows a script: MemFree and Cached in GiB at each second."""

    def __init__(self, free: Sequence[float], cached: float = 0.0, buddy: str = FRESH, busy: str = "", more: str = "") -> None:
        self.free, self.cached, self.buddy, self.held, self.more = list(free), cached, buddy, busy, more
        self.clock = 0.0
        self.did: list[str] = []
        self.after_compaction = FRESH
        self.flush_frees = True
        self.touched: Touch | None = None

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        self.did.append("sleep")

    def mem_free(self) -> float:
        return self.free[min(int(self.clock), len(self.free) - 1)]

    def look(self) -> tuple[memory_facts.MemoryFacts, Sequence[memory_processes.Process]]:
        text = f"MemTotal: 127600748 kB\nMemFree: {int(self.mem_free() * GIB / 1024)} kB\nCached: {int(self.cached * GIB / 1024)} kB\n{self.more}"
        return memory_facts.facts(text, self.buddy, 4096), [memory_processes.Process(7, "python3", 30 * GIB, 0)]

    def flush(self) -> int:
        self.did.append("flush")
        self.clock += 0.5
        if not self.flush_frees:
            return 0
        freed, self.cached = self.cached, 0.0
        self.free = [free + freed for free in self.free]
        return int(freed * GIB)

    def compact(self) -> None:
        self.did.append("compact")
        self.buddy = self.after_compaction

    def busy(self) -> str:
        return self.held

    def touch(self, wanted: int, margin: int) -> Touch:
        self.did.append("touch")
        return self.touched or Touch(wanted, wanted, 9.0)


def play(machine: Played, **request: Any) -> settle.Outcome:
    return settle.settle("s1", Request(**{"min_free_gib": 103, "touch_gib": 0, **request}), machine)


def status(outcome: settle.Outcome) -> dict[str, str]:
    return {check.id: check.status for check in outcome.checks}


def test_a_ready_spark_goes_at_once() -> None:
    machine = Played([112])
    outcome = play(machine)
    assert outcome.go
    assert machine.did == []
    assert settle.sentence("s1", outcome) == "s1 goes: MemFree 112.0 GiB"


def test_memory_that_comes_back_is_waited_for() -> None:
    outcome = play(Played([20, 40, 60, 80, 100, 112]))
    assert outcome.go
    assert outcome.waited == 5
    assert settle.sentence("s1", outcome) == "s1 goes after 5 s: MemFree 112.0 GiB"


def test_page_cache_is_flushed() -> None:
    machine = Played([60], cached=52)
    outcome = play(machine)
    assert outcome.go
    assert outcome.changed
    assert machine.did == ["flush"]
    assert outcome.actions == ["Flushed the page cache: 52.0 GiB came free"]


def test_flushing_may_be_forbidden_and_then_the_cache_is_named() -> None:
    machine = Played([60], cached=52)
    outcome = play(machine, may_flush=False, seconds=3)
    assert machine.did == ["sleep"] * 3
    assert status(outcome)["MEM.SETTLED"] == "fail"
    assert "flush" in settle.sentence("s1", outcome)
    assert not outcome.changed


def test_waiting_ends() -> None:
    outcome = play(Played([60]), seconds=20)
    assert not outcome.go
    assert outcome.waited == 20
    check = next(check for check in outcome.checks if check.id == "MEM.SETTLED")
    assert check.found.startswith("held after 20 s: MemFree 60.0 GiB of 121.7 GiB")
    assert "python3 (pid 7) 30.0 GiB" in check.remedy
    assert settle.sentence("s1", outcome).startswith("s1 stops after 20 s: held: MemFree 60.0 GiB")


def test_a_flush_that_is_undone_again_and_again_ends_too() -> None:
    """Somebody copies files all the time."""
    machine = Played([60], cached=52)

    def refill() -> int:
        machine.did.append("flush")
        machine.clock += 0.5
        return 52 * GIB

    machine.flush = refill  # type: ignore[method-assign]
    outcome = play(machine, seconds=5)
    assert not outcome.go
    assert outcome.waited == 5
    assert machine.did.count("flush") == 10


def test_a_vain_flush_is_tried_again_later() -> None:
    machine = Played([60], cached=52)
    machine.flush_frees = False
    outcome = play(machine, seconds=25)
    assert not outcome.go
    assert machine.did.count("flush") == 3


def test_even_without_time_the_cache_is_flushed_once() -> None:
    machine = Played([60], cached=52)
    assert play(machine, seconds=0).go
    assert machine.did == ["flush"]


@pytest.mark.parametrize("tree", ["kernel_fault"])
def test_a_faulty_kernel_stops_at_once(tree: str) -> None:
    machine = Played([20], more="CmaTotal: 0 kB\nCmaFree: 940604 kB\n")
    outcome = play(machine)
    assert outcome.verdict.name == tree
    assert machine.did == []
    assert status(outcome)["MEM.CMA"] == "fail"
    assert "kho=off" in settle.sentence("s1", outcome)


def test_torn_memory_is_compacted_where_no_rank_runs() -> None:
    machine = Played([112], buddy=TORN)
    outcome = play(machine, min_blocks=200)
    assert outcome.go
    assert machine.did == ["compact"]


def test_compaction_that_does_not_help_asks_for_a_reboot_at_once() -> None:
    machine = Played([112], buddy=TORN)
    machine.after_compaction = TORN
    outcome = play(machine, min_blocks=200)
    assert (outcome.verdict.name, machine.did) == ("reboot_required", ["compact"])
    assert status(outcome) == {"MEM.CMA": "pass", "MEM.SETTLED": "pass", "MEM.BLOCKS": "fail"}
    assert "Reboot s1" in settle.sentence("s1", outcome)


def test_nothing_is_compacted_under_a_rank() -> None:
    machine = Played([112], buddy=TORN, busy="vllm_x runs")
    outcome = play(machine, min_blocks=200)
    assert machine.did == []
    assert not outcome.go
    assert "vllm_x runs" in settle.sentence("s1", outcome)
    forbidden = Played([112], buddy=TORN)
    assert not play(forbidden, min_blocks=200, may_compact=False).go
    assert forbidden.did == []


def test_few_blocks_alone_only_warn() -> None:
    machine = Played([112], buddy=TORN)
    outcome = play(machine)
    assert outcome.go
    assert status(outcome)["MEM.BLOCKS"] == "warn"
    assert machine.did == []


LEAK = "Buffers: 0 kB\nAnonPages: 1000 kB\nSlab: 1000 kB\nKernelStack: 10 kB\nPageTables: 10 kB\n"


def test_memory_that_nobody_has_is_waited_for_and_then_needs_a_reboot() -> None:
    machine = Played([60], more=LEAK)
    outcome = play(machine, seconds=4)
    assert outcome.verdict.name == "reboot_required"
    assert machine.did == ["sleep"] * 4
    assert "the driver did not give them back" in settle.sentence("s1", outcome)
    assert play(Played([60], more=LEAK, busy="vllm_x runs"), seconds=4).verdict.name == "held"


def test_the_probe_leaves_a_margin_and_its_death_stops() -> None:
    machine = Played([112])
    outcome = play(machine, touch_gib=110, margin_gib=8)
    assert outcome.touch is not None
    assert outcome.touch.wanted == 104 * GIB
    assert status(outcome)["MEM.TOUCH"] == "pass"
    dead = Played([112])
    dead.touched = Touch(104 * GIB, 61 * GIB, 4.0, died="the kernel ended it with SIGKILL")
    outcome = play(dead, touch_gib=110)
    assert status(outcome)["MEM.TOUCH"] == "fail"
    assert "61.0 GiB of 104.0 GiB touched in 4.0 s, then the kernel ended it with SIGKILL" in settle.sentence("s1", outcome)
    stopped = Played([112])
    stopped.touched = Touch(104 * GIB, 61 * GIB, 4.0, stopped="MemFree came down to the margin of 8 GiB")
    assert status(play(stopped, touch_gib=110))["MEM.TOUCH"] == "fail"


def test_no_probe_before_memory_is_there_or_within_the_margin() -> None:
    short = Played([60])
    assert "MEM.TOUCH" not in status(play(short, seconds=0, touch_gib=50))
    assert "touch" not in short.did
    small = Played([6])
    assert status(play(small, min_free_gib=0, touch_gib=5))["MEM.TOUCH"] == "fail"
    assert "touch" not in small.did


def test_nothing_is_touched_under_a_rank() -> None:
    machine = Played([112], busy="vllm_x runs")
    outcome = play(machine, touch_gib=100)
    assert machine.did == []
    assert status(outcome)["MEM.TOUCH"] == "fail"
    assert "vllm_x runs" in settle.sentence("s1", outcome)


def test_a_preview_touches_nothing() -> None:
    machine = Played([60], cached=52)
    outcome = settle.preview("s1", Request(min_free_gib=103, touch_gib=50), machine)
    assert machine.did == []
    assert outcome.actions == ["Flush the page cache"]
    assert outcome.changed
    waiting = settle.preview("s1", Request(min_free_gib=103), Played([60]))
    assert (waiting.changed, waiting.actions) == (False, ["Wait up to 300 s for memory"])


@given(
    st.lists(st.floats(0, 121), min_size=1, max_size=8),
    st.floats(0, 60),
    st.sampled_from([FRESH, TORN, "", "x"]),
    st.sampled_from(["", "r runs"]),
    st.booleans(),
    st.sampled_from([0, 200]),
    st.sampled_from([0.0, 5.0, 40.0]),
)
def test_it_always_ends_and_goes_only_with_what_was_asked(
    free: list[float], cached: float, buddy: str, busy: str, frees: bool, blocks: int, seconds: float
) -> None:
    machine = Played(free, cached, buddy, busy)
    machine.flush_frees = frees
    outcome = play(machine, min_blocks=blocks, seconds=seconds)
    assert outcome.waited <= seconds + 1
    if outcome.go:
        assert outcome.memory.mem_free is not None
        assert outcome.memory.mem_free >= 103 * GIB
        if blocks:
            assert outcome.memory.blocks is not None
            assert outcome.memory.blocks.equivalent >= blocks
    else:
        assert settle.sentence("s1", outcome).startswith("s1 stops")
        assert any(check.remedy for check in outcome.checks if check.status == "fail")
    if busy:
        assert "compact" not in machine.did


# --- the probe, for real ---------------------------------------------------------------------------------------


def plenty() -> int:
    return 1 << 50


def test_the_probe_touches_all_and_gives_it_back() -> None:
    made = touch.probe(64 * MIB, 0, 60, plenty)
    assert made.ok
    assert made.touched == 64 * MIB


def test_the_child_offers_itself_first_and_the_parent_does_not(tmp_path: Path) -> None:
    before = Path("/proc/self/oom_score_adj").read_text()

    def free() -> int:
        (tmp_path / "score").write_text(Path("/proc/self/oom_score_adj").read_text())
        return 1 << 50

    assert touch.probe(MIB, 0, 60, free).ok
    assert (tmp_path / "score").read_text().strip() == "1000"
    assert Path("/proc/self/oom_score_adj").read_text() == before


def test_the_probe_stops_at_the_margin_and_where_nothing_is_told() -> None:
    left = iter([1 << 40, 100 * MIB])
    made = touch.probe(1024 * MIB, 200 * MIB, 60, lambda: next(left))
    assert made.stopped.startswith("MemFree came down to the margin")
    assert made.touched == touch.CHUNK
    assert touch.probe(MIB, 0, 60, lambda: None).stopped
    assert touch.probe(MIB, 0, 0, plenty).stopped == "0 s were over"
    assert touch.probe(0, 0, 60, plenty).ok


def test_a_child_that_dies_on_first_touch_is_told_and_nothing_else_dies() -> None:
    calls = iter([1 << 40])

    def die() -> int:
        try:
            return next(calls)
        except StopIteration:
            os.kill(os.getpid(), signal.SIGKILL)
            raise

    made = touch.probe(touch.CHUNK + MIB, 0, 60, die, first_victim=False)
    assert made.died == "the kernel ended it with SIGKILL"
    assert made.touched == touch.CHUNK


def test_what_no_kernel_promises_is_told() -> None:
    assert touch.probe(1 << 62, 0, 60, plenty).died == "the kernel refused to promise that much"


def test_a_child_that_breaks_is_told() -> None:
    def broken() -> int:
        raise OSError

    assert touch.probe(MIB, 0, 60, broken, first_victim=False).died == "it ended with status 1"


# --- the module ------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 127600748 kB\nMemFree: 117440512 kB\nMemAvailable: 118566368 kB\nCached: 1000 kB\n"
    )
    (tmp_path / "proc/buddyinfo").write_text(FRESH)
    return tmp_path


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own containers are nobody's business here."""
    monkeypatch.setattr(memory_settle.Spark, "busy", lambda _: "")


def run(run_module: RunModule, root: Path, check: bool = False, **more: Any) -> dict[str, Any]:
    return run_module(memory_settle, {"host": "s1", "root": str(root), "min_free_gib": 110, **more}, check=check)


def test_the_module_goes_and_touches(run_module: RunModule, root: Path) -> None:
    result = run(run_module, root, touch_gib=0.0625)
    assert result["go"]
    assert result["touch"]["touched"] == 64 * MIB
    assert result["sentence"] == "s1 goes: MemFree 112.0 GiB, 0.1 GiB touched"
    assert [check["id"] for check in result["checks"]] == ["MEM.CMA", "MEM.SETTLED", "MEM.BLOCKS", "MEM.TOUCH"]
    assert result["changed"]


def test_a_check_touches_nothing(run_module: RunModule, root: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 127600748 kB\nMemFree: 57440512 kB\nCached: 67440512 kB\n")
    result = run(run_module, root, check=True, touch_gib=0.0625)
    assert result["changed"]
    assert result["actions"] == ["Flush the page cache"]
    assert result["touch"] is None
    assert not (root / "proc/sys/vm/drop_caches").exists()


def test_the_module_stops_at_once_on_a_faulty_kernel(run_module: RunModule, root: Path) -> None:
    (root / "proc/meminfo").write_text(KHO)
    result = run(run_module, root, seconds=600)
    assert (result["go"], result["verdict"], result["waited_seconds"]) == (False, "kernel_fault", 0.0)


def test_what_can_not_be_measured_stops(run_module: RunModule, tmp_path: Path) -> None:
    result = run(run_module, tmp_path, seconds=600)
    assert (result["go"], result["verdict"]) == (False, "unknown")


def test_nonsense_is_refused_before_anything_is_done(run_module: RunModule, root: Path) -> None:
    for more in (
        {"seconds": -1},
        {"seconds": 86400},
        {"min_blocks": -1},
        {"touch_gib": -0.5},
        {"touch_seconds": 0},
        {"touch_gib": "inf"},
        {"min_free_gib": "nan"},
        {"min_free_gib": -3},
    ):
        result = run(run_module, root, **more)
        assert result["failed"], more
        assert "expected" in result["msg"]
        assert "Nothing was done" in result["msg"]


def test_a_file_that_can_not_be_written_is_named(run_module: RunModule, root: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 127600748 kB\nMemFree: 57440512 kB\nCached: 67440512 kB\n")
    (root / "proc/sys/vm/drop_caches").mkdir()
    result = run(run_module, root)
    assert result["failed"]
    assert "drop_caches" in result["msg"]
