# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Processes and containers: killed, stopped, paused, out of memory; a node that reboots; daemons that stop."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.injectors import Injector, Once
from benchmarks.faults.nodes import Fleet, Node, NodeError


def processes(table: str) -> list[tuple[int, int, str]]:
    """pid, resident KiB and command of each process, from `docker top NAME -eo pid,rss,args`."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[0].isdigit():
            found.append((int(fields[0]), int(fields[1]), fields[2]))
    return found


def worker_of(table: str) -> int:
    """The process that computes: the one that calls itself a worker, else the largest."""
    known = processes(table)
    if not known:
        raise NodeError("the container has no process")
    workers = [one for one in known if re.search(r"worker", one[2], re.I)]
    return max(workers or known, key=lambda one: one[1])[0]


def engine_process(node: Node) -> int:
    return worker_of(node.do(f"docker top {node.container} -eo pid,rss,args"))


@dataclass
class KillEngine(Once, name="kill_engine"):
    """A signal for the process that computes, as a crash or a killer sends it. The container may live on."""

    node: str
    signal: str = "KILL"

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        node.do(f"kill -{self.signal} {engine_process(node)}")


@dataclass
class KillContainer(Once, name="kill_container"):
    node: str
    signal: str = "KILL"

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        node.do(f"docker kill --signal {self.signal} {node.container}")


@dataclass
class FreezeEngine(Injector, name="freeze_engine"):
    """The process that computes stands still; Docker knows nothing of it."""

    node: str
    pid: int = 0

    def inject(self, fleet: Fleet) -> None:
        self.pid = engine_process(fleet.node(self.node))
        fleet.node(self.node).do(f"kill -STOP {self.pid}")

    def undo(self, fleet: Fleet) -> None:
        if self.pid:
            fleet.node(self.node).attempt(f"kill -CONT {self.pid}")


@dataclass
class PauseContainer(Injector, name="pause"):
    node: str

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        node.do(f"docker pause {node.container}")

    def undo(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        node.attempt(f"docker unpause {node.container}")


@dataclass
class OutOfMemory(Injector, name="out_of_memory"):
    """The kernel's own killer ends a process of the container: a cgroup of this machine lets it have no page more.

    Where the nodes' Docker can limit memory (cgroup2 with that controller) it is the container's own group, and Docker says OOMKilled.
    """

    node: str
    group: Path = field(default=Path())

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        ident = node.do(f"docker inspect --format '{{{{.Id}}}}' {node.container}")
        mine = [path for path in Path("/proc").glob("[0-9]*") if ident in _text(path / "cgroup")]
        if not mine:
            raise NodeError(f"{self.node}: no process of {node.container} is seen from this machine")
        own = Path("/sys/fs/cgroup") / _text(mine[0] / "cgroup").rpartition("0::/")[2].strip()
        if (own / "memory.max").exists():
            (own / "memory.max").write_text("16M")
            return
        self.group = Path("/sys/fs/cgroup/memory") / f"sparklanes-{fleet.tag}-faults"
        self.group.mkdir(exist_ok=True)
        (self.group / "memory.limit_in_bytes").write_text("1M")  # what they hold already is counted where they were
        for path in mine:
            with contextlib.suppress(OSError):
                (self.group / "cgroup.procs").write_text(path.name)

    def undo(self, fleet: Fleet) -> None:
        if self.group == Path():
            return
        until = time.monotonic() + 60
        (self.group / "memory.limit_in_bytes").write_text("-1")
        while _text(self.group / "cgroup.procs").split() and time.monotonic() < until:
            for pid in _text(self.group / "cgroup.procs").split():
                with contextlib.suppress(OSError):
                    (self.group.parent / "cgroup.procs").write_text(pid)
        self.group.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass
class StopUnit(Injector, name="stop_unit"):
    """A daemon of the node is stopped, as an update or a person does it, and started again afterwards."""

    node: str
    units: str

    def inject(self, fleet: Fleet) -> None:
        fleet.node(self.node).do(f"systemctl stop {self.units}")

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(f"systemctl start {self.units}")


@dataclass
class KillUnit(Injector, name="kill_unit"):
    """A daemon of the node crashes. systemd starts it again where its unit says so."""

    node: str
    unit: str

    def inject(self, fleet: Fleet) -> None:
        fleet.node(self.node).do(f"systemctl kill --signal=KILL {self.unit}")

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(f"systemctl reset-failed {self.unit}; systemctl start {self.unit}")


@dataclass
class RefuseSsh(Injector, name="refuse_ssh"):
    """Each connection over ssh, new or old, is refused: sshd is stopped, and what is left of it answers with a reset."""

    node: str
    rule = "INPUT -p tcp --dport 22 -j REJECT --reject-with tcp-reset"

    def inject(self, fleet: Fleet) -> None:
        fleet.node(self.node).do(f"iptables -w -I {self.rule} && systemctl stop ssh")

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(f"while iptables -w -D {self.rule} 2>/dev/null; do :; done; systemctl start ssh")


@dataclass
class Reboot(Injector, name="reboot"):
    """The node goes down and comes back: as a container does, so its kernel stays."""

    node: str
    before: int = 0

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        self.before = node.boot
        node.attempt("systemctl reboot --force", timeout=30)

    def undo(self, fleet: Fleet) -> None:
        until = time.monotonic() + 120
        while self.before and fleet.node(self.node).boot in (0, self.before) and time.monotonic() < until:
            time.sleep(1)


@dataclass
class RebootAndWait(Reboot, name="reboot_and_wait"):
    """The same, seen only once all of the node is back."""

    def inject(self, fleet: Fleet) -> None:
        super().inject(fleet)
        super().undo(fleet)
        if not fleet.wait_ready():
            raise NodeError(f"{self.node} did not come back")
