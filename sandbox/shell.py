# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Run commands, with their output in a log, and say what went wrong in words a person can use."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_print_lock = threading.Lock()


class SandboxError(Exception):
    """Says which thing failed, what was found, and what to do next."""


def say(text: str) -> None:
    with _print_lock:
        print(text, flush=True)


def warn(text: str) -> None:
    with _print_lock:
        print(f"warning: {text}", file=sys.stderr, flush=True)


def tail(path: Path, lines: int = 12) -> str:
    try:
        return "\n".join("    " + line for line in path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def capture(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120) -> str:
    """Standard output of a command that must succeed."""
    code, out, err = attempt(argv, env=env, timeout=timeout)
    if code != 0:
        raise SandboxError(f"`{' '.join(argv)}` ended with {code}: {(err or out).strip()[-2000:]}")
    return out


def attempt(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120, stdin: bytes | None = None
) -> tuple[int, str, str]:
    """Exit status, output and errors of a command that may fail; 127 and 124 as in a shell."""
    try:
        done = subprocess.run(
            list(argv),
            env=dict(env) if env is not None else None,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return 127, "", f"{argv[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{argv[0]}: no end after {timeout:.0f} s"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Builders:
    """The build steps that run just now, so that they end with us however we end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def run(self, argv: Sequence[str], out: IO[bytes], env: Mapping[str, str] | None) -> int:
        with self.lock:
            if self.stopped:
                raise SandboxError("stopped, for another step failed")
            # --pdeathsig: also when we are killed without a chance to end them
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *argv],
                env=dict(env) if env is not None else None,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            self.running.add(process)
        try:
            return process.wait()
        finally:
            with self.lock:
                self.running.discard(process)

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


builders = Builders()


def logged(argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, hint: str = "") -> None:
    """Run a build step whose output goes to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {' '.join(argv)}\n".encode())
        out.flush()
        code = builders.run(argv, out, env)
    if code != 0:
        advice = f"\n  {hint}" if hint else ""
        raise SandboxError(f"{argv[0]} ended with {code}; the end of {log}:\n{tail(log)}{advice}")


@contextmanager
def step(name: str) -> Iterator[None]:
    """One line when a step is done, with its seconds."""
    start = time.monotonic()
    yield
    say(f"  {name:<34} {time.monotonic() - start:6.1f} s")
