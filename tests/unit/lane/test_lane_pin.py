# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Module lane_pin: what was shown is what is written, whole, and into a file that is ours."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import lane_pin
import pytest
from conftest import RunModule

BEFORE = "lane_port: 1\n"
AFTER = "lane_port: 1\nlane_model_site: {revision: x}\n"
VALUES = {"lane_model.revision (main of acme/tiny)": "a" * 40}


class Site:
    """A site's file of a lane, and the module over it."""

    def __init__(self, tmp_path: Path, run_module: RunModule) -> None:
        self.file, self.memory, self.run_module = tmp_path / "group_vars/lane_x.yml", tmp_path / "pins/x.json", run_module
        self.file.parent.mkdir()

    def run(self, confirmed: bool = True, check: bool = False, **more: Any) -> dict[str, Any]:
        was = hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file.is_file() else ""
        args = {
            "path": str(self.file),
            "content": AFTER,
            "was": was,
            "values": VALUES,
            "confirmed": confirmed,
            "memory": str(self.memory),
        }
        return self.run_module(lane_pin, {**args, "backups": str(self.memory.parent), **more}, check)


@pytest.fixture
def site(tmp_path: Path, run_module: RunModule) -> Site:
    made = Site(tmp_path, run_module)
    made.file.write_text(BEFORE)
    return made


def test_nothing_is_written_without_a_confirmation(site: Site) -> None:
    made = site.run(confirmed=False)
    assert (made["changed"], made["written"], made["diff"]["after"]) == (True, False, AFTER)
    assert site.file.read_text() == BEFORE
    assert json.loads(site.memory.read_text())["values"] == VALUES, "what was shown"


def test_check_mode_leaves_nothing(site: Site) -> None:
    for confirmed in (True, False):
        made = site.run(confirmed=confirmed, check=True)
        assert (made["changed"], made["written"], made["diff"]["before"]) == (True, False, BEFORE)
    assert site.file.read_text() == BEFORE
    assert not site.memory.parent.exists()


def test_it_is_written_once_with_the_mode_and_the_old_content_kept(site: Site) -> None:
    site.file.chmod(0o640)
    made = site.run()
    assert (made["written"], site.file.read_text(), site.file.stat().st_mode & 0o777) == (True, AFTER, 0o640)
    assert Path(made["backup"]).read_text() == BEFORE
    again = site.run()
    assert (again["changed"], again["written"], again["actions"]) == (False, False, [])
    assert sorted(path.name for path in site.file.parent.iterdir()) == ["lane_x.yml"], "nothing half-written lies beside it"


def test_a_file_that_is_new(site: Site) -> None:
    site.file.unlink()
    made = site.run()
    assert (made["written"], made["backup"], site.file.stat().st_mode & 0o777) == (True, "", 0o644)


def test_a_link_stays_a_link(site: Site, tmp_path: Path) -> None:
    """A site may keep its files in a repository of its own."""
    real = tmp_path / "elsewhere.yml"
    site.file.rename(real)
    site.file.symlink_to(real)
    assert site.run()["written"]
    assert site.file.is_symlink()
    assert real.read_text() == AFTER


def test_what_moved_since_it_was_shown_is_not_written(site: Site) -> None:
    site.run(confirmed=False)
    moved = {next(iter(VALUES)): "b" * 40}
    made = site.run(values=moved)
    assert made["failed"]
    assert f"was {'a' * 40} when it was shown, and is {'b' * 40} now. Nothing was written" in made["msg"]
    assert site.file.read_text() == BEFORE
    assert site.run(values=moved)["written"], "it has been shown now"
    assert not site.memory.exists()


def test_another_question_is_no_answer_that_moved(site: Site) -> None:
    site.run(confirmed=False)
    assert site.run(values={"lane_model.revision (v2 of acme/tiny)": "b" * 40})["written"]


def test_a_file_that_changed_meanwhile(site: Site) -> None:
    made = site.run(was="0" * 64)
    assert "changed while this ran" in made["msg"]
    assert site.file.read_text() == BEFORE


def test_a_file_that_is_read_only_or_of_somebody_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.file.chmod(0o444)
    assert "is read-only" in site.run()["msg"]
    site.file.chmod(0o644)
    monkeypatch.setattr(lane_pin.os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in site.run()["msg"]
    assert site.file.read_text() == BEFORE


def test_a_folder_that_can_not_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_pin.os, "access", lambda *_: False)
    assert "is read-only" in site.run()["msg"]
    site.file.unlink()
    assert "can't be written by this user" in site.run()["msg"]


def test_what_is_no_file_or_no_text(site: Site) -> None:
    site.file.write_bytes(b"\xff")
    assert "can't be read" in site.run()["msg"]
    site.file.unlink()
    site.file.mkdir()
    assert "can't be read" in site.run(was="")["msg"]


def test_a_write_that_fails_leaves_the_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(site.file))

    monkeypatch.setattr(lane_pin, "write_atomically", full)
    made = site.run()
    assert "No space left on device. Nothing was written" in made["msg"]
    assert site.file.read_text() == BEFORE


def test_backups_do_not_pile_up(site: Site) -> None:
    folder = site.memory.parent
    folder.mkdir()
    for number in range(30):
        (folder / f"lane_x.yml.20250101T0000{number:02}Z").write_text("old")
    made = site.run()
    kept = sorted(folder.glob("lane_x.yml.*"))
    assert len(kept) == lane_pin.KEPT_BACKUPS
    assert Path(made["backup"]) in kept
