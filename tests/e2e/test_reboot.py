"""Nodes reboot one after the other, come back as they were, and what was last good serves again.

A node of the sandbox reboots as a container does: systemd ends and starts anew, kernel and memory stay those of the machine.
A boot of real firmware and kernel is another matter (tests/vm).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import NODES, OTHER, Fleet, eventually

pytestmark = pytest.mark.slow


def boots(fleet: Fleet, check: bool = True) -> dict[str, str]:
    return {node: fleet.on(node, "cat /proc/sys/kernel/random/boot_id", check) for node in NODES}


@pytest.fixture(scope="module")
def good(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a lane that is last good."""
    fleet.serve()
    yield fleet
    fleet.play("playbooks/stop.yml").ok()


def test_a_check_says_what_it_sees_and_changes_nothing(good: Fleet) -> None:
    before, ranks = boots(good), good.ranks()
    seen = good.play("playbooks/reboot.yml", "--check").ok()
    assert seen.changed == 0
    assert "CONTAINER.FOREIGN" in seen.out
    assert boots(good) == before
    assert good.ranks() == ranks
    assert good.transaction() == {}


def test_a_container_of_somebody_else_is_named_and_nothing_reboots(good: Fleet) -> None:
    before, ranks = boots(good), good.ranks()
    with good.container("spark-2", *OTHER):
        good.play("playbooks/reboot.yml").failed(
            "CONTAINER.FOREIGN", f"{OTHER[0]} (a rank of deployment other)", "Nothing was stopped"
        )
    assert boots(good) == before
    assert good.ranks() == ranks


def test_a_slip_of_the_pen_reboots_nothing(good: Fleet) -> None:
    before = boots(good)
    good.play("playbooks/reboot.yml", "-e", "reboot_then=lauch").failed("reboot_then must be one of: stay, launch")
    assert boots(good) == before


def test_all_reboot_and_what_was_last_good_serves_again(good: Fleet) -> None:
    before, ranks, release = boots(good), good.ranks(), good.state()["last_good"]
    done = good.play("playbooks/reboot.yml", "-e", "reboot_then=launch").ok()
    assert "REBOOT.DONE" in done.out
    after = boots(good)
    assert all(after[node] != before[node] for node in NODES)
    assert all(good.ranks().values())
    assert good.ranks() != ranks
    assert good.state()["current"] == release
    assert good.transaction() == {}
    assert good.logged() == set(NODES), "each rank's log was saved before the reboot"
    for node in NODES:
        told = json.loads(good.on(node, "cat /var/lib/sparklanes/engine-boots.json"))
        assert told == {"boot_id": after[node], "boots": 1}
        assert good.on(node, "cat /proc/sys/vm/swappiness") == "10"


def power_cut(fleet: Fleet) -> None:
    """All nodes go down and come back by themselves, as after a power cut."""
    before = boots(fleet)
    for node in NODES:
        fleet.on(node, "systemd-run --quiet --on-active=1 systemctl reboot", check=False)

    def back() -> bool:
        return all(now not in ("", before[node]) for node, now in boots(fleet, check=False).items())

    eventually(back, 180, 2, lambda: "the nodes did not come back")
    for node in NODES:
        fleet.on(node, "systemctl is-system-running --wait", check=False)


def test_after_a_power_cut_nothing_starts_by_default_and_it_says_so(good: Fleet) -> None:
    release = good.state()["current"]
    power_cut(good)
    assert not any(good.ranks().values())
    shown = good.play("playbooks/health.yml")
    assert f"release {release} of lane sandbox_tiny served before" in " ".join(shown.out.split())


def test_after_a_power_cut_each_node_starts_its_rank_where_that_is_the_policy(good: Fleet) -> None:
    good.play("playbooks/launch.yml").ok()
    good.play("playbooks/configure.yml", "-e", "spark_boot_policy=launch_last_good").ok()
    try:
        release = good.state()["current"]
        power_cut(good)
        ranks = good.ranks()
        assert all(ranks.values()), good.on("spark-1", "journalctl -b -u sparklanes-boot --no-pager")
        # A launch judges it, and restarts nothing that serves.
        eventually(
            lambda: "serving, passed all gates" in good.play("playbooks/status.yml").out, 300, 0, lambda: "it does not serve"
        )
        health = f"curl -s -o /dev/null -w '%{{http_code}}' {good.api}/health || true"
        eventually(lambda: "200" in good.on("spark-1", health), 300, 5, lambda: "the head does not answer")
        good.play("playbooks/launch.yml").ok()
        assert good.ranks() == ranks
        assert good.state()["current"] == release
    finally:
        good.play("playbooks/configure.yml").ok()


def test_what_a_person_stopped_stays_stopped(good: Fleet) -> None:
    good.play("playbooks/configure.yml", "-e", "spark_boot_policy=launch_last_good").ok()
    good.play("playbooks/stop.yml").ok()
    power_cut(good)
    assert not any(good.ranks().values())
    good.play("playbooks/configure.yml").ok()
