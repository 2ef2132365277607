# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Kernel settings hold after a boot, and what a rank keeps in shared memory outlives an ssh session.

In the sandbox vm.swappiness is a file of the node bound over the kernel's, so this tests files
and systemd-sysctl; how the kernel swaps is another matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

SWAPPINESS = "/proc/sys/vm/swappiness"
PROBE = "sparklanes-probe"


@pytest.fixture
def wanted(host: Any) -> str:
    return str(host.ansible.get_variables()["lane_swappiness"])


def test_swappiness_is_the_lanes(host: Any, wanted: str) -> None:
    assert host.check_output("cat %s", SWAPPINESS) == wanted


@pytest.mark.parametrize("program", ["/usr/lib/systemd/systemd-sysctl", "sysctl --quiet --system"])
def test_our_file_decides_whoever_applies_the_files(host: Any, wanted: str, program: str) -> None:
    host.check_output("echo 99 > %s", SWAPPINESS)
    try:
        assert host.check_output("cat %s", SWAPPINESS) == "99"
        host.check_output(f"{program} 2>/dev/null || true")
        assert host.check_output("cat %s", SWAPPINESS) == wanted
    finally:
        host.check_output("echo %s > %s", wanted, SWAPPINESS)


@pytest.fixture
def user(host: Any) -> Iterator[str]:
    """An ordinary user: logind leaves system users alone."""
    host.check_output("useradd --no-create-home %s", PROBE)
    number = host.check_output("id -u %s", PROBE)
    yield PROBE
    # These nodes have no PAM module for user managers, so the manager below fails; that is not what is tested.
    host.run("systemctl reset-failed user@%s.service", number)
    host.run("userdel %s; rm -f /dev/shm/%s", PROBE, PROBE)


def test_shared_memory_outlives_the_last_session_of_its_user(host: Any, user: str) -> None:
    """With RemoveIPC=yes the file is gone within a second (tried on the same nodes)."""
    host.check_output("runuser -u %s -- touch /dev/shm/%s", user, user)
    # As a user's first session begins and the last one ends.
    host.check_output("loginctl enable-linger %s", user)
    time.sleep(1)
    host.check_output("loginctl disable-linger %s", user)
    time.sleep(5)
    assert user not in host.check_output("loginctl list-users --no-legend")
    assert host.file(f"/dev/shm/{user}").exists


def test_logind_itself_says_no(host: Any) -> None:
    manager = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    assert host.check_output(f"busctl get-property {manager} RemoveIPC") == "b false"
