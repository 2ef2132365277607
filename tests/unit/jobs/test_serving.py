# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A daemon is waited for, served while somebody asks, ended when nobody does, and never outlived in silence."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.serving import Daemon, serve_until_idle, wait_until
from ansible.module_utils.sparklanes.jobs.state import JobError

SLEEP = "import time; time.sleep(60)"
Start = Callable[[str], Daemon]


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[Daemon] = []

    def run(code: str) -> Daemon:
        begun.append(subprocess.Popen([sys.executable, "-c", code]))
        return begun[-1]

    yield run
    for daemon in begun:
        daemon.kill()
        daemon.wait()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("began\nbind: address in use\n")
    return path


@pytest.fixture
def report(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path, "lend")


def test_one_that_answers_late_is_waited_for(start: Start, log: Path, report: Reporter) -> None:
    looks = iter([False, False, True])
    wait_until(lambda: next(looks), start(SLEEP), 30, "no", log, report)
    assert next(looks, None) is None


@pytest.mark.parametrize("code", [SLEEP, "pass"])
def test_one_that_does_not_answer_or_has_ended_is_an_error_with_its_last_words(
    code: str, start: Start, log: Path, report: Reporter
) -> None:
    daemon = start(code)
    if code == "pass":
        daemon.wait()
    with pytest.raises(JobError, match=r"^it does not serve: began \| bind: address in use$"):
        wait_until(lambda: False, daemon, 0.2, "it does not serve", log, report)


def test_without_a_log_the_port_is_suspected(start: Start, tmp_path: Path, report: Reporter) -> None:
    with pytest.raises(JobError, match=r"is the port taken\?"):
        wait_until(lambda: False, start("pass"), 0.0, "no", tmp_path / "none", report)


def test_it_ends_when_nobody_has_asked_for_long(start: Start, log: Path, report: Reporter) -> None:
    result = serve_until_idle([start(SLEEP)], "it", log, 0.3, report, every=0.02)
    assert result == {"changed": False, "actions": ["ended after 0 s without a request"]}


@pytest.mark.parametrize("how", ["a transfer", "a line in the log"])
def test_it_goes_on_while_somebody_asks(how: str, start: Start, log: Path, report: Reporter) -> None:
    began = time.monotonic()

    def look() -> bool:
        asked = time.monotonic() - began < 1.0
        if asked and how == "a line in the log":
            with log.open("a") as stream:
                stream.write("GET\n")
        return asked and how == "a transfer"

    serve_until_idle([start(SLEEP)], "it", log, 0.5, report, look, every=0.02)
    assert time.monotonic() - began >= 1.4


def test_a_look_that_saw_nothing_says_nothing(start: Start, log: Path, report: Reporter) -> None:
    looks = iter([None] * 50)
    serve_until_idle([start(SLEEP)], "it", log, 0.0, report, lambda: next(looks, False), every=0.001)
    assert next(looks, "none left") == "none left"


def test_one_of_two_that_ends_is_an_error_with_its_status(start: Start, log: Path, report: Reporter) -> None:
    daemons = [start(SLEEP), start("raise SystemExit(7)")]
    with pytest.raises(JobError, match=r"^it ended with status 7: began \| bind: address in use$"):
        serve_until_idle(daemons, "it", log, 60, report, every=0.02)
