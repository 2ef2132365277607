"""What is configured is there after a boot: by playbooks/reboot.yml on both machines, and after a power cut on one."""

from __future__ import annotations

from typing import Any

from conftest import NODES, SWAPPINESS, Person
from test_fabric import detect, rail

FIRST, SECOND = NODES
MANAGER = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"


def whole(person: Person, node: str, swappiness: str) -> None:
    assert person.swappiness(node) == swappiness
    assert person.on(node, "systemctl is-active sparklanes-page-cache") == "active"
    assert person.on(node, f"busctl get-property {MANAGER} RemoveIPC") == "b false"


def same_fabric(person: Person, before: dict[str, dict[str, Any]]) -> None:
    """Indexes may differ: they depend on the order in which addresses come."""
    after = detect(person)
    for node in NODES:
        assert after[node]["errors"] == []
        assert after[node]["env"] == before[node]["env"]
        for found in before[node]["chosen"]:
            now = rail(after, node, found["hca"])
            assert [now[key] for key in ("netdev", "ipv4", "network", "mtu")] == [
                found[key] for key in ("netdev", "ipv4", "network", "mtu")
            ]


def test_machines_reboot_one_after_the_other_and_are_as_before(person: Person) -> None:
    boots, facts = {node: person.boot(node) for node in NODES}, detect(person)
    for node in NODES:
        person.hang_up(node)
    person.play("playbooks/reboot.yml").ok()
    for node in NODES:
        person.pair.wait_for(person.machine(node), other_than=boots[node])
        whole(person, node, SWAPPINESS)
    same_fabric(person, facts)
    assert person.site().ok().changed == 0


def test_what_was_just_written_outlasts_a_power_cut(person: Person) -> None:
    facts = detect(person)
    person.role("spark_kernel", hosts=SECOND, spark_kernel_swappiness=20).ok()
    person.restart(lambda node: person.machine(node).cut_power(), [SECOND])
    whole(person, SECOND, "20")
    same_fabric(person, facts)
    person.role("spark_kernel", hosts=SECOND, spark_kernel_swappiness=int(SWAPPINESS)).ok()
