# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Playbooks as a person types them, each line with the second in which it came; moments of a launch, as the nodes show them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.faults.nodes import Fleet, Node

LIMIT = 1500  # seconds after which a playbook hangs
INVENTORY = "inventory/sandbox"
ELSEWHERE = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", 'hostname elsewhere && exec "$@"', "elsewhere"]


@dataclass(frozen=True)
class Line:
    """A line of output and when it came, by time.monotonic()."""

    at: float
    text: str


class Play:
    """One ansible-playbook in a process group of its own, as a terminal starts it."""

    made: ClassVar[list[Play]] = []

    def __init__(
        self, root: Path, playbook: str, arguments: Sequence[str] = (), inventory: str = INVENTORY, elsewhere: bool = False
    ) -> None:
        """elsewhere: as if on another machine that shares the project's folder: another name, and processes of its own."""
        self.argv = ["ansible-playbook", "-i", inventory, playbook, "-l", "sparks", *arguments]
        self.lines: list[Line] = []
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*(ELSEWHERE if elsewhere else ()), *self.argv],
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        Play.made.append(self)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(Line(time.monotonic(), line.rstrip("\n")))

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        """A signal for all of it: workers lead sessions of their own, and a machine that sleeps or dies takes them along."""
        if not self.over:
            for pid in descendants(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def wait(self, limit: float = LIMIT) -> int:
        """Exit status; 124 where it had no end and was ended."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.process.wait()
            code = 124
        # Connections that ssh keeps hold the pipe: what is to come has come a moment after the end.
        self.reader.join(5)
        return code

    @classmethod
    def end_all(cls) -> None:
        """When the person has seen enough: none goes on by itself."""
        for play in cls.made:
            play.send(signal.SIGCONT)
            play.send(signal.SIGKILL)

    @property
    def output(self) -> str:
        return "\n".join(line.text for line in self.lines)


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """A process and all that it started and that still is its own, the eldest first."""
    children: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for parent in found:  # grows while it is read
        found += children.get(parent, [])
    return found


def environment(root: Path) -> dict[str, str]:
    """Ours, and Ansible as script/test has it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "ANSIBLE_LOG_PATH" or not name.startswith(("ANSIBLE_", "SPARKLANES_"))
    }
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_HOME": str(root / ".ansible"),
        "ANSIBLE_NOCOLOR": "1",
    }


def run(root: Path, playbook: str, *arguments: str, limit: float = LIMIT) -> Play:
    """One that is waited for."""
    play = Play(root, playbook, arguments)
    play.wait(limit)
    return play


# --- moments

JOINED = "Starting to load model|Loading weights took|KV cache size"


def _ranks_run(fleet: Fleet, seconds: float) -> bool:
    """Whether every rank runs, and the head for some seconds."""
    for node in fleet.nodes.values():
        if node.attempt(f"[ \"$(docker inspect --format '{{{{.State.Running}}}}' {node.container})\" = true ]")[0] != 0:
            return False
    return age(fleet.head) >= seconds


def age(node: Node) -> float:
    """Seconds since the rank's container started; -1: there is none."""
    command = (
        f"echo $(($(date +%s) - $(date +%s --date \"$(docker inspect --format '{{{{.State.StartedAt}}}}' {node.container})\")))"
    )
    code, out = node.attempt(command)
    return float(out.strip()) if code == 0 and out.strip().isdigit() else -1


def _stopping(fleet: Fleet) -> bool:
    """The first of the old ranks is told to end, or has ended."""
    name = fleet.head.container
    command = f"pgrep -f '^docker .*stop' || [ \"$(docker inspect --format '{{{{.State.Running}}}}' {name})\" != true ]"
    return fleet.head.attempt(command)[0] == 0


def _joined(fleet: Fleet) -> bool:
    return fleet.head.attempt(f"docker logs {fleet.head.container} 2>&1 | grep -Eq '{JOINED}'")[0] == 0


MOMENTS: dict[str, Callable[[Fleet], bool]] = {
    "stopping": lambda fleet: fleet.phase() == "stop" and _stopping(fleet),
    "settle": lambda fleet: fleet.phase() == "settle",
    "boot": lambda fleet: fleet.phase() == "start" and _ranks_run(fleet, 5),
    "late": lambda fleet: fleet.phase() == "start" and _ranks_run(fleet, 5) and _joined(fleet),
    "judge": lambda fleet: fleet.phase() == "judge",
    "restore": lambda fleet: fleet.phase() == "restore" and _ranks_run(fleet, 5),
}


def wait_for(moment: str, fleet: Fleet, play: Play, limit: float = LIMIT) -> bool:
    """Until the nodes show that a launch has come so far; False where it ended before, or never came there."""
    reached = MOMENTS[moment]
    until = time.monotonic() + limit
    while time.monotonic() < until and not play.over:
        if reached(fleet):
            return True
        time.sleep(0.25)
    return False
