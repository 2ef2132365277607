"""Ctrl-C in each phase of a launch: a rerun puts it right. Controllers that die or sleep, and ranks that die: benchmarks/faults.

Slow: a boot or two a case. Part of `script/test full`.
"""

from __future__ import annotations

import signal

import pytest
from conftest import Fleet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serving(fleet: Fleet) -> Fleet:
    """The fleet with a lane that is last good."""
    fleet.serve()
    return fleet


BOOTS = "waiting for the other ranks"
PHASES = {
    "detect": "TASK [roce : Find the fabric",
    "lock": "TASK [rank : Take the lock on rank 0",
    "stop": "TASK [rank : Stop rank 0",
    "settle": "TASK [spark_kernel : Keep the lane's kernel settings",
    "start": "TASK [rank : Start the workers",
    "boot": BOOTS,
    "generate": "TASK [gates : Ask the API for a real generation",
    "score": "TASK [gates : Score it",
}
CASES = [(phase, signal.SIGINT) for phase in PHASES] + [("boot", signal.SIGKILL)]


@pytest.mark.parametrize(("phase", "how"), CASES, ids=[f"{phase}-{how.name}" for phase, how in CASES])
def test_a_launch_interrupted_anywhere_is_finished_by_the_next(serving: Fleet, phase: str, how: int) -> None:
    serving.interrupted(how, PHASES[phase])
    serving.play("playbooks/launch.yml").ok()
    assert serving.transaction() == {}
    assert serving.state()["status"] == "serving"
    assert all(serving.ranks().values())


def test_another_controller_is_kept_out_until_it_recovers(serving: Fleet) -> None:
    serving.interrupted(signal.SIGKILL, BOOTS)
    (note,) = serving.receipts()[-1].parent.glob("transaction-*.json")
    note.unlink()  # this controller forgets that the run was its own
    serving.play("playbooks/launch.yml").failed("LOCK.FREE", "playbooks/recover.yml")
    held = serving.transaction()["id"]
    serving.play("playbooks/recover.yml").failed("in phase", f"break_lock={held}")
    serving.play("playbooks/recover.yml", "-e", "break_lock=true").failed("takes the id of the lock", f"break_lock={held}")
    serving.play("playbooks/recover.yml", "-e", f"break_lock={held}").ok()
    assert serving.state()["status"] == "restored-judged"
    serving.play("playbooks/launch.yml").ok()
