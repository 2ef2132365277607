"""What may follow on what: acquiring, going on, losing, taking over, closing. One table a transition."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.clock import Moment
from ansible.module_utils.sparklanes.common.files import Unreadable
from ansible.module_utils.sparklanes.release import transaction as release_transaction
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import PHASES, DeploymentState, Lost, Refused, Transaction

# It was opened at 100 and last heard of at 190, with a lease of a minute.
HELD = Transaction("t1", "boot", "desk", 100.0, 190.0, 60.0, "old", "a" * 12, "b" * 12)
STATE = DeploymentState("serving", "tiny", "c" * 12, "c" * 12, "tiny", "", ("rank 1 vanished",))
NOW = Moment(200.0, "this boot", 5000.0)


def asked(id_: str = "t2", now: float = 200.0, **more: Any) -> Transaction:
    return Transaction(
        **{"id": id_, "phase": "stop", "controller": "laptop", "opened": now, "heartbeat": now} | {"lease_seconds": 900.0} | more
    )


@pytest.mark.parametrize(
    ("held", "age", "break_lock", "words"),
    [
        (None, 0.0, "", ""),
        (replace(HELD, id="t2"), 10.0, "", ""),
        (replace(HELD, id="t2"), 1e9, "", ""),
        (HELD, 10.0, "", "Wait for it"),
        (HELD, 60.0, "", "last heartbeat 60 s ago"),
        (HELD, 10.0, "", "playbooks/recover.yml -e break_lock=t1"),
        (HELD, 60.5, "", "interrupted in phase 'boot'"),
        (HELD, 10.0, "t1", ""),
        (HELD, 1e9, "t1", ""),
        (HELD, 10.0, "true", "break_lock is 'true', and takes the id of the lock"),
        (HELD, 10.0, "True", "-e break_lock=t1"),
        (HELD, 10.0, "t0", "which is another here: transaction t1 of desk"),
        (HELD, 1e9, "t0", "which is another here: transaction t1 of desk"),
    ],
)
def test_only_the_same_transaction_or_who_names_it_acquires_what_is_held(
    held: Transaction | None, age: float, break_lock: str, words: str
) -> None:
    assert words in release_transaction.refusal(held, "t2", age, break_lock)
    if not words:
        assert release_transaction.acquired(held, STATE, asked(), age, break_lock).id == "t2"
        return
    with pytest.raises(Refused, match="t1") as opening:
        release_transaction.acquired(held, STATE, asked(), age, break_lock)
    assert opening.value.held == held


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (None, "transaction t2 lost the lock: it was given back, or broken by somebody who is done already"),
        (HELD, "transaction t2 lost the lock: transaction t1 of desk, in phase 'boot' (last heartbeat 7 s ago) holds it now"),
    ],
)
def test_to_go_on_is_not_to_acquire(held: Transaction | None, words: str) -> None:
    with pytest.raises(Lost) as losing:
        release_transaction.renewed(held, asked(), 7.0)
    assert (str(losing.value), losing.value.held) == (words, held)
    assert release_transaction.lost(replace(HELD, id="t2"), "t2", 1e9) == "", "an old heartbeat loses nothing that nobody took"


def test_a_new_transaction_comes_from_what_runs() -> None:
    made = release_transaction.acquired(None, STATE, asked(to_release="d" * 12, lane="tiny", opened=0.0), 0.0)
    assert made == asked(to_release="d" * 12, lane="tiny", opened=200.0, from_release="c" * 12)


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_renews_the_lease_and_keeps_where_it_came_from(phase: str) -> None:
    made = release_transaction.renewed(HELD, asked("t1", phase=phase, lease_seconds=7.0, to_release="b" * 12), 10.0)
    assert (made.phase, made.heartbeat, made.lease_seconds) == (phase, 200.0, 7.0)
    assert (made.opened, made.from_release, made.to_release) == (100.0, "a" * 12, "b" * 12)


def test_a_phase_may_go_back_where_the_same_controller_begins_again() -> None:
    forth = release_transaction.renewed(HELD, asked("t1", 210.0, phase="judge"), 10.0)
    back = release_transaction.acquired(forth, STATE, asked("t1", 220.0, phase="stop"), 10.0)
    assert (back.phase, back.opened, back.from_release) == ("stop", 100.0, "a" * 12)


def test_taking_over_begins_anew_and_forgets_the_other_one() -> None:
    made = release_transaction.acquired(HELD, STATE, asked(), 10.0, "t1")
    assert (made.id, made.controller, made.opened, made.from_release, made.to_release) == ("t2", "laptop", 200.0, "c" * 12, "")


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        ({}, STATE),
        (dict.fromkeys(("status", "lane", "current", "last_good", "last_good_lane", "reason", "death", "forget_deaths")), STATE),
        ({"status": "stopped", "current": "", "lane": ""}, replace(STATE, status="stopped", current="", lane="")),
        ({"status": "suspect", "reason": "scores"}, replace(STATE, status="suspect", reason="scores")),
        ({"death": "rank 0 ended."}, replace(STATE, deaths=("rank 1 vanished", "rank 0 ended (transaction t1)"))),
        ({"death": ""}, STATE),
        ({"forget_deaths": False}, STATE),
        ({"forget_deaths": True}, replace(STATE, deaths=())),
        ({"forget_deaths": True, "death": "rank 0 ended"}, replace(STATE, deaths=("rank 0 ended (transaction t1)",))),
    ],
)
def test_an_outcome_changes_what_it_names_and_nothing_else(outcome: dict[str, Any], after: DeploymentState) -> None:
    assert release_transaction.closed(STATE, "t1", outcome) == after


def test_an_outcome_that_no_state_has_is_no_outcome() -> None:
    with pytest.raises(TypeError, match="mood"):
        release_transaction.closed(STATE, "t1", {"mood": "good"})


@pytest.mark.parametrize(
    ("ranks", "count"),
    [
        ((), 0),
        (((), ()), 0),
        ((("a",), ("a",)), 1),
        ((("a",), ()), 1),
        ((("a",), ("b",)), 2),
        ((("a", "b"), ("b", "a")), 2),
        ((("a", "a"), ("a",)), 2),  # what version 0.1 counted names no transaction: the same words twice on one rank are two
    ],
)
def test_the_deaths_of_a_deployment_are_those_that_any_rank_tells_each_once(
    ranks: tuple[tuple[str, ...], ...], count: int
) -> None:
    assert len(release_transaction.deaths(DeploymentState(deaths=deaths) for deaths in ranks)) == count


@pytest.mark.parametrize(
    ("now", "age"),
    [
        (Moment(200.0, "b1", 1030.0), 30.0),
        (Moment(9e9, "b1", 1030.0), 30.0),  # its clock was stepped forth
        (Moment(0.0, "b1", 1030.0), 30.0),  # and back
        (Moment(200.0, "b1", 900.0), 0.0),  # no age is negative
        (Moment(200.0, "b2", 45.0), 45.0),  # it booted since: at least since then
        (Moment(200.0, "", 45.0), 10.0),  # the kernel does not tell
    ],
)
def test_a_lease_counts_by_the_boot_and_not_by_a_clock_that_may_step(now: Moment, age: float) -> None:
    assert replace(HELD, boot="b1", beat=1000.0).age(now) == age
    assert replace(HELD, boot="b1", beat=1000.0).expired(age) is (age > 60.0)


def test_what_version_0_1_left_counts_by_the_clock_and_never_below_zero() -> None:
    assert (HELD.age(Moment(260.0, "b1", 5.0)), HELD.age(Moment(0.0, "b1", 5.0))) == (70.0, 0.0)


def test_what_a_newer_version_wrote_is_kept(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.folder.mkdir(parents=True)
    store.transaction_path.write_text(json.dumps({**HELD.to_dict(), "reviewer": "ann"}))
    store.state_path.write_text(json.dumps({**STATE.to_dict(), "mood": [1]}))
    store.renew(asked("t1"), NOW)
    assert json.loads(store.transaction_path.read_text())["reviewer"] == "ann"
    store.close("t1", NOW, {"status": "stopped"})
    assert json.loads(store.state_path.read_text())["mood"] == [1]


def test_a_controller_that_wakes_up_late_changes_nothing(tmp_path: Path) -> None:
    """Its lock was broken, the other one launched and finished, a third is at work: each time it asks, and each time it is told."""
    store = Store("sparks", str(tmp_path))
    store.acquire(asked("late"), NOW)
    store.acquire(asked("other"), NOW, "late")

    def asks(words: str) -> None:
        before = [path.read_bytes() for path in sorted(store.folder.iterdir())]
        for attempt in (
            lambda: store.renew(asked("late", phase="start"), NOW),
            lambda: store.close("late", NOW, {"status": "failed", "current": "", "last_good": ""}),
        ):
            with pytest.raises(Lost, match=words):
                attempt()
        assert words in store.lost("late", NOW)
        assert [path.read_bytes() for path in sorted(store.folder.iterdir())] == before

    asks("transaction other of laptop")
    store.close("other", NOW, {"status": "serving", "current": "b" * 12, "last_good": "b" * 12})
    asks("given back, or broken")
    store.acquire(asked("third"), NOW)
    asks("transaction third of laptop")
    assert store.state().last_good == "b" * 12


def test_of_two_that_break_the_lock_that_both_saw_one_goes_on(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.acquire(asked("dead"), NOW)
    store.acquire(asked("first"), NOW, "dead")
    with pytest.raises(Refused, match="first of laptop"):
        store.acquire(asked("second"), NOW, "dead")


def test_a_lock_that_could_not_be_given_back_is_still_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk between state and lock: the journal names what was going on, and the same transaction ends it once there is room."""
    store = Store("sparks", str(tmp_path))
    store.acquire(asked(), NOW)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ansible.module_utils.sparklanes.release.store.write_json", full)
        with pytest.raises(OSError, match="No space"):
            store.close("t2", NOW, {"status": "serving"})
        assert store.transaction() == asked()
        store.close("t2", NOW, {})
    assert store.transaction() is None
    assert store.state() == DeploymentState()


def test_nothing_is_written_where_nothing_is_to_be(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.acquire(asked(), NOW, write=False)
    before, after = store.close("t2", NOW, {"status": "failed"}, write=False)
    assert before is not None
    assert after is not None
    assert (before.status, after.status) == ("stopped", "failed")
    assert not list(tmp_path.iterdir())


def test_a_lock_that_nobody_can_read_is_held_and_named(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.folder.mkdir(parents=True)
    store.transaction_path.write_text('{"id": "t1", "pha')
    with pytest.raises(Unreadable) as found:
        store.transaction()
    mark = found.value.mark
    for break_lock in ("", "true", "t1"):
        with pytest.raises(Refused, match=f"transaction.json can't be read .*break_lock={mark}"):
            store.acquire(asked(), NOW, break_lock)
    for attempt in (lambda: store.renew(asked("t1"), NOW), lambda: store.close("t1", NOW, {"status": "stopped"})):
        with pytest.raises(Lost, match="is not known"):
            attempt()
    assert store.transaction_path.read_text() == '{"id": "t1", "pha'
    assert store.acquire(asked(), NOW, mark)[0].id == "t2", "a person saw these very bytes"


def test_a_state_that_nobody_can_read_is_neither_replaced_nor_forgotten(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.acquire(asked(), NOW)
    store.state_path.write_text('{"status": "serving", "last_g')
    for attempt in (lambda: store.close("t2", NOW, {"status": "failed"}), lambda: store.acquire(asked("t2"), NOW)):
        with pytest.raises(Refused, match=r"state.json can't be read .* Copy it from another rank"):
            attempt()
    assert store.state_path.read_text() == '{"status": "serving", "last_g'
    assert store.transaction() is not None
    store.close("t2", NOW, {})  # the lock of a launch that did not begin is given back: that needs no state
    assert store.transaction() is None
