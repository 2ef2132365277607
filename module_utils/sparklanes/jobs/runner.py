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
import fcntl
import importlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.jobs.payload import PACKAGE, copy_payload

SCHEMA = "sparklanes-job/1"
JOBS = Path("/var/lib/sparklanes/jobs")
SYSTEMD = Path("/run/systemd/system")  # there while systemd is in charge
BEAT = 2.0  # seconds between heartbeats
DEAD_AFTER = 30.0  # a living job has written by then, even on a busy disk
PIPE_TIMEOUT = 30.0


class JobError(Exception):
    """The job cannot start, or failed in a way that it can explain. The text is for a person.

    A job that fails may still have found things out: `result` goes where a good end's would.
    """

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


def clock() -> float:
    """Seconds since boot, suspended time included: setting the date does not make a job look dead."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id(proc: Path = Path("/proc")) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


# --- state: pure ---------------------------------------------------------------------------------------------


@dataclass
class State:
    """Where a job stands. Times are `clock()` seconds of `boot`."""

    job: str
    pid: int = 0
    boot: str = ""
    phase: str = "starting"
    file: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    rate: float = 0.0
    began: float = 0.0
    beat: float = 0.0
    moved: float = 0.0
    finished: bool = False
    failed: bool = False
    error: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_time(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def eta(state: State) -> float | None:
    """Seconds to go at the present rate, or None where that says nothing: too early, or too slow to be meant."""
    left = state.total - state.done
    if state.rate <= 0 or left < 0 or state.done * 100 < state.total:
        return None
    return left / state.rate


def progress(state: State) -> str:
    """One compact line: `fetch   41 %  155.2 GiB of 377.4 GiB  2.1 GiB/s  1 min 42 s to go  model-00117…`."""
    parts = [state.phase]
    if state.total:
        parts.append(f"{min(100, 100 * state.done // state.total):3d} %")
        if state.unit == "bytes":
            parts.append(f"{human_bytes(state.done)} of {human_bytes(state.total)}")
            if eta(state) is not None:
                parts.append(f"{human_bytes(state.rate)}/s")
        else:
            parts.append(f"{state.done} of {state.total} {state.unit}")
        left = eta(state)
        if left is not None and not state.finished:
            parts.append(f"{human_time(left)} to go")
    if state.file:
        parts.append(state.file)
    return "  ".join(parts)


@dataclass
class Rate:
    """Units per second over the last half minute, so that one slow file doesn't make the ETA jump.

    The first seconds say nothing: programs start, connections open.
    """

    window: float = 30.0
    least: float = 4.0
    samples: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, done: int) -> float:
        if self.samples and done < self.samples[-1][1]:
            self.samples.clear()  # a new phase
        self.samples.append((now, done))
        while len(self.samples) > 2 and now - self.samples[0][0] > self.window:
            self.samples.pop(0)
        (first, low), (last, high) = self.samples[0], self.samples[-1]
        return (high - low) / (last - first) if last - first >= self.least else 0.0


# --- inside the job ------------------------------------------------------------------------------------------


class Reporter:
    """What a job's function calls to say where it stands. Safe from any thread."""

    def __init__(self, folder: Path, job: str, beat: float = BEAT) -> None:
        self.path = folder / "state.json"
        self.beat = beat
        self.lock = threading.RLock()
        now = clock()
        self.state = State(job, pid=os.getpid(), boot=boot_id(), began=now, beat=now, moved=now)
        self.rate = Rate()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._pulse, daemon=True)

    def start(self) -> None:
        self.write()
        self.thread.start()

    def phase(self, name: str, total: int = 0, done: int = 0, unit: str = "bytes") -> None:
        with self.lock:
            state = self.state
            state.phase, state.total, state.done, state.unit, state.file = name, total, done, unit, ""
            state.moved = clock()
            self.rate = Rate()
        self.write()

    def update(self, done: int | None = None, add: int = 0, file: str | None = None) -> None:
        with self.lock:
            state = self.state
            before = (state.done, state.file)
            state.done = state.done + add if done is None else done
            state.file = state.file if file is None else file
            if (state.done, state.file) != before:
                state.moved = clock()

    def alive(self) -> None:
        """Say that nothing to count has moved, yet all is well (a server that waits for its clients)."""
        with self.lock:
            self.state.moved = clock()

    def end(self, error: str = "") -> None:
        self.stopped.set()
        if self.thread.is_alive():
            self.thread.join()
        with self.lock:
            self.state.finished, self.state.failed, self.state.error = True, bool(error), error
        self.write()

    def write(self) -> None:
        with self.lock:
            self.state.beat = clock()
            self.state.rate = self.rate.add(self.state.beat, self.state.done)
            write_json(self.path, asdict(self.state))

    def _pulse(self) -> None:
        while not self.stopped.wait(self.beat):
            # A full disk must not end the heartbeat: the job's own error is the one to report.
            with contextlib.suppress(OSError):
                self.write()


JobFunction = Callable[[dict[str, Any], dict[str, str], Reporter], dict[str, Any]]


def resolve(function: str) -> JobFunction:
    """`weights.stage:stage` → the function. Only modules of this package."""
    module, _, name = function.partition(":")
    if not all(map(str.isidentifier, module.split("."))) or not name.isidentifier():
        raise JobError(f"{function!r} is not module:function of {PACKAGE}")
    found: JobFunction = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    return found


def main(folder: Path) -> int:
    """Run the job in a folder to its end. The outermost function of the detached process."""
    spec = json.loads((folder / "spec.json").read_text())
    report = Reporter(folder, spec["job"])

    def stopped(number: int, _frame: object) -> None:
        raise JobError(f"stopped by {signal.Signals(number).name}")

    signal.signal(signal.SIGTERM, stopped)
    report.start()
    try:
        secrets = read_secrets(folder / "secrets") if spec["secrets"] else {}
        result = resolve(spec["function"])(spec["args"], secrets, report)
        write_json(folder / "result.json", result)
    except JobError as error:
        if error.result is not None:
            write_json(folder / "result.json", error.result)
        report.end(str(error))
        return 1
    except BaseException as error:
        traceback.print_exc()
        report.end(f"{type(error).__name__}: {error}")
        return 1
    report.end()
    return 0


def read_secrets(pipe: Path) -> dict[str, str]:
    secrets: dict[str, str] = json.loads(pipe.read_text())
    pipe.unlink()
    return secrets


# --- outside: start, find, judge -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """What an observer can say of a job."""

    job: str
    exists: bool = False
    running: bool = False
    finished: bool = False
    failed: bool = False
    error: str = ""
    progress: str = ""
    heartbeat_age: float = 0.0
    progress_age: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)


def judge(job: str, state: State | None, alive: bool, now: float, boot: str, log: str = "", started: bool = True) -> Status:
    """Whether a job runs, ended, or died without a word. `started`: there is such a job at all. Pure."""
    if state is None:
        if alive:
            return Status(job, exists=True, running=True, progress="starting")
        if started:
            return Status(job, True, finished=True, failed=True, error=f"it ended at its start: {log or 'it said nothing'}")
        return Status(job)
    line = progress(state)
    shown = {**asdict(state), "eta": eta(state)}
    if state.finished:
        return Status(job, True, False, True, state.failed, state.error, line, state=shown)
    same_boot = state.boot == boot
    beat_age = max(0.0, now - state.beat) if same_boot else 0.0
    moved_age = max(0.0, now - state.moved) if same_boot else 0.0
    if not same_boot or not alive:
        why = "the node was rebooted" if not same_boot else f"its process {state.pid} is gone"
        error = f"it ended in phase {state.phase} without a result: {why}" + (f". Last lines: {log}" if log else "")
        return Status(job, True, False, True, True, error, line, beat_age, moved_age, shown)
    return Status(job, True, True, False, False, "", line, beat_age, moved_age, shown)


def tail(path: Path, lines: int = 5) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 4096))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


def process_alive(pid: int, folder: Path, proc: Path = Path("/proc")) -> bool:
    """Whether this pid still is the job of that folder (pids are used again)."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(folder).encode() in words


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
        data = read_json(folder / "state.json")
        state = State.from_dict(data) if data else None
        alive = not (state and state.finished) and self._alive(job, state)
        if not alive and not (state and state.finished):
            # It may have ended between the two looks.
            data = read_json(folder / "state.json")
            state = State.from_dict(data) if data else None
        return judge(job, state, alive, clock(), boot_id(), tail(folder / "log"), (folder / "spec.json").exists())

    def _alive(self, job: str, state: State | None) -> bool:
        if self.systemd:
            _, out, _ = self.run(["systemctl", "show", "--property=ActiveState", "--value", self.unit(job)])
            return out.strip() in ("active", "activating", "deactivating", "reloading")
        folder = self.folder(job)
        if state is not None:
            return process_alive(state.pid, folder)
        process = read_json(folder / "process.json")
        return process is not None and process_alive(int(process["pid"]), folder)

    def result(self, job: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.folder(job) / "result.json")
        return found

    def spec(self, job: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.folder(job) / "spec.json")
        return found

    @contextlib.contextmanager
    def _lock(self, job: str) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
        with (self.root / f".{job}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def start(
        self,
        job: str,
        function: str,
        args: Mapping[str, Any],
        secrets: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        same: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> bool:
        """Start a job, or attach to it where it already runs. True where it was started.

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
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            spec = {"schema": SCHEMA, "job": job, "function": function, "secrets": bool(secrets)}
            write_json(folder / "spec.json", {**spec, "args": dict(args)})
            copy_payload(folder / "payload.zip")
            if secrets:
                os.mkfifo(folder / "secrets", 0o600)
            self._launch(job, folder, properties or {})
            if secrets:
                self._hand_over(job, folder, dict(secrets))
            return True

    def _launch(self, job: str, folder: Path, properties: Mapping[str, str]) -> None:
        # Not PYTHONPATH: children would inherit it, and Ansible's zip holds a sitecustomize that is none outside of it.
        code = (
            "import sys; from pathlib import Path; folder = Path(sys.argv[1]); sys.path.insert(0, str(folder / 'payload.zip'));"
        )
        code += f" from {PACKAGE}.jobs.runner import main; sys.exit(main(folder))"
        command = [sys.executable, "-c", code, str(folder)]
        log = folder / "log"
        if self.systemd:
            settings = {
                "StandardOutput": f"append:{log}",
                "StandardError": f"append:{log}",
                "Nice": "10",
                "IOSchedulingClass": "best-effort",
                "IOSchedulingPriority": "7",
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
            pid = int((read_json(self.folder(job) / "process.json") or {}).get("pid", 0))
            if pid <= 1:
                raise JobError(f"job {job} runs, but {self.folder(job)}/process.json does not say as what")
            os.killpg(pid, signal.SIGTERM)  # it leads its own session and group, as in a unit's control group
            limit = time.monotonic() + timeout
            while process_alive(pid, self.folder(job)) and time.monotonic() < limit:
                time.sleep(0.05)
            return True
