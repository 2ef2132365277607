"""Nodes reboot one after the other, come back as they were, and what was last good serves again.

A node of the sandbox reboots as a container does: systemd ends and starts anew, kernel and memory stay those of the machine.
A boot of real firmware and kernel is another matter (tests/vm).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import NODES, Fleet

pytestmark = pytest.mark.slow


def boots(fleet: Fleet) -> dict[str, str]:
    return {node: fleet.on(node, "cat /proc/sys/kernel/random/boot_id") for node in NODES}


@pytest.fixture(scope="module")
def good(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a lane that is last good."""
    fleet.play("playbooks/launch.yml").ok()
    if fleet.state()["status"] != "serving":
        fleet.play("playbooks/bank.yml", "-e", "bank_accept=true").ok()
        fleet.play("playbooks/launch.yml").ok()
    assert fleet.state()["status"] == "serving"
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
    image = json.loads(good.on("spark-2", "docker inspect $(docker ps -q) --format '{{json .Config.Image}}' | head -1"))
    good.on("spark-2", f"docker run -d --name other --label sparklanes.deployment=other --entrypoint sleep {image} 600")
    try:
        good.play("playbooks/reboot.yml").failed("CONTAINER.FOREIGN", "other (a rank of deployment other)", "Nothing was stopped")
    finally:
        good.on("spark-2", "docker stop -t 1 other && docker rm other")
    assert boots(good) == before
    assert good.ranks() == ranks


def test_a_slip_of_the_pen_reboots_nothing(good: Fleet) -> None:
    before = boots(good)
    good.play("playbooks/reboot.yml", "-e", "reboot_then=lauch").failed("expected stay or launch", "Nothing was stopped")
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
    logs = {path.name.split("-rank")[0] for path in good.receipts()[-1].glob("*.log")}
    assert logs == set(NODES), "each rank's log was saved before the reboot"
    for node in NODES:
        told = json.loads(good.on(node, "cat /var/lib/sparklanes/engine-boots.json"))
        assert told == {"boot_id": after[node], "boots": 1}
        assert good.on(node, "cat /proc/sys/vm/swappiness") == "10"
