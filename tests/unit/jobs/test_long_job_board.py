from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from conftest import ROOT


def plugin() -> Any:
    """The action plugin; the module of the same name in library/ holds its documentation."""
    spec = importlib.util.spec_from_file_location("long_job_action", ROOT / "action_plugins" / "long_job.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


long_job = plugin()
Board = long_job.Board


def boards(folder: Path) -> tuple[Any, Any]:
    return Board(str(folder), "s1", "s1"), Board(str(folder), "s2", "s1")


def test_workers_are_done_when_the_leader_is(tmp_path: Path) -> None:
    head, worker = boards(tmp_path)
    assert worker.read() == (False, "")
    head.post()
    assert worker.read() == (True, "")


def test_a_worker_that_fails_ends_everybodys_wait(tmp_path: Path) -> None:
    head, worker = boards(tmp_path)
    worker.post("the rank ended with exit code 1")
    assert head.read() == (False, "s2 failed first: the rank ended with exit code 1")


def test_a_worker_that_is_done_doesnt_end_the_leaders_wait(tmp_path: Path) -> None:
    head, worker = boards(tmp_path)
    worker.post()
    assert head.read() == (False, "")


def test_without_a_folder_nobody_is_asked() -> None:
    board = Board("", "s1", "")
    board.post("x")
    assert board.read() == (False, "")


def test_a_full_disk_of_the_controller_ends_no_boot(tmp_path: Path) -> None:
    """Where the folder can't be made or written, the hosts tell each other elsewhere."""
    (tmp_path / "full").write_text("")
    head, worker = boards(tmp_path / "full" / "board")
    spare = head._folders()[-1]
    try:
        worker.post("the rank ended")
        assert head.read() == (False, "s2 failed first: the rank ended")
        assert spare.stat().st_mode & 0o777 == 0o700
    finally:
        for path in spare.glob("*"):
            path.unlink()
        spare.rmdir()


def test_owners_of_the_wanted_folder_are_those_of_its_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS and mounts that map users name others: the hosts of a task hear each other all the same."""
    monkeypatch.setattr(long_job.os, "getuid", lambda: 4242)
    monkeypatch.setattr(long_job, "SPARE", ())
    head, worker = Board(str(tmp_path), "s1", "s1"), Board(str(tmp_path), "s2", "s1")
    worker.post("the rank ended")
    assert head.read() == (False, "s2 failed first: the rank ended")


def test_nobody_posts_into_a_folder_that_somebody_else_put_into_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "full"
    file.write_text("")
    monkeypatch.setattr(long_job.os, "getuid", lambda: 4242)
    monkeypatch.setattr(long_job, "SPARE", (str(tmp_path),))
    with pytest.raises(AnsibleActionFail, match=r"can't tell each other.*somebody else's"):
        Board(str(file / "below"), "s1", "s1").post()
