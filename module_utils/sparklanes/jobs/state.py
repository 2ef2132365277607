# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where a job stands, as numbers and as a line for people, and what an observer can say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.record import MORE, known
from ansible.module_utils.sparklanes.common.sizes import human_bytes, human_time


class JobError(Exception):
    """The job cannot start, or failed in a way that it can explain. The text is for a person.

    A job that fails may still have found things out: `result` goes where a good end's would.
    """

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


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
        """What a job wrote; ValueError where it is of other types."""
        made = known(cls, data)
        del made[MORE]
        return cls(**made)


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


def judge(
    job: str,
    state: State | None,
    alive: bool,
    now: float,
    boot: str,
    log: str = "",
    started: bool = True,
    unread: str = "",
    quiet: float = 0.0,
) -> Status:
    """Whether a job runs, ended, or died without a word. `started`: there is such a job at all. Pure.

    unread: why its state, which is there, tells nothing. quiet: seconds since the last sign of life of a job that runs and tells nothing.
    """
    if state is not None and alive and not state.finished and state.boot != boot:
        # What is alive is of this boot, so this is not what it says of itself.
        state, unread = None, "it is of another boot"
    if state is None:
        if alive:
            line = f"it runs, and its state.json tells nothing ({unread})" if unread else "starting"
            return Status(job, exists=True, running=True, progress=line, heartbeat_age=quiet)
        if unread:
            error = f"it ended, and how can't be known, as its state.json tells nothing ({unread}). Last lines: {log or 'none'}"
            return Status(job, True, finished=True, failed=True, error=error)
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


def process_alive(pid: int, folder: Path, proc: Path = Path("/proc"), starting: bool = True) -> bool:
    """Whether this pid still is the job of that folder (pids are used again).

    In the middle of its execve a process has no words yet, though who started it was already told that it runs. A zombie has none
    either, nor has a thread of the kernel (flag PF_KTHREAD of include/linux/sched.h), nor a stranger that hides its own: so without
    words it is the job only while that is `starting`, which has written no state.
    """
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        if words == [b""] and starting:
            stat = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            return stat[0] not in ("Z", "X") and not int(stat[6]) & 0x00200000
    except (OSError, IndexError, ValueError):
        return False
    return str(folder).encode() in words
