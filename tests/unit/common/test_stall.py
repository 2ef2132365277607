# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Programs that may take hours: one that gets on is waited for, one that stands still is ended with all that it started."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import commands, stall
from ansible.module_utils.sparklanes.common.stall import Limits

HANGS = "sleep 600"
DEAF = 'trap "" TERM; while :; do sleep 0.1; done'


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stall, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(stall, "SECONDS", 0.4)


def gone(file: Path) -> bool:
    """Whether the process that noted its number there is no more, or nobody's."""
    try:
        return Path(f"/proc/{file.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("hangs", [HANGS, DEAF])
def test_what_stands_still_is_ended_with_its_children(hangs: str, tmp_path: Path) -> None:
    began = time.monotonic()
    script = f"echo $$ > {tmp_path}/parent; sh -c 'echo $$ > {tmp_path}/child; {hangs}' & wait"
    code, _, error = commands.run(["sh", "-c", script], limits=Limits(lambda: 7))
    assert (code, error) == (commands.TIMED_OUT, "sh stood still for 0.4 s and was ended")
    assert gone(tmp_path / "parent")
    assert gone(tmp_path / "child")
    assert time.monotonic() - began < 60


def test_what_gets_on_is_waited_for() -> None:
    steps = itertools.count()
    assert commands.run(["sh", "-c", "sleep 1.2; echo done"], limits=Limits(lambda: next(steps)))[:2] == (0, "done\n")


def test_a_trickle_is_not_getting_on() -> None:
    """A daemon that serves others moves a little always."""
    steps = itertools.count()
    limits = Limits(lambda: next(steps), least=10_000)
    assert commands.run(["sh", "-c", HANGS], limits=limits)[0] == commands.TIMED_OUT


def test_what_can_not_be_counted_is_held_against_nobody() -> None:
    assert commands.run(["sh", "-c", "sleep 1.2; echo done"], limits=Limits(lambda: None))[:2] == (0, "done\n")


def test_nothing_takes_for_ever() -> None:
    code, _, error = commands.run(["sh", "-c", HANGS], limits=Limits(lambda: None, most=0.4))
    assert (code, error) == (commands.TIMED_OUT, "sh was not done after 0.000111111 h and was ended")


def test_the_end_of_a_quick_one_is_not_waited_for(tmp_path: Path) -> None:
    assert commands.run(["true"], limits=Limits(lambda: 7)) == (0, "", "")
    assert commands.run([str(tmp_path / "none")], limits=Limits(lambda: 7))[0] == commands.NOT_FOUND
