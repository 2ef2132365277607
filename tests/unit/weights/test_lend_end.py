# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Only who knows the staging's password keeps a lender up: tried with rsync itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.jobs import serving
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights.chain import lend
from ansible.module_utils.sparklanes.weights.chain.offer import user_of
from ansible.module_utils.sparklanes.weights.folder import ModelStore, look
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record
from conftest import free_port

SECRET = "S" * 43
IDLE = 4.0


class Lender:
    def __init__(self, root: Path) -> None:
        folder = root / "models/tiny"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(os.urandom(1 << 20))
        model = Model.from_dict({"name": "model", "path": str(folder), "repo": "r/x", "revision": "0" * 40})
        made = {
            name: Record(seen.size, seen.mtime_ns, hashlib.sha256((folder / name).read_bytes()).hexdigest())
            for name, seen in look(folder).items()
        }
        store = ModelStore(root / "staged", str(folder))
        files = {name: Content(record.size, record.sha256) for name, record in made.items()}
        manifest = Manifest(model.repo, model.revision, files, "hub")
        store.save_manifest(manifest)
        store.save(manifest, made, True)
        self.port = free_port()
        self.log = root / "jobs/lend/rsync.log"
        self.log.parent.mkdir(parents=True)
        args = {
            "models": [model.to_dict()],
            "staged_dir": str(root / "staged"),
            "shared": False,
            "addresses": ["127.0.0.1"],
            "port": self.port,
            "allow": ["127.0.0.1"],
            "rate_kib": 0,
            "idle_seconds": IDLE,
        }
        self.result: dict[str, Any] = {}
        report = Reporter(self.log.parent, "lend")
        self.thread = threading.Thread(target=lambda: self.result.update(lend.lend_models(args, {"secret": SECRET}, report)))
        self.thread.start()
        while not lend.answers("127.0.0.1", self.port):
            assert self.thread.is_alive()
            time.sleep(0.05)

    def take(self, user: str = user_of(SECRET), password: str = SECRET, *options: str, **how: Any) -> subprocess.Popen[bytes]:
        url = f"rsync://{user}@127.0.0.1:{self.port}/model/config.json"
        return subprocess.Popen(
            ["rsync", *options, url, str(self.log.parent / "taken")],
            env={**os.environ, "RSYNC_PASSWORD": password},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def up(self, seconds: float, meanwhile: Callable[[], object]) -> bool:
        limit = time.monotonic() + seconds
        while self.thread.is_alive() and time.monotonic() < limit:
            meanwhile()
            time.sleep(0.2)
        return self.thread.is_alive()


@pytest.fixture
def lender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lender]:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    made = Lender(tmp_path)
    yield made
    made.thread.join(60)
    assert "ended after" in str(made.result), made.result


def knock(lender: Lender) -> None:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", lender.port)) as connection:
        # A module's name is told in the log as it was asked for.
        connection.sendall(b"@RSYNCD: 31.0\n2026/12/01 10:00:00 [1] rsync on model\n")
        connection.recv(100)


@pytest.mark.parametrize("how", ["knocks", "holds connections", "guesses passwords"])
def test_a_stranger_keeps_no_lender_up(lender: Lender, how: str) -> None:
    held = [socket.create_connection(("127.0.0.1", lender.port)) for _ in range(20)] if how == "holds connections" else []

    def stranger() -> None:
        if how == "knocks":
            knock(lender)
        elif how == "guesses passwords":
            lender.take("stage-x) rsync on", "guess").wait()

    assert not lender.up(60, stranger)
    assert "without a request" in lender.result["actions"][0]
    for connection in held:
        connection.close()


def test_who_may_take_keeps_it_up_with_short_requests_and_with_one_long_transfer(lender: Lender) -> None:
    assert lender.up(2 * IDLE, lambda: lender.take().wait())
    slow = lender.take(user_of(SECRET), SECRET, "--bwlimit=60", "--whole-file", "--ignore-times")  # a transfer of ten seconds
    assert lender.up(3 * IDLE, lambda: None)
    slow.terminate()
    slow.wait()


def test_what_strangers_make_it_log_has_an_end(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOG_BYTES", 2000)
    lender.up(60, lambda: [knock(lender) for _ in range(10)])
    assert lender.log.stat().st_size < 2000 + 10 * 400
