# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who finds a job: is it alive, is it the same work, and is it still the run that he follows? What can't be known is never taken for an end."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import job_status
import pytest
from ansible.module_utils.sparklanes.common.clock import boot_id, clock
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.runner import Jobs, Started
from ansible.module_utils.sparklanes.jobs.state import JobError
from conftest import RunModule


def work(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    raise AssertionError("no job runs in these tests")


class Systemd:
    """What systemd says of the one unit, look by look; its last word holds. It has the unit once it was started."""

    def __init__(self, *words: str) -> None:
        self.words = list(words) or ["inactive"]
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.asked.append(command)
        if command[0] == "systemd-run":
            self.words = ["active"]
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if word == "lost":
            return 1, "", "Failed to connect to bus: Connection refused\n"
        return 0, f"{word}\n" if word else "", ""

    def started(self) -> int:
        return sum(command[0] == "systemd-run" for command in self.asked)


def spark(root: Path, *words: str) -> tuple[Jobs, Systemd]:
    systemd = Systemd(*words)
    return Jobs(systemd, root / "jobs", systemd=True), systemd


def left(root: Path, state: dict[str, Any] | str | None = None, **spec: Any) -> Path:
    """What a run of job `stage` left in its folder."""
    folder = root / "jobs/stage"
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "schema": jobs_runner.SCHEMA,
        "job": "stage",
        "run": "r1",
        "args": {"n": 1},
        "boot": boot_id(),
        "began": clock(),
        **spec,
    }
    (folder / "spec.json").write_text(json.dumps(made))
    if state is not None:
        (folder / "state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    return folder


def says(**more: Any) -> dict[str, Any]:
    now = clock()
    return {"job": "stage", "pid": 7, "boot": boot_id(), "phase": "fetch", "began": now, "beat": now, "moved": now, **more}


# --- a unit that is there, whatever its files say ------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "progress"),
    [
        (None, "starting"),
        ("", "it runs, and its state.json tells nothing (it is empty)"),
        ('{"job": ', "it runs, and its state.json tells nothing (it is no JSON"),
        ("[]", "it runs, and its state.json tells nothing (it holds list, not an object)"),
        ('{"job": "stage", "pid": "x"}', "it runs, and its state.json tells nothing (its pid is not a whole number"),
        (says(boot="before"), "it runs, and its state.json tells nothing (it is of another boot)"),
        (says(), "fetch"),
    ],
    ids=["none yet", "empty", "cut off", "a list", "other types", "another boot", "good"],
)
def test_a_living_unit_runs_and_is_neither_replaced_nor_forgotten(tmp_path: Path, state: Any, progress: str) -> None:
    folder = left(tmp_path, state)
    jobs, systemd = spark(tmp_path, "active")
    told = jobs.status("stage")
    assert (told.running, told.finished) == (True, False)
    assert told.progress.startswith(progress)
    assert jobs.start("stage", work, {"n": 1}) == Started("stage", "r1", began=False)
    assert systemd.started() == 0
    assert (folder / "spec.json").exists()


@pytest.mark.parametrize("state", [None, "", "[]", says(boot="before")], ids=["none", "empty", "a list", "another boot"])
def test_silence_grows_also_where_the_state_tells_nothing(tmp_path: Path, state: Any) -> None:
    """Otherwise nobody who follows it ever loses patience."""
    folder = left(tmp_path, state, began=clock() - 500.0)
    if state is not None:
        old = (folder / "state.json").stat().st_mtime - 500
        os.utime(folder / "state.json", (old, old))
    told = spark(tmp_path, "active")[0].status("stage")
    assert 499 < told.heartbeat_age < 600
    (folder / "state.json").unlink(missing_ok=True)
    left(tmp_path, None, began=clock() - 500.0, boot="before")
    assert spark(tmp_path, "active")[0].status("stage").heartbeat_age == 0


@pytest.mark.parametrize("state", ["", "[]", '{"pid": "x"}'])
def test_an_end_that_cannot_be_read_is_not_called_an_end_at_the_start(tmp_path: Path, state: str) -> None:
    (left(tmp_path, state) / "log").write_text("read 300 of 400 files\n")
    told = spark(tmp_path)[0].status("stage")
    assert (told.running, told.failed) == (False, True)
    assert told.error.startswith("it ended, and how can't be known, as its state.json tells nothing (")
    assert told.error.endswith("Last lines: read 300 of 400 files")


# --- nobody says whether it is there -------------------------------------------------------------------


@pytest.mark.parametrize("word", ["lost", ""])
def test_no_word_of_systemd_is_no_death(
    tmp_path: Path, word: str, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left(tmp_path, says())
    jobs, systemd = spark(tmp_path, word)
    for ask in (lambda: jobs.status("stage"), lambda: jobs.start("stage", work, {"n": 1}), lambda: jobs.stop("stage")):
        with pytest.raises(JobError, match="systemd does not say whether job stage runs"):
            ask()
    assert systemd.started() == 0
    assert (folder / "state.json").exists()
    monkeypatch.setattr(job_status, "Jobs", lambda run, root: jobs)
    answer = run_module(job_status, {"job": "stage", "jobs_dir": str(tmp_path / "jobs")})
    assert answer["failed"]
    assert "finished" not in answer, "which would be the end for whoever follows it"


@pytest.mark.parametrize("word", ["activating", "reloading", "deactivating", "refreshing", "maintenance"])
def test_only_an_end_is_an_end(tmp_path: Path, word: str) -> None:
    left(tmp_path, says())
    assert spark(tmp_path, word)[0].status("stage").running


# --- it ended, and is still there ----------------------------------------------------------------------


def test_what_a_run_left_behind_ends_before_the_next_begins(tmp_path: Path) -> None:
    left(tmp_path, says(finished=True))
    jobs, systemd = spark(tmp_path, "active", "deactivating", "inactive")
    assert jobs.start("stage", work, {"n": 1}).began
    assert systemd.started() == 1
    assert [command[0] for command in systemd.asked] == ["systemctl", "systemctl", "systemctl", "systemd-run"]


def test_what_does_not_end_is_named_and_its_result_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_runner, "ENDING_SECONDS", 0.2)
    folder = left(tmp_path, says(finished=True))
    (folder / "result.json").write_text("{}")
    jobs, systemd = spark(tmp_path, "deactivating")
    with pytest.raises(
        JobError, match=r"job stage has ended, and 0\.2 s later .* Stop that with `systemctl stop sparklanes-job-stage"
    ):
        jobs.start("stage", work, {"n": 1})
    assert systemd.started() == 0
    assert (folder / "result.json").exists()


# --- without systemd: a pid is a number that is used again ---------------------------------------------


@pytest.fixture
def stranger() -> Iterator[Callable[..., int]]:
    made: list[Popen[bytes]] = []

    def start(*words: str) -> int:
        made.append(Popen([sys.executable, "-c", "import time; time.sleep(60)", *words], stdout=DEVNULL, start_new_session=True))
        return made[-1].pid

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_a_pid_that_somebody_else_has_is_no_job(tmp_path: Path, stranger: Callable[..., int]) -> None:
    pid = stranger()
    folder = left(tmp_path, says(pid=pid))
    (folder / "process.json").write_text(json.dumps({"pid": pid, "boot": boot_id()}))
    jobs = Jobs(Systemd(), tmp_path / "jobs", systemd=False)
    told = jobs.status("stage")
    assert (told.running, told.error) == (False, f"it ended in phase fetch without a result: its process {pid} is gone")
    assert not jobs.stop("stage")


def test_a_process_of_another_boot_is_no_job(tmp_path: Path, stranger: Callable[..., int]) -> None:
    """Even one that has the job's own words: somebody reads its log."""
    folder = tmp_path / "jobs/stage"
    pid = stranger(str(folder))
    left(tmp_path, says(pid=pid, boot="before"))
    (folder / "process.json").write_text(json.dumps({"pid": pid, "boot": "before"}))
    told = Jobs(Systemd(), tmp_path / "jobs", systemd=False).status("stage")
    assert (told.running, told.error) == (False, "it ended in phase fetch without a result: the node was rebooted")


def test_nobody_is_stopped_for_a_number_in_a_file(tmp_path: Path, stranger: Callable[..., int]) -> None:
    folder = tmp_path / "jobs/stage"
    job, other = stranger(str(folder)), stranger()
    left(tmp_path, says(pid=job))
    (folder / "process.json").write_text(json.dumps({"pid": other, "boot": boot_id()}))
    jobs = Jobs(Systemd(), tmp_path / "jobs", systemd=False)
    assert jobs.status("stage").running
    with pytest.raises(JobError, match=rf"runs as process {job}, but .*process\.json says {other}, so nothing was stopped"):
        jobs.stop("stage")
    os.kill(other, 0)


# --- is it the same work -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, r"spec\.json is gone"),
        ("", r"spec\.json can't be read \(it is empty\)"),
        ("{}", r"spec\.json tells no arguments"),
        ('{"args": 5}', r"spec\.json tells no arguments"),
    ],
)
@pytest.mark.parametrize("same", [None, lambda running: bool(running["n"])], ids=["equal", "own judgement"])
def test_work_that_cannot_be_known_is_not_attached_to(tmp_path: Path, text: str | None, why: str, same: Any) -> None:
    path = left(tmp_path, says()) / "spec.json"
    path.unlink() if text is None else path.write_text(text)
    jobs, systemd = spark(tmp_path, "active")
    with pytest.raises(JobError, match=f"is running, and with what is not known: .*{why}.* `systemctl stop sparklanes-job-stage"):
        jobs.start("stage", work, {"n": 1}, same=same)
    assert systemd.started() == 0


def test_other_work_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    left(tmp_path, says(), args={"n": 1, "gone": 1, "equal": 1})
    jobs, systemd = spark(tmp_path, "active")
    with pytest.raises(JobError, match=r"job stage is running with other arguments \(gone, n, new\)\. Wait for its end, or stop"):
        jobs.start("stage", work, {"n": 2, "equal": 1, "new": 1})
    assert systemd.started() == 0


def test_a_folder_that_cannot_be_made_anew_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(tmp_path, says(finished=True))

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs_runner, "write_json", full)
    with pytest.raises(JobError, match=r"job stage can't be made \(.*jobs/stage: No space left on device\)"):
        spark(tmp_path)[0].start("stage", work, {})


# --- the run that one follows --------------------------------------------------------------------------


def test_of_two_controllers_one_starts_and_both_follow_the_same_run(tmp_path: Path) -> None:
    jobs, systemd = spark(tmp_path)
    found: list[Started] = []
    both = [threading.Thread(target=lambda: found.append(jobs.start("stage", work, {"n": 1}))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert systemd.started() == 1
    assert sorted(one.began for one in found) == [False, True]
    assert len({one.run for one in found}) == 1
    assert found[0].run


def test_each_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    jobs, systemd = spark(tmp_path)
    first = jobs.start("stage", work, {"n": 1})
    systemd.words = ["inactive"]
    assert jobs.start("stage", work, {"n": 1}).run != first.run


@pytest.mark.parametrize(
    ("state", "words"), [(says(finished=True), "inactive"), (says(), "active"), (None, "active")], ids=["ended", "runs", "begins"]
)
def test_the_end_of_another_run_is_not_the_end_of_mine(
    tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, state: Any, words: str
) -> None:
    """Somebody else's next staging ends well, and mine would be said to have staged what was never fetched."""
    folder = left(tmp_path, state, run="r2")
    (folder / "result.json").write_text('{"changed": true, "actions": ["staged another lane"]}')
    monkeypatch.setattr(job_status, "Jobs", lambda run, root: spark(tmp_path, words)[0])
    ask = {"job": "stage", "jobs_dir": str(tmp_path / "jobs")}
    mine = run_module(job_status, {**ask, "run": "r1"})
    assert (mine["running"], mine["finished"], mine["job_failed"], "result" in mine) == (False, True, True, False)
    assert "another run of job stage was begun in its place" in mine["error"]
    theirs = run_module(job_status, {**ask, "run": "r2"})
    assert not theirs["job_failed"]
    assert run_module(job_status, ask)["job_failed"] is False, "without a name the last run is meant"


@pytest.mark.parametrize("text", [None, "", "[]", '{"changed": tr'])
def test_a_good_end_without_what_it_found_out_is_none(
    tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    folder = left(tmp_path, says(finished=True))
    if text is not None:
        (folder / "result.json").write_text(text)
    monkeypatch.setattr(job_status, "Jobs", lambda run, root: spark(tmp_path)[0])
    answer = run_module(job_status, {"job": "stage", "jobs_dir": str(tmp_path / "jobs")})
    assert (answer["finished"], answer["job_failed"], "result" in answer) == (True, True, False)
    assert "result.json" in answer["error"]


def test_who_may_stop_it_is_told_how(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    left(tmp_path, says())
    monkeypatch.setattr(job_status, "Jobs", lambda run, root: spark(tmp_path, "active")[0])
    answer = run_module(job_status, {"job": "stage", "jobs_dir": str(tmp_path / "jobs")})
    assert answer["stopped_by"] == "systemctl stop sparklanes-job-stage.service"
    assert answer["log"] == str(tmp_path / "jobs/stage/log")
