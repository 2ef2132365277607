"""What the roles did can be taken back: /etc is then as it was before the first run."""

from __future__ import annotations

from conftest import ETC, NODES, Person

NODE = NODES[0]
# Disabled, not deleted: docs/host.md says why a unit's text is not taken away from under systemd.
KEPT = {"/etc/sparklanes/page-cache.json", "/etc/systemd/system/sparklanes-page-cache.service"}


def test_removal_leaves_the_machine_as_it_was(person: Person, untouched: dict[str, str]) -> None:
    person.site(limit=NODE, spark_kernel_remove=True, spark_kernel_keep_ipc=False, page_cache_policy="off").ok()
    changed = set(person.on(NODE, ETC).splitlines()) ^ set(untouched[NODE].splitlines())
    assert {line.split()[-1] for line in changed} == KEPT
    assert person.on(NODE, "systemctl is-enabled sparklanes-page-cache", check=False) == "disabled"
    assert person.on(NODE, "systemctl is-active sparklanes-page-cache", check=False) != "active"
    manager = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    assert person.on(NODE, f"busctl get-property {manager} RemoveIPC") == "b true"
    again = person.site(limit=NODE, spark_kernel_remove=True, spark_kernel_keep_ipc=False, page_cache_policy="off").ok()
    assert again.changed == 0
