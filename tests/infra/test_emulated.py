# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the sandbox emulates does what its name says, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import platforms
import pytest

HOOK = "/usr/bin/nvidia-container-runtime-hook"
RUNC = "/usr/local/sbin/runc"


@pytest.fixture
def image(host: Any) -> str:
    known = host.ansible.get_variables()
    return f"{known['sandbox_image_repository']}@{known['sandbox_image_digest']}"


def test_kernel_settings_stay_in_the_node(host: Any) -> None:
    """Not swappiness, which the lane's role owns."""
    machine = Path("/proc/sys/vm/dirty_ratio")
    before = machine.read_text().strip()
    try:
        host.check_output("sysctl -q -w vm.dirty_ratio=%s", str(int(before) + 1))
        assert host.sysctl("vm.dirty_ratio") == int(before) + 1
        assert machine.read_text().strip() == before
    finally:
        host.check_output("sysctl -q -w vm.dirty_ratio=%s", before)


def test_unlimited_locked_memory_starts_a_container(host: Any, image: str) -> None:
    """On a machine that may not grant it the request is lowered to the node's own limit; elsewhere it is granted."""
    asked = "docker run --rm --ulimit memlock=-1 --entrypoint sh %s -c 'ulimit -l'"
    granted = host.check_output(asked, image)
    assert granted == (host.check_output("bash -c 'ulimit -H -l'") if host.file(RUNC).exists else "unlimited")


def test_a_gpu_is_asked_for_and_none_is_there(host: Any, image: str) -> None:
    if not host.file(HOOK).exists:
        platforms.skip("gpu")
    assert "emulated" in host.check_output("findmnt --noheadings --output SOURCE %s", HOOK)
    assert host.check_output("docker run --rm --gpus all --entrypoint sh %s -c 'ls /dev | grep -c nvidia || true'", image) == "0"
