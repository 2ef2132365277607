# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A folder that is not ours is neither used nor removed, whatever it looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import ours
from ansible.module_utils.sparklanes.common.ours import NotOurs

FOR = "a test"


def test_ours_comes_and_goes_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    ours.claim(folder, FOR)
    (folder / "sub").mkdir()
    (folder / "sub/x").write_text("x")
    (folder / "link").symlink_to(tmp_path)
    ours.claim(folder, FOR)
    assert (folder / "sub/x").read_text() == "x"
    assert ours.remove(folder, FOR)
    assert not ours.remove(folder, FOR)
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_an_empty_folder_may_be_made_ours_and_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert ours.remove(tmp_path / "a", FOR)
    (tmp_path / "a").mkdir()
    ours.claim(tmp_path / "a", FOR)
    assert ours.is_ours(tmp_path / "a", FOR)


@pytest.mark.parametrize("mark", ["none", "other purpose", "longer", "a link", "a folder", "a pipe"])
def test_a_folder_of_somebody_else_stays_as_it_is(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    match mark:
        case "other purpose":
            (folder / ours.MARK).write_text("another test\n")
        case "longer":
            (folder / ours.MARK).write_text(f"{FOR}\nand more\n")
        case "a link":
            (tmp_path / "mark").write_text(f"{FOR}\n")
            (folder / ours.MARK).symlink_to(tmp_path / "mark")
        case "a folder":
            (folder / ours.MARK).mkdir()
        case "a pipe":
            os.mkfifo(folder / ours.MARK)
    for deed in (ours.claim, ours.remove):
        with pytest.raises(NotOurs, match="victim"):
            deed(folder, FOR)
    assert (folder / "thesis.tex").read_text() == "years"


def test_a_link_to_a_folder_of_ours_is_not_it(tmp_path: Path) -> None:
    ours.claim(tmp_path / "real", FOR)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for deed in (ours.claim, ours.remove):
        with pytest.raises(NotOurs):
            deed(tmp_path / "link", FOR)
    assert ours.is_ours(tmp_path / "real", FOR)


def test_a_removal_that_ended_halfway_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a"
    ours.claim(folder, FOR)
    for name in ("0", "1", "2"):
        (folder / name).write_text("")
    real, left = Path.unlink, [2]

    def unlink(path: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(5, "Input/output error", str(path))
        real(path, missing_ok)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", unlink)
        with pytest.raises(OSError, match="Input/output"):
            ours.remove(folder, FOR)
    assert ours.remove(folder, FOR)
