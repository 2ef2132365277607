# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A daemon is waited for, served while somebody asks, ended when nobody does, and never outlived in silence."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.jobs import serving
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.serving import Daemon, RequestLog, serve_until_idle, wait_until
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
    result = serve_until_idle([start(SLEEP)], "it", log, 0.3, report, lambda: False, every=0.02)
    assert result == {"changed": False, "actions": ["ended after 0 s without a request"]}


def test_it_goes_on_while_somebody_asks(start: Start, log: Path, report: Reporter) -> None:
    began = time.monotonic()
    serve_until_idle([start(SLEEP)], "it", log, 0.5, report, lambda: time.monotonic() - began < 1.0, every=0.02)
    assert time.monotonic() - began >= 1.1


def test_it_does_not_go_on_for_lines_of_strangers(start: Start, log: Path, report: Reporter) -> None:
    asked, began = RequestLog(log, re.compile("GET ")), time.monotonic()

    def look() -> bool:
        with log.open("a") as stream:
            stream.write("somebody knocked and said GET \n")
        return bool(asked.news())

    serve_until_idle([start(SLEEP)], "it", log, 0.3, report, look, every=0.02)
    assert time.monotonic() - began < 20


def test_it_has_a_hard_end_whoever_asks(start: Start, log: Path, report: Reporter) -> None:
    result = serve_until_idle([start(SLEEP)], "it", log, 60, report, lambda: True, every=0.02, most=0.3)
    assert result["actions"] == ["ended after 0 h, as any staging is over by then"]


# What is new in a log


def test_a_request_is_told_once_also_where_its_line_comes_in_pieces(tmp_path: Path) -> None:
    log, asked = tmp_path / "log", RequestLog(tmp_path / "log", re.compile(r"GET (?P<what>\w+)"))
    assert asked.news() == []
    for text, whats in (("GET a\nno GET b\nGE", ["a"]), ("T c\n", ["c"]), ("", []), ("\udc80\nGET d\n", ["d"])):
        with log.open("a", errors="surrogateescape") as stream:
            stream.write(text)
        assert [match["what"] for match in asked.news()] == whats


def test_a_log_that_strangers_fill_stays_small_and_requests_are_still_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOG_BYTES", 4096)
    log, asked, seen = tmp_path / "log", RequestLog(tmp_path / "log", re.compile("GET")), 0
    with log.open("ab", buffering=0) as stream:  # as a daemon has it
        for _ in range(100):
            stream.write(b"knock\n" * 100 + b"GET\n" + b"knock without an end" * 10)
            stream.write(b"\n")
            seen += len(asked.news())
            assert log.stat().st_size <= 4096 + 1000
    assert seen == 100


def test_a_line_without_an_end_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOG_BYTES", 4096)
    log, asked = tmp_path / "log", RequestLog(tmp_path / "log", re.compile("GET"))
    with log.open("ab", buffering=0) as stream:
        for _ in range(50):
            stream.write(b"x" * 8192)
            asked.news()
            assert len(asked.rest) <= 4096


def test_a_look_that_saw_nothing_says_nothing(start: Start, log: Path, report: Reporter) -> None:
    looks = iter([None] * 50)
    serve_until_idle([start(SLEEP)], "it", log, 0.0, report, lambda: next(looks, False), every=0.001)
    assert next(looks, "none left") == "none left"


def test_one_of_two_that_ends_is_an_error_with_its_status(start: Start, log: Path, report: Reporter) -> None:
    daemons = [start(SLEEP), start("raise SystemExit(7)")]
    with pytest.raises(JobError, match=r"^it ended with status 7: began \| bind: address in use$"):
        serve_until_idle(daemons, "it", log, 60, report, lambda: False, every=0.02)
