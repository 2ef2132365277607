# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What every node is before any role runs, as far as the sandbox answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_boots_without_a_failed_unit(host: Any) -> None:
    assert host.check_output("systemctl is-system-running") == "running"
    assert host.check_output("systemctl --failed --plain --no-legend") == ""


@pytest.mark.parametrize("unit", ["docker", "ssh"])
def test_service_runs_and_comes_back(host: Any, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_docker_stores_images_natively(host: Any) -> None:
    assert host.check_output("docker info --format '{{.Driver}}'") == "overlay2"


def test_fabric_is_apart_from_management(host: Any) -> None:
    own = host.ansible.get_variables()
    interfaces = {name: host.interface(name).addresses for name in host.interface.names()}
    holder = {at: [name for name, held in interfaces.items() if own[at] in held] for at in ("ansible_host", "sandbox_fabric_ip")}
    assert [len(names) for names in holder.values()] == [1, 1]
    assert holder["ansible_host"] != holder["sandbox_fabric_ip"]


def test_shared_memory_is_large_enough_for_a_rank(host: Any) -> None:
    assert host.mount_point("/dev/shm").filesystem == "tmpfs"
    assert int(host.check_output("df --block-size=1 --output=size /dev/shm | tail -n 1")) == 2 << 30


def test_nodes_have_identities_of_their_own(host: Any) -> None:
    """The kernel's boot id would be the same everywhere, and a reboot could not be seen."""
    own = host.check_output("cat /proc/sys/kernel/random/boot_id")
    assert own != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host.check_output("cat /etc/machine-id")
