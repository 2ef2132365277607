# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Four nodes against one, on loopback, with links so slow that they decide and not the CPUs.

A node is a process that stages and one that lends, as the jobs on a Spark do. The mirror's uplink is shared by whoever
fetches from it; a node's link carries what it lends to all its takers together. The clock starts when all lend, as the
role does it, and the files themselves tell when each node had them (the time of their last renaming).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.weights.chain.offer import user_of

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SHARD, WORKERS, NODES = MIB, 4, 4
# Bytes a second: of what all that fetch share, and of what one node lends. A Spark's fabric is ahead of its uplink by more.
UPLINK, LINK = 4 * MIB, 8 * MIB
SECRET = "of this benchmark"
REVISION = "c" * 40
NODE = """
import json, sys
from pathlib import Path
import ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
from ansible.module_utils.sparklanes.jobs.reporter import Reporter, resolve
folder, spec = Path(sys.argv[2]), json.loads(sys.argv[3])
report = Reporter(folder, spec["job"])
report.start()
try:
    resolve(spec["function"])(spec["args"], {"secret": spec["secret"], "chain_secret": spec["secret"]}, report)
finally:
    report.end()
"""


class Node:
    """One node of a run: a folder, an address of loopback, two processes."""

    def __init__(self, root: Path, number: int, port: int) -> None:
        self.name = f"n{number}"
        self.root = root / self.name
        self.port = port
        self.address = f"127.0.0.{number + 20}"
        self.model = {"name": "model", "path": str(self.root / "models" / "m"), "repo": "a/b", "revision": REVISION}

    @property
    def url(self) -> str:
        return f"rsync://{user_of(SECRET)}@{self.address}:{self.port}"

    @property
    def lends(self) -> bool:
        return (self.root / "jobs" / "lend" / "lent.json").exists()

    def arrivals(self) -> dict[str, float]:
        """When each file got its name here."""
        return {path.name: path.stat().st_ctime for path in Path(self.model["path"]).iterdir()}

    def _run(self, job: str, function: str, args: dict[str, Any], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        folder = self.root / "jobs" / job
        folder.mkdir(parents=True)
        spec = {"job": job, "function": function, "args": args, "secret": SECRET}
        command = [sys.executable, "-c", NODE, str(ROOT / "module_utils"), str(folder), json.dumps(spec)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **env})

    def lend(self, runtime: Path) -> subprocess.Popen[bytes]:
        folder = runtime / self.name
        folder.mkdir()
        args = {"models": [self.model], "addresses": [self.address], "port": self.port, "allow": ["127.0.0.0/8"]}
        args |= {"idle_seconds": 600, "staged_dir": str(self.root / "staged"), "shared": True}
        args |= {"rate_kib": LINK // 1024 // WORKERS}
        return self._run("lend", "weights.chain.lend:lend_models", args, {"RUNTIME_DIRECTORY": str(folder)})

    def stage(self, source: str, **more: Any) -> subprocess.Popen[bytes]:
        args = {"host": self.name, "models": [self.model], "source": source, "workers": WORKERS, "rate": 0, "verify": "quick"}
        args |= {"verify_workers": WORKERS, "verify_rate": 0}
        args |= {"repair": True, "reserve": 0, "also": [], "was_staged": False, "staged_dir": str(self.root / "staged")}
        return self._run("stage", "weights.stage:stage", args | more, {})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def publish(folder: Path, shards: int) -> None:
    """A model of random shards, with its list."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(shards):
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        data = len(header).to_bytes(8, "little") + header + os.urandom(SHARD)
        (folder / f"{number:03}.safetensors").write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {number:03}.safetensors\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


@dataclass(frozen=True)
class Run:
    """Seconds until all nodes had the model, and when each file came to each node."""

    seconds: float
    nodes: Sequence[Node]
    arrivals: Sequence[Mapping[str, float]]

    @property
    def hop(self) -> float:
        """How much later the last file came to each next node."""
        last = [max(times.values()) for times in self.arrivals]
        return (last[-1] - last[0]) / (len(last) - 1)

    @property
    def file_hop(self) -> float:
        """How much later a file came to the next node, in the middle of all files and hops."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return statistics.median(after[name] - before[name] for before, after in pairs for name in before)


def run(root: Path, mirror: str, count: int) -> Run:
    """A chain of `count` nodes; the first fetches."""
    port = free_port()
    nodes = [Node(root, number, port) for number in range(count)]
    # What a unit of systemd has below /run.
    runtime = Path(tempfile.mkdtemp(prefix="sparklanes-bench-", dir="/dev/shm"))
    lenders = [node.lend(runtime) for node in nodes]
    stagers = []
    try:
        while not all(node.lends for node in nodes):
            if any(lender.poll() is not None for lender in lenders):
                raise SystemExit("a node could not lend")
            time.sleep(0.05)
        began = time.perf_counter()
        for place, node in enumerate(nodes):
            peers = [{"name": peer.name, "url": peer.url} for peer in reversed(nodes[:place])]
            if peers:
                stagers.append(node.stage("chain", chain={"peers": peers, "patience": 60}))
            else:
                stagers.append(node.stage("mirror", mirror={"urls": {"model": mirror}, "lists": {}}))
        if any(stager.wait() for stager in stagers):
            raise SystemExit("a node failed")
        seconds = time.perf_counter() - began
    finally:
        for process in (*stagers, *lenders):
            process.terminate()
            process.wait()
        shutil.rmtree(runtime, ignore_errors=True)
    return Run(seconds, nodes, [node.arrivals() for node in nodes])


def same(source: Path, folders: Sequence[Path]) -> bool:
    """Whether each folder has the shards of the source, byte by byte."""
    wanted = {path.name: path.read_bytes() for path in source.glob("*.safetensors")}
    return all({path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == wanted for folder in folders)
