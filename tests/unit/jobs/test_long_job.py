# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The action that follows long work: when it ends, when its patience does, and what it shows meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from test_long_job_board import plugin

long_job = plugin()
LIMITS = long_job.Limits(silence=60, stall=300, deadline=1000)
START = {"job": "stage", "changed": True, "actions": ["started job stage"], "invocation": {"module_args": {}}}


@pytest.mark.parametrize(
    ("answer", "waited", "why"),
    [
        ({"heartbeat_age": 60, "progress_age": 300}, 1000, ""),
        ({}, 0, ""),
        ({"heartbeat_age": 61}, 0, "no sign of life for 61 s (limit 60 s)"),
        ({"heartbeat_age": 1, "progress_age": 301}, 0, "no progress for 301 s (limit 300 s)"),
        ({"heartbeat_age": None, "progress_age": None}, 1001, "not ready after 1001 s (limit 1000 s)"),
    ],
)
def test_patience(answer: dict[str, Any], waited: float, why: str) -> None:
    assert long_job.stalled(answer, waited, LIMITS) == why


def test_no_limit_no_end_of_patience() -> None:
    assert long_job.stalled({"heartbeat_age": 1e9, "progress_age": 1e9}, 1e9, long_job.Limits(0, 0, 0)) == ""


def test_a_good_end_is_the_jobs_result() -> None:
    answer = {"finished": True, "progress": "done", "result": {"changed": False, "staged": True, "actions": ["read"]}}
    assert long_job.ending(START, answer, "s1", "stage") == {
        "job": "stage",
        "changed": False,
        "staged": True,
        "progress": "done",
        "actions": ["started job stage", "read"],
    }


def test_the_run_that_was_started_is_the_one_that_is_asked_for() -> None:
    options = {"status_module": "job_status", "status_args": {}, "args": {"jobs_dir": "/j"}, "poll": 5}
    asked = long_job.question(options, {"job": "stage", "job_run": "r1"})
    assert asked == {"job": "stage", "run": "r1", "wait": 5, "jobs_dir": "/j"}
    assert long_job.question(options, {"job": "stage"})["run"] == "", "of a module that names none, the last run"
    assert long_job.question({**options, "status_module": "rank_info", "status_args": {"a": 1}}, {}) == {"a": 1}


def test_a_bad_end_names_the_host_once() -> None:
    assert long_job.ending(START, {"job_failed": True, "error": "disk full"}, "s1", "stage")["msg"] == "s1: stage: disk full"
    assert long_job.ending(START, {"job_failed": True, "error": "s1: disk full"}, "s1", "stage")["msg"] == "s1: disk full"
    assert long_job.ending(START, {"failed": True, "msg": "no module"}, "s1", "stage")["msg"] == "s1: stage: no module"


class Follower:
    """follow() over a list of answers; an exception in it is raised. Time passes by what is slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.shown: list[str] = []
        self.action = long_job.ActionModule.__new__(long_job.ActionModule)
        monkeypatch.setattr(long_job.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(long_job.time, "sleep", self.sleep)
        monkeypatch.setattr(long_job.display, "display", self.shown.append)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self, answers: list[Any], reconnect: float = 30, deadline: float = 0) -> dict[str, Any]:
        queue = iter(answers)

        def ask() -> dict[str, Any]:
            answer = next(queue)
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        limits = long_job.Limits(60, 300, deadline)
        board = long_job.Board("", "s1", "")
        result: dict[str, Any] = self.action.follow("s1", "stage", START, ask, 5, reconnect, limits, board)
        return result

    def lines(self) -> list[str]:
        """What was shown, without the time."""
        return [line.split("  ", 2)[2] for line in self.shown]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return Follower(monkeypatch)


def running(line: str, **more: Any) -> dict[str, Any]:
    return {"running": True, "finished": False, "progress": line, "heartbeat_age": 1, "progress_age": 1, **more}


GOOD = {"finished": True, "progress": "100 %", "result": {"changed": True, "actions": []}}


def test_each_new_line_is_shown_once(follow: Follower) -> None:
    assert follow([running("10 %"), running("10 %"), running("50 %"), GOOD])["changed"]
    assert follow.lines() == ["s1  10 %", "s1  50 %", "s1  stage: done"]


def test_a_lost_connection_is_survived(follow: Follower) -> None:
    lost = AnsibleConnectionFailure("ssh: no route to host\nmore")
    assert "failed" not in follow([running("10 %"), lost, lost, running("90 %"), GOOD])
    assert follow.lines()[1] == "s1  stage: no connection (ssh: no route to host); the job runs on, trying again"


def test_a_connection_that_stays_lost_is_unreachable(follow: Follower) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        follow([running("10 %"), *[AnsibleConnectionFailure("gone")] * 20])
    assert follow.now > 30


def test_a_stall_fails_and_says_that_the_job_was_left_alone(follow: Follower) -> None:
    result = follow([running("10 %"), running("10 %", progress_age=400)])
    assert (result["failed"], result["stalled"]) == (True, True)
    assert result["msg"].startswith("s1: stage: no progress for 400 s (limit 300 s), last seen: 10 %. It was not stopped")
    named = running("10 %", progress_age=400, log="/jobs/stage/log", stopped_by="systemctl stop x.service")
    text = follow([named])["msg"].partition("It was not stopped: ")[2]
    assert (
        text
        == "see /jobs/stage/log on the node, then run the same command to attach again, or stop it there first: systemctl stop x.service"
    )


def test_a_deadline_counts_from_the_first_look(follow: Follower) -> None:
    result = follow([running("booting")] * 10, deadline=20)
    assert "not ready after 25 s (limit 20 s)" in result["msg"]


def test_a_failed_job_fails_the_task(follow: Follower) -> None:
    bad = {"finished": True, "job_failed": True, "error": "disk full", "result": {"checks": [1], "actions": []}}
    result = follow([bad])
    assert (result["failed"], result["msg"], result["checks"]) == (True, "s1: stage: disk full", [1])
    assert follow.lines() == ["s1  stage: failed"]


BROKEN = {"failed": True, "msg": "MODULE FAILURE\nsee stdout"}


def test_a_failed_look_is_not_the_end_of_the_work(follow: Follower) -> None:
    assert "failed" not in follow([running("10 %"), BROKEN, BROKEN, running("90 %"), GOOD])
    assert follow.lines()[1] == "s1  stage: no answer (MODULE FAILURE); the job runs on, trying again"


def test_the_first_look_may_fail_too(follow: Follower) -> None:
    assert "failed" not in follow([BROKEN, running("90 %"), GOOD])


def test_looks_that_go_on_failing_are_told(follow: Follower) -> None:
    result = follow([running("10 %"), *[BROKEN] * 20])
    assert (result["failed"], result["msg"]) == (True, "s1: stage: MODULE FAILURE\nsee stdout")
    assert follow.now >= 30


def test_a_question_that_is_never_answered_is_not_asked_for_long(follow: Follower) -> None:
    assert follow([BROKEN] * 20)["failed"]
    assert follow.now == 15
