"""What the roles did can be taken back: /etc is then as it was before the first run."""

from __future__ import annotations

from conftest import ETC, NODES, Person
from test_reboot import MANAGER

NODE = NODES[0]
UNDO = {"spark_kernel_remove": True, "spark_kernel_keep_ipc": False, "page_cache_remove": True, "spark_boot_policy": "absent"}
DOCKERS = {"/etc/docker/key.json"}  # which Docker writes at its first start


def test_removal_leaves_the_machine_as_it_was(person: Person, untouched: dict[str, str]) -> None:
    person.site(limit=NODE, **UNDO).ok()
    changed = set(person.on(NODE, ETC).splitlines()) ^ set(untouched[NODE].splitlines())
    assert {line.split()[-1] for line in changed} <= DOCKERS
    assert person.on(NODE, "systemctl list-unit-files --no-legend 'sparklanes-*'", check=False) == ""
    assert person.on(NODE, "systemctl is-active sparklanes-page-cache", check=False) != "active"
    assert person.on(NODE, f"busctl get-property {MANAGER} RemoveIPC") == "b true"
    assert person.site(limit=NODE, **UNDO).ok().changed == 0
