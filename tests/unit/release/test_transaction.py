"""What may follow on what: opening, going on, taking over, closing. One table a transition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.release import transaction as release_transaction
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import PHASES, DeploymentState, Refused, Transaction

# It was opened at 100 and last heard of at 190: interrupted after 250.
HELD = Transaction("t1", "boot", "desk", 100.0, 190.0, 60.0, "old", "a" * 12, "b" * 12)
STATE = DeploymentState("serving", "tiny", "c" * 12, "c" * 12, "tiny", "", ("rank 1 vanished",))


def asked(id_: str = "t2", now: float = 200.0, **more: Any) -> Transaction:
    return Transaction(
        **{"id": id_, "phase": "stop", "controller": "laptop", "opened": now, "heartbeat": now} | {"lease_seconds": 900.0} | more
    )


@pytest.mark.parametrize(
    ("held", "now", "break_lock", "words"),
    [
        (None, 200.0, False, ""),
        (replace(HELD, id="t2"), 200.0, False, ""),
        (replace(HELD, id="t2"), 1e9, False, ""),
        (HELD, 200.0, False, "Wait for it"),
        (HELD, 250.0, False, "last heartbeat 60 s ago"),
        (HELD, 250.5, False, "interrupted in phase 'boot'"),
        (HELD, 200.0, True, ""),
        (HELD, 1e9, True, ""),
    ],
)
def test_only_the_same_transaction_opens_or_closes_what_is_held(
    held: Transaction | None, now: float, break_lock: bool, words: str
) -> None:
    assert words in release_transaction.refusal(held, "t2", now, break_lock)
    if not words:
        assert release_transaction.opened(held, STATE, asked(now=now), break_lock).id == "t2"
        assert release_transaction.closed(held, STATE, "t2", now, {}, break_lock) == STATE
        return
    with pytest.raises(Refused, match=words) as opening:
        release_transaction.opened(held, STATE, asked(now=now), break_lock)
    with pytest.raises(Refused, match="t1 of desk") as closing:
        release_transaction.closed(held, STATE, "t2", now, {"status": "stopped"}, break_lock)
    assert (opening.value.held, closing.value.held) == (held, held)


def test_a_new_transaction_comes_from_what_runs() -> None:
    made = release_transaction.opened(None, STATE, asked(to_release="d" * 12, lane="tiny", opened=0.0))
    assert made == asked(to_release="d" * 12, lane="tiny", opened=200.0, from_release="c" * 12)


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_renews_the_lease_and_keeps_where_it_came_from(phase: str) -> None:
    made = release_transaction.opened(HELD, STATE, asked("t1", phase=phase, lease_seconds=7.0, to_release="b" * 12))
    assert (made.phase, made.heartbeat, made.lease_seconds) == (phase, 200.0, 7.0)
    assert (made.opened, made.from_release, made.to_release) == (100.0, "a" * 12, "b" * 12)


def test_a_phase_may_go_back_where_the_same_controller_begins_again() -> None:
    forth = release_transaction.opened(HELD, STATE, asked("t1", 210.0, phase="judge"))
    back = release_transaction.opened(forth, STATE, asked("t1", 220.0, phase="stop"))
    assert (back.phase, back.opened, back.from_release) == ("stop", 100.0, "a" * 12)


def test_taking_over_begins_anew_and_forgets_the_other_one() -> None:
    made = release_transaction.opened(HELD, STATE, asked(), break_lock=True)
    assert (made.id, made.controller, made.opened, made.from_release, made.to_release) == ("t2", "laptop", 200.0, "c" * 12, "")


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        ({}, STATE),
        (dict.fromkeys(("status", "lane", "current", "last_good", "last_good_lane", "reason", "death", "forget_deaths")), STATE),
        ({"status": "stopped", "current": "", "lane": ""}, replace(STATE, status="stopped", current="", lane="")),
        ({"status": "suspect", "reason": "scores"}, replace(STATE, status="suspect", reason="scores")),
        ({"death": "rank 0 ended"}, replace(STATE, deaths=("rank 1 vanished", "rank 0 ended"))),
        ({"death": ""}, STATE),
        ({"forget_deaths": False}, STATE),
        ({"forget_deaths": True}, replace(STATE, deaths=())),
        ({"forget_deaths": True, "death": "rank 0 ended"}, replace(STATE, deaths=("rank 0 ended",))),
    ],
)
def test_an_outcome_changes_what_it_names_and_nothing_else(outcome: dict[str, Any], after: DeploymentState) -> None:
    assert release_transaction.closed(HELD, STATE, "t1", 200.0, outcome) == after


def test_an_outcome_that_no_state_has_is_no_outcome() -> None:
    with pytest.raises(TypeError, match="mood"):
        release_transaction.closed(None, STATE, "t1", 200.0, {"mood": "good"})


def test_a_lock_that_could_not_be_given_back_is_still_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk between state and lock: the journal names what was going on, and the same transaction ends it once there is room."""
    store = Store("sparks", str(tmp_path))
    store.open(asked(), break_lock=False)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ansible.module_utils.sparklanes.release.store.write_json", full)
        with pytest.raises(OSError, match="No space"):
            store.close("t2", 300.0, {"status": "serving"}, break_lock=False)
        assert store.transaction() == asked()
        store.close("t2", 300.0, {}, break_lock=False)
    assert store.transaction() is None
    assert store.state() == DeploymentState()


def test_nothing_is_written_where_nothing_is_to_be(tmp_path: Path) -> None:
    store = Store("sparks", str(tmp_path))
    store.open(asked(), break_lock=False, write=False)
    before, after = store.close("t2", 300.0, {"status": "failed"}, break_lock=False, write=False)
    assert (before.status, after.status) == ("stopped", "failed")
    assert not list(tmp_path.iterdir())
