"""Ctrl-C in each phase of a launch: a rerun puts it right. Controllers that die or sleep, and ranks that die: benchmarks/faults.

Slow: a boot or two a case. Part of `script/test full`.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from conftest import Fleet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serving(fleet: Fleet) -> Fleet:
    """The fleet with a lane that is last good."""
    fleet.play("playbooks/launch.yml").ok()
    if fleet.state()["status"] != "serving":
        fleet.play("playbooks/bank.yml", "-e", "bank_accept=true").ok()
        fleet.play("playbooks/launch.yml").ok()
    assert fleet.state()["status"] == "serving"
    return fleet


def until(fleet: Fleet, text: str, then: int, after: float = 1.0) -> str:
    """Start a launch that restarts the ranks, and send the signal `then` to it a moment after `text` was shown."""
    run = fleet.start("playbooks/launch.yml", "-e", "launch_restart=true")
    assert run.stdout
    seen = []
    for line in run.stdout:
        seen.append(line)
        if text in line:
            break
    else:
        pytest.fail(f"{text!r} was never shown:\n{''.join(seen)[-4000:]}")
    time.sleep(after)
    os.killpg(run.pid, then)
    seen.append(run.stdout.read())
    run.wait(timeout=90)
    return "".join(seen)


PHASES = {
    "detect": "TASK [roce : Find the fabric",
    "lock": "TASK [rank : Take the lock on rank 0",
    "stop": "TASK [rank : Stop rank 0",
    "settle": "TASK [spark_kernel : Keep the lane's kernel settings",
    "start": "TASK [rank : Start the workers",
    "boot": "waiting for the other ranks",
    "generate": "TASK [gates : Ask the API for a real generation",
    "score": "TASK [gates : Score it",
}
CASES = [(phase, signal.SIGINT) for phase in PHASES] + [("boot", signal.SIGKILL)]


@pytest.mark.parametrize(("phase", "how"), CASES, ids=[f"{phase}-{how.name}" for phase, how in CASES])
def test_a_launch_interrupted_anywhere_is_finished_by_the_next(serving: Fleet, phase: str, how: int) -> None:
    until(serving, PHASES[phase], how)
    serving.play("playbooks/launch.yml").ok()
    assert serving.transaction() == {}
    assert serving.state()["status"] == "serving"
    assert all(serving.ranks().values())


def test_another_controller_is_kept_out_until_it_recovers(serving: Fleet) -> None:
    until(serving, "waiting for the other ranks", signal.SIGKILL)
    (note,) = serving.receipts()[-1].parent.glob("transaction-*.json")
    note.unlink()  # this controller forgets that the run was its own
    serving.play("playbooks/launch.yml").failed("LOCK.FREE", "playbooks/recover.yml")
    held = serving.transaction()["id"]
    serving.play("playbooks/recover.yml").failed("in phase", f"break_lock={held}")
    serving.play("playbooks/recover.yml", "-e", "break_lock=true").failed("takes the id of the lock", f"break_lock={held}")
    serving.play("playbooks/recover.yml", "-e", f"break_lock={held}").ok()
    assert serving.state()["status"] == "restored-judged"
    serving.play("playbooks/launch.yml").ok()
