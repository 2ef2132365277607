# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Work that outlives the connection that started it.

A job is a Python function of this package, run on the Spark by a transient systemd unit. It lives in a folder:

    spec.json     which function, with which arguments (no secrets), and which run of the job this is
    payload.zip   the code: a copy of what Ansible sent for the module that started the job
    state.json    where it stands, with a heartbeat; replaced atomically
    result.json   what it returned, when it ended
    log           its standard output and error

Secrets reach it through a named pipe that is removed as soon as they are read: never a file, a command line or
the environment of the unit. Where systemd does not run (a container, a test) a process of its own session takes
the unit's place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets as random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.clock import boot_id, clock
from ansible.module_utils.sparklanes.common.disk import standing
from ansible.module_utils.sparklanes.common.files import ASIDE, Unreadable, read_json, read_state, write_json
from ansible.module_utils.sparklanes.common.locks import Busy, locked
from ansible.module_utils.sparklanes.jobs import reporter
from ansible.module_utils.sparklanes.jobs.payload import copy_payload
from ansible.module_utils.sparklanes.jobs.state import JobError, State, Status, judge, process_alive, tail

SCHEMA = "sparklanes-job/1"
JOBS = Path("/var/lib/sparklanes/jobs")
# What every job gets beside a lane that serves; each may ask for other values. It ends before an engine does where memory runs out, and takes
# no more of it than staging needs (eight clients of the Hub of 0.4 GiB, hashing, pages that are still to be written). A systemd that
# has no controller for a limit, or no mount namespace (in a container), leaves that out by itself.
LIMITS = {
    "Nice": "10",
    "IOSchedulingClass": "best-effort",
    "IOSchedulingPriority": "7",
    "OOMScoreAdjust": "500",
    "MemoryMax": "6G",
    "TasksMax": "4096",
    "NoNewPrivileges": "yes",
}
# What programs of others expect to be able to write to.
SCRATCH = ("/tmp", "/var/tmp")
SYSTEMD = Path("/run/systemd/system")  # there while systemd is in charge
PIPE_TIMEOUT = 30.0
# systemd lets what a job left behind have 90 s, from the signal to the kill.
ENDING_SECONDS = 95.0
# Of one answer of systemd, whose stop waits as long.
SYSTEMD_SECONDS = 120.0
# A start waits for the end of the run before and hands over secrets, a stop waits for systemd: each is over by then.
LOCK_SECONDS = 150.0


@dataclass(frozen=True)
class Started:
    """The run of a job that was begun, or that somebody else began and is the same work."""

    job: str
    run: str
    began: bool

    def __bool__(self) -> bool:
        return self.began

    def told(self) -> dict[str, Any]:
        """As a module returns it for action long_job, which follows this very run."""
        return {"job": self.job, "job_run": self.run, "attached": not self.began}


def _state(folder: Path) -> tuple[State | None, str]:
    """Where a job says that it stands, None where it says nothing, and why what it says can't be known. Whether it runs is asked elsewhere."""
    try:
        data, _ = read_state(folder / "state.json")
        return (None, "") if data is None else (State.from_dict(data), "")
    except Unreadable as error:
        return None, error.why
    except ValueError as error:
        return None, str(error)


def _quiet(folder: Path, spec: Mapping[str, Any]) -> float:
    """Seconds since the last sign of life of a job whose state tells nothing: since that was written, or else since the job was made."""
    try:
        return max(0.0, time.time() - (folder / "state.json").stat().st_mtime)
    except OSError:
        began = spec.get("began")
        return max(0.0, clock() - began) if isinstance(began, float) and spec.get("boot") == boot_id() else 0.0


def _forget(folder: Path) -> None:
    """Remove what an earlier run of a job left; JobError where the folder is no job's."""
    schema = str((read_json(folder / "spec.json") or {}).get("schema", ""))
    # One that was killed as it was made has no spec yet.
    others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(ASIDE)] if folder.is_dir() else []
    if folder.is_symlink() or (others and not schema.startswith("sparklanes-job/")):
        raise JobError(f"{folder} is no job of this project, so it was not replaced. Look what it is, and move it away")
    if folder.is_dir():
        shutil.rmtree(folder)


def confinement(writes: Iterable[str | Path]) -> dict[str, str]:
    """Properties of systemd.exec(5) by which all of the file system is read-only but for what is in these folders, to which a file may be
    renamed and a missing folder added.

    Each becomes a mount, across which nothing can be renamed, and which can't be replaced itself: so folders, and none within another.
    """
    there = (standing(path) for path in (*SCRATCH, *writes))
    real = sorted({os.path.realpath(path if path.is_dir() else path.parent) for path in there})
    if "/" in real:  # for a path right below it, whose folder is still to be made
        return {}
    outermost = [path for path in real if not any(path.startswith(f"{other}/") for other in real)]
    quoted = (path.replace("\\", "\\\\").replace('"', '\\"') for path in outermost)
    return {"ProtectSystem": "strict", "ReadWritePaths": " ".join(f'"{path}"' for path in quoted)}


def ask_systemd(argv: list[str]) -> tuple[int, str, str]:
    """What a systemd that runs answers; one that hangs holds nobody for ever."""
    return commands.run(argv, seconds=SYSTEMD_SECONDS)


class Jobs:
    """The jobs of one node. `run` executes a command and returns (rc, stdout, stderr)."""

    def __init__(
        self,
        run: Callable[[list[str]], tuple[int, str, str]],
        root: Path = JOBS,
        systemd: bool | None = None,
    ) -> None:
        self.run = run
        self.root = root
        self.systemd = SYSTEMD.is_dir() if systemd is None else systemd

    def folder(self, job: str) -> Path:
        return self.root / job

    @staticmethod
    def unit(job: str) -> str:
        return f"sparklanes-job-{job}.service"

    def status(self, job: str) -> Status:
        """What an observer can say of a job. JobError where nobody can say whether it runs."""
        folder = self.folder(job)
        state, unread = _state(folder)
        alive = not (state and state.finished) and self._alive(job, state)
        if not alive and not (state and state.finished):
            # It may have ended between the two looks.
            state, unread = _state(folder)
        # Only what is needed is read: a spec may hold a whole corpus.
        quiet = _quiet(folder, self.spec(job) or {}) if alive and (state is None or state.boot != boot_id()) else 0.0
        started = (folder / "spec.json").exists()
        return judge(job, state, alive, clock(), boot_id(), tail(folder / "log"), started, unread, quiet)

    def _alive(self, job: str, state: State | None) -> bool:
        """Whether a job's unit or process is there, whatever its files say. JobError where that can't be known: no word is no death."""
        if self.systemd:
            code, out, error = self.run(["systemctl", "show", "--property=ActiveState", "--value", self.unit(job)])
            if code != 0 or not out.strip():
                why = error.strip() or "it said nothing"
                raise JobError(
                    f"systemd does not say whether job {job} runs ({why}). Look with `systemctl status {self.unit(job)}`"
                )
            return out.strip() not in ("inactive", "failed")
        folder = self.folder(job)
        if state is not None and state.boot == boot_id():
            return process_alive(state.pid, folder, starting=False)
        process = read_json(folder / "process.json") or {}
        pid = process.get("pid")
        return isinstance(pid, int) and process.get("boot") == boot_id() and process_alive(pid, folder)

    def stopped_by(self, job: str) -> str:
        """What a person types to stop a job that runs."""
        if self.systemd:
            return f"systemctl stop {self.unit(job)}"
        return f"kill -TERM -- -{(read_json(self.folder(job) / 'process.json') or {}).get('pid', 'PID')}"

    def result(self, job: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.folder(job) / "result.json")
        return found

    def spec(self, job: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.folder(job) / "spec.json")
        return found

    @contextlib.contextmanager
    def _lock(self, job: str) -> Iterator[None]:
        """Only one at a time starts or stops a job. Nobody else can open this lock, and who holds it for too long is named."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.root / f".{job}.flock", f"starts or stops job {job}", LOCK_SECONDS))
            except (Busy, OSError) as error:
                raise JobError(f"job {job}: {error}") from error
            yield

    def start(
        self,
        job: str,
        function: reporter.JobFunction,
        args: Mapping[str, Any],
        secrets: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        writes: Iterable[str | Path] = (),
        same: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Started:
        """Start a job, or attach to it where it already runs. True where it was started.

        properties: of its unit, over LIMITS. writes: what it writes to besides its own folder, there already or not; all else of the file
        system is read-only for it.
        `same` judges the arguments of a running job; by default they must be equal.
        """
        with self._lock(job):
            if self.status(job).running:
                return self._attach(job, args, same)
            self._wait_for_its_end(job)
            folder, run = self.folder(job), random.token_hex(8)
            spec = {"schema": SCHEMA, "job": job, "function": reporter.name_of(function), "secrets": bool(secrets)}
            spec |= {"run": run, "boot": boot_id(), "began": clock()}
            try:
                _forget(folder)
                folder.mkdir(mode=0o700)
                write_json(folder / "spec.json", {**spec, "args": dict(args)})
                copy_payload(folder / "payload.zip")
                if secrets:
                    os.mkfifo(folder / "secrets", 0o600)
            except OSError as error:
                why = f"{error.filename or folder}: {error.strerror or error}"
                raise JobError(f"job {job} can't be made ({why}). Look at that disk and folder, and run this again") from error
            self._launch(job, folder, {**LIMITS, **confinement([folder, *writes]), **(properties or {})})
            if secrets:
                self._hand_over(job, folder, dict(secrets))
            return Started(job, run, True)

    def _attach(self, job: str, args: Mapping[str, Any], same: Callable[[Mapping[str, Any]], bool] | None) -> Started:
        """The run that is going on, where it is known to do what is wanted."""
        path = self.folder(job) / "spec.json"
        ways = f"Wait for its end, or stop it with `{self.stopped_by(job)}`, and run this again"
        try:
            spec, _ = read_state(path)
        except Unreadable as error:
            raise JobError(f"job {job} is running, and with what is not known: {error}. {ways}") from error
        present = (spec or {}).get("args")
        if spec is None or not isinstance(present, dict):
            lacks = f"{path} {'is gone' if spec is None else 'tells no arguments'}"
            raise JobError(f"job {job} is running, and with what is not known: {lacks}. {ways}")
        if not (same(present) if same else present == dict(args)):
            other = sorted(key for key in {*present, *args} if present.get(key) != args.get(key))
            raise JobError(f"job {job} is running with other arguments ({', '.join(other)}). {ways}")
        return Started(job, str(spec.get("run") or ""), False)

    def _wait_for_its_end(self, job: str) -> None:
        """Until nothing of a run that said its last word is left: systemd ends its children first, and takes no second unit of a name."""
        limit = time.monotonic() + ENDING_SECONDS
        while self._alive(job, None):
            if time.monotonic() > limit:
                raise JobError(
                    f"job {job} has ended, and {ENDING_SECONDS:g} s later something of it is still there. Stop that with"
                    f" `{self.stopped_by(job)}`, and run this again"
                )
            time.sleep(0.1)

    def _launch(self, job: str, folder: Path, properties: Mapping[str, str]) -> None:
        # Not PYTHONPATH: children would inherit it, and Ansible's zip holds a sitecustomize that is none outside of it.
        code = (
            "import sys; from pathlib import Path; folder = Path(sys.argv[1]); sys.path.insert(0, str(folder / 'payload.zip'));"
        )
        code += f" from {reporter.__name__} import main; sys.exit(main(folder))"  # imported above, so that it is in the payload
        command = [sys.executable, "-c", code, str(folder)]
        log = folder / "log"
        if self.systemd:
            settings = {
                "StandardOutput": f"append:{log}",
                "StandardError": f"append:{log}",
                **properties,
            }
            unit = ["systemd-run", f"--unit={self.unit(job)}", "--collect", "--quiet"]
            unit += [f"--description=sparklanes job {job}"]
            unit += [f"--property={name}={value}" for name, value in settings.items()]
            code_, _, error = self.run([*unit, "--", *command])
            if code_ != 0:
                raise JobError(f"systemd did not start job {job}: {error.strip()}")
            return
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )
        write_json(folder / "process.json", {"pid": process.pid, "boot": boot_id()})
        # Nobody waits for it here; a thread that does keeps it from lingering as a zombie in a long-lived caller.
        threading.Thread(target=process.wait, daemon=True).start()

    def _hand_over(self, job: str, folder: Path, secrets: dict[str, str]) -> None:
        pipe = folder / "secrets"
        limit = time.monotonic() + PIPE_TIMEOUT
        while True:
            try:
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    raise
                if time.monotonic() > limit or not self._alive(job, None):
                    pipe.unlink(missing_ok=True)
                    raise JobError(f"job {job} did not take its secrets: {tail(folder / 'log') or 'no log'}") from None
                time.sleep(0.05)
                continue
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise JobError(f"{pipe} is not the pipe that was made")
            with os.fdopen(descriptor, "w") as stream:
                stream.write(json.dumps(secrets))
            return

    def stop(self, job: str, timeout: float = 20.0) -> bool:
        """Stop a job where it runs, and wait for its end. True where it ran."""
        with self._lock(job):
            status = self.status(job)
            if not status.running:
                return False
            if self.systemd:
                code, _, error = self.run(["systemctl", "stop", self.unit(job)])
                if code != 0:
                    raise JobError(f"systemd did not stop job {job}: {error.strip()}")
                return True
            pid = (read_json(self.folder(job) / "process.json") or {}).get("pid")
            if not isinstance(pid, int) or pid <= 1 or not process_alive(pid, self.folder(job)):
                raise JobError(
                    f"job {job} runs as process {status.state.get('pid') or 'unknown'}, but {self.folder(job)}/process.json says "
                    f"{pid if isinstance(pid, int) else 'nothing'}, so nothing was stopped. Look what runs, and stop it by hand"
                )
            os.killpg(pid, signal.SIGTERM)  # it leads its own session and group, as in a unit's control group
            limit = time.monotonic() + timeout
            while process_alive(pid, self.folder(job)) and time.monotonic() < limit:
                time.sleep(0.05)
            return True
