from __future__ import annotations

import dataclasses
from pathlib import Path

import memory_info
import pytest
from ansible.module_utils.sparklanes.common import checks
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory import facts as memory_facts
from conftest import FIXTURES, RunModule
from hypothesis import given
from hypothesis import strategies as st

SAMPLES = FIXTURES / "memory"
MIB = 1024**2


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def of(meminfo: str, buddyinfo: str = "", page_size: int = 4096) -> memory_facts.MemoryFacts:
    return memory_facts.facts(sample(meminfo), sample(buddyinfo) if buddyinfo else "", page_size)


def test_blocks_of_a_fresh_spark() -> None:
    made = of("meminfo-fresh.txt", "buddyinfo-fresh.SYNTHETIC.txt").blocks
    assert made is not None
    assert (made.equivalent, made.exact, made.biggest_free_bytes) == (782, True, 32 * MIB)


def test_a_torn_spark_has_no_large_block_though_much_is_available() -> None:
    facts = of("meminfo-idle-with-cache.txt", "buddyinfo-fragmented.SYNTHETIC.txt")
    assert facts.blocks is not None
    assert facts.blocks.equivalent == 0
    assert facts.blocks.biggest_free_bytes == 16 * MIB
    assert facts.mem_available is not None
    assert facts.mem_available > 110 * GIB
    check = memory_facts.check_blocks("s1", facts, memory_facts.ENOUGH_BLOCKS)
    assert check.status == "warn"
    assert "compact_memory" in check.remedy
    assert memory_facts.check_blocks("s1", facts, memory_facts.ENOUGH_BLOCKS, strict=True).status == "fail"


@pytest.mark.parametrize(("gib", "status"), [(16, "pass"), (97, "pass"), (98, "warn"), (121, "warn")])
def test_a_container_or_a_small_machine_is_told_of_no_reboot(gib: int, status: str) -> None:
    """Its blocks are those of whoever shares it, and the count is of a Spark. What a lane asks for by number still holds."""
    torn = dataclasses.replace(of("meminfo-idle-with-cache.txt", "buddyinfo-fragmented.SYNTHETIC.txt"), mem_total=gib * GIB)
    check = memory_facts.check_blocks("s1", torn, memory_facts.ENOUGH_BLOCKS)
    assert check.status == status
    assert ("reboot" in check.remedy) == (status == "warn")
    assert memory_facts.check_blocks("s1", torn, 200, strict=True).status == "fail"


def test_page_size_and_columns_are_read_never_assumed() -> None:
    """64 KiB pages: 32 MiB is order 9. Larger blocks count in proportion."""
    text = "Node 0, zone   Normal " + " ".join(["7"] * 9 + ["3", "2"]) + "\n"
    made = memory_facts.large_blocks(memory_facts.parse_buddyinfo(text), 65536)
    assert made is not None
    assert made.equivalent == 3 + 2 * 2
    assert made.largest_bytes == 64 * MIB


def test_a_kernel_with_small_largest_blocks_gives_an_upper_bound_and_says_so() -> None:
    facts = of("meminfo-x86.txt", "buddyinfo-x86.txt")
    assert facts.blocks is not None
    normal = next(zone for zone in memory_facts.parse_buddyinfo(sample("buddyinfo-x86.txt")) if zone.zone == "Normal")
    assert len(normal.counts) == 11
    assert facts.blocks.equivalent == normal.counts[-1] * 4 // 32
    assert not facts.blocks.exact
    assert "the largest block of this kernel is 4 MiB" in memory_facts.check_blocks("s1", facts, 1).found


def test_device_zones_do_not_count() -> None:
    assert (
        memory_facts.large_blocks(memory_facts.parse_buddyinfo("Node 0, zone DMA 0 0 0 0 0 0 0 0 0 0 0 0 0 40\n"), 4096) is None
    )


def test_kernel_fault_of_kexec_handover() -> None:
    check = memory_facts.check_cma("s1", of("meminfo-kho-bug.txt"))
    assert check.status == "fail"
    assert check.found == "CmaFree 940604 kB, CmaTotal 0 kB"
    assert "kho=off" in check.remedy
    assert memory_facts.check_cma("s1", of("meminfo-fresh.txt")).status == "pass"


def test_page_cache_that_hides_free_memory_is_told_from_processes() -> None:
    facts = memory_facts.facts(
        "MemTotal: 127601452 kB\nMemFree: 27812140 kB\nMemAvailable: 59063644 kB\nCached: 70000000 kB\n", "", 4096
    )
    check = memory_facts.check_free("s1", facts, 80)
    assert check.status == "fail"
    assert check.found.startswith("MemFree 26.5 GiB of 121.7 GiB, page cache 66.8 GiB")
    assert "page_cache_flush" in check.remedy
    assert "docker ps" in memory_facts.check_free("s1", facts, 110).remedy
    assert "correct lane_min_free_gib" in memory_facts.check_free("s1", facts, 128).remedy
    held = memory_facts.facts("MemFree: 27812140 kB\nCached: 70000000 kB\nShmem: 69000000 kB\n", "", 4096)
    assert "docker ps" in memory_facts.check_free("s1", held, 80).remedy  # shared memory can't be dropped
    assert memory_facts.check_free("s1", facts, 26).status == "pass"


@pytest.mark.parametrize(
    ("told", "bytes_"),
    [
        ({"Cached": 30, "Shmem": 10, "Buffers": 1, "SReclaimable": 2}, 23),
        ({"Cached": 30, "Shmem": 40, "Buffers": 1}, 1),
        ({"Cached": 30, "MemAvailable": 90, "MemFree": 10}, 30),
        # A kernel that does not say what is cached.
        ({"MemAvailable": 90, "MemFree": 10}, 80),
        ({"MemAvailable": 90}, 0),
        ({"MemFree": 90}, 0),
        ({}, 0),
    ],
)
def test_what_a_flush_can_give_back(told: dict[str, int], bytes_: int) -> None:
    assert memory_facts.droppable(told) == bytes_
    text = "".join(f"{name}: {size} kB\n" for name, size in told.items())
    assert memory_facts.facts(text, "", 4096).droppable == bytes_ * 1024


def test_what_was_not_measured_fails() -> None:
    facts = of("meminfo-fresh.txt")  # this report does not tell MemFree
    made = memory_facts.judge("s1", facts, min_free_gib=1, swap=True)
    assert {check.id: check.status for check in made} == {
        "MEM.CMA": "pass",
        "MEM.FREE": "fail",
        "MEM.BLOCKS": "fail",
        "MEM.SWAP": "fail",
    }
    assert checks.verdict(made) == "fail"


@pytest.mark.parametrize(
    ("total", "wanted", "status"), [(16, True, "pass"), (0, True, "fail"), (16, False, "fail"), (0, False, "pass")]
)
def test_swap_as_the_lane_wants_it(total: int, wanted: bool, status: str) -> None:
    facts = memory_facts.facts(f"SwapTotal: {total} kB\nSwapFree: {total} kB\n", "", 4096)
    assert memory_facts.check_swap("s1", facts, wanted).status == status


ROWS = st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=16), min_size=1, max_size=4)


@given(ROWS, st.sampled_from([4096, 16384, 65536]))
def test_blocks_never_exceed_the_free_pages(rows: list[list[int]], page_size: int) -> None:
    text = "".join(f"Node {node}, zone   Normal {''.join(f'{count:6d} ' for count in row)}\n" for node, row in enumerate(rows))
    zones = memory_facts.parse_buddyinfo(text)
    assert [list(zone.counts) for zone in zones] == rows
    made = memory_facts.large_blocks(zones, page_size)
    assert made is not None
    assert made.equivalent * memory_facts.BLOCK <= sum(
        count * (page_size << order) for row in rows for order, count in enumerate(row)
    )


@given(st.text(max_size=300))
def test_no_text_breaks_the_readers(text: str) -> None:
    made = memory_facts.judge("s1", memory_facts.facts(text, text, 4096), min_free_gib=1, swap=True)
    assert made
    assert {check.host for check in made} == {"s1"}


def lay(root: Path, meminfo: str, buddyinfo: str) -> str:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(sample(meminfo))
    (root / "proc/buddyinfo").write_text(sample(buddyinfo))
    return str(root)


def test_module_reports_figures_checks_and_a_verdict(tmp_path: Path, run_module: RunModule) -> None:
    root = lay(tmp_path, "meminfo-idle-with-cache.txt", "buddyinfo-fresh.SYNTHETIC.txt")
    result = run_module(memory_info, {"host": "s1", "min_free_gib": 100, "root": root, "page_size": 4096})
    assert result["memory"]["mem_free"] == 45557560 * 1024
    assert result["memory"]["cached"] is None
    assert result["memory"]["blocks"]["equivalent"] == 782
    assert result["status"] == "fail"
    assert result["verdict"] == "flush"
    # Pressure and counters are no part of this tree.
    assert [check["status"] for check in result["checks"]] == ["pass", "fail", "pass", "fail"]
    assert not result["changed"]


def test_module_without_proc_fails_its_checks(tmp_path: Path, run_module: RunModule) -> None:
    result = run_module(memory_info, {"host": "s1", "root": str(tmp_path), "min_free_gib": 1})
    assert [check["status"] for check in result["checks"]] == ["fail", "fail", "fail", "fail"]
    assert result["verdict"] == "unknown"
    off = run_module(memory_info, {"host": "s1", "root": str(tmp_path), "min_blocks": 0})
    assert [check["id"] for check in off["checks"]] == ["MEM.CMA", "MEM.DISTRESS"]
