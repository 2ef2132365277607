# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What people do without a chain, with the real programs: `hf download` on each node, and one download handed on by rsync over ssh.

The same model from the same Hub over the same links as the chain. Neither looks at what it has written.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights import hub_client

from benchmarks.staging.chain import LINK, NODES, ROOT, free_port

REPO = "a/b"


class Missing(Exception):
    """A peer that can't be measured here, and what it needs."""


def call(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr)[-500:]


@dataclass(frozen=True)
class Client:
    """The Hub's own client, as the role installs it."""

    venv: Path
    endpoint: str
    revision: str

    @classmethod
    def make(cls, endpoint: str, revision: str) -> Client:
        lock = hub_client.read((ROOT / "roles/model_weights/files/hub.lock").read_text(encoding="utf-8"))
        venv = ROOT / ".sandbox/cache" / lock.name
        venv.parent.mkdir(parents=True, exist_ok=True)
        try:
            hub_client.ensure(venv, lock, [], call, sys.executable)
        except weights_hub.HubError as error:
            raise Missing(f"no Hub client: {error}") from error
        return cls(venv, endpoint, revision)

    def download(self, folder: Path) -> subprocess.Popen[bytes]:
        command = [str(self.venv / "bin/hf"), "download", REPO, "--revision", self.revision, "--local-dir", str(folder)]
        env = weights_hub.client_environment(self.endpoint, "", folder.with_name(f"{folder.name}-home"), os.environ)
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def ssh_server(root: Path) -> Iterator[str]:
    """A private sshd on loopback with keys of its own; the command that reaches it."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if sshd is None:
        raise Missing("no sshd here: apt-get install openssh-server")
    root.mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / key)], check=True)
    port = free_port()
    lines = [
        "ListenAddress 127.0.0.1",
        f"Port {port}",
        f"HostKey {root}/host",
        f"AuthorizedKeysFile {root}/user.pub",
        "PidFile none",
    ]
    lines += ["StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password", ""]
    (root / "config").write_text("\n".join(lines))
    (root / "known").write_text(f"[127.0.0.1]:{port} {(root / 'host.pub').read_text()}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    command = [
        "ssh",
        "-p",
        str(port),
        "-i",
        f"{root}/user",
        "-o",
        f"UserKnownHostsFile={root}/known",
        "-o",
        "BatchMode=yes",
        "-F",
        "none",
    ]
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(root / "config")], stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 20
        while call([*command, f"{getpass.getuser()}@127.0.0.1", "true"], os.environ)[0]:
            if server.poll() is not None or time.monotonic() > limit:
                raise Missing("the private sshd does not let us in")
            time.sleep(0.2)
        yield " ".join(command)
    finally:
        server.terminate()
        server.wait()


def finish(what: str, running: Sequence[subprocess.Popen[bytes]]) -> None:
    try:
        if any(process.wait() for process in running):
            raise Missing(f"{what} failed")
    finally:
        for process in running:
            process.kill()
            process.wait()


def each_downloads(root: Path, client: Client) -> tuple[float, list[Path]]:
    """Seconds until all nodes have the model, and where it lies: `hf download` on each at once."""
    folders = [root / f"each-{number}" for number in range(NODES)]
    began = time.perf_counter()
    finish("hf download", [client.download(folder) for folder in folders])
    return time.perf_counter() - began, folders


def star(root: Path, client: Client) -> tuple[float, list[Path]]:
    """The first downloads, then gives to all others at once by `rsync -a` over ssh."""
    folders = [root / f"star-{number}" for number in range(NODES)]
    with ssh_server(root / "ssh") as ssh:
        began = time.perf_counter()
        finish("hf download", [client.download(folders[0])])
        share = LINK // 1024 // (NODES - 1)
        command = ["rsync", "-a", "--exclude=.cache", f"--bwlimit={share}", "-e", ssh, f"{folders[0]}/"]
        takers = [f"{getpass.getuser()}@127.0.0.1:{folder}/" for folder in folders[1:]]
        finish("rsync over ssh", [subprocess.Popen([*command, taker]) for taker in takers])
        return time.perf_counter() - began, folders
