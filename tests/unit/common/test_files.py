# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files are whole or as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import files


def test_content_and_mode_arrive_together(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    files.write_atomically(path, "ä\n", 0o640)
    assert path.read_text(encoding="utf-8") == "ä\n"
    assert path.stat().st_mode & 0o777 == 0o640
    files.write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_fails_in_between_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def half() -> None:
        with files.replacing(path) as stream:
            stream.write(b"half of it")
            assert path.read_text() == "old", "a reader sees the old file until the end"
            raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    assert files.write_json(path, {"b": 1, "a": "ä"}) is True
    assert path.read_text(encoding="utf-8") == '{\n  "a": "ä",\n  "b": 1\n}\n'
    before = path.stat().st_ino
    assert files.write_json(path, {"a": "ä", "b": 1}) is False
    assert path.stat().st_ino == before
    assert files.write_json(path, {"a": "ä", "b": 1}, 0o644) is True, "another mode is a change too"
    assert files.read_json(path) == {"a": "ä", "b": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe"])
def test_what_is_no_json_object_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    assert files.read_json(path) is None
    path.write_bytes(content)
    assert files.read_json(path) is None
    assert files.write_json(path, {}) is True


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "too large"])
def test_what_is_no_file_of_ours_is_neither_waited_for_nor_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A pipe in place of a record held each verb for ever, and so did the look whether a file already holds what is to be written."""
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        monkeypatch.setattr(files, "LARGEST_LIST", 20)
        path.write_text('{"a": "bcdefghijklmnopqrst"}')
    assert files.read_json(path) is None
    with pytest.raises(files.Unreadable):
        files.read_state(path, 10)
    if kind != "folder":
        assert files.write_json(path, {"a": 1})
        assert files.read_json(path) == {"a": 1}
