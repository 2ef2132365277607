# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that lends a Spark's models to the next ones: an rsync daemon for the time of staging.

It listens on one address of the fabric, read-only, for the addresses of the fleet, with passwords made for this
staging. Beside the models it shows an offer of each: which files were read and found right, by the records that staging
keeps, and how this Spark's own staging goes on. So a file is lent as soon as it is verified, long before the model is whole.

It ends when it is told to, and by itself when nobody has asked for anything for a while: whoever started it may be
gone. Its passwords live in the unit's own folder under /run and go with it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import read_json, write_atomically, write_json
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.serving import Daemon, RequestLog, serve_until_idle, wait_until
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights.chain.offer import Offers, user_of
from ansible.module_utils.sparklanes.weights.digest import drop_cache
from ansible.module_utils.sparklanes.weights.home import way
from ansible.module_utils.sparklanes.weights.model import Model, StagingError
from ansible.module_utils.sparklanes.weights.tools import SOCKET_OPTIONS, dies_with_us, need_rsync

JOB = "lend"
STAGE = "stage"
RUNTIME = "sparklanes-lend"
# Seconds. What tells of news is glanced at often: the next Spark waits for it. The files themselves are looked at less often.
GLANCE_EVERY, LOOK_EVERY = 0.05, 0.25
CLEAN_EVERY = 1.0
START_SECONDS = 10.0

# rsyncd logs this once a password was right, and what was asked for behind it; whatever else it logs, anybody can cause.
ASKED = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[(?P<pid>\d+)\] rsync on ")

Watch = Callable[[], bool | None]


def config(exports: Mapping[str, str], address: str, port: int, allow: Sequence[str], run: Path, log: Path, chroot: bool) -> str:
    """rsyncd.conf(5). Values that a config line could be broken with are refused, and so is a root that holds more than a model."""
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
        f"socket options = {SOCKET_OPTIONS}",
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
        if len(Path(path).parts) < 3:
            raise StagingError(f"{path} can't be lent: it is no folder of a model")
        lines += ["", f"[{name}]", f"path = {path}"]
        # As whoever could put something else in its place: more than they may read is not lent.
        if chroot and (reader := reader_of(Path(path))):
            lines += [f"uid = {reader[0]}", f"gid = {reader[1]}"]
    return "\n".join(lines) + "\n"


def reader_of(root: Path) -> tuple[int, int] | None:
    """As whom a folder is read; None: as whoever we are."""
    with way(root) as found:
        return found.reader


def add_secret(run: Path, secret: str) -> None:
    """One more password that the daemon takes. It reads the file at each connection."""
    file = run / "secrets"
    line = f"{user_of(secret)}:{secret}\n"
    present = file.read_text() if file.exists() else ""
    if line not in present:
        write_atomically(file, present + line)


def children(pid: int, proc: Path = Path("/proc")) -> set[int]:
    """Whom a daemon talks to: it has a child for each."""
    try:
        return set(map(int, (proc / str(pid) / "task" / str(pid) / "children").read_text().split()))
    except OSError:
        return set()


class Takers:
    """Who takes at present, of those who proved that they may. Who only holds a connection open is none."""

    def __init__(self, log: Path, daemons: Sequence[Daemon]) -> None:
        self.log = RequestLog(log, ASKED)
        self.daemons = daemons
        self.known: set[int] = set()

    def look(self) -> tuple[int, bool]:
        """How many there are, and whether anybody asked since the last look."""
        asked = {int(request["pid"]) for request in self.log.news()}
        self.known = (self.known | asked) & set().union(*(children(daemon.pid) for daemon in self.daemons))
        return len(self.known), bool(asked)


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(8).startswith(b"@RSYNCD")
    except OSError:
        return False


def lend_models(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Serve until stopped or idle. The function that `jobs` runs."""
    given = os.environ.get("RUNTIME_DIRECTORY")
    run = Path(given) if given else Path(tempfile.mkdtemp(prefix=f"{RUNTIME}-"))
    try:
        return _lend(args, secrets, report, run)
    except StagingError as error:
        raise JobError(str(error)) from error
    finally:
        shutil.rmtree(run if not given else run / "offers", ignore_errors=True)


def _lend(args: Mapping[str, Any], secrets: Mapping[str, str], report: Reporter, run: Path) -> dict[str, Any]:
    need_rsync()
    folder = report.path.parent
    log = folder / "rsync.log"
    models = [Model.from_dict(model) for model in args["models"]]
    add_secret(run, secrets["secret"])
    offers = Offers(models, Path(args["staged_dir"]), folder.parent / STAGE, run, bool(args["shared"]), report.state.began)
    places = [(str(address), int(args["port"])) for address in args["addresses"]]

    def configure() -> None:
        exports = {**{name: str(root) for name, root in offers.roots.items()}, "offers": str(run / "offers")}
        for number, (address, port) in enumerate(places):
            text = config(exports, address, port, args["allow"], run, log, os.geteuid() == 0)
            write_atomically(run / f"rsyncd-{number}.conf", text.replace(f"{run}/pid", f"{run}/pid-{number}"))

    offers.refresh()
    configure()
    command = ["rsync", "--daemon", "--no-detach"] + ([f"--bwlimit={args['rate_kib']}"] if args["rate_kib"] else [])
    limit = time.monotonic() + START_SECONDS
    while taken := [place for place in places if answers(*place)]:
        if time.monotonic() > limit:  # not the daemon of a killed job, which ends a moment after it
            raise JobError(f"{taken[0][0]} port {taken[0][1]} is served by another rsync daemon; set model_weights_port")
        time.sleep(0.1)
    daemons = []
    try:
        for number in range(len(places)):
            line = dies_with_us([*command, f"--config={run / f'rsyncd-{number}.conf'}"])
            daemons.append(subprocess.Popen(line, stdin=subprocess.DEVNULL))
        for (address, port), daemon in zip(places, daemons, strict=True):
            here = partial(answers, address, port)
            wait_until(here, daemon, START_SECONDS, f"rsync does not serve {address} port {port}", log, report)
        write_json(folder / "lent.json", {"run": str(run), "address": places[0][0], "port": places[0][1]})
        report.phase("lend")
        look = keep_offering(offers, configure, Takers(log, daemons), report)
        return serve_until_idle(daemons, "rsync", log, float(args["idle_seconds"]), report, look, GLANCE_EVERY)
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()
        for root in offers.roots.values():
            drop_cache(root)


def keep_offering(offers: Offers, configure: Callable[[], None], takers: Takers, report: Reporter) -> Watch:
    """What is done while the daemons serve: show what is new, and leave none of it in the page cache."""
    looked = cleaned = time.monotonic()
    stamps: list[tuple[int, int]] = []

    def look() -> bool | None:
        nonlocal looked, cleaned, stamps
        before, stamps, now = stamps, offers.stamps(), time.monotonic()
        if stamps == before and now - looked < LOOK_EVERY:
            return None
        looked = now
        if offers.refresh():
            configure()  # it is read again at each connection
        served, asked = takers.look()
        report.update(file=f"{served} transfers")
        if served and now - cleaned > CLEAN_EVERY:
            cleaned = now
            for root in offers.roots.values():
                drop_cache(root)
        return bool(served) or asked  # a short request is over before it could be seen

    return look


def where_lent(folder: Path) -> tuple[Path, str, int] | None:
    """(its folder under /run, address, port) of the daemon that a job's folder tells of."""
    data = read_json(folder / "lent.json")
    return (Path(data["run"]), str(data["address"]), int(data["port"])) if data else None
