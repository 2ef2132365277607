# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Running a program: one that may not be installed, may never end, may start others, may print without end or in another language.

`AnsibleModule.run_command` has no time limit, and a hanging driver, disk or daemon holds it for ever. So nobody uses it: `run` stands for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.sparklanes.common import stall

Run = Callable[..., tuple[int, str, str]]
NOT_FOUND = 127  # as a shell says
TIMED_OUT = 124  # as timeout(1) says
SECONDS = 60.0
MOST_BYTES = 64 << 20
# Between asking a program to end and killing it, and again until it is left behind: what hangs in a driver is out of reach of any signal.
GRACE_SECONDS = 1.0
ENGLISH = {"LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def ask(run: Run, argv: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """Exit status, output and errors. A `run` that raises for a program that is not there has said so."""
    try:
        return run(list(argv), handle_exceptions=False, **options)
    except OSError as error:
        return NOT_FOUND, "", f"{argv[0]}: {error.strerror or error}"


def run(
    argv: Sequence[str],
    seconds: float = SECONDS,
    environ_update: Mapping[str, str] | None = None,
    most_bytes: int = MOST_BYTES,
    limits: stall.Limits | None = None,
    cwd: str | Path | None = None,
    data: str = "",
    **_: Any,
) -> tuple[int, str, str]:
    """Exit status, output and errors of a program; in the shape of `AnsibleModule.run_command`.

    It runs in English, reads `data`, and ends within `seconds` with all that it started: TIMED_OUT then, and
    the errors say so. One that isn't there is NOT_FOUND. More than `most_bytes` of either text are read and thrown away.
    `limits` instead of `seconds`, for what may take hours: TIMED_OUT where it stands still.
    """
    started = _start(argv, environ_update or {}, most_bytes, cwd=cwd, data=data)
    if isinstance(started, tuple):
        return started
    if limits is None:
        return started.end(seconds, f"within {seconds:g} s")
    with stall.watched(started.process, limits) as watch:
        answer = started.end(None, "")
    return (TIMED_OUT, answer[1], f"{started.name} {watch.why}") if watch else answer


def together(programs: Iterable[Sequence[str]], seconds: float) -> list[tuple[int, str, str]]:
    """`run` for programs at once; none outlives `seconds`. Output and errors come as one text, the third says why one did not run or end."""
    started = [_start(argv, {}, MOST_BYTES, merged=True) for argv in programs]
    end = time.monotonic() + seconds
    try:
        return [
            one if isinstance(one, tuple) else one.end(max(0.1, end - time.monotonic()), f"within {seconds:g} s")
            for one in started
        ]
    except BaseException:
        for one in started:
            if not isinstance(one, tuple):
                one.kill()
        raise


class _Reader(threading.Thread):
    """Takes all that a program prints, so that it never waits for us, and keeps the first `most` bytes."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        super().__init__(daemon=True)
        self.stream, self.most, self.kept = stream, most, bytearray()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self.stream:
            while chunk := os.read(self.stream.fileno(), 65536):
                self.kept += chunk[: self.most - len(self.kept)]

    def text(self) -> str:
        self.join(GRACE_SECONDS)  # a child of the program that lives on may hold its end
        return bytes(self.kept).decode(errors="replace")


class _Started:
    def __init__(self, name: str, process: subprocess.Popen[bytes], most_bytes: int) -> None:
        self.name, self.process = name, process
        self.readers = [_Reader(stream, most_bytes) for stream in (process.stdout, process.stderr) if stream is not None]

    def end(self, seconds: float | None, told: str) -> tuple[int, str, str]:
        """Wait for it, or end it after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return TIMED_OUT, self.readers[0].text(), f"{self.name} did not answer {told}"
        except BaseException:
            self.kill()
            raise
        texts = [reader.text() for reader in self.readers]
        return self.process.returncode, texts[0], texts[1] if len(texts) > 1 else ""

    def kill(self) -> None:
        """The program and all that it started; it leads a group of its own."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_SECONDS)


def _start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    most_bytes: int,
    merged: bool = False,
    cwd: str | Path | None = None,
    data: str = "",
) -> _Started | tuple[int, str, str]:
    try:
        with contextlib.ExitStack() as held:
            stdin: IO[bytes] | int = subprocess.DEVNULL
            if data:  # from a file without a name, so that nobody has to write while it reads
                stdin = held.enter_context(tempfile.TemporaryFile())
                stdin.write(data.encode())
                stdin.seek(0)
            process = subprocess.Popen(
                list(argv),
                stdin=stdin,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                env={**os.environ, **ENGLISH, **environ},
                start_new_session=True,
            )
    except OSError as error:
        return NOT_FOUND, "", f"{argv[0]}: {error.strerror or error}"
    return _Started(Path(argv[0]).name, process, most_bytes)
