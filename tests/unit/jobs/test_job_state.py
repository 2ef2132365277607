# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A job's state: judged from outside, and told to people."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible.module_utils.sparklanes.common import sizes
from ansible.module_utils.sparklanes.jobs.state import Rate, State, judge, progress

RUNNING = State("j", pid=7, boot="b1", phase="fetch", total=1000, done=410, rate=59, beat=100.0, moved=90.0)


@pytest.mark.parametrize(
    ("state", "alive", "boot", "running", "failed", "error"),
    [
        (RUNNING, True, "b1", True, False, ""),
        (RUNNING, False, "b1", False, True, "it ended in phase fetch without a result: its process 7 is gone. Last lines: bye"),
        (RUNNING, False, "b2", False, True, "it ended in phase fetch without a result: the node was rebooted. Last lines: bye"),
        (replace(RUNNING, finished=True), False, "b2", False, False, ""),
        (replace(RUNNING, finished=True, failed=True, error="why"), False, "b1", False, True, "why"),
        (None, True, "b1", True, False, ""),
        (None, False, "b1", False, True, "it ended at its start: bye"),
    ],
)
def test_judge(state: State | None, alive: bool, boot: str, running: bool, failed: bool, error: str) -> None:
    status = judge("j", state, alive, 130.0, boot, "bye")
    assert (status.running, status.failed, status.error) == (running, failed, error)
    assert status.finished == (not running)


def test_ages_are_those_of_this_boot() -> None:
    status = judge("j", RUNNING, True, 130.0, "b1")
    assert (status.heartbeat_age, status.progress_age) == (30.0, 40.0)
    assert judge("j", RUNNING, False, 130.0, "b2").heartbeat_age == 0


def test_progress_is_one_line() -> None:
    state = State(
        "j", phase="model: fetch", total=405 << 30, done=155 << 30, rate=2.1 * (1 << 30), file="model-00117.safetensors"
    )
    expected = "model: fetch   38 %  155.0 GiB of 405.0 GiB  2.1 GiB/s  1 min 59 s to go  model-00117.safetensors"
    assert progress(state) == expected
    assert progress(State("j", phase="list")) == "list"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_human_time(seconds: float, text: str) -> None:
    assert sizes.human_time(seconds) == text


def test_rate_is_of_the_last_half_minute() -> None:
    rate = Rate()
    assert rate.add(0, 0) == 0
    assert rate.add(2, 1000) == 0, "too early to tell"
    assert rate.add(10, 1000) == 100
    for second in range(11, 60):
        latest = rate.add(second, 1000 + (second - 10) * 7)
    assert latest == 7
    assert rate.add(60, 0) == 0, "another phase began"
