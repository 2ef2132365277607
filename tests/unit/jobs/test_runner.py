# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Jobs run detached, tell where they stand, and are judged when they don't."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.jobs import payload
from ansible.module_utils.sparklanes.jobs import reporter as jobs_reporter
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.jobs import state as jobs_state
from ansible.module_utils.sparklanes.jobs.reporter import JobFunction, Reporter
from ansible.module_utils.sparklanes.jobs.runner import Jobs
from ansible.module_utils.sparklanes.jobs.state import JobError

FUNCTION = """
import time
from pathlib import Path
from ansible.module_utils.sparklanes.jobs.state import JobError


def work(args, secrets, report):
    report.phase("count", 4, unit="steps")
    for step in range(4):
        while args.get("gate") and not Path(args["gate"]).exists():
            time.sleep(0.02)
        report.update(add=1, file=f"step {step}")
    if args.get("fail"):
        raise JobError("the disk is full", {"seen": 4})
    if args.get("crash"):
        raise ValueError("unforeseen")
    return {"changed": True, "secret_length": len(secrets.get("token", "")), "args": args}
"""


def of_module(name: str) -> JobFunction:
    """The function above, as who has imported it knows it."""

    def work(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
        raise AssertionError("it runs in the job alone")

    work.__module__ = f"{payload.PACKAGE}.{name}"
    return work


work, absent = of_module("worker"), of_module("nowhere")


def test_a_user_of_the_machine_holds_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can open the file of a lock can hold it for ever."""
    jobs = Jobs(lambda command: pytest.fail(f"ran {command}"), tmp_path / "jobs", systemd=False)
    with jobs._lock("stage"):
        (lock,) = (tmp_path / "jobs").iterdir()
        assert lock.stat().st_mode & 0o777 == 0o600
    lock.chmod(0o644)
    with pytest.raises(JobError, match="mode 0600"), jobs._lock("stage"):
        pass
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobError, match="job stage"), jobs._lock("stage"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_who_holds_a_job_for_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_runner, "LOCK_SECONDS", 0.1)
    jobs = Jobs(lambda command: pytest.fail(f"ran {command}"), tmp_path / "jobs", systemd=False)
    again = jobs._lock("stage")
    with jobs._lock("stage"), pytest.raises(JobError, match=rf"process {os.getpid()} \(starts or stops job stage\)"):
        again.__enter__()
    with jobs._lock("stage"):
        pass  # it is free again


@pytest.mark.parametrize("text", ["", "[]", '{"job": 5}', '{"pid": "x"}', '{"beat": null}', '{"done": [], "job": "j"}'])
def test_a_job_whose_state_is_none_of_ours_is_judged_without_it(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "jobs/j"
    folder.mkdir(parents=True)
    for name in ("state.json", "process.json", "spec.json"):
        (folder / name).write_text(text)
    told = Jobs(lambda command: pytest.fail(f"ran {command}"), tmp_path / "jobs", systemd=False).status("j")
    assert (told.running, told.failed) == (False, True)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs of a node without systemd, whose payload has one more module: the function above."""
    original = jobs_runner.copy_payload

    def with_function(target: Path) -> None:
        original(target)
        with zipfile.ZipFile(target, "a") as archive:
            archive.writestr("ansible/module_utils/sparklanes/worker.py", FUNCTION)

    monkeypatch.setattr(jobs_runner, "copy_payload", with_function)
    made = Jobs(lambda command: pytest.fail(f"ran {command}"), tmp_path / "jobs", systemd=False)
    yield made
    made.stop("j")


def wait_for(condition: Callable[[], Any]) -> Any:
    for _ in range(1500):
        if found := condition():
            return found
        time.sleep(0.02)
    return pytest.fail("it did not come to pass in 30 s")


def ended(node: Jobs) -> jobs_state.Status:
    wait_for(lambda: node.status("j").finished)
    return node.status("j")


def test_a_job_runs_and_leaves_its_result(node: Jobs) -> None:
    assert node.start("j", work, {"n": 1}, {"token": "abc"})
    status = ended(node)
    assert (status.failed, status.error) == (False, "")
    assert status.progress == "count  100 %  4 of 4 steps  step 3"
    assert node.result("j") == {"changed": True, "secret_length": 3, "args": {"n": 1}}


def test_secrets_are_in_no_file_and_the_pipe_is_gone(node: Jobs) -> None:
    node.start("j", work, {}, {"token": "s3cr3t"})
    ended(node)
    folder = node.folder("j")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (folder / "secrets").exists()
    for file in folder.iterdir():
        assert b"s3cr3t" not in file.read_bytes()


def test_a_second_start_attaches(node: Jobs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert node.start("j", work, {"gate": str(gate)})
    assert not node.start("j", work, {"gate": str(gate)})
    with pytest.raises(
        JobError, match=r"is running with other arguments \(gate\). Wait for its end, or stop it with `kill -TERM -- -\d+`"
    ):
        node.start("j", work, {"gate": "another"})
    assert not node.start("j", work, {"gate": "another"}, same=lambda running: running["gate"] == str(gate))
    gate.touch()
    assert not ended(node).failed


def test_a_failure_that_explains_itself(node: Jobs) -> None:
    node.start("j", work, {"fail": True})
    assert ended(node).error == "the disk is full"
    assert node.result("j") == {"seen": 4}


def test_a_crash_leaves_its_trace_in_the_log(node: Jobs) -> None:
    node.start("j", work, {"crash": True})
    assert ended(node).error == "ValueError: unforeseen"
    assert "Traceback" in (node.folder("j") / "log").read_text()


def test_a_new_run_forgets_the_old_result(node: Jobs) -> None:
    node.start("j", work, {})
    ended(node)
    node.start("j", work, {"crash": True})
    assert ended(node).failed
    assert node.result("j") is None


def test_stop_is_said_as_such(node: Jobs, tmp_path: Path) -> None:
    node.start("j", work, {"gate": str(tmp_path / "never")})
    wait_for(lambda: node.status("j").state.get("phase") == "count")
    assert node.stop("j")
    assert node.status("j").error == "stopped by SIGTERM"
    assert not node.stop("j")


def test_a_killed_job_is_noticed(node: Jobs, tmp_path: Path) -> None:
    node.start("j", work, {"gate": str(tmp_path / "never")})
    state = wait_for(lambda: node.status("j").state)
    os.kill(state["pid"], signal.SIGKILL)
    status = ended(node)
    assert status.failed
    assert "without a result: its process" in status.error


def test_a_job_that_cannot_be_imported_says_so(node: Jobs) -> None:
    node.start("j", absent, {})
    assert "No module named" in ended(node).error


def test_only_functions_of_ours_run() -> None:
    for function in ("os", "jobs.runner:", ":x", "jobs.runner:a.b", "..os:system", "jobs/runner:judge"):
        with pytest.raises(JobError, match="is not module:function"):
            jobs_reporter.resolve(function)
    with pytest.raises(ModuleNotFoundError, match=r"sparklanes\.os"):
        jobs_reporter.resolve("os.path:join")
    assert jobs_reporter.resolve("jobs.state:judge") is jobs_state.judge


def test_there_is_no_such_job(node: Jobs) -> None:
    assert not node.status("none").exists


def test_payload_from_a_zip_is_that_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "ansiballz.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("ansible/module_utils/sparklanes/jobs/payload.py", "x = 1")
    monkeypatch.setattr(payload, "__file__", str(source / "ansible/module_utils/sparklanes/jobs/payload.py"))
    payload.copy_payload(tmp_path / "copy.zip")
    assert (tmp_path / "copy.zip").read_bytes() == source.read_bytes()


class Systemd:
    """Records what systemd is asked for. Only for the command lines: units run in tests/infra, on real systemd."""

    def __init__(self, state: str = "inactive") -> None:
        self.commands: list[list[str]] = []
        self.state = state

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        return (0, self.state + "\n", "") if command[0] == "systemctl" else (0, "", "")


def test_the_unit_is_transient_and_knows_no_secret(tmp_path: Path) -> None:
    systemd = Systemd()
    Jobs(systemd, tmp_path, systemd=True).start("stage", work, {"a": 1}, properties={"RuntimeDirectory": "x"})
    command = next(command for command in systemd.commands if command[0] == "systemd-run")
    assert command[1:4] == ["--unit=sparklanes-job-stage.service", "--collect", "--quiet"]
    assert "--property=RuntimeDirectory=x" in command
    assert f"--property=StandardOutput=append:{tmp_path}/stage/log" in command
    assert command[command.index("--") + 1] == sys.executable
    assert not [part for part in command if part.startswith("--setenv")]


def unit_of(tmp_path: Path, **more: Any) -> dict[str, str]:
    """The properties that systemd is asked for."""
    systemd = Systemd()
    Jobs(systemd, tmp_path / "jobs", systemd=True).start("stage", work, {}, **more)
    command = next(command for command in systemd.commands if command[0] == "systemd-run")
    pairs = (part.removeprefix("--property=").partition("=") for part in command if part.startswith("--property="))
    return {name: value for name, _, value in pairs}


def test_a_job_is_confined_and_dies_before_an_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_runner, "SCRATCH", ("/var/tmp",))
    found = unit_of(tmp_path, properties={"MemoryMax": "2G"}, writes=[tmp_path / "models/not/yet"])
    assert (found["NoNewPrivileges"], found["ProtectSystem"], found["MemoryMax"]) == ("yes", "strict", "2G")
    assert int(found["OOMScoreAdjust"]) > 0
    assert int(found["TasksMax"]) > 0
    assert shlex.split(found["ReadWritePaths"]) == [str(tmp_path), "/var/tmp"]


def test_what_a_job_writes_to_is_named_so_that_files_can_be_renamed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/f").write_text("")
    (tmp_path / 'q "x\\y').mkdir()
    (tmp_path / "link").symlink_to("/usr/local")

    def folders(*names: str) -> list[str]:
        found = shlex.split(jobs_runner.confinement([tmp_path / name for name in names])["ReadWritePaths"])
        return [path.removeprefix(f"{tmp_path}/") for path in found if path not in jobs_runner.SCRATCH]

    monkeypatch.setattr(jobs_runner, "SCRATCH", ("/var/tmp",))
    assert folders("a/f") == ["a"]  # a file that is a mount can't be replaced
    assert folders("a/b/c/d") == ["a/b"]
    assert folders("a", "a/b", "a/f") == ["a"]
    assert folders('q "x\\y', "a") == ["a", 'q "x\\y']
    assert folders("link/x") == ["/usr/local"]
    assert jobs_runner.confinement(["/sparklanes-none/model"]) == {}


@pytest.mark.parametrize("what", ["folder", "link", "job of another"])
def test_a_folder_that_is_no_job_is_not_replaced(tmp_path: Path, what: str) -> None:
    (tmp_path / "home/thesis").mkdir(parents=True)
    (tmp_path / "home/thesis/text.tex").write_text("years")
    (tmp_path / "jobs").mkdir()
    if what == "link":
        (tmp_path / "jobs/stage").symlink_to(tmp_path / "home/thesis")
    else:
        (tmp_path / "home/thesis").rename(tmp_path / "jobs/stage")
        if what == "job of another":
            (tmp_path / "jobs/stage/spec.json").write_text('{"schema": "other/1"}')
    with pytest.raises(JobError, match=r"jobs/stage is no job of this project|died|ended"):
        Jobs(Systemd(), tmp_path / "jobs", systemd=True).start("stage", work, {})
    assert (tmp_path / "jobs/stage/text.tex").read_text() == "years"


def test_a_job_that_was_killed_as_it_was_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir(parents=True)
    (tmp_path / "stage/.sparklanes-partial.x1").write_text("")
    assert Jobs(Systemd(), tmp_path, systemd=True).start("stage", work, {})


def test_a_refused_unit_is_an_error(tmp_path: Path) -> None:
    def refuse(command: list[str]) -> tuple[int, str, str]:
        return (1, "", "Unit exists\n") if command[0] == "systemd-run" else (0, "inactive\n", "")

    with pytest.raises(JobError, match="systemd did not start job stage: Unit exists"):
        Jobs(refuse, tmp_path, systemd=True).start("stage", work, {})
