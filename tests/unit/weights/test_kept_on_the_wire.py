# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who stands between a Spark and what it takes from changes bytes on their way: by a real web server, a real rsync daemon."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import stall
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights import hub_client, steps
from ansible.module_utils.sparklanes.weights import stage as weights_stage
from ansible.module_utils.sparklanes.weights.chain import choice
from ansible.module_utils.sparklanes.weights.chain.offer import Offer, Work, seal, user_of
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest
from ansible.module_utils.sparklanes.weights.tools import own_folder
from checkpoints import COMMIT, shard
from staging_nodes import LOCK, free_port

NAME = "model.safetensors"
GOOD = shard({"w": ("BF16", [150_000], random.Random(3).randbytes(300_000))})
SIZE = len(GOOD)
EVIL = (b'import os; os.system("id")\n' * 2000)[: SIZE // 8] + GOOD[SIZE // 8 :]
HALF = SIZE // 2
PIN = hashlib.sha256(GOOD).hexdigest()
SECRET = "S" * 43


class Spark:
    """Stages one file in this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "models" / "tiny"
        self.incoming = root / "models" / ".tiny.incoming"
        self.file = self.path / NAME
        (root / "job").mkdir()

    def stage(self, source: str, secrets: dict[str, str] | None = None, pins: dict[str, str] | None = None, **args: Any) -> str:
        """Why it failed, or nothing."""
        sha256 = {NAME: PIN} if pins is None else pins
        asked = {"name": "model", "path": str(self.path), "repo": "acme/tiny", "revision": COMMIT, "sha256": sha256}
        common: dict[str, Any] = {"host": "s1", "models": [asked], "source": source, "verify": "quick", "repair": True}
        common |= {"rate": 0, "workers": 1, "verify_workers": 1, "verify_rate": 0, "reserve": 0, "also": [], "was_staged": False}
        report = Reporter(self.root / "job", "stage")
        try:
            weights_stage.stage({**common, "staged_dir": str(self.root / "staged"), **args}, secrets or {}, report)
        except JobError as error:
            return str(error)
        return ""

    def kept(self) -> None:
        """Nothing, or the right bytes; and what is recorded is what lies there."""
        records = ModelStore(self.root / "staged", str(self.path)).records()
        assert bool(records) == self.file.exists()
        if self.file.exists():
            assert hashlib.sha256(self.file.read_bytes()).hexdigest() == PIN == records[NAME].sha256


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


Answer = Callable[[BaseHTTPRequestHandler, int], None]


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, said: int, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(said))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    with contextlib.suppress(OSError):
        handler.wfile.write(body)
    handler.close_connection = True


@pytest.fixture
def mirror() -> Iterator[Callable[[Answer], str]]:
    """`mirror(answer)`: a server that answers a GET of the file by `answer(handler, number of the request)`."""
    servers = []

    def run(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            asked = 0

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                reply(self, 200, b"", SIZE)

            def do_GET(self) -> None:
                if not self.path.endswith(NAME):
                    reply(self, 404, b"", 0)
                    return
                Handler.asked += 1
                answer(self, Handler.asked)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def ranged(handler: BaseHTTPRequestHandler) -> int:
    return int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))


def tail(handler: BaseHTTPRequestHandler, body: bytes, begin: int, **headers: str) -> None:
    reply(handler, 206, body, len(body), Content_Range=f"bytes {begin}-{SIZE - 1}/{SIZE}", **headers)


def anew(handler: BaseHTTPRequestHandler, number: int) -> None:
    """Right and cut; then, asked for the rest, the whole again, and its beginning is another one."""
    if number == 1:
        reply(handler, 200, GOOD[:HALF], SIZE)
    else:
        reply(handler, 200, EVIL, SIZE)


def evil_first(handler: BaseHTTPRequestHandler, number: int) -> None:
    if number == 1:
        reply(handler, 200, EVIL[:HALF], SIZE)
    else:
        tail(handler, GOOD[ranged(handler) :], ranged(handler))


def elsewhere(handler: BaseHTTPRequestHandler, number: int) -> None:
    """Another part than the one that is asked for."""
    if number == 1:
        reply(handler, 200, GOOD[:HALF], SIZE)
    else:
        tail(handler, EVIL[: SIZE - HALF], 0)


def endless(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        for _ in range(100):  # 30 MB: what has no end here would have none on a disk either
            handler.wfile.write(GOOD)


def longer(handler: BaseHTTPRequestHandler, number: int) -> None:
    reply(handler, 200, GOOD + b"!", SIZE + 1)


def cut_for_ever(handler: BaseHTTPRequestHandler, number: int) -> None:
    reply(handler, 200, GOOD[:1000], SIZE)


def chunks_without_end(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"ffff\r\nx")
    handler.close_connection = True


def no_http(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.wfile.write(b"\0" * 100_000)
    handler.close_connection = True


@pytest.mark.parametrize(
    "answer",
    [anew, evil_first, elsewhere, endless, longer, cut_for_ever, chunks_without_end, no_http],
    ids=lambda one: one.__name__,
)
def test_no_mirror_gets_other_bytes_past_the_lanes_own_hash(
    spark: Spark, mirror: Callable[[Answer], str], answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RETRY_WAIT", 0.3)
    address = mirror(answer)
    why = spark.stage("mirror", mirror={"urls": {"model": address}, "lists": {}})
    spark.kept()
    assert why == "" if spark.file.exists() else address in why
    came = [path for path in spark.incoming.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in came) <= SIZE


def test_a_mirror_goes_on_where_it_was_cut_and_takes_another_inode_where_it_begins_anew(
    spark: Spark, mirror: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RETRY_WAIT", 0.01)
    begins: list[int] = []
    left: list[int] = []

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        begins.append(ranged(handler))
        if number > 1:
            left.append(os.open(own_folder(NAME, spark.incoming) / "file", os.O_RDONLY))
        if number == 1:
            reply(handler, 200, GOOD[:1000], SIZE)
        elif number == 2:
            tail(handler, GOOD[1000:HALF], 1000)
        else:
            reply(handler, 200, GOOD, SIZE)

    assert spark.stage("mirror", mirror={"urls": {"model": mirror(answer)}, "lists": {}}) == ""
    spark.kept()
    assert begins == [0, 1000, HALF]
    assert [os.fstat(one).st_size for one in left] == [HALF, HALF], "the second went on in the first one's"
    assert [os.fstat(one).st_nlink for one in left] == [0, 0], "the third did not"
    for one in left:
        os.close(one)


class Between:
    """Somebody on the fabric without the secret: relays the sealed offer, serves the file by an rsync daemon of its own, and spoils the
    sum by which rsync would have accepted the first transfer, so that rsync does it over, now with other bytes."""

    def __init__(self, root: Path, sizes: int = SIZE) -> None:
        self.root = root
        for name in ("offers", "model"):
            (root / name).mkdir(parents=True)
        self.target = root / "model" / NAME
        self.target.write_bytes(GOOD)
        self.files = {NAME: Content(SIZE, PIN)}
        self.offer()
        self.flips: list[float] = []
        self.ports = free_port(), free_port()
        places = "".join(f"[{name}]\npath={root / name}\n" for name in ("offers", "model"))
        (root / "conf").write_text(
            f"address=127.0.0.1\nport={self.ports[0]}\nuse chroot=no\nread only=yes\nlog file={root}/log\npid file={root}/pid\n{places}"
        )
        self.daemon = subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={root / 'conf'}"])
        self.listener = socket.create_server(("127.0.0.1", self.ports[1]))
        threading.Thread(target=self.relay, daemon=True).start()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[0]), timeout=1):
                break
            time.sleep(0.02)

    def offer(self, manifest: Manifest | None = None, verified: dict[str, Content] | None = None) -> None:
        """What the honest giver shows; who is between has read it off the wire."""
        made = manifest or Manifest("acme/tiny", COMMIT, self.files, "hub")
        text = seal(Offer("model", made, verified or self.files, Work(running=True)), [SECRET])
        (self.root / "offers" / "model.json").write_text(text)

    def relay(self) -> None:
        while True:
            try:
                taker, _ = self.listener.accept()
            except OSError:
                return
            giver = socket.create_connection(("127.0.0.1", self.ports[0]))
            for a, b, serves in ((taker, giver, False), (giver, taker, True)):
                threading.Thread(target=self.pump, args=(a, b, serves), daemon=True).start()

    def pump(self, a: socket.socket, b: socket.socket, serves: bool) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                if serves and not self.flips:
                    seen = (seen + data)[-400_000:]
                    found = seen.find(GOOD[-32:])
                    at = found + 32 + 4  # after the last bytes: token 0, then the sum of the whole file
                    off = len(data) - (len(seen) - at)
                    if found >= 0 and 0 <= off < len(data):
                        data = data[:off] + bytes([data[off] ^ 0xFF]) + data[off + 1 :]
                        self.flips.append(time.monotonic())
                        self.target.write_bytes(EVIL)
                if not serves and self.flips and time.monotonic() - self.flips[0] < 0.5:
                    time.sleep(0.4)  # whoever follows the growing file has hashed it by now
                b.sendall(data)
        for one in (a, b):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @property
    def peers(self) -> dict[str, Any]:
        url = f"rsync://{user_of(SECRET)}@127.0.0.1:{self.ports[1]}"
        return {"peers": [{"name": "s0", "url": url}], "patience": 10}

    def end(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # else whoever waits there goes on waiting
        self.listener.close()
        self.daemon.terminate()
        self.daemon.wait()


@pytest.fixture
def between(tmp_path: Path) -> Iterator[Between]:
    made = Between(tmp_path / "between")
    yield made
    made.end()


@pytest.mark.parametrize("begun", [b"", GOOD[:1000], EVIL[:HALF]], ids=["new", "begun", "begun by another"])
def test_nobody_between_two_sparks_gets_other_bytes_past_the_lanes_own_hash(spark: Spark, between: Between, begun: bytes) -> None:
    if begun:
        path = own_folder(NAME, spark.incoming) / NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(begun)
    why = spark.stage("chain", {"chain_secret": SECRET}, chain=between.peers)
    spark.kept()
    assert between.flips or begun == EVIL[:HALF]
    assert (not spark.file.exists() and "gave bad content" in why) or spark.file.read_bytes() == GOOD


BARE, EVIL_SUM = Content(SIZE), hashlib.sha256(EVIL).hexdigest()


@pytest.mark.parametrize(
    ("listed", "has", "sent", "kept"),
    [
        (BARE, Content(SIZE, PIN), GOOD, True),
        (BARE, Content(SIZE, PIN), EVIL, False),
        (BARE, BARE, GOOD, False),
        (Content(SIZE, PIN), Content(SIZE, EVIL_SUM), EVIL, False),
        (Content(SIZE, PIN), Content(SIZE, EVIL_SUM), GOOD, False),
        (Content(SIZE, PIN), Content(SIZE - 1, PIN), GOOD, False),
        (Content(SIZE, git_sha1="d" * 40), Content(SIZE, PIN), GOOD, False),
    ],
)
def test_what_came_is_what_the_giver_has_proved_and_the_manifest_lists(
    spark: Spark, between: Between, listed: Content, has: Content, sent: bytes, kept: bool
) -> None:
    """A manifest without a hash made any bytes right, from anybody on the way, though the sealed offer has the hash of each file."""
    between.flips.append(0.0)
    between.target.write_bytes(sent)
    between.offer(Manifest("acme/tiny", COMMIT, {NAME: listed}, "first look"), {NAME: has})
    why = spark.stage("chain", {"chain_secret": SECRET}, {}, chain=between.peers)
    spark.kept()
    assert (why == "") is kept is spark.file.exists()
    assert kept or "gave bad content" in why


@pytest.mark.parametrize("left", [f".{NAME}.Ab12Cd", "other/name", NAME])
def test_a_transfer_that_was_cut_goes_on_whatever_name_it_was_left_under(spark: Spark, between: Between, left: str) -> None:
    between.flips.append(0.0)  # an honest one
    path = own_folder(NAME, spark.incoming) / left
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD[:HALF])
    inode = path.stat().st_ino
    assert spark.stage("chain", {"chain_secret": SECRET}, chain=between.peers) == ""
    spark.kept()
    assert spark.file.stat().st_ino == inode


def test_a_file_that_grows_once_it_is_listed_does_not_fill_the_disk(
    spark: Spark, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync asks how large a file is when it is listed, and takes all that comes afterwards."""
    between.flips.append(0.0)
    whole, passed = SIZE + (80 << 20), between.pump

    def pump(a: socket.socket, b: socket.socket, serves: bool) -> None:
        def sendall(data: bytes) -> None:
            # In the list of files, not in the offer, which has the name too.
            if serves and NAME.encode() in data and b"verified" not in data and between.target.stat().st_size < whole:
                os.truncate(between.target, whole)
            b.sendall(data)

        passed(a, SimpleNamespace(sendall=sendall, shutdown=b.shutdown), serves)  # type: ignore[arg-type]

    between.pump = pump  # type: ignore[method-assign]
    largest: list[int] = []
    tool = weights_stage.Tool.__call__

    def called(*args: Any, **more: Any) -> tuple[int, str]:
        done = tool(*args, **more)
        largest.append(sum(path.stat().st_blocks * 512 for path in spark.root.rglob("*") if path.is_file()))
        return done

    monkeypatch.setattr(weights_stage.Tool, "__call__", called)
    why = spark.stage("chain", {"chain_secret": SECRET}, chain={**between.peers, "patience": 1})
    spark.kept()
    assert between.target.stat().st_size == whole, "it grew"
    assert "s0 did not give" in why or "gave bad content" in why
    assert max(largest) < 40 << 20


def test_a_client_of_the_hub_that_gets_a_file_without_end_does_not_fill_the_disk(spark: Spark, tmp_path: Path) -> None:
    lock = hub_client.read(LOCK)
    hf = tmp_path / "venvs" / lock.name / "bin/hf"
    hf.parent.mkdir(parents=True)
    hf.write_text(
        '#!/bin/sh\nshift\nfor word; do case "$word" in --local-dir=*) to="${word#*=}";; esac; name="$word"; done\nexec cat /dev/zero > "$to/$name"\n'
    )
    hf.chmod(0o755)
    (hf.parents[1] / "sparklanes-ready").write_text(lock.digest)
    manifest = Manifest("acme/tiny", COMMIT, {NAME: Content(SIZE, PIN)}, "hub")
    ModelStore(spark.root / "staged", str(spark.path)).save_manifest(manifest)
    why = spark.stage(
        "hub", hub={"endpoint": "http://h", "lock": LOCK, "user": "", "pip_args": [], "venvs_dir": str(tmp_path / "venvs")}
    )
    spark.kept()
    assert f"http://h did not give acme/tiny/{NAME}" in why
    assert sum(path.stat().st_blocks * 512 for path in spark.root.rglob("*")) < 40 << 20


def test_one_that_takes_signs_of_life_and_gives_nothing_is_not_waited_for_without_end(
    spark: Spark, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync counts what it sends as a sign that all is well, so --timeout never ended such a transfer."""
    for module, name, seconds in (
        (stall, "SECONDS", 5.0),
        (stall, "LOOK_SECONDS", 0.2),
        (choice, "STANDING", 1.0),
        (choice, "PENALTY", 0.5),
    ):
        monkeypatch.setattr(module, name, seconds)
    between.flips.append(0.0)
    passed, over = between.pump, threading.Event()

    def pump(a: socket.socket, b: socket.socket, serves: bool) -> None:
        def sendall(data: bytes) -> None:
            if serves and GOOD[1000:1040] in data:
                over.wait(60)
            b.sendall(data)

        passed(a, SimpleNamespace(sendall=sendall, shutdown=b.shutdown), serves)  # type: ignore[arg-type]

    between.pump = pump  # type: ignore[method-assign]
    why = spark.stage("chain", {"chain_secret": SECRET}, chain={**between.peers, "patience": 1})
    over.set()
    spark.kept()
    assert f"s0: has 0 of the 1 files that are lacking here, and never gave what it offers: s0 did not give {NAME}" in why
    assert "it stood still for 5 s and was ended" in why
