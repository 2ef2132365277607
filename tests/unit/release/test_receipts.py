"""Every attempt leaves a receipt, whatever became of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.release import controller, receipts

ATTEMPT = {"transaction": "t1", "verb": "launch"}


def read(folder: Path) -> Any:
    return json.loads((folder / "receipt.json").read_text(encoding="utf-8"))


def test_it_is_there_from_the_beginning(tmp_path: Path) -> None:
    """A run that is killed says no more than this."""
    assert receipts.begin(tmp_path / "t1", ATTEMPT)
    assert read(tmp_path / "t1") == {**ATTEMPT, "outcome": {"status": "begun"}}


def test_what_nobody_else_ended_ends_with_its_reason(tmp_path: Path) -> None:
    receipts.begin(tmp_path, ATTEMPT)
    receipts.end(tmp_path, receipts.REFUSED, "gate A said no.", {"gates": {"A": {"verdict": "fail"}}})
    assert read(tmp_path)["outcome"] == {"status": "refused", "reason": "gate A said no."}
    assert read(tmp_path)["gates"]["A"]["verdict"] == "fail"


def test_what_the_launch_itself_recorded_stays(tmp_path: Path) -> None:
    receipts.begin(tmp_path, ATTEMPT)
    whole = {"outcome": {"status": "restored"}, "ranks": {}}
    (tmp_path / "receipt.json").write_text(json.dumps(whole), encoding="utf-8")
    receipts.end(tmp_path, receipts.FAILED, "x", {})
    assert read(tmp_path) == whole


def test_a_launch_that_goes_on_is_the_same_attempt(tmp_path: Path) -> None:
    receipts.begin(tmp_path, ATTEMPT)
    receipts.end(tmp_path, receipts.INTERRUPTED, "ctrl-C", {"gates": {"A": {}}})
    assert not receipts.begin(tmp_path, {**ATTEMPT, "time": "later"})
    assert read(tmp_path) == {**ATTEMPT, "time": "later", "gates": {"A": {}}, "outcome": {"status": "begun"}}


def test_only_its_own_note_is_forgotten(tmp_path: Path) -> None:
    mine = controller.transaction_id(tmp_path, os.getpid(), "abcd", where="here")
    note = controller.note_path(tmp_path, "here")
    receipts.forget(tmp_path, "20261201T101500Z-beef", "here")
    receipts.forget(tmp_path, mine, "elsewhere")
    assert note.exists()
    receipts.forget(tmp_path, mine, "here")
    receipts.forget(tmp_path, mine, "here")
    assert not note.exists()
