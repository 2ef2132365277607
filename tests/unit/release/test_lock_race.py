"""Controllers that come at the same moment, as processes: exactly one gets the lock, however often it is tried."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.clock import now
from ansible.module_utils.sparklanes.common.locks import Busy, locked
from ansible.module_utils.sparklanes.release.store import Store, alone
from ansible.module_utils.sparklanes.release.transaction import Refused, Transaction

TRIES = 8
FORK = multiprocessing.get_context("fork")


def asked(id_: str) -> Transaction:
    return Transaction(id_, "stop", id_, 1.0, 1.0, 900.0)


def attempt(root: str, id_: str, break_lock: str, barrier: Any, got: Any, late: float) -> None:
    barrier.wait()
    time.sleep(late)
    try:
        Store("sparks", root).acquire(asked(id_), now(), break_lock)
        got.put(id_)
    except Refused as error:
        got.put("" if error.held is not None else "refused by nobody")


def winners(root: Path, ids: str, break_lock: str, late: float) -> list[str]:
    barrier, got = FORK.Barrier(len(ids)), FORK.Queue()
    at_work = [
        FORK.Process(target=attempt, args=(str(root), id_, break_lock, barrier, got, late * number))
        for number, id_ in enumerate(ids)
    ]
    for process in at_work:
        process.start()
    found = [got.get(timeout=30) for _ in at_work]
    for process in at_work:
        process.join()
    return sorted(name for name in found if name)


@pytest.mark.parametrize("late", [0.0, 0.001, 0.002, 0.004])
def test_one_of_those_who_come_at_once_gets_the_lock(tmp_path: Path, late: float) -> None:
    for number in range(TRIES):
        root = tmp_path / str(number)
        (winner,) = winners(root, "AB", "", late)
        held = Store("sparks", str(root)).transaction()
        assert held is not None
        assert held.id == winner, "and the journal is the winner's"


def test_one_of_those_who_break_the_same_lock_at_once_goes_on(tmp_path: Path) -> None:
    for number in range(TRIES):
        root = tmp_path / str(number)
        Store("sparks", str(root)).acquire(asked("dead"), now())
        assert len(winners(root, "ABC", "dead", 0.0)) == 1


def test_who_works_here_is_named_to_whoever_waits_in_vain(tmp_path: Path) -> None:
    at = tmp_path / "deployments" / ".lock"
    with alone(str(tmp_path), "prunes"):
        waits = locked(at, "launches", seconds=0.1)
        with pytest.raises(Busy, match=r"process \d+ \(prunes\) on this node holds .*\.lock"):
            waits.__enter__()
    with locked(at, "launches", seconds=0.1):
        pass  # it is given back with the block


@pytest.mark.parametrize("kind", ["open to others", "a link", "a folder", "a pipe"])
def test_a_lock_that_others_could_hold_is_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "open to others":
        path.touch(0o644)
    elif kind == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path, 0o600)
    with pytest.raises(OSError, match="lock"), locked(path, "works", seconds=0.1):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_the_file_of_a_lock_is_its_owners_alone(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "works"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
