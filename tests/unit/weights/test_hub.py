# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the Hub lists, and what its refusals mean."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import web
from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights import stage as weights_stage
from ansible.module_utils.sparklanes.weights.hub import HubError, HubFile

COMMIT = "c" * 40
SHA = "a" * 64
LARGE = {"type": "file", "path": "m.safetensors", "size": 9, "oid": "b" * 40, "lfs": {"oid": SHA, "size": 9, "pointerSize": 134}}
SMALL = {"type": "file", "path": "a/config.json", "size": 2, "oid": "d" * 40}


class Pages(BaseHTTPRequestHandler):
    """A list in two pages, as the Hub sends it for large repositories."""

    link = "/second"
    busy, status, wait = 0, 429, "30"
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        first = self.path != "/second"
        if "busy" in self.path and len(self.asked) <= self.busy:
            self.send_response(self.status)
            self.send_header("Retry-After", self.wait)
            self.end_headers()
            return
        if "missing" in self.path:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound")
            self.end_headers()
            return
        if "redirect" in self.path:
            self.send_response(302)
            self.send_header("Location", "/second")
            self.end_headers()
            return
        self.send_response(200)
        if first:
            link = self.link if "://" in self.link else f"http://{self.headers['Host']}{self.link}"
            self.send_header("Link", f'<{link}>; rel="next"')
        self.end_headers()
        self.wfile.write(json.dumps([LARGE, {"type": "directory", "path": "a"}] if first else [SMALL]).encode())


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Pages, "asked", [])
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_all_pages_are_read(endpoint: str) -> None:
    files = weights_hub.tree(endpoint + "/", "acme/tiny", COMMIT, "tok")
    assert files == {"m.safetensors": HubFile(9, SHA, ""), "a/config.json": HubFile(2, "", "d" * 40)}
    assert [token for _, token in Pages.asked] == ["Bearer tok", "Bearer tok"]


def test_the_token_goes_to_no_other_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "link", "http://127.0.0.2:1/second")
    with pytest.raises(HubError, match=r"on to another server, 127.0.0.2:1"):
        weights_hub.tree(endpoint, "acme/tiny", COMMIT, "tok")


def test_a_list_that_does_not_end_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "link", f"{endpoint}/api/models/acme/tiny/tree/first")
    monkeypatch.setattr(weights_hub, "PAGE_LIMIT", 1)
    with pytest.raises(HubError, match=r"a list of acme/tiny that has not ended after 1 pages"):
        weights_hub.tree(endpoint, "acme/tiny", COMMIT)
    monkeypatch.setattr(weights_hub, "LIST_LIMIT", 20)
    with pytest.raises(HubError, match="its list has more than 20 bytes"):
        weights_hub.tree(endpoint, "acme/tiny", COMMIT)


def test_half_a_list_is_none() -> None:
    class Cut(io.BytesIO):
        length = 7

    with pytest.raises(OSError, match="was cut after 3 bytes, 7 before its end"):
        web.whole(Cut(b"abc"), 10)
    Cut.length = 0
    assert web.whole(Cut(b"abc"), 3) == b"abc"


def test_the_token_is_not_sent_along_a_redirect(endpoint: str) -> None:
    weights_hub.tree(endpoint, "acme/redirect", COMMIT, "tok")
    assert [token for _, token in Pages.asked] == ["Bearer tok", None]


def test_an_unknown_revision_says_what_to_do(endpoint: str) -> None:
    with pytest.raises(HubError, match=r"acme/missing@c+ at http.*no such revision. Take the commit's 40 hex digits"):
        weights_hub.tree(endpoint, "acme/missing", COMMIT)


def test_nobody_there() -> None:
    with pytest.raises(HubError, match=r"http://127.0.0.1:9 does not answer .*Check the node's route"):
        weights_hub.tree("http://127.0.0.1:9", "acme/tiny", COMMIT)


@pytest.mark.parametrize(
    "entries",
    [None, 5, [1], [{}], [{"type": "file", "path": 5, "size": 1, "oid": "a"}], [{"type": "file", "path": "x"}], {"error": "no"}],
)
def test_an_unreadable_list(entries: object) -> None:
    with pytest.raises(HubError, match="unreadable"):
        weights_hub.parse_tree(entries)


def test_the_client_sees_only_our_settings() -> None:
    made = weights_hub.client_environment("http://h/", "tok", Path("/h"), {"HF_TOKEN": "old", "HF_ENDPOINT": "x", "PATH": "/bin"})
    assert (made["HF_TOKEN"], made["HF_ENDPOINT"], made["HF_HOME"], made["PATH"]) == ("tok", "http://h", "/h", "/bin")
    assert "HF_TOKEN" not in weights_hub.client_environment("http://h", "", Path("/h"), {"HF_TOKEN": "old"})
    others = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": "/x",
        "HUGGING_FACE_HUB_TOKEN": "t",
        "HUGGINGFACE_HUB_CACHE": "/y",
        "HF_XET_CACHE": "/z",
    }
    assert not set(others) & set(weights_hub.client_environment("http://h", "", Path("/h"), others))


def test_a_client_beside_a_serving_lane_has_small_buffers() -> None:
    made = weights_hub.client_environment("http://h", "", Path("/h"), {})
    assert made["HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT"] == "256mb"
    assert set(weights_hub.XET_LIMITS.items()) <= set(made.items())


def test_what_the_site_sets_of_the_client_beats_ours_and_reaches_the_job() -> None:
    site = {
        "HF_HUB_DOWNLOAD_TIMEOUT": "300",
        "HF_XET_NUM_CONCURRENT_RANGE_GETS": "2",
        "HF_HUB_DISABLE_XET": "1",
        "HF_DEBUG": "",
        "HF_TOKEN": "no",
    }
    passed = {name[4:]: value for name, value in weights_stage.network_settings(site).items()}
    assert "HF_TOKEN" not in passed
    made = weights_hub.client_environment("http://h", "", Path("/h"), passed)
    assert (made["HF_HUB_DOWNLOAD_TIMEOUT"], made["HF_XET_NUM_CONCURRENT_RANGE_GETS"], made["HF_HUB_DISABLE_XET"]) == (
        "300",
        "2",
        "1",
    )
    assert "HF_DEBUG" not in made


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_hub_that_is_busy_is_asked_again_as_it_says(endpoint: str, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    waited: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waited.append)
    monkeypatch.setattr(Pages, "busy", 2)
    monkeypatch.setattr(Pages, "status", status)
    assert len(weights_hub.tree(endpoint, "acme/busy", COMMIT)) == 2
    assert waited == [30.0, 30.0]


@pytest.mark.parametrize(
    ("status", "wait", "asked", "words"),
    [
        (429, "1", 4, "too many requests"),
        (503, "1", 4, "Run this again later"),
        (429, "9999", 1, "Give a token"),
        (501, "1", 1, "Run this again later"),
    ],
)
def test_a_hub_that_stays_busy_is_named(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, status: int, wait: str, asked: int, words: str
) -> None:
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    for name, value in (("busy", 99), ("status", status), ("wait", wait)):
        monkeypatch.setattr(Pages, name, value)
    with pytest.raises(HubError, match=words) as refused:
        weights_hub.tree(endpoint, "acme/busy", COMMIT)
    assert len(Pages.asked) == asked
    assert ("also after waiting" in str(refused.value)) == (asked > 1), "said where it is true"
    assert "is kept" not in str(refused.value), "of a list nothing came"
