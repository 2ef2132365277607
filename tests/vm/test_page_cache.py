"""The page cache of a real kernel fills, starves MemFree, and is really given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import GIB, MIB, NODES, USER, Person, Session, until

NODE = NODES[0]
FILE = "/var/tmp/weights"
SIZE = 500 * MIB
UNIT = "sparklanes-page-cache"


def state(person: Person) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(person.on(NODE, "cat /run/sparklanes/page-cache.json"))
    return told


def memory(person: Person, **wish: Any) -> dict[str, Any]:
    return person.module("memory_info", hosts=NODE, host=NODE, min_blocks=0, **wish)[NODE]


def statuses(told: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in told["checks"]}


def fill(person: Person) -> None:
    person.on(NODE, f"cat {FILE} > /dev/null")


@pytest.fixture(scope="module", autouse=True)
def weights(person: Person) -> Iterator[None]:
    """A file as large as fits beside what runs, written as weights are: what is written is in the cache."""
    person.role("page_cache", page_cache_policy="off").ok()
    person.on(
        NODE, f"dd if=/dev/zero of={FILE} bs=1M count={SIZE // MIB} status=none && sync && echo 3 > /proc/sys/vm/drop_caches"
    )
    yield
    person.on(NODE, f"rm -f {FILE}")
    person.role("page_cache").ok()


@pytest.fixture
def starved(person: Person) -> int:
    """MemFree when the cache holds the file and nothing flushes it; MemAvailable says nothing of it."""
    assert person.on(NODE, f"systemctl is-active {UNIT}", check=False) != "active"
    fill(person)
    found = memory(person)["memory"]
    assert found["cached"] >= SIZE
    assert found["mem_available"] - found["mem_free"] >= SIZE * 0.8
    return int(found["mem_free"])


def test_a_gate_sees_memory_that_is_only_available(person: Person, starved: int) -> None:
    wanted = (starved + SIZE // 2) / GIB
    before = memory(person, min_free_gib=wanted)
    assert (before["verdict"], statuses(before)["MEM.FREE"]) == ("flush", "fail")
    person.module("page_cache_flush", hosts=NODE)
    after = memory(person, min_free_gib=wanted)
    assert (after["verdict"], statuses(after)["MEM.FREE"]) == ("ready", "pass")


def test_the_flush_tells_what_the_kernel_tells(person: Person, starved: int) -> None:
    before = person.meminfo(NODE)
    told = person.module("page_cache_flush", hosts=NODE)[NODE]
    after = person.meminfo(NODE)
    near = 100 * MIB  # what Ansible itself takes and returns meanwhile
    assert told["changed"]
    assert abs(told["before"]["mem_free"] - before["MemFree"]) < near
    assert abs(told["after"]["mem_free"] - after["MemFree"]) < near
    assert told["freed_bytes"] >= SIZE * 0.9
    assert after["MemFree"] - before["MemFree"] >= SIZE * 0.8
    assert after["Cached"] < before["Cached"] - SIZE * 0.9


def test_a_flush_that_is_not_enough_fails_with_figures(person: Person) -> None:
    """All memory but what the kernel itself takes at the least: a wish that is possible, and never comes true."""
    wanted = (person.meminfo(NODE)["MemTotal"] - 16 * MIB) / GIB
    told = person.module("page_cache_flush", hosts=NODE, wanted_free_gib=wanted)[NODE]
    assert told["failed"]
    assert f"wanted {wanted:g} GiB" in told["msg"]
    assert told["after"]["mem_free"] > 0


def test_a_user_without_rights_frees_the_cache_file_by_file(person: Person, starved: int, user: Session) -> None:
    refused = person.module("page_cache_flush", hosts=NODE, user=USER)[NODE]
    assert refused["failed"]
    assert "Run with become" in refused["msg"]
    told = person.module("page_cache_flush", hosts=NODE, user=USER, paths=[FILE])[NODE]
    assert (told["files"], told["changed"]) == (1, True)
    assert told["freed_bytes"] >= SIZE * 0.9
    assert person.on(NODE, f"fincore --bytes --noheadings --output RES {FILE}") == "0"


def test_the_unit_frees_it_whatever_memory_looks_like(person: Person, starved: int) -> None:
    person.role("page_cache", page_cache_policy="interval", page_cache_interval_seconds=5).ok()
    until("the first flush", lambda: state(person)["flushes"] > 0)
    assert memory(person)["memory"]["mem_free"] >= starved + SIZE * 0.7
    fill(person)
    seen = state(person)["flushes"]
    until("two more flushes", lambda: state(person)["flushes"] >= seen + 2)
    assert person.on(NODE, f"fincore --bytes --noheadings --output RES {FILE}") == "0"
    assert state(person)["freed_bytes"] >= SIZE
    person.role("page_cache", page_cache_policy="off").ok()


def test_the_floor_leaves_a_small_cache_alone_and_gives_a_large_one_back(person: Person) -> None:
    free = memory(person)["memory"]["mem_free"]
    floor = (free - SIZE // 2) / GIB
    person.role("page_cache", page_cache_policy="floor", page_cache_floor_gib=floor).ok()
    try:
        person.on(NODE, f"head -c {SIZE // 5} {FILE} > /dev/null; sleep 5")
        assert state(person)["flushes"] == 0
        assert int(person.on(NODE, f"fincore --bytes --noheadings --output RES {FILE}")) >= SIZE // 5
        fill(person)
        until("a flush below the floor", lambda: state(person)["flushes"] > 0)
        last = state(person)["last"]
        assert last["before"]["mem_free"] < floor * GIB <= last["after"]["mem_free"]
    finally:
        person.role("page_cache", page_cache_policy="off").ok()


def test_the_hardened_unit_can_do_that_and_nothing_else(person: Person) -> None:
    """On this kernel and this systemd, its protections are real ones."""
    person.role("page_cache", page_cache_policy="interval").ok()
    number = person.on(NODE, f"systemctl show --property MainPID --value {UNIT}")
    inside = f"nsenter --target {number} --mount -- sh -c"
    for path, writable in {
        "/proc/sys/vm/drop_caches": True,
        "/proc/sys/vm/swappiness": False,
        "/etc": False,
        "/var/lib": False,
    }.items():
        probe = person.on(NODE, f"{inside} 'test -w {path} && echo yes'", check=False)
        assert (probe == "yes") is writable, path
    assert person.on(NODE, f"grep CapEff /proc/{number}/status").split()[1] == "0" * 16
    person.role("page_cache", page_cache_policy="off").ok()


def compaction(person: Person) -> int:
    """Pages that the kernel has moved to make large blocks."""
    counters = dict(line.split() for line in person.on(NODE, "cat /proc/vmstat").splitlines())
    return int(counters["compact_migrate_scanned"])


def test_memory_settles_by_a_flush_and_is_touched(person: Person, starved: int) -> None:
    wanted = (starved + SIZE // 2) / GIB
    told = person.module(
        "memory_settle", hosts=NODE, host=NODE, min_free_gib=wanted, seconds=60, touch_gib=0.2, touch_margin_gib=0.1
    )[NODE]
    assert told["go"], told
    assert set(statuses(told).values()) <= {"pass", "warn"}, told["checks"]
    assert [action.split()[0] for action in told["actions"]] == ["Flushed", "Touched"]
    assert told["touch"]["touched"] >= 0.19 * GIB
    assert person.meminfo(NODE)["MemFree"] > wanted * GIB - 100 * MIB, "what was touched was given back"


def test_torn_memory_is_compacted_and_what_that_cannot_mend_is_said(person: Person) -> None:
    """No machine of this size has a thousand blocks of 32 MiB, so in the end it takes a reboot, or another machine."""
    before = compaction(person)
    told = person.module("memory_settle", hosts=NODE, host=NODE, min_blocks=1000, seconds=5, touch_gib=0)[NODE]
    assert "Compacted memory" in told["actions"]
    assert compaction(person) > before
    assert (told["go"], told["verdict"]) == (False, "reboot_required")
    assert statuses(told)["MEM.BLOCKS"] == "fail"
    assert NODE in told["sentence"]


@pytest.fixture
def swap(person: Person) -> Iterator[None]:
    """A swap file that /etc/fstab doesn't know, and a process most of whose memory is in it."""
    person.on(
        NODE,
        "dd if=/dev/zero of=/swap.img bs=1M count=256 status=none && chmod 600 /swap.img && mkswap -q /swap.img && "
        "swapon --priority 7 /swap.img",
    )
    hog = "import time; held = bytearray(160 << 20); held[::4096] = b'x' * (160 << 8); open('/run/hog', 'w'); time.sleep(3000)"
    person.on(NODE, f'systemd-run --quiet --unit=hog --property=MemoryMax=64M python3 -c "{hog}"')
    # Once it sleeps, what is in swap stays there.
    until("all is touched", lambda: person.on(NODE, "test -e /run/hog && echo yes", check=False))
    until("pages are in swap", lambda: person.meminfo(NODE)["SwapTotal"] - person.meminfo(NODE)["SwapFree"] > 64 * MIB)
    person.on(NODE, "systemctl set-property --runtime hog.service MemoryMax=infinity")
    yield
    person.on(NODE, "systemctl stop hog.service; rm -f /run/hog; swapoff --all; rm -f /swap.img")


def test_swap_is_emptied_and_on_again(person: Person, swap: None) -> None:
    total = person.meminfo(NODE)["SwapTotal"]
    refused = person.module("swap_recycle", hosts=NODE, reserve_gib=64)[NODE]
    assert refused["failed"]
    assert "room for both" in refused["msg"]
    told = person.module("swap_recycle", hosts=NODE, reserve_gib=0.1)[NODE]
    assert told["changed"], told
    assert told["before"] > 64 * MIB
    assert told["after"] < 8 * MIB
    now = person.meminfo(NODE)
    assert now["SwapTotal"] == total
    assert person.on(NODE, "swapon --show=NAME,PRIO --noheadings").split() == ["/swap.img", "7"]
    assert now["SwapTotal"] - now["SwapFree"] < 16 * MIB
    assert person.on(NODE, "systemctl is-active hog.service") == "active", "nothing was killed for it"
    person.on(NODE, "swapoff --all")
    off = person.module("swap_recycle", hosts=NODE)[NODE]
    assert (off["changed"], off["before"]) == (False, 0)
    assert person.meminfo(NODE)["SwapTotal"] == 0, "swap that is off stays off"
