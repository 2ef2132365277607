# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A server that sends on to another address: a list goes nowhere where others can write it, and an address that is none is a sentence."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights import steps
from checkpoints import COMMIT
from staging_nodes import Node, node

__all__ = ["node"]  # fixtures

CONTENT = b"{}"
FILES = {"config.json": {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}}
TREE = [{"type": "file", "path": "config.json", "size": 2, "oid": "a" * 40}]
EMPTY = json.dumps({"repo": "acme/tiny", "revision": COMMIT, "files": {}}).encode()
LIST = json.dumps({"repo": "acme/tiny", "revision": COMMIT, "files": FILES}).encode()


class Sends(BaseHTTPRequestHandler):
    """Has these, and sends all else on."""

    has: Mapping[str, bytes] = {}
    on: Mapping[str, str] = {}

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.on:
            self.send_response(302)
            self.send_header("Location", self.on[path].format(port=self.server.server_address[1]))
            self.end_headers()
            return
        self.send_response(200 if path in self.has else 404)
        self.end_headers()
        self.wfile.write(self.has.get(path, b""))


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(steps, "RETRY_WAIT", 0.01)
    with ThreadingHTTPServer(("127.0.0.1", 0), Sends) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def mirrored(node: Node, url: str, pin: str = "") -> str:
    mirror = {"urls": {"model": url}, "lists": {"model": pin} if pin else {}}
    return str(node.stage(COMMIT, source="mirror", mirror=mirror)["msg"])


@pytest.mark.parametrize(("to", "open_"), [("http://0.0.0.0:{port}/there", True), ("http://127.0.0.1:{port}/there", False)])
def test_a_list_is_not_believed_that_was_sent_on_into_the_open(
    node: Node, url: str, monkeypatch: pytest.MonkeyPatch, to: str, open_: bool
) -> None:
    """Asked of a server that nobody can listen in on, it came from where anybody on the way writes it, hashes and all."""
    where = f"/api/models/acme/tiny/tree/{COMMIT}"
    monkeypatch.setattr(Sends, "on", {"/manifest.json": to, where: to.replace("there", "tree")})
    monkeypatch.setattr(Sends, "has", {"/there": LIST, "/config.json": CONTENT, "/tree": json.dumps(TREE).encode()})
    why = mirrored(node, url)
    assert ("sends its list on to http://0.0.0.0" in why) is open_ is not (node.path / "config.json").exists()
    if open_:
        with pytest.raises(weights_hub.HubError, match="sends its list on to"):
            weights_hub.tree(url, "acme/tiny", COMMIT)
        mirrored(node, url, hashlib.sha256(LIST).hexdigest())
        assert (node.path / "config.json").exists(), "a list that is pinned may come from anywhere"
    else:
        assert list(weights_hub.tree(url, "acme/tiny", COMMIT)) == ["config.json"]


@pytest.mark.parametrize("path", ["/manifest.json", "/config.json"])
@pytest.mark.parametrize("to", ["http://[::1/x", "http://a:b/", "//"])
def test_an_address_that_is_none_is_no_traceback(
    node: Node, url: str, monkeypatch: pytest.MonkeyPatch, path: str, to: str
) -> None:
    monkeypatch.setattr(Sends, "on", {path: to})
    monkeypatch.setattr(Sends, "has", {"/manifest.json": LIST})
    assert f"{url}{path}" in mirrored(node, url)
    assert "Traceback" not in (node.jobs.folder("stage") / "log").read_text()


def test_a_list_without_files_is_refused(node: Node, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sends, "has", {"/manifest.json": EMPTY})
    assert f"{url} lists no files of model" in mirrored(node, url)
    assert "Traceback" not in (node.jobs.folder("stage") / "log").read_text()
