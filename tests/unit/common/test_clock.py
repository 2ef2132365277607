# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The boot of a machine has a name, and its time only goes on."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.sparklanes.common.clock import boot_id, clock


def test_time_goes_on_and_the_boot_has_a_name(tmp_path: Path) -> None:
    before = clock()
    assert clock() >= before > 0
    assert boot_id() == boot_id() != ""
    assert boot_id(tmp_path) == "", "a kernel that does not tell"
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b1\n")
    assert boot_id(tmp_path) == "b1"
