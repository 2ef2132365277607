# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The sandbox's nodes as a hand inside them finds them: no ssh, no Ansible, nothing of the product's code.

A command goes through the node's namespaces, so it arrives also where sshd, Docker or a network of the node is what was broken.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.containers import Containers, containers
from sandbox.host import detect, needed
from sandbox.layout import Clone, read_state
from sandbox.services import started

DEPLOYMENT, PORT = "sparks", 8000
DEPLOYMENTS = f"/var/lib/sparklanes/deployments/{DEPLOYMENT}"
RANK = f"sparklanes-{DEPLOYMENT}-rank"
REQUEST = {"model": "tiny", "prompt": "The river runs", "max_tokens": 8, "temperature": 0}


class NodeError(Exception):
    """A command on a node did not do what an injector needs; the text says which and why."""


@dataclass
class Node:
    """One node: its name, its rank, its addresses."""

    name: str
    rank: int
    mgmt: str
    fabric: str
    engine: Containers
    _pid: int = 0

    @property
    def container(self) -> str:
        """Name of the rank's container here."""
        return f"{RANK}{self.rank}"

    @property
    def pid(self) -> int:
        """The node's init on this machine; another one after a reboot."""
        if not self._pid or not Path(f"/proc/{self._pid}/root/etc/hostname").exists():
            _, out, _ = self.engine.attempt("inspect", "--format={{.State.Pid}}", self.engine.container(self.name))
            self._pid = int(out.strip() or 0)
        return self._pid

    @property
    def boot(self) -> int:
        """Names this life of the node: when its init started. 0: it has none."""
        return started(self.pid)

    def attempt(self, command: str, stdin: bytes = b"", timeout: float = 60) -> tuple[int, str]:
        """Exit status and output (errors included) of a shell command in the node; 124: it had no end."""
        into = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
        try:
            done = subprocess.run(
                [*into, "sh", "-c", command],
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end after {timeout:.0f} s"
        return done.returncode, done.stdout.decode(errors="replace")

    def do(self, command: str, stdin: bytes = b"", timeout: float = 60) -> str:
        """Output of a command that must succeed."""
        code, out = self.attempt(command, stdin, timeout)
        if code != 0:
            raise NodeError(f"{self.name}: {command!r} ended with {code}: {out.strip()[-500:]}")
        return out.strip()

    def read(self, path: str) -> str | None:
        """A file of the node; None where it isn't."""
        try:
            return Path(f"/proc/{self.pid}/root{path}").read_text(errors="replace")
        except OSError:
            return None

    @property
    def fabric_device(self) -> str:
        """The interface that has the fabric's address; podman may name it anew."""
        for link in json.loads(self.do("ip -json address")):
            if any(address.get("local") == self.fabric for address in link.get("addr_info", ())):
                return str(link["ifname"])
        raise NodeError(f"{self.name}: no interface has {self.fabric}")

    def boxes(self) -> list[dict[str, Any]] | None:
        """`docker inspect` of every container here; None where Docker doesn't answer."""
        code, out = self.attempt(
            'ids=$(timeout 20 docker ps --all --quiet --no-trunc) || exit 1; [ -z "$ids" ] || timeout 20 docker inspect $ids'
        )
        if code != 0:
            return None
        found: list[dict[str, Any]] = json.loads(out or "[]")
        return found


@dataclass(frozen=True)
class Rank:
    """The container of a rank as Docker itself tells it."""

    id: str
    release: str
    running: bool
    paused: bool


def rank_of(boxes: Sequence[Mapping[str, Any]], container: str) -> Rank | None:
    """The one container of that name, made by the product; None where there is none."""
    for box in boxes:
        labels = (box.get("Config") or {}).get("Labels") or {}
        if str(box.get("Name", "")).lstrip("/") == container and labels.get("sparklanes.release"):
            state = box.get("State") or {}
            return Rank(str(box["Id"]), str(labels["sparklanes.release"]), bool(state.get("Running")), bool(state.get("Paused")))
    return None


@dataclass(frozen=True)
class Serving:
    """What serves at one moment. `ranks`: node → its running rank; a node whose Docker doesn't answer is in `silent`."""

    ranks: Mapping[str, Rank] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    text: str | None = None  # a real generation, None: there was none

    @property
    def ids(self) -> dict[str, str]:
        return {name: rank.id for name, rank in self.ranks.items()}

    @property
    def releases(self) -> set[str]:
        return {rank.release for rank in self.ranks.values()}


class Fleet:
    """The nodes of this clone's sandbox."""

    def __init__(self, root: Path) -> None:
        clone = Clone(root)
        state = read_state(clone.state_file)
        if state is None or not state.complete or len(state.nodes) != 2 or state.light:
            raise NodeError("the sandbox is not up with two nodes and the engine")
        host = detect()
        engine = containers(state.engine, clone, host, needed(host))
        self.root, self.home = root, clone.home
        self.tag = clone.tag
        self.image = f"{state.values['repository']}@{state.values['digest']}"
        self.nodes = {
            name: Node(name, rank, at["mgmt"], at["fabric"], engine) for rank, (name, at) in enumerate(state.nodes.items())
        }

    def node(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def head(self) -> Node:
        return next(iter(self.nodes.values()))

    def phase(self) -> str:
        """Phase of the open transaction as the head's journal has it; empty where none is open or it can't be read."""
        return field_of(self.head.read(f"{DEPLOYMENTS}/transaction.json"), "phase")

    def held(self) -> str:
        """Id of the open transaction of any node, the head's first."""
        texts = (node.read(f"{DEPLOYMENTS}/transaction.json") for node in self.nodes.values())
        return next(filter(None, (field_of(text, "id") for text in texts)), "")

    def state(self, node: Node) -> dict[str, Any]:
        try:
            data = json.loads(node.read(f"{DEPLOYMENTS}/state.json") or "{}")
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}

    def generate(self, timeout: float = 30) -> str | None:
        """What the API makes of one fixed request; None: no whole answer in time."""
        url = f"http://{self.head.mgmt}:{PORT}/v1/completions"
        request = urllib.request.Request(url, json.dumps(REQUEST).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return str(json.load(reply)["choices"][0]["text"])
        except (OSError, ValueError, KeyError, IndexError, urllib.error.URLError):
            return None

    def serving(self, ask: bool = True) -> Serving:
        """Look at both nodes, and let it generate."""
        ranks, silent = {}, []
        for node in self.nodes.values():
            boxes = node.boxes()
            if boxes is None:
                silent.append(node.name)
            elif (rank := rank_of(boxes, node.container)) is not None and rank.running:
                ranks[node.name] = rank
        return Serving(ranks, tuple(silent), self.generate() if ask and ranks else None)

    def wait_ready(self, seconds: float = 120) -> bool:
        """Until sshd and Docker of every node answer again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if all(
                node.attempt("systemctl is-active --quiet ssh docker && timeout 10 docker info")[0] == 0
                for node in self.nodes.values()
            ):
                return True
            time.sleep(1)
        return False


def field_of(text: str | None, name: str) -> str:
    """A field of a transaction.json; empty where it can't be read."""
    try:
        data = json.loads(text or "")
    except ValueError:
        return ""
    return str(data.get(name) or "") if isinstance(data, dict) else ""
