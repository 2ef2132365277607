# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on a disk: what is free where a path will be, and what can't be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import disk
from ansible.module_utils.sparklanes.common.sizes import GIB


def test_a_path_that_is_yet_to_come_is_on_the_disk_of_what_stands(tmp_path: Path) -> None:
    assert disk.standing(tmp_path / "a/b/c") == tmp_path
    assert disk.device(tmp_path / "a/b") == tmp_path.stat().st_dev
    assert disk.free_bytes(tmp_path / "a/b") > 0
    assert disk.standing("/") == Path("/")
    assert disk.standing("no/such/folder") == Path()


def test_what_fits_and_what_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 30 * GIB)
    assert disk.lacking(tmp_path, 20 * GIB, 10 * GIB) == ""
    assert disk.lacking("/x", 20 * GIB, 10 * GIB + 1) == "/x has 30.0 GiB free, expected 30.0"
    assert disk.lacking("/x", -5 * GIB, 32 * GIB) == ""


def test_what_can_not_be_measured_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(disk.os, "statvfs", broken)
    assert disk.lacking("/nas", 0) == "how much room /nas has can't be measured (Stale file handle)"
