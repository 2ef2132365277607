"""A recorded /proc for each verdict, and no input that breaks the readers or makes the unknown known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memory_info
import pytest
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory import facts as memory_facts
from ansible.module_utils.sparklanes.memory import pressure as memory_pressure
from ansible.module_utils.sparklanes.memory import processes as memory_processes
from ansible.module_utils.sparklanes.memory import verdict as memory_verdict
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo
from ansible.module_utils.sparklanes.memory.verdict import Done
from conftest import FIXTURES, RunModule
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLES = FIXTURES / "memory"
TREES = SAMPLES / "trees"
CALM = (TREES / "steady.SYNTHETIC/proc/pressure/memory").read_text()


def look(run_module: RunModule, tree: str, **wish: Any) -> dict[str, Any]:
    return run_module(memory_info, {"host": "s1", "root": str(TREES / tree), "page_size": 4096, "min_blocks": 0, **wish})


@pytest.mark.parametrize(
    ("tree", "wish", "figure", "step"),
    [
        ("ready.SYNTHETIC", {"min_free_gib": 110, "min_blocks": 200}, "MemFree 112.0 GiB", ""),
        ("flush", {"min_free_gib": 55.87}, "MemFree 26.5 GiB of 119.6 GiB", "page_cache_flush"),
        ("compact.SYNTHETIC", {"min_blocks": 200}, "0 free blocks of 32 MiB", "compact_memory"),
        (
            "reboot_required.SYNTHETIC",
            {"min_blocks": 200, "compacted": True},
            "0 free blocks of 32 MiB after compaction",
            "Reboot s1",
        ),
        ("kernel_fault", {"min_free_gib": 110}, "CmaFree 940604 kB, CmaTotal 0 kB", "kho=off"),
        ("held.SYNTHETIC", {"min_free_gib": 105}, "MemFree 0.6 GiB", "VLLM::Worker_TP (pid 4711) 3.7 GiB"),
        ("distress.SYNTHETIC", {}, "88.71 % of the last 10 s", "give it less"),
    ],
)
def test_each_verdict_has_figures_and_a_remedy(
    run_module: RunModule, tree: str, wish: dict[str, Any], figure: str, step: str
) -> None:
    result = look(run_module, tree, **wish)
    assert result["verdict"] == tree.partition(".")[0]
    assert figure in result["figures"]
    assert step in result["remedy"]
    assert bool(result["remedy"]) == (result["verdict"] != "ready")
    assert not result["changed"]


def test_low_memory_alone_is_no_fault(run_module: RunModule) -> None:
    """0.7 GB available with 3.2 GB of swap parked is how some lanes are meant to run."""
    result = look(run_module, "steady.SYNTHETIC")
    assert result["verdict"] == "ready"
    assert result["status"] == "pass"
    assert result["memory"]["swap_used"] == 3125000 * 1024
    assert "3.0 GiB in swap" in result["figures"]


def test_what_the_driver_took_is_told_though_no_process_has_it(run_module: RunModule) -> None:
    result = look(run_module, "held.SYNTHETIC", min_free_gib=105)
    assert 114 * GIB < result["memory"]["unaccounted"] < 115 * GIB
    assert "No process accounts for 114." in result["remedy"]
    # A kernel thread has no memory of its own.
    assert [one["pid"] for one in result["largest"]] == [4711, 812]


def test_compaction_counters_are_reported(run_module: RunModule) -> None:
    counters = look(run_module, "compact.SYNTHETIC", min_blocks=200)["reclaim"]["counters"]
    assert (counters["compact_stall"], counters["compact_fail"]) == (2700000, 1350000)


def test_memory_that_nobody_has_needs_a_reboot_once_nothing_runs() -> None:
    held = memory_facts.facts((TREES / "held.SYNTHETIC/proc/meminfo").read_text(), "", 4096)
    assert memory_verdict.verdict("s1", held, min_free_gib=105, done=Done(idle=True)).name == "reboot_required"
    assert memory_verdict.verdict("s1", held, min_free_gib=105, done=Done(idle=False)).name == "held"
    assert memory_verdict.verdict("s1", held, min_free_gib=105).name == "held"
    # More than there is helps nobody to reboot.
    assert memory_verdict.verdict("s1", held, min_free_gib=125, done=Done(idle=True)).name == "held"


def test_a_flush_that_did_not_help_is_not_asked_for_again() -> None:
    trap = memory_facts.facts((TREES / "flush/proc/meminfo").read_text(), "", 4096)
    assert memory_verdict.verdict("s1", trap, min_free_gib=55.87).name == "flush"
    assert memory_verdict.verdict("s1", trap, min_free_gib=55.87, done=Done(flushed=True)).name == "held"


def vmstat(**more: int) -> str:
    return "".join(f"{name} {value}\n" for name, value in {"pgscan_direct": 0, "pswpin": 0, "oom_kill": 0, **more}.items())


@pytest.mark.parametrize(
    ("after", "status"),
    [
        ({}, "pass"),
        ({"pgscan_direct": 100_000}, "pass"),
        ({"pswpin": 100_000}, "pass"),
        ({"pgscan_direct": 100_000, "pswpin": 100_000}, "fail"),
        ({"allocstall_normal": 5_000, "pswpin": 5_000}, "fail"),
        ({"pgscan_direct": 20, "pswpin": 20}, "pass"),
        ({"oom_kill": 1}, "fail"),
    ],
)
def test_distress_is_direct_reclaim_while_pages_come_back(after: dict[str, int], status: str) -> None:
    before = vmstat(allocstall_normal=0, allocstall_movable=0)
    made = memory_pressure.seen(CALM, before, vmstat(**{"allocstall_normal": 0, "allocstall_movable": 0, **after}), 1.0)
    assert memory_pressure.check_distress("s1", made).status == status


def test_one_look_without_pressure_measured_nothing() -> None:
    check = memory_pressure.check_distress("s1", memory_pressure.seen("", vmstat(), vmstat(), 0))
    assert (check.status, check.found) == ("fail", "not measured")
    # psi=0: rates alone do.
    assert memory_pressure.check_distress("s1", memory_pressure.seen("", vmstat(), vmstat(), 1.0)).status == "pass"


def test_a_counter_that_wraps_or_vanishes_is_no_distress() -> None:
    made = memory_pressure.seen(CALM, vmstat(pgscan_direct=10**9), vmstat(), 1.0)
    assert made.rates is not None
    assert made.rates["pgscan_direct"] == 0
    assert memory_pressure.rates({}, {"pswpin": 3}, 1.0) is None


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    (tmp_path / "8/status").write_text("Name:\ta b\nVmRSS:\t10 kB\nVmSwap:\t2 kB\n")
    (tmp_path / "9x").mkdir()
    assert memory_processes.read(tmp_path) == [memory_processes.Process(8, "a b", 10240, 2048)]


def test_too_long_a_sample_is_refused(run_module: RunModule) -> None:
    result = run_module(memory_info, {"host": "s1", "sample_seconds": 3600})
    assert result["failed"]
    assert "expected 0 to 60" in result["msg"]


def test_without_every_field_nobody_says_what_is_missing() -> None:
    text = (TREES / "held.SYNTHETIC/proc/meminfo").read_text()
    for name in ("AnonPages", "Slab", "Cached", "MemTotal", "MemFree"):
        less = "\n".join(line for line in text.splitlines() if not line.startswith(f"{name}:"))
        assert memory_processes.unaccounted(parse_meminfo(less)) is None


# --- every sample and its mutations ----------------------------------------------------------------------------

TEXTS = sorted({path.read_text(encoding="utf-8") for path in [*SAMPLES.glob("*.txt"), *TREES.rglob("*")] if path.is_file()})


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A sample with lines lost, doubled or swapped, figures replaced, characters broken, or cut anywhere."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(0, 4))):
        if not lines:
            break
        index = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["drop", "double", "number", "garble", "cut"]))
        if how == "drop":
            del lines[index]
        elif how == "double":
            lines.insert(index, lines[draw(st.integers(0, len(lines) - 1))])
        elif how == "number":
            words = lines[index].split(" ")
            words[draw(st.integers(0, len(words) - 1))] = str(draw(st.integers(-(2**70), 2**70)))
            lines[index] = " ".join(words)
        elif how == "garble":
            lines[index] = draw(st.text(max_size=40))
        else:
            lines[index] = lines[index][: draw(st.integers(0, len(lines[index])))]
    return "\n".join(lines)


@settings(max_examples=300)
@given(mutated(), mutated(), mutated(), mutated(), st.sampled_from([4096, 65536]), st.booleans())
def test_no_mutation_breaks_a_reader_and_the_unknown_stays_unknown(
    meminfo: str, buddyinfo: str, counters: str, pressure: str, page_size: int, sampled: bool
) -> None:
    facts = memory_facts.facts(meminfo, buddyinfo, page_size)
    struggle = memory_pressure.seen(pressure, counters, counters, float(sampled))
    distress = memory_pressure.check_distress("s1", struggle)
    status = memory_processes.parse_status(7, counters)
    found = memory_verdict.verdict("s1", facts, distress, [status] if status else [], 100, 200)
    assert found.name in memory_verdict.VERDICTS
    assert bool(found.remedy) == (found.name != "ready")
    if facts.mem_free is None or facts.mem_total is None:
        assert found.name == "unknown"
    if facts.mem_free is None:
        assert memory_facts.check_free("s1", facts, 100).status == "fail"
    if found.name == "ready":
        assert facts.mem_free is not None
        assert facts.mem_free >= 100 * GIB
        assert facts.blocks is not None
    if struggle.pressure is None and struggle.rates is None:
        assert distress.status == "fail"
    if facts.blocks is None:
        assert memory_facts.check_blocks("s1", facts, 200, strict=True).status == "fail"
    assert facts.to_dict()["swap_used"] is None or facts.to_dict()["swap_used"] >= 0


def test_what_a_container_is_charged_with(tmp_path: Path) -> None:
    group = f"/system.slice/docker-{'a' * 64}.scope"
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(f"0::{group}\n")
    folder = tmp_path / "sys/fs/cgroup" / group.lstrip("/")
    folder.mkdir(parents=True)
    assert memory_processes.charged(7, tmp_path) is None
    (folder / "memory.current").write_text("12345\n")
    assert memory_processes.charged(7, tmp_path) == 12345
    assert memory_processes.charged(8, tmp_path) is None
    (tmp_path / "proc/7/cgroup").write_text("0::/\n")
    assert memory_processes.charged(7, tmp_path) is None
