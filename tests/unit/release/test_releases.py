from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import release
import transaction
from ansible.module_utils.sparklanes.release import plan as release_plan
from ansible.module_utils.sparklanes.release import store as release_store
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import DeploymentState
from conftest import RunModule

SPEC = {"schema": "sparklanes-rank/1", "rank": 0, "image": "r@sha256:1", "container": "c"}


def test_equal_content_gives_an_equal_id_whatever_the_order_of_keys() -> None:
    one = release_plan.release_id([{"a": 1, "b": 2}], {"x": 1, "y": 2})
    assert one == release_plan.release_id([{"b": 2, "a": 1}], {"y": 2, "x": 1})
    assert one != release_plan.release_id([{"a": 1, "b": 3}], {"x": 1, "y": 2})
    assert len(one) == 12


def test_prune_keeps_what_runs_what_would_be_restored_and_what_is_moved_to() -> None:
    states = [DeploymentState(current="a", last_good="b"), DeploymentState(current="c")]
    assert release_store.unreferenced(["a", "b", "c", "d", "e"], states, ["d"]) == ["e"]


@pytest.mark.parametrize("name", ["", "../etc", "a/b", ".hidden"])
def test_a_deployment_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="deployment name"):
        Store(name)


def freeze(run_module: RunModule, root: Path, name: str, check: bool = False, **more: Any) -> dict[str, Any]:
    args = {"deployment": "sparks", "release": name, "spec": SPEC, "manifest": {"lane": "x"}, "root": str(root), **more}
    return run_module(release, args, check=check)


def test_freezing_writes_private_files_once(run_module: RunModule, tmp_path: Path) -> None:
    assert freeze(run_module, tmp_path, "a" * 12, check=True)["changed"]
    assert not (tmp_path / "releases").exists()
    assert freeze(run_module, tmp_path, "a" * 12)["changed"]
    spec = tmp_path / "releases" / ("a" * 12) / "rank.json"
    assert json.loads(spec.read_text()) == SPEC
    assert spec.stat().st_mode & 0o777 == 0o600
    assert not freeze(run_module, tmp_path, "a" * 12)["changed"]


def test_a_release_never_changes(run_module: RunModule, tmp_path: Path) -> None:
    freeze(run_module, tmp_path, "a" * 12)
    result = freeze(run_module, tmp_path, "a" * 12, spec={**SPEC, "rank": 1})
    assert result["failed"]
    assert "never changes" in result["msg"]


def test_releases_that_nothing_refers_to_are_pruned(run_module: RunModule, tmp_path: Path) -> None:
    freeze(run_module, tmp_path, "a" * 12)
    Store("other", str(tmp_path)).folder.mkdir(parents=True)
    Store("other", str(tmp_path)).state_path.write_text(json.dumps({"status": "stopped", "current": "", "last_good": "a" * 12}))
    freeze(run_module, tmp_path, "b" * 12)
    result = freeze(run_module, tmp_path, "c" * 12)
    assert result["pruned"] == ["b" * 12]
    assert Store("sparks", str(tmp_path)).releases() == ["a" * 12, "c" * 12]


def move(run_module: RunModule, root: Path, id_: str, check: bool = False, **more: Any) -> dict[str, Any]:
    return run_module(transaction, {"deployment": "sparks", "id": id_, "root": str(root), **more}, check=check)


def test_a_transaction_journals_where_it_came_from(run_module: RunModule, tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.folder.mkdir(parents=True)
    store.state_path.write_text(json.dumps({"status": "serving", "current": "a" * 12, "last_good": "a" * 12}))
    move(run_module, tmp_path, "t1", state="acquired", phase="stop", to_release="b" * 12)
    move(run_module, tmp_path, "t1", state="renewed", phase="start", to_release="b" * 12)
    journal = store.transaction()
    assert journal is not None
    assert (journal.phase, journal.from_release, journal.to_release) == ("start", "a" * 12, "b" * 12)


def test_another_transaction_is_refused_until_the_lock_is_broken(run_module: RunModule, tmp_path: Path) -> None:
    move(run_module, tmp_path, "t1", state="acquired", phase="stop", controller="desk")
    refused = move(run_module, tmp_path, "t2", state="acquired", phase="stop")
    assert refused["failed"]
    assert "t1 of desk" in refused["msg"]
    assert "recover.yml" in refused["msg"]
    assert not move(run_module, tmp_path, "t2", state="acquired", phase="stop", break_lock="t1").get("failed")


def test_check_mode_takes_no_lock(run_module: RunModule, tmp_path: Path) -> None:
    move(run_module, tmp_path, "t1", check=True, state="acquired", phase="stop")
    assert Store("sparks", str(tmp_path)).transaction() is None


def test_closing_records_the_outcome_and_gives_the_lock_back(run_module: RunModule, tmp_path: Path) -> None:
    move(run_module, tmp_path, "t1", state="acquired", phase="judge", to_release="b" * 12)
    outcome = {"status": "serving", "lane": "x", "current": "b" * 12, "last_good": "b" * 12, "last_good_lane": "x"}
    result = move(run_module, tmp_path, "t1", state="closed", outcome=outcome)
    assert result["changed"]
    store = Store("sparks", str(tmp_path))
    assert store.transaction() is None
    assert store.state().last_good == "b" * 12
    move(run_module, tmp_path, "t2", state="acquired", phase="stop")
    move(run_module, tmp_path, "t2", state="closed", outcome={"status": "failed", "death": "rank 1 vanished"})
    assert store.state().last_good == "b" * 12
    assert store.state().deaths == ("rank 1 vanished (transaction t2)",)


def test_a_lock_is_given_back_without_writing_a_state_that_did_not_change(run_module: RunModule, tmp_path: Path) -> None:
    move(run_module, tmp_path, "t1", state="acquired", phase="stop")
    assert not move(run_module, tmp_path, "t1", state="closed")["changed"]
    store = Store("sparks", str(tmp_path))
    assert store.transaction() is None
    assert not store.state_path.exists()


def test_two_unexplained_deaths_wait_for_a_person(run_module: RunModule, tmp_path: Path) -> None:
    for text in ("one", "two"):
        move(run_module, tmp_path, "t", state="acquired", phase="stop")
        move(run_module, tmp_path, "t", state="closed", outcome={"death": text})
    store = Store("sparks", str(tmp_path))
    assert store.state().waits_for_a_person()
    move(run_module, tmp_path, "t", state="acquired", phase="stop")
    move(run_module, tmp_path, "t", state="closed", outcome={"forget_deaths": True})
    assert not store.state().waits_for_a_person()


def test_what_was_never_opened_is_not_closed(run_module: RunModule, tmp_path: Path) -> None:
    move(run_module, tmp_path, "t1", state="acquired", phase="judge")
    good = {"status": "serving", "current": "b" * 12, "last_good": "b" * 12}
    move(run_module, tmp_path, "t1", state="closed", outcome=good)
    result = move(run_module, tmp_path, "t2", state="closed", outcome={"status": "stopped", "current": "", "last_good": ""})
    assert "transaction t2 lost the lock" in result["msg"]
    assert Store("sparks", str(tmp_path)).state().last_good == "b" * 12
    assert not move(run_module, tmp_path, "t2", state="closed").get("failed"), "nothing to give back is no error"


@pytest.mark.parametrize("by", ["mine", "another", "nobody", "somebody"])
def test_who_holds_the_lock_is_told_and_changes_nothing(run_module: RunModule, tmp_path: Path, by: str) -> None:
    store = Store("sparks", str(tmp_path))
    if by in ("mine", "another"):
        move(run_module, tmp_path, by, state="acquired", phase="boot", controller="desk")
    elif by == "somebody":
        store.folder.mkdir(parents=True)
        store.transaction_path.write_text("[]")
    told = move(run_module, tmp_path, "mine", state="held")
    assert told["held"] is (by == "mine")
    words = {"mine": "", "another": "another of desk", "nobody": "given back", "somebody": "holds list, not an object"}[by]
    assert words in told["lost"]
    assert bool(told["lost"]) is (by != "mine")
    assert move(run_module, tmp_path, "mine", check=True, state="held")["held"], "a check took no lock"


BROKEN = {
    "truncated": b'{"status": "serving", "last_g',
    "empty": b"",
    "no text": b"\xff\xfe{",
    "a list": b"[]",
    "null": b"null",
    "wrong types": b'{"deaths": 5, "last_good": "aaaaaaaaaaaa"}',
    "null for a list": b'{"deaths": null}',
    "deep": b'{"a":' * 100_000,
    "no number": b'{"reason": NaN}',
    "no text of a file": b'{"reason": "\\ud800"}',
    "nothing of it": b"{}",
    "no last good": b'{"status": "serving", "current": "aaaaaaaaaaaa"}',
}


@pytest.mark.parametrize("broken", list(BROKEN))
@pytest.mark.parametrize("whose", ["sparks", "pair_b"])
def test_a_state_that_cannot_be_read_prunes_nothing_whosever_it_is(
    run_module: RunModule, tmp_path: Path, broken: str, whose: str
) -> None:
    freeze(run_module, tmp_path, "a" * 12)
    store = Store(whose, str(tmp_path))
    store.folder.mkdir(parents=True, exist_ok=True)
    store.state_path.write_bytes(BROKEN[broken])
    result = freeze(run_module, tmp_path, "b" * 12)
    assert not result.get("failed")
    assert result["pruned"] == []
    assert str(store.state_path) in result["not_pruned"]
    assert store.releases() == ["a" * 12, "b" * 12]
    assert store.state_path.read_bytes() == BROKEN[broken]
    if whose == "sparks":
        assert str(store.state_path) in move(run_module, tmp_path, "t1", state="acquired", phase="stop")["msg"]


def test_a_late_controller_freezes_and_prunes_nothing(run_module: RunModule, tmp_path: Path) -> None:
    freeze(run_module, tmp_path, "a" * 12)
    move(run_module, tmp_path, "other", state="acquired", phase="stop", controller="desk")
    result = freeze(run_module, tmp_path, "b" * 12, transaction="late")
    assert "other of desk" in result["msg"]
    assert Store("sparks", str(tmp_path)).releases() == ["a" * 12]
    assert freeze(run_module, tmp_path, "b" * 12, transaction="other")["pruned"] == ["a" * 12]


def test_a_half_written_release_is_written_anew(run_module: RunModule, tmp_path: Path) -> None:
    freeze(run_module, tmp_path, "a" * 12)
    spec = tmp_path / "releases" / ("a" * 12) / "rank.json"
    spec.write_text('{"schema": ')
    assert freeze(run_module, tmp_path, "a" * 12)["changed"]
    assert json.loads(spec.read_text()) == SPEC
