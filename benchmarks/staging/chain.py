# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Four nodes against one, on loopback, with links so slow that they decide and not the CPUs.

A node is a process that stages and one that lends, as the jobs on a Spark do. The mirror's uplink is shared by whoever
fetches from it; a node's link carries what it lends to all its takers together.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.chain import user_of

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SHARDS, SHARD, WORKERS, NODES = 96, MIB, 4, 4
# Bytes a second: of what all that fetch share, and of what one node lends. A Spark's fabric is ahead of its uplink by more.
UPLINK, LINK = 4 * MIB, 8 * MIB
SECRET = "of this benchmark"
REVISION = "c" * 40
NODE = """
import json, sys
from pathlib import Path
import ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
from ansible.module_utils.sparklanes.jobs import Reporter, resolve
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

    def _run(self, job: str, function: str, args: dict[str, Any]) -> subprocess.Popen[bytes]:
        folder = self.root / "jobs" / job
        folder.mkdir(parents=True)
        spec = {"job": job, "function": function, "args": args, "secret": SECRET}
        command = [sys.executable, "-c", NODE, str(ROOT / "module_utils"), str(folder), json.dumps(spec)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def lend(self, takers: int) -> subprocess.Popen[bytes]:
        args = {"models": [self.model], "addresses": [self.address], "port": self.port, "allow": ["127.0.0.0/8"]}
        args |= {"idle_seconds": 600, "staged_dir": str(self.root / "staged"), "shared": True}
        return self._run("lend", "lending:lend_models", args | {"rate_kib": LINK // 1024 // WORKERS // takers})

    def stage(self, source: str, **more: Any) -> subprocess.Popen[bytes]:
        args = {"host": self.name, "models": [self.model], "source": source, "workers": WORKERS, "rate": 0, "verify": "quick"}
        args |= {"repair": True, "reserve": 0, "also": [], "was_staged": False, "staged_dir": str(self.root / "staged")}
        return self._run("stage", "fetching:stage", args | more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def publish(folder: Path) -> None:
    """A model of random shards, with its list."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(SHARDS):
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        data = len(header).to_bytes(8, "little") + header + os.urandom(SHARD)
        (folder / f"{number:02}.safetensors").write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {number:02}.safetensors\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


def run(root: Path, mirror: str, count: int, way: str) -> tuple[float, Sequence[Node]]:
    """Seconds until `count` nodes have the model. `way`: chain, star (all from the first), every (all from the mirror)."""
    port = free_port()
    nodes = [Node(root / way, number, port) for number in range(count)]
    fetch = {"mirror": {"urls": {"model": mirror}, "lists": {}}}
    began = time.perf_counter()
    lenders = [node.lend(count - 1 if way == "star" else 1) for node in nodes if count > 1 and way != "every"]
    stagers = []
    try:
        for place, node in enumerate(nodes):
            if place == 0 or way == "every":
                stagers.append(node.stage("mirror", **fetch))
                if way == "star" and stagers[0].wait():
                    raise SystemExit("the first node could not fetch")
                continue
            before = nodes[:1] if way == "star" else list(reversed(nodes[:place]))
            peers = [{"name": peer.name, "url": peer.url} for peer in before]
            stagers.append(node.stage("chain", chain={"peers": peers, "patience": 60}))
        if any(stager.wait() for stager in stagers):
            raise SystemExit(f"{way}: a node failed")
        seconds = time.perf_counter() - began
    finally:
        for process in (*stagers, *lenders):
            process.terminate()
            process.wait()
    return seconds, nodes


def same(folder: Path, nodes: Sequence[Node]) -> bool:
    wanted = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    return all({path.name: path.read_bytes() for path in Path(node.model["path"]).iterdir()} == wanted for node in nodes)
