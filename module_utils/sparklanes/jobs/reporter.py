# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Inside a job: the process that runs its function to the end, and what the function calls to say where it stands."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id, clock
from ansible.module_utils.sparklanes.common.files import write_json
from ansible.module_utils.sparklanes.jobs.payload import PACKAGE
from ansible.module_utils.sparklanes.jobs.state import JobError, Rate, State

BEAT = 2.0  # seconds between heartbeats


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


def name_of(function: JobFunction) -> str:
    """`weights.stage:stage`, as `resolve` takes it. Who has the function has imported it, so that it is in the payload."""
    return f"{function.__module__.removeprefix(PACKAGE + '.')}:{function.__name__}"


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
