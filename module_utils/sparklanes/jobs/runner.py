# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Work that outlives the connection that started it.

A job is a Python function of this package, run on the Spark by a transient systemd unit. It lives in a folder:

    spec.json     which function, with which arguments (no secrets)
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
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id, clock
from ansible.module_utils.sparklanes.common.disk import standing
from ansible.module_utils.sparklanes.common.files import ASIDE, read_json, write_json
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
# A start hands over secrets and a stop waits for systemd's 90 s; both are over by then.
LOCK_SECONDS = 150.0


def _state(folder: Path) -> State | None:
    """Where a job says that it stands; None where it says nothing of ours. Whether it runs is asked elsewhere."""
    data = read_json(folder / "state.json")
    try:
        return State.from_dict(data) if data else None
    except ValueError:
        return None


def _forget(folder: Path) -> None:
    """Remove what an earlier run of a job left; JobError where the folder is no job's."""
    schema = str((read_json(folder / "spec.json") or {}).get("schema", ""))
    # One that was killed as it was made has no spec yet.
    others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(ASIDE)] if folder.is_dir() else []
    if folder.is_symlink() or (others and not schema.startswith("sparklanes-job/")):
        raise JobError(f"{folder} is no job of this project, so it was not replaced. Look what it is, and move it away")
    shutil.rmtree(folder, ignore_errors=True)


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
        folder = self.folder(job)
        state = _state(folder)
        alive = not (state and state.finished) and self._alive(job, state)
        if not alive and not (state and state.finished):
            # It may have ended between the two looks.
            state = _state(folder)
        return judge(job, state, alive, clock(), boot_id(), tail(folder / "log"), (folder / "spec.json").exists())

    def _alive(self, job: str, state: State | None) -> bool:
        if self.systemd:
            _, out, _ = self.run(["systemctl", "show", "--property=ActiveState", "--value", self.unit(job)])
            return out.strip() in ("active", "activating", "deactivating", "reloading")
        folder = self.folder(job)
        if state is not None:
            return process_alive(state.pid, folder)
        process = read_json(folder / "process.json")
        pid = (process or {}).get("pid")
        return isinstance(pid, int) and process_alive(pid, folder)

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
    ) -> bool:
        """Start a job, or attach to it where it already runs. True where it was started.

        properties: of its unit, over LIMITS. writes: what it writes to besides its own folder, there already or not; all else of the file
        system is read-only for it.
        `same` judges the arguments of a running job; by default they must be equal.
        """
        with self._lock(job):
            if self.status(job).running:
                present = (self.spec(job) or {}).get("args", {})
                if not (same(present) if same else present == dict(args)):
                    raise JobError(
                        f"job {job} is running with other arguments: wait for it, or stop it with"
                        f" `systemctl stop {self.unit(job)}` and run this again"
                    )
                return False
            folder = self.folder(job)
            _forget(folder)
            folder.mkdir(mode=0o700)
            spec = {"schema": SCHEMA, "job": job, "function": reporter.name_of(function), "secrets": bool(secrets)}
            write_json(folder / "spec.json", {**spec, "args": dict(args)})
            copy_payload(folder / "payload.zip")
            if secrets:
                os.mkfifo(folder / "secrets", 0o600)
            self._launch(job, folder, {**LIMITS, **confinement([folder, *writes]), **(properties or {})})
            if secrets:
                self._hand_over(job, folder, dict(secrets))
            return True

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
        write_json(folder / "process.json", {"pid": process.pid})
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
            if not isinstance(pid, int) or pid <= 1:
                raise JobError(f"job {job} runs, but {self.folder(job)}/process.json does not say as what")
            os.killpg(pid, signal.SIGTERM)  # it leads its own session and group, as in a unit's control group
            limit = time.monotonic() + timeout
            while process_alive(pid, self.folder(job)) and time.monotonic() < limit:
                time.sleep(0.05)
            return True
