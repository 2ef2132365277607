# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What lets a wedged Spark be entered: as systemd, journald and dpkg themselves tell it.

A node of the sandbox may not lower an OOM score and has no cgroup v2 of its own, so what the kernel makes of score
and reserve is not seen here.
"""

from __future__ import annotations

from typing import Any


def shown(host: Any, unit: str, name: str) -> str:
    return str(host.check_output("systemctl show %s --property=%s --value", unit, name))


def test_what_is_started_over_ssh_has_a_score_and_a_reserve(host: Any) -> None:
    assert shown(host, "ssh.service", "OOMScoreAdjust") == "-900"
    for unit in ("ssh.service", "system.slice", "user.slice"):
        assert shown(host, unit, "MemoryMin") == str(128 * 1024**2), unit
        assert shown(host, unit, "NeedDaemonReload") == "no", unit


def test_the_journal_is_on_disk_and_bounded(host: Any) -> None:
    machine = host.check_output("cat /etc/machine-id")
    assert host.file(f"/var/log/journal/{machine}/system.journal").exists
    host.check_output("logger -t sparklanes-probe on disk && journalctl --sync")
    assert host.check_output(f"journalctl --directory=/var/log/journal/{machine} -t sparklanes-probe -n 1 -o cat") == "on disk"
    assert "SystemMaxUse=1024M" in host.check_output("systemd-analyze cat-config systemd/journald.conf")


def test_packages_are_held(host: Any) -> None:
    assert host.check_output("apt-mark showhold") == "procps"


def test_a_boot_finds_a_policy(host: Any) -> None:
    assert host.service("sparklanes-boot").is_enabled
    assert not host.check_output("systemctl show sparklanes-boot --property=LoadError --value").strip('" ')
    assert host.check_output("systemd-analyze verify /etc/systemd/system/sparklanes-boot.service 2>&1 || true") == ""
