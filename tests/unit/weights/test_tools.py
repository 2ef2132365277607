# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files are worked on several at a time, in their order, and not any more once one has failed."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import stall
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights import tools as weights_tools
from ansible.module_utils.sparklanes.weights.chain.lend import lend_models
from ansible.module_utils.sparklanes.weights.chain.take import ChainSource
from ansible.module_utils.sparklanes.weights.model import StagingError
from ansible.module_utils.sparklanes.weights.pace import Cancelled
from ansible.module_utils.sparklanes.weights.tools import Feed, Tool, for_each


def test_a_spark_without_rsync_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool) -> None:
    """Whoever lends asked whether its port is taken, whoever takes called the others silent."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "job").mkdir()
    report = Reporter(tmp_path / "job", "lend")
    args = {
        "models": [],
        "staged_dir": str(tmp_path),
        "shared": False,
        "addresses": ["127.0.0.1"],
        "port": 1,
        "allow": [],
        "rate_kib": 0,
        "idle_seconds": 1,
    }
    with pytest.raises(JobError, match=r"rsync is not installed here\. Install it"):
        lend_models(args, {"secret": "s"}, report)
    source = ChainSource({"peers": [], "patience": 1}, "s", tool, report, 0, 1)
    with pytest.raises(StagingError, match=r"rsync is not installed here\. Install it"):
        source.begin([])


NAMES = [f"{number:02}" for number in range(20)]


@pytest.fixture
def tool() -> Tool:
    return Tool(threading.Event())


def test_each_name_has_its_result_and_no_more_workers_than_asked_for(tool: Tool) -> None:
    busy, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(4, timeout=30)

    def work(name: str) -> str:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        together.wait()
        with lock:
            busy -= 1
        return name

    results, errors = for_each(Feed(NAMES), work, 4, tool)
    assert (sorted(results), errors) == (NAMES, [])
    assert most == 4


def test_after_a_failure_nothing_new_begins_and_what_was_found_is_told(tool: Tool) -> None:
    seen = []

    def work(name: str) -> str:
        seen.append(name)
        if name == "03":
            raise StagingError("bad")
        return name

    results, errors = for_each(Feed(NAMES), work, 1, tool)
    assert seen == [*results, "03"] == NAMES[:4]
    assert [str(error) for error in errors] == ["bad"]


def test_what_is_given_back_is_taken_again(tool: Tool) -> None:
    feed, tried = Feed(NAMES), set()

    def work(name: str) -> None:
        if name not in tried:
            tried.add(name)
            feed.give_back(name)

    results, errors = for_each(feed, work, 4, tool)
    assert (len(results), errors, feed.left) == (40, [], [])


class Hopeless(Feed):
    def take(self, busy: int) -> str | None:
        if len(self.left) == 17:
            raise StagingError("nobody has it")
        return super().take(busy)


def test_a_feed_that_gives_up_ends_the_work(tool: Tool) -> None:
    results, errors = for_each(Hopeless(NAMES), str, 2, tool)
    assert sorted(results) == NAMES[:3]
    assert [str(error) for error in errors] == ["nobody has it"]


class Silent(Feed):
    def take(self, busy: int) -> str | None:
        return None


def test_a_feed_that_has_nothing_is_left_when_the_job_ends(tool: Tool) -> None:
    threading.Timer(0.1, tool.end).start()
    with pytest.raises(Cancelled):
        for_each(Silent(NAMES), str, 2, tool)


def test_a_program_that_gets_nowhere_is_ended(tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stall, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(stall, "SECONDS", 0.3)
    began = time.monotonic()
    for command in ("sleep 600", "trap '' TERM; while :; do sleep 0.1; done"):
        code, said = tool(["sh", "-c", f"echo $$ > {tmp_path}/pid; {command}"], os.environ, progress=lambda: 7)
        assert (code, "it stood still for 0.3 s and was ended" in said) == (weights_tools.HUNG, True)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
    assert time.monotonic() - began < 60
    assert not tool.running


def test_one_that_goes_on_is_waited_for(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stall, "SECONDS", 0.4)
    steps = itertools.count()
    code, said = tool(["sh", "-c", "read word; sleep 1.2; echo got $word"], os.environ, "it\n", progress=lambda: next(steps))
    assert (code, said) == (0, "got it")
