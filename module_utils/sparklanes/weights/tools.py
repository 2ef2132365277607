# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What all sources of files share: running programs, an order of files, and the source that has nothing to fetch."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ansible.module_utils.sparklanes.common import stall
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights.folder import ModelStore, in_place
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, StagingError, shard_order
from ansible.module_utils.sparklanes.weights.pace import Cancelled

# rsync begins with short messages to and fro. Without this each waits for the acknowledgement of the one before: 0.1 s a start.
SOCKET_OPTIONS = "TCP_NODELAY"
HUNG = 124
OWN_BYTES = 16 << 20  # of logs and compiled Python of a program that brings files
ASK_AGAIN = 0.5  # seconds until it is looked for a file to take where nothing called for it: time alone may give one free


class Tool:
    """Runs the programs that fetch, and ends them when the job ends."""

    def __init__(self, cancel: threading.Event) -> None:
        self.cancel = cancel
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[str]] = set()

    def __call__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        text: str = "",
        progress: Callable[[], int | None] = lambda: None,
        seconds: float = 0.0,
    ) -> tuple[int, str]:
        """(exit status, the last lines of its output).

        `progress` tells how far the program is; where that stays the same it is ended (`common.stall`): HUNG, and its output says so. So it is
        after `seconds` (0: a day).
        """
        with self.lock:
            if self.cancel.is_set():
                raise Cancelled
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                dies_with_us(command),
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                env=dict(env),
                text=True,
                errors="replace",
            )
            self.running.add(process)
        try:
            with stall.watched(process, stall.Limits(progress, most=seconds)) as hung:
                output = said(process, text, hung)
        finally:
            with self.lock:
                self.running.discard(process)
        if self.cancel.is_set():
            raise Cancelled
        if hung:
            return HUNG, f"it {hung.why}"
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return process.returncode, " | ".join(lines[-4:])[-1000:]

    def end(self) -> None:
        self.cancel.set()
        with self.lock:
            for process in self.running:
                process.terminate()


def said(process: subprocess.Popen[str], text: str, hung: stall.Watch) -> str:
    """All that a program says until its end. Of one that hung and is gone a child may live on, and hold the pipe for ever."""
    while True:
        try:
            return process.communicate(text, timeout=stall.LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            text = ""  # it has it already; a second call goes on where the first one was
        if hung and process.poll() is not None:
            return ""


def need_rsync() -> None:
    """StagingError where this Spark has none: else it would look like a port that is taken, or a Spark that gives nothing."""
    if shutil.which("rsync") is None:
        raise StagingError("rsync is not installed here. Install it (apt-get install rsync) and run this again")


def dies_with_us(command: Sequence[str]) -> list[str]:
    """The command, ended by the kernel when whoever started it is killed. A unit of systemd ends all its processes anyway."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else list(command)


def writes_at_most(size: int, command: Sequence[str]) -> list[str]:
    """The command, which can't make any file larger than what it is to bring, and a little for its own: else what has no end fills the disk."""
    prlimit = shutil.which("prlimit")
    return [prlimit, f"--fsize={size + OWN_BYTES}", "--", *command] if prlimit else list(command)


class Feed:
    """The files that are still to come, in their order. Whatever asks it does so from one thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.left = list(names)
        self.changed = threading.Event()  # set when there may be something to take, or something that was taken has ended

    def take(self, busy: int) -> str | None:
        """The next file; None: there is none at present. `busy`: how many are under way."""
        return self.left.pop(0) if self.left else None

    def give_back(self, name: str) -> None:
        self.left.insert(0, name)


Result = TypeVar("Result")


def for_each(feed: Feed, work: Callable[[str], Result], workers: int, tool: Tool) -> tuple[list[Result], list[Exception]]:
    """Do this for each name, several at a time: (results, errors). After a failure what has begun ends and nothing new begins.

    `work` runs in threads of its own. All else, the feed included, stays in the caller's.
    """
    results: list[Result] = []
    errors: list[Exception] = []
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[Result]] = set()
        try:
            while True:
                while len(running) < workers and not errors:
                    try:
                        name = feed.take(len(running))
                    except StagingError as hopeless:
                        errors.append(hopeless)
                        break
                    if name is None:
                        break
                    begun = pool.submit(work, name)
                    begun.add_done_callback(lambda _: feed.changed.set())
                    running.add(begun)
                if not running and (errors or not feed.left):
                    return results, errors
                feed.changed.wait(ASK_AGAIN)
                feed.changed.clear()  # before the look, so that nothing that comes after it is missed
                done = {one for one in running if one.done()}
                running -= done
                errors += [error for one in done if isinstance(error := one.exception(), Exception)]
                results += [one.result() for one in done if one.exception() is None]
                if not running and not done and tool.cancel.is_set():
                    raise Cancelled
        except BaseException:
            tool.end()
            raise


class Source:
    """Where a model's files come from. This one: nowhere, they are there."""

    name = "the folder itself"
    fetches = False
    # How often a file is asked for before the job fails.
    attempts = 3

    # Under which name its speed is noted for the next plan.
    rate = "fetch"

    def begin(self, models: Sequence[Model]) -> None:
        """Once a job, before anything is asked of it."""

    def origin(self, model: Model) -> str:
        """Where the files came from, for people."""
        return self.name

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        return in_place(model, Path(model.path), store.manifest())

    def prepare(self, report: Reporter) -> None:
        """What is needed before the first fetch."""

    def feed(self, model: Model, manifest: Manifest, names: Sequence[str]) -> Feed:
        return Feed(list(shard_order(manifest, names)))

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        """Bring one file below `incoming` and say where."""
        raise StagingError(f"{model.path}/{name} is missing, and nothing says where to take it from")

    def promised(self, model: Model, name: str) -> str:
        """The sha256 that whoever gave this file has proved to have found in it; empty: nobody says one but the manifest."""
        return ""

    def refused(self, model: Model, name: str, why: str) -> None:
        """What was brought was not what it must be."""

    def accepted(self, model: Model, name: str) -> None:
        """What was brought has its final name."""

    def sweep(self, incoming: Path) -> None:
        """Remove what an interrupted client left and will not use again."""

    def end(self) -> None:
        """The job is over."""


def own_folder(name: str, incoming: Path) -> Path:
    """A folder a file: two names may be one file where they come from."""
    return incoming / hashlib.sha256(name.encode()).hexdigest()[:16]
