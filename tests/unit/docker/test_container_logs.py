# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A log is saved whole, or it says itself what is missing of it; a full disk is no reason to keep a lane down."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import logs

PRINT = "import sys; sys.stdout.write(''.join(f'line {n:07d}\\n' for n in range(int(sys.argv[1])))); sys.exit(int(sys.argv[2]))"


def printing(lines: int, code: int = 0) -> list[str]:
    return [sys.executable, "-c", PRINT, str(lines), str(code)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 1000)


def test_what_fits_is_kept_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "rank0.log"
    old = os.umask(0o077)
    try:
        saved = logs.save(printing(300), "x", path, most=100_000)
    finally:
        os.umask(old)
    assert (saved.path, saved.whole, saved.problem) == (str(path), True, "")
    assert path.read_text() == "".join(f"line {n:07d}\n" for n in range(300))
    assert saved.bytes == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o755, "whoever fetches it passes through"
    assert [entry.name for entry in path.parent.iterdir()] == ["rank0.log"]


def test_an_engine_that_said_nothing_has_a_whole_and_empty_log(tmp_path: Path) -> None:
    saved = logs.save(printing(0), "x", tmp_path / "l")
    assert (saved.whole, (tmp_path / "l").read_bytes()) == (True, b"")


@pytest.mark.parametrize("lines", [200, 5_000, 60_000])
def test_a_log_without_an_end_keeps_its_head_and_its_tail(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "l"
    saved = logs.save(printing(lines), "x", path, most=2_000)
    text = path.read_text()
    assert text.startswith("line 0000000\nline 0000001\n")
    assert text.endswith(f"line {lines - 1:07d}\n")
    assert "[sparklanes: " in text
    assert len(text) < 2_200
    assert not saved.whole
    assert "in the middle of the log were left out" in saved.problem
    # Not a byte is lost without being counted.
    left_out = int(text.partition("[sparklanes: ")[2].split()[0])
    assert len(text) - len(f"\n[sparklanes: {left_out} bytes left out here]\n") + left_out == lines * 13


def test_one_byte_more_than_fits_is_said(tmp_path: Path) -> None:
    assert logs.save(printing(100), "x", tmp_path / "whole", most=1300).whole
    assert not logs.save(printing(100), "x", tmp_path / "cut", most=1299).whole


def test_a_program_that_fails_keeps_what_it_said(tmp_path: Path) -> None:
    saved = logs.save(printing(3, code=1), "x", tmp_path / "l")
    assert "exit code 1" in saved.problem
    assert (tmp_path / "l").read_text().endswith("line 0000002\n")
    nothing = logs.save(printing(0, code=1), "x", tmp_path / "none")
    assert (nothing.path, nothing.whole) == ("", False)
    assert not (tmp_path / "none").exists()


def test_a_program_that_never_ends_is_ended(tmp_path: Path) -> None:
    saved = logs.save(
        [sys.executable, "-c", "print('a', flush=True); import time; time.sleep(60)"], "x", tmp_path / "l", seconds=1
    )
    assert (tmp_path / "l").read_text() == "a\n"
    assert "before the end of the log" in saved.problem


def test_a_full_disk_is_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "free_bytes", lambda path: 0)
    saved = logs.save(printing(3), "x", tmp_path / "d" / "l")
    assert saved.path == ""
    assert f"{tmp_path / 'd'} has" in saved.problem
    assert "the disk is full" in saved.problem
    assert list((tmp_path / "d").iterdir()) == []


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    saved = logs.save(printing(3), "x", tmp_path / "file" / "l")
    assert (saved.path, saved.whole) == ("", False)
    assert str(tmp_path / "file") in saved.problem


class Filling(io.RawIOBase):
    """A file on a disk that takes so many bytes at most, whatever was promised."""

    def __init__(self, inner: Any, room: int) -> None:
        self.inner, self.room = inner, room

    def fileno(self) -> int:
        return int(self.inner.fileno())

    def seek(self, where: int, whence: int = 0) -> int:
        return int(self.inner.seek(where, whence))

    def write(self, data: Any) -> int:
        left = self.room - self.inner.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.inner.write(bytes(data)[:left]))

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("room", [100, 9_000, 40_000])
def test_a_disk_that_fills_up_meanwhile_leaves_a_head_and_a_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    enter = logs._Writer.__enter__

    def filling(self: Any) -> Any:
        enter(self)
        self.stream = Filling(self.stream, room)
        return self

    monkeypatch.setattr(logs._Writer, "__enter__", filling)
    saved = logs.save(printing(10_000), "x", tmp_path / "l", most=120_000)
    assert "No space left on device" in saved.problem
    assert not saved.whole
    if saved.path:
        text = (tmp_path / "l").read_text()
        assert len(text) <= room
        assert text.startswith("line 0000000\nline 0000001\n"[: len(text)])
        if room > 5_000:
            assert text.endswith("line 0009999\n")
            assert "No space left on device" in text


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".l.part").symlink_to(victim)
    saved = logs.save(printing(3), "x", tmp_path / "l")
    assert victim.read_text() == "mine"
    assert saved.path == ""
