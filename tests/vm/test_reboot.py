"""What is configured is there after a boot: after a reboot on one machine, after a power cut on the other."""

from __future__ import annotations

from conftest import NODES, SWAPPINESS, Person
from test_fabric import detect, rail

FIRST, SECOND = NODES


def test_a_boot_brings_everything_back(person: Person) -> None:
    facts = detect(person)
    # The last thing before the power goes: what site.yml has just written must be on the disk.
    person.site(swappiness="20").ok()
    assert {person.swappiness(node) for node in NODES} == {"20"}

    def reset(node: str) -> None:
        if node == FIRST:
            person.on(node, "systemctl reboot", check=False)
        else:
            person.machine(node).cut_power()

    person.restart(reset)
    for node in NODES:
        assert person.swappiness(node) == "20"
        assert person.on(node, "systemctl is-active sparklanes-page-cache") == "active"
        manager = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
        assert person.on(node, f"busctl get-property {manager} RemoveIPC") == "b false"
    assert person.site(swappiness="20").ok().changed == 0

    again = detect(person)
    for node in NODES:
        assert again[node]["errors"] == []
        for found in facts[node]["chosen"]:
            now = rail(again, node, found["hca"])
            # The index may differ: it depends on the order in which addresses come.
            assert {**now, "gid_index": 0, "gid": ""} == {**found, "gid_index": 0, "gid": ""}
        assert again[node]["env"] == facts[node]["env"]
    person.site(swappiness=SWAPPINESS).ok()
