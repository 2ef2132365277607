# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The sandbox's three servers on the management bridge: registry, model hub, wheels."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.layout import Clone, State, write_atomically
from sandbox.shell import SandboxError, tail

PORTS = {"registry": 5000, "hub": 8090, "wheels": 8091}


@dataclass(frozen=True)
class Service:
    name: str
    argv: list[str]


def registry_config(clone: Clone, address: str) -> str:
    return (
        "version: 0.1\n"
        "log: {level: warn}\n"
        "storage:\n"
        f"  filesystem: {{rootdirectory: {clone.home / 'registry'}}}\n"
        "  delete: {enabled: true}\n"
        "http:\n"
        f"  addr: {address}:{PORTS['registry']}\n"
        "  secret: sandbox\n"  # signs upload URLs between replicas; there is one, on a bridge of this machine
    )


def services(clone: Clone, address: str, registry: Path, wheels: Path) -> list[Service]:
    config = clone.home / "registry.yml"
    write_atomically(config, registry_config(clone, address))
    here = ["--bind", address]
    return [
        Service("registry", [str(registry), "serve", str(config)]),
        Service(
            "hub",
            [
                sys.executable,
                str(clone.root / "sandbox/hub.py"),
                f"--root={clone.home / 'hub'}",
                f"--host={address}",
                f"--port={PORTS['hub']}",
            ],
        ),
        Service("wheels", [sys.executable, "-m", "http.server", *here, "--directory", str(wheels), str(PORTS["wheels"])]),
    ]


def started(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if there is none. With the pid it names one process for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def alive(known: dict[str, int]) -> bool:
    return bool(known) and known["started"] != 0 and started(known["pid"]) == known["started"]


def start(clone: Clone, state: State, wanted: Sequence[Service], address: str) -> None:
    for service in wanted:
        log = clone.log / f"{service.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                service.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
            )
        state.services[service.name] = {"pid": process.pid, "started": started(process.pid)}
        state.write(clone.state_file)
        _wait(process, service.name, address, log)


def _wait(process: subprocess.Popen[bytes], name: str, address: str, log: Path) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            # From the same address: never by a route to somewhere else that has it.
            socket.create_connection((address, PORTS[name]), timeout=1, source_address=(address, 0)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SandboxError(f"The {name} doesn't answer on {address}:{PORTS[name]}; the end of {log}:\n{tail(log)}")


def stop(state: State) -> None:
    """End the servers we started: by pid and start time, so never another process that has the number now."""
    for known in state.services.values():
        if alive(known):
            os.kill(known["pid"], signal.SIGTERM)
    end = time.monotonic() + 5
    for known in state.services.values():
        while alive(known) and time.monotonic() < end:
            _reap(known["pid"])
            time.sleep(0.05)
        if alive(known):
            os.kill(known["pid"], signal.SIGKILL)
    state.services.clear()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # started by an earlier run
