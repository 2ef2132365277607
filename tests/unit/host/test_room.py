# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on the disks that a launch writes to, before anything is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import disk
from ansible.module_utils.sparklanes.common.sizes import GIB, MIB
from ansible.module_utils.sparklanes.host import room


def one(what: str, free: int | None = 9 * GIB, device: int = 1, **more: Any) -> dict[str, Any]:
    return {"what": what, "path": f"/{what}", "free_bytes": free, "free_inodes": 10**6, "device": device, "error": "", **more}


@pytest.mark.parametrize(
    ("rooms", "words"),
    [
        ([one("logs"), one("state"), one("Docker", device=2)], ""),
        ([one("logs", 64 * 1024, 3), one("state")], "logs (/logs): 64.0 KiB free, 256.0 MiB needed"),
        # Each alone would fit; what lies on one disk shares it.
        ([one("logs", 300 * MIB), one("receipts", 300 * MIB)], "logs (/logs) and receipts (/receipts): 300.0 MiB free, 512.0 MiB needed"),
        ([one("logs", free_inodes=3)], "logs (/logs): 3 inodes free"),
        ([one("logs", free_inodes=None)], ""),  # btrfs has no fixed number of them
        ([one("state", read_only=True)], "state (/state): mounted read-only"),
        ([one("logs"), one("Docker", None, error="nobody told where it is")], "Docker (/Docker): nobody told where it is"),
        ([one("logs", None)], "logs (/logs): not measured"),
        ([], "not measured"),
        (None, "not measured"),
    ],
)  # fmt: skip
def test_each_disk_takes_what_lies_on_it(rooms: Any, words: str) -> None:
    check = room.check("s1", rooms)
    assert (check.id, check.host, check.status) == ("DISK.ROOM", "s1", "fail" if words else "pass")
    assert words in check.found
    assert not words or "df -h" in check.remedy


def test_folders_are_those_that_docker_names() -> None:
    told = {"root": "/data/docker", "image_root": "/data/docker"}
    assert room.folders(told)["Docker"] == "/data/docker"
    assert "images" not in room.folders(told)
    assert room.folders({**told, "image_root": "/nvme/containerd"})["images"] == "/nvme/containerd"
    assert set(room.folders({"error": "hangs"})) <= set(room.LEAST)


def test_a_docker_that_does_not_tell_its_root_was_not_measured() -> None:
    check = room.check("s1", room.measure(room.folders({"error": "hangs"})))
    assert (check.status, "Docker (" in check.found) == ("fail", True)


def test_a_folder_that_is_yet_to_come_is_measured_at_its_nearest_parent(tmp_path: Path) -> None:
    found = room.measure({"logs": str(tmp_path / "not/yet")})[0]
    assert (found["error"], found["device"]) == ("", tmp_path.stat().st_dev)
    assert found["free_bytes"] > 0


def test_a_disk_that_does_not_answer_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: Any) -> Any:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(disk.os, "statvfs", broken)
    check = room.check("s1", room.measure({"logs": str(tmp_path)}))
    assert (check.status, "Stale file handle" in check.found) == ("fail", True)


def test_a_file_system_without_inodes_is_no_full_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"f_bavail": 9, "f_frsize": GIB, "f_files": 0, "f_favail": 0, "f_flag": os.ST_RDONLY}
    monkeypatch.setattr(disk.os, "statvfs", lambda _: SimpleNamespace(**told))
    found = disk.measured(tmp_path)
    assert (found["free_inodes"], found["read_only"], found["free_bytes"]) == (None, True, 9 * GIB)
