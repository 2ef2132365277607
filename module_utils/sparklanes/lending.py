# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that lends a Spark's models to its peers: an rsync daemon for the time of staging.

It listens on one address of the fabric, read-only, for the addresses of the fleet, with passwords made for this
staging. It ends when it is told to, and by itself when nobody has taken anything for a while: whoever started it
may be gone. Its passwords live in the unit's own folder under /run and go with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.files import read_json, write_atomically, write_json
from ansible.module_utils.sparklanes.jobs import JobError, Reporter, tail
from ansible.module_utils.sparklanes.staging import Model, StagingError, Store, lend

JOB = "lend"
RUNTIME = "sparklanes-lend"
CLEAN_EVERY = 10.0


def user_of(secret: str) -> str:
    """The user name that goes with a secret: each staging has its own, so a second one can join."""
    return "stage-" + hashlib.sha256(secret.encode()).hexdigest()[:12]


def config(exports: Mapping[str, str], address: str, port: int, allow: Sequence[str], run: Path, log: Path, chroot: bool) -> str:
    """rsyncd.conf(5). Values that a config line could be broken with are refused."""
    listen = ipaddress.ip_address(address)
    peers = sorted({str(ipaddress.ip_network(peer, strict=False)) for peer in allow})
    if not peers:
        raise StagingError("nobody is allowed to borrow: the fleet has no fabric addresses")
    lines = [
        f"address = {listen}",
        f"port = {port}",
        f"pid file = {run}/pid",
        f"lock file = {run}/lock",
        f"log file = {log}",
        f"use chroot = {'yes' if chroot else 'no'}",
        "read only = yes",
        "list = no",
        "munge symlinks = no",
        "reverse lookup = no",
        "timeout = 120",
        "max connections = 256",
        # The models may belong to anyone; what is lent is only read.
        f"uid = {os.geteuid()}",
        f"gid = {os.getegid()}",
        "auth users = stage-*",
        f"secrets file = {run}/secrets",
        f"hosts allow = {' '.join(peers)}",
        "hosts deny = *",
    ]
    for name, path in sorted(exports.items()):
        if not name.isidentifier() or any(letter in path for letter in "\n\r%\\") or path != path.strip():
            raise StagingError(f"{path!r} can't be lent: its name would break the daemon's configuration")
        lines += ["", f"[{name}]", f"path = {path}"]
    return "\n".join(lines) + "\n"


def manifests(models: Sequence[Mapping[str, Any]], staged_dir: Path) -> tuple[dict[str, str], dict[str, str]]:
    """(export folders, manifest texts) of models by name."""
    roots, texts = {}, {}
    for data in models:
        model = Model.from_dict(data)
        roots[model.name], texts[model.name] = lend(model, Store(staged_dir, model.path))
    return roots, texts


def add_secret(run: Path, secret: str) -> None:
    """One more password that the daemon takes. It reads the file at each connection."""
    file = run / "secrets"
    line = f"{user_of(secret)}:{secret}\n"
    present = file.read_text() if file.exists() else ""
    if line not in present:
        write_atomically(file, present + line)


def children(pid: int, proc: Path = Path("/proc")) -> int:
    """How many peers are being served: the daemon has a child for each."""
    try:
        return len((proc / str(pid) / "task" / str(pid) / "children").read_text().split())
    except OSError:
        return 0


def drop_cache(folder: Path) -> None:
    """What rsync has read stays in the page cache, where a GPU of a Spark needs the memory."""
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                descriptor = os.open(Path(here, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(8).startswith(b"@RSYNCD")
    except OSError:
        return False


def lend_models(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Serve until stopped or idle. The function that `jobs` runs."""
    folder = report.path.parent
    given = os.environ.get("RUNTIME_DIRECTORY")
    run = Path(given) if given else Path(tempfile.mkdtemp(prefix=f"{RUNTIME}-"))
    try:
        roots, texts = manifests(args["models"], Path(args["staged_dir"]))
        shown = run / "manifests"
        for name, text in texts.items():
            write_atomically(shown / f"{name}.json", text, 0o644)
        add_secret(run, secrets["secret"])
        exports = {**roots, "manifests": str(shown)}
        chroot = os.geteuid() == 0
        text = config(exports, args["address"], args["port"], args["allow"], run, folder / "rsync.log", chroot)
        write_atomically(run / "rsyncd.conf", text)
        command = ["rsync", "--daemon", "--no-detach", f"--config={run / 'rsyncd.conf'}"]
        if args["rate_kib"]:
            command.append(f"--bwlimit={args['rate_kib']}")
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            return _watch(args, daemon, report, run, [Path(root) for root in roots.values()], folder / "rsync.log")
        finally:
            daemon.terminate()
            daemon.wait()
            for root in roots.values():
                drop_cache(Path(root))
    except StagingError as error:
        raise JobError(str(error)) from error
    finally:
        shutil.rmtree(run if not given else run / "manifests", ignore_errors=True)


def _watch(
    args: Mapping[str, Any], daemon: subprocess.Popen[bytes], report: Reporter, run: Path, roots: list[Path], log: Path
) -> dict[str, Any]:
    address, port = str(args["address"]), int(args["port"])
    limit = time.monotonic() + 10
    while not answers(address, port):
        if daemon.poll() is not None or time.monotonic() > limit:
            raise JobError(f"rsync does not serve {address} port {port}: {tail(log) or 'is the port taken?'}")
        time.sleep(0.1)
    write_json(report.path.parent / "lent.json", {"run": str(run), "address": address, "port": port})
    report.phase("lend")
    last_busy = last_clean = time.monotonic()
    while daemon.poll() is None:
        time.sleep(0.5)
        now = time.monotonic()
        report.alive()
        served = children(daemon.pid)
        report.update(file=f"{served} transfers")
        if served:
            last_busy = now
            if now - last_clean > CLEAN_EVERY:
                last_clean = now
                for root in roots:
                    drop_cache(root)
        elif now - last_busy > float(args["idle_seconds"]):
            return {"changed": False, "actions": [f"ended after {args['idle_seconds']} s without a transfer"]}
    raise JobError(f"rsync ended with status {daemon.returncode}: {tail(log)}")


def where_lent(folder: Path) -> tuple[Path, str, int] | None:
    """(its folder under /run, address, port) of the daemon that a job's folder tells of."""
    data = read_json(folder / "lent.json")
    return (Path(data["run"]), str(data["address"]), int(data["port"])) if data else None
