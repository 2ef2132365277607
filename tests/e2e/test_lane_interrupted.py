"""Ctrl-C in each phase of a launch, and ranks that die in their boot: a rerun, or the last good release, puts it right.

Slow: a boot or two a case. Part of `script/test full`.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from conftest import NODES, Fleet

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
CASES = [(phase, signal.SIGINT) for phase in PHASES] + [(phase, signal.SIGKILL) for phase in ("stop", "boot", "score")]


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


def test_a_controller_that_wakes_up_late_touches_nothing(serving: Fleet) -> None:
    """Its machine slept in the boot; meanwhile somebody broke its lock and brought the last good release back."""
    run = serving.start("playbooks/launch.yml", "-e", "launch_restart=true")
    assert run.stdout
    for line in run.stdout:
        if "waiting for the other ranks" in line:
            break
    os.killpg(run.pid, signal.SIGSTOP)
    serving.play("playbooks/recover.yml", "-e", f"break_lock={serving.transaction()['id']}").ok()
    before = serving.ranks()
    os.killpg(run.pid, signal.SIGCONT)
    said = run.stdout.read()
    assert run.wait(timeout=300) != 0
    assert "lost the lock" in said
    assert (serving.ranks(), serving.transaction(), serving.state()["status"]) == (before, {}, "restored-judged")
    serving.play("playbooks/launch.yml").ok()


@pytest.mark.parametrize("node", NODES)
def test_a_rank_killed_in_its_boot_is_noticed_at_once_and_its_log_kept(serving: Fleet, node: str) -> None:
    run = serving.start("playbooks/launch.yml", "-e", "launch_restart=true")
    assert run.stdout
    for line in run.stdout:
        if "waiting for the other ranks" in line:
            break
    serving.on(node, f"docker kill sparklanes-sparks-rank{NODES.index(node)}")
    noticed = time.monotonic()
    for line in run.stdout:
        if "boot: failed" in line:
            break
    assert time.monotonic() - noticed < 30, "two polls and a module run, not a boot timeout"
    rest = run.stdout.read()
    assert run.wait(timeout=60) != 0
    assert node in rest
    assert {path.name.split("-rank")[0] for path in serving.receipts()[-1].glob("*-rank*.log")} == set(NODES)
    serving.play("playbooks/launch.yml", "-e", "launch_forget_deaths=true").ok()
