# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""sandbox/hub.py answers as the Hub does, where its client looks."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).resolve().parents[3] / "sandbox" / "hub.py"
SHARD = bytes(range(256)) * 40

Start = Callable[..., http.client.HTTPConnection]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "acme" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(SHARD)
    (folder / ".hidden").write_text("not served")
    return tmp_path


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    servers = []

    def run(*options: str) -> http.client.HTTPConnection:
        command = [sys.executable, str(SERVER), "--root", str(root), "--port", "0", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        servers.append(server)
        assert server.stdout is not None
        host, port = server.stdout.readline().strip().removeprefix("http://").split(":")
        return http.client.HTTPConnection(host, int(port), timeout=10)

    yield run
    for server in servers:
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0, "the server ends cleanly on SIGTERM"


def ask(hub: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str) -> Any:
    hub.request(method, path, headers=headers)
    answer = hub.getresponse()
    return answer.status, answer.headers, answer.read()


def revision(root: Path) -> str:
    command = [sys.executable, str(SERVER), "--root", str(root), "--print-revision", "acme/tiny"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_download_as_the_client_does_it(root: Path, start: Start) -> None:
    hub = start()
    status, _, body = ask(hub, "/api/models/acme/tiny/revision/main")
    commit = json.loads(body)["sha"]
    assert (status, commit) == (200, revision(root))
    assert len(commit) == 40

    _, _, body = ask(hub, f"/api/models/acme/tiny/tree/{commit}?recursive=true&expand=false")
    tree = {node["path"]: node for node in json.loads(body)}
    assert set(tree) == {"config.json", "model.safetensors"}
    sha256 = hashlib.sha256(SHARD).hexdigest()
    assert tree["model.safetensors"]["lfs"]["oid"] == sha256
    assert tree["config.json"]["oid"] == hashlib.sha1(b"blob 2\0{}").hexdigest()
    assert "lfs" not in tree["config.json"]

    where = f"/acme/tiny/resolve/{commit}/model.safetensors"
    status, headers, body = ask(hub, where, "HEAD")
    assert (status, body) == (200, b"")
    assert headers["X-Linked-Etag"] == f'"{sha256}"'
    assert headers["X-Linked-Size"] == headers["Content-Length"] == str(len(SHARD))
    assert headers["X-Repo-Commit"] == commit
    assert ask(hub, where)[2] == SHARD


@pytest.mark.parametrize(("asked", "first", "last"), [("bytes=10-19", 10, 19), ("bytes=10000-", 10000, len(SHARD) - 1)])
def test_ranges(start: Start, asked: str, first: int, last: int) -> None:
    status, headers, body = ask(start(), "/acme/tiny/resolve/main/model.safetensors", Range=asked)
    assert status == 206
    assert headers["Content-Range"] == f"bytes {first}-{last}/{len(SHARD)}"
    assert body == SHARD[first : last + 1]


def test_range_beyond_the_end_is_refused(start: Start) -> None:
    asked = f"bytes={len(SHARD)}-"
    status, headers, _ = ask(start(), "/acme/tiny/resolve/main/model.safetensors", Range=asked)
    assert status == 416
    assert headers["Content-Range"] == f"bytes */{len(SHARD)}"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/models/acme/none/revision/main", "RepoNotFound"),
        ("/api/models/acme/tiny/tree/" + "0" * 40, "RevisionNotFound"),
        ("/acme/tiny/resolve/main/none.json", "EntryNotFound"),
        ("/acme/tiny/resolve/main/.hidden", "EntryNotFound"),
        ("/acme/tiny/resolve/main/../../../etc/passwd", "EntryNotFound"),
    ],
)
def test_what_is_missing_is_named(start: Start, path: str, code: str) -> None:
    status, headers, _ = ask(start(), path)
    assert (status, headers["X-Error-Code"]) == (404, code)


def test_revision_follows_the_content(root: Path) -> None:
    before = revision(root)
    assert revision(root) == before
    (root / "acme/tiny/config.json").write_text("[]")
    assert revision(root) != before


def test_token_is_required_where_set(start: Start) -> None:
    hub = start("--token", "right")
    path = "/api/models/acme/tiny/revision/main"
    assert ask(hub, path)[0] == 401
    assert ask(hub, path, Authorization="Bearer wrong")[0] == 401
    assert ask(hub, path, Authorization="Bearer right")[0] == 200


def test_corrupt_bytes_come_under_the_right_etag(start: Start) -> None:
    hub = start("--corrupt", "acme/tiny/model.safetensors")
    _, headers, body = ask(hub, "/acme/tiny/resolve/main/model.safetensors")
    assert headers["ETag"] == f'"{hashlib.sha256(SHARD).hexdigest()}"'
    assert body == SHARD[:-1] + bytes([SHARD[-1] ^ 1])


def test_one_connection_is_cut(start: Start) -> None:
    hub = start("--drop-after", "1000")
    where = "/acme/tiny/resolve/main/model.safetensors"
    hub.request("GET", where)
    with pytest.raises(http.client.IncompleteRead):
        hub.getresponse().read()
    hub.close()
    assert ask(hub, where)[2] == SHARD
