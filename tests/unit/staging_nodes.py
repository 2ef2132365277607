# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Sparks that stage, all on this machine: the modules, their detached jobs, a Hub, rsync daemons on loopback.

The Hub is sandbox/hub.py and rsync is the real one. Only the Hub's client is stood in for, by a few lines that
download by name: the real one needs a package index, and runs in the sandbox.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import job_status
import model_lend
import model_stage
import pytest
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.weights import hub_client
from checkpoints import checkpoint
from conftest import ROOT, RunModule, free_port

LOCK = f"huggingface-hub==2.4.0 --hash=sha256:{'0' * 64}\n"
CLIENT = """#!/usr/bin/env python3
import os, sys, urllib.request
_, _, revision, folder, _, repo, file = sys.argv
revision, folder = (one.partition("=")[2] for one in (revision, folder))
target = os.path.join(folder, file)
os.makedirs(os.path.dirname(target), exist_ok=True)
request = urllib.request.Request(f"{os.environ['HF_ENDPOINT']}/{repo}/resolve/{revision}/{file}")
request.add_header("Authorization", "Bearer " + os.environ.get("HF_TOKEN", ""))
with urllib.request.urlopen(request) as answer, open(target, "wb") as stream:
    stream.write(answer.read())
"""


class Node:
    """One Spark: its folders, and the modules run as on it."""

    def __init__(self, root: Path, run_module: RunModule, name: str, address: str = "127.0.0.1") -> None:
        self.root = root
        self.run_module = run_module
        self.name = name
        self.address = address
        self.jobs = jobs_runner.Jobs(lambda command: (0, "", ""), root / "jobs", systemd=False)
        self.path = root / "models" / "tiny"
        lock = hub_client.read(LOCK)
        hf = root / "venvs" / lock.name / "bin" / "hf"
        hf.parent.mkdir(parents=True)
        hf.write_text(CLIENT)
        hf.chmod(0o755)
        (hf.parents[1] / "sparklanes-ready").write_text(lock.digest)

    def places(self, *names: str) -> dict[str, str]:
        """With the client's environment also as whom it runs: whoever tests."""
        made = {f"{name}_dir": str(self.root / name) for name in names}
        return {**made, "hub_user": ""} if "venvs" in names else made

    def model(self, revision: str, **more: Any) -> dict[str, Any]:
        return {"name": "model", "path": str(self.path), "repo": "acme/tiny", "revision": revision, **more}

    def ask(self, revision: str, check: bool = False, guards: dict[str, Any] | None = None, **args: Any) -> dict[str, Any]:
        models = [self.model(revision, **(guards or {}))]
        common = {"host": self.name, "reserve_gib": 0, "workers": 2, "hub_lock": LOCK, **self.places("staged", "jobs", "venvs")}
        return self.run_module(model_stage, {"models": models, **common, **args}, check=check)

    def status(self, **args: Any) -> dict[str, Any]:
        return self.run_module(job_status, {"job": "stage", **self.places("jobs"), **args})

    def stage(self, revision: str, **args: Any) -> dict[str, Any]:
        """Ask, follow the job to its end, and give what long_job would."""
        first = self.ask(revision, **args)
        if "job" not in first:
            return first
        last = self.status(wait=60)
        assert last["finished"], last
        return {**first, **last.get("result", {}), "failed": last["job_failed"], "msg": last["error"]}

    def lend(self, revision: str, port: int, secret: str, **args: Any) -> dict[str, Any]:
        return self.run_module(
            model_lend,
            {
                "models": [{key: self.model(revision)[key] for key in ("name", "path", "repo", "revision")}],
                "address": self.address,
                "port": port,
                "allow": ["127.0.0.0/8"],
                "secret": secret,
                **self.places("staged", "jobs"),
                **args,
            },
        )

    def keep(self) -> dict[str, Any]:
        return self.run_module(model_lend, {"state": "kept", "models": [], **self.places("jobs")})

    def end(self) -> None:
        for job in ("stage", "lend"):
            self.jobs.stop(job)

    def pid(self, job: str) -> int:
        """Of the job's process, where it runs."""
        state = jobs_runner.read_json(self.jobs.folder(job) / "process.json") or {}
        return int(state.get("pid", 0)) if self.jobs.status(job).running else 0

    def manifest_sha256(self, revision: str) -> str:
        return str(self.ask(revision, state="planned")["models"][0]["manifest_sha256"])


class Chain:
    """Several nodes on addresses of loopback; the first fetches."""

    def __init__(self, nodes: list[Node], revision: str, endpoint: str, patience: float = 3) -> None:
        self.nodes = nodes
        self.revision = revision
        self.endpoint = endpoint
        self.patience = patience
        self.port = free_port()
        self.secret = "once-1"

    def lend(self, **args: Any) -> None:
        for node in self.nodes:
            answer = node.lend(self.revision, self.port, self.secret, **args)
            assert "urls" in answer, answer
            node.url = answer["urls"][0]

    def ask(self, place: int, **args: Any) -> dict[str, Any]:
        """Start (or attach to) the staging of one node."""
        node = self.nodes[place]
        if place == 0 and "source" not in args:
            return node.ask(self.revision, endpoint=self.endpoint, **args)
        peers = [{"name": near.name, "url": near.url} for near in reversed(self.nodes[:place])]
        chain = {"peers": peers, "secret": self.secret, "patience": self.patience}
        return node.ask(self.revision, **{"source": "chain", "chain": chain, **args})

    def run(self, **args: Any) -> list[dict[str, Any]]:
        """The whole way; each node's last status with its result."""
        self.lend()
        for place in range(len(self.nodes)):
            self.ask(place, **args)
        return self.wait()

    def wait(self, seconds: float = 120) -> list[dict[str, Any]]:
        limit = time.monotonic() + seconds
        found = []
        for node in self.nodes:
            last = node.status(wait=max(1.0, limit - time.monotonic()))
            assert last["finished"], (node.name, last)
            found.append({**last, **last.get("result", {})})
        return found


@pytest.fixture
def node(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """One Spark, whose jobs are detached processes."""
    monkeypatch.setattr(jobs_runner, "SYSTEMD", tmp_path / "no-systemd")
    made = Node(tmp_path / "s1", run_module, "s1")
    yield made
    made.end()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "hub" / "acme" / "tiny", size=4096)


Start = Callable[..., tuple[str, str]]


@pytest.fixture
def hub(source: Path) -> Iterator[Start]:
    """`hub(*options)` starts a server and returns (endpoint, revision)."""
    servers = []
    command = [sys.executable, str(ROOT / "sandbox" / "hub.py"), "--root", str(source.parents[1])]

    def run(*options: str) -> tuple[str, str]:
        server = subprocess.Popen(
            [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        servers.append(server)
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        revision = subprocess.run([*command, "--print-revision", "acme/tiny"], check=True, capture_output=True, text=True)
        return endpoint, revision.stdout.strip()

    yield run
    for server in servers:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


def same(one: Path, other: Path) -> bool:
    return {f.name: f.read_bytes() for f in one.iterdir()} == {f.name: f.read_bytes() for f in other.iterdir()}
