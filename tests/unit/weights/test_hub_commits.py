# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which commit there is: asked of a Hub and a mirror on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import hub_info
import pytest
from ansible.module_utils.sparklanes.common import web
from ansible.module_utils.sparklanes.weights import hub_commits
from ansible.module_utils.sparklanes.weights.hub import HubError
from conftest import RunModule
from pin_servers import Hub, Repository, Server, serving

NEW, OLD, GONE = "a" * 40, "b" * 40, "f" * 40
REPO = "acme/tiny"
CONFIG = b'{"architectures": ["Tiny"]}'


def repository(**more: Any) -> Repository:
    commits = [(NEW, "2026-09-20T10:00:00.000Z", "Card"), (OLD, "2026-08-24T10:00:00.000Z", "Upload")]
    return Repository(
        commits, {"model-1.safetensors": 7, "model-2.safetensors": 8, "sub/x.safetensors": 1, "config.json": CONFIG}, **more
    )


@pytest.fixture
def hub() -> Iterator[Hub]:
    kept = Hub(repositories={REPO: repository()})
    with serving(kept):
        yield kept


def ask(hub: Hub, token: str = "", **wanted: Any) -> dict[str, Any]:
    return hub_commits.of_hub(f"http://{hub.address}/", token, {"repo": REPO, **wanted})


def test_the_newest_commit_its_date_and_what_it_holds(hub: Hub) -> None:
    found = ask(hub, ask="main", hash=["config.json", "none.json"])
    assert (found["commit"], found["date"][:10], found["title"], found["asked"]) == (NEW, "2026-09-20", "Card", "main")
    assert (found["shards"], found["files"], found["bytes"]) == (2, 4, 16 + len(CONFIG)), (
        "shards lie at the top, as the engine reads them"
    )
    assert found["sha256"]["config.json"] == hashlib.sha256(CONFIG).hexdigest()
    assert found["sha256"]["model-1.safetensors"] == hashlib.sha256(b"model-1.safetensors").hexdigest()
    assert found["source"] == f"http://{hub.address}"


def test_how_old_a_pin_is_and_how_far_behind(hub: Hub) -> None:
    assert ask(hub, ask="main", pinned=OLD)["pinned"] == {
        "commit": OLD,
        "date": "2026-08-24T10:00:00.000Z",
        "behind": 1,
        "error": "",
    }
    alone = ask(hub, pinned=OLD)
    assert (alone["commit"], alone["pinned"]["date"][:10], alone["pinned"]["behind"]) == ("", "2026-08-24", None)
    assert not any("tree" in path for path in hub.paths()[-2:]), "its files are not asked for"
    assert "no such revision" in ask(hub, ask="main", pinned=GONE)["pinned"]["error"]


def test_a_hub_without_a_history_still_tells_the_commit(hub: Hub) -> None:
    hub.repositories[REPO].history = False
    found = ask(hub, ask="main", pinned=OLD)
    assert (found["commit"], found["date"], found["pinned"]["date"], found["pinned"]["error"]) == (NEW, "", "", "")


def test_a_commit_or_branch_that_is_asked_for(hub: Hub) -> None:
    assert ask(hub, ask=OLD)["commit"] == OLD
    with pytest.raises(HubError, match="no such revision"):
        ask(hub, ask="refs/pr/1")
    assert any("refs%2Fpr%2F1" in path for path in hub.paths()), "it is one word of the address"


def test_a_repository_that_was_renamed_is_named(hub: Hub) -> None:
    hub.repositories[REPO].name = "other/tiny"
    with pytest.raises(HubError, match=r"acme/tiny is other/tiny at .* renamed or given away"):
        ask(hub, ask="main")
    hub.repositories[REPO].name = "Acme/Tiny"
    assert ask(hub, ask="main")["commit"] == NEW


def test_gated_private_absent(hub: Hub) -> None:
    hub.repositories[REPO].gated = "tok"
    with pytest.raises(HubError, match=r"access denied \(403\). Accept the model's terms"):
        ask(hub, ask="main")
    assert ask(hub, "tok", ask="main", hash=["config.json"])["sha256"]["config.json"]
    with pytest.raises(HubError, match=r"no such repository \(401\), or a private one"):
        hub_commits.of_hub(f"http://{hub.address}", "", {"repo": "acme/none", "ask": "main"})
    with pytest.raises(HubError, match="expected owner/name"):
        hub_commits.of_hub(f"http://{hub.address}", "", {"repo": "../x", "ask": "main"})


def test_a_busy_hub_is_waited_for_and_not_for_ever(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waited.append)
    hub.first = [("/revision/", 429, {"Retry-After": "7"}, b"")]
    assert ask(hub, ask="main")["commit"] == NEW
    assert waited == [7.0]
    hub.first = [("/revision/", 429, {}, b"")] * 9
    with pytest.raises(HubError, match=r"too many requests .*also after waiting"):
        ask(hub, ask="main")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "no JSON"),
        (b"[]", "names no commit"),
        (b'{"sha": "main"}', "names no commit"),
        (b'{"sha": 5}', "names no commit"),
    ],
)
def test_what_is_no_hub(hub: Hub, body: bytes, words: str) -> None:
    hub.first = [("/revision/", 200, {}, body)]
    with pytest.raises(HubError, match=words):
        ask(hub, ask="main")


def test_other_bytes_than_the_list_says_are_no_proof(hub: Hub) -> None:
    hub.first = [("/resolve/", 200, {}, b"{}")]
    assert "config.json" not in ask(hub, ask="main", hash=["config.json"])["sha256"]


class Mirror(Server):
    body = b""

    def answer(self, path: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        return (
            (200, {"Last-Modified": "Mon, 31 Aug 2026 10:00:00 GMT"}, self.body)
            if path.endswith("/manifest.json") and self.body
            else (404, {}, b"")
        )


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    kept = Mirror()
    kept.body = json.dumps({"repo": REPO, "revision": OLD, "files": {"m.safetensors": {"size": 3, "sha256": "c" * 64}}}).encode()
    with serving(kept):
        yield kept


def test_a_mirror_says_of_which_commit_its_files_are(mirror: Mirror) -> None:
    pin = hashlib.sha256(mirror.body).hexdigest()
    found = hub_commits.of_mirror(f"http://{mirror.address}/tiny/", pin, {"repo": REPO, "ask": "main", "pinned": OLD})
    assert (found["commit"], found["since"][:10], found["shards"], found["pinned"]["behind"]) == (OLD, "2026-08-31", 1, 0)
    with pytest.raises(HubError, match="Is it the list that is meant"):
        hub_commits.of_mirror(f"http://{mirror.address}/tiny", "0" * 64, {"repo": REPO, "ask": "main"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no other list says of which commit"),
        (b"{}", "no list that names repo"),
        (b'{"repo": "acme/other", "revision": "' + OLD.encode() + b'", "files": {}}', "is of acme/other@"),
        (b'{"repo": "acme/tiny", "revision": "main", "files": {}}', "expected a commit of acme/tiny"),
    ],
)
def test_a_mirror_that_does_not_say_so(mirror: Mirror, body: bytes, words: str) -> None:
    mirror.body = body
    with pytest.raises(HubError, match=words):
        hub_commits.of_mirror(f"http://{mirror.address}/tiny", "", {"repo": REPO, "ask": "main"})


def module(run_module: RunModule, hub: Hub, **more: Any) -> dict[str, Any]:
    wanted = [{"name": "model", "repo": REPO, "ask": "main"}, {"name": "drafter", "repo": "acme/none", "ask": "main"}]
    return run_module(hub_info, {"endpoint": f"http://{hub.address}", "repositories": wanted, **more})


def test_one_that_can_not_be_asked_does_not_keep_the_other(run_module: RunModule, hub: Hub) -> None:
    made = module(run_module, hub, token="hf_secret")
    assert made["changed"] is False
    assert (made["repositories"]["model"]["commit"], made["repositories"]["model"]["error"]) == (NEW, "")
    assert "no such repository" in made["repositories"]["drafter"]["error"]
    assert "hf_secret" not in json.dumps({name: value for name, value in made.items() if name != "invocation"})


def test_a_token_goes_nowhere_in_the_open(run_module: RunModule, hub: Hub) -> None:
    made = module(run_module, hub, endpoint="http://hub.test", token="hf_secret")
    assert "without TLS" in made["repositories"]["model"]["error"]
    made = module(run_module, hub, endpoint="http://user:password@127.0.0.1")
    assert "holds a password" in made["repositories"]["model"]["error"]


def test_the_module_asks_the_mirror(run_module: RunModule, hub: Hub, mirror: Mirror) -> None:
    made = module(run_module, hub, source="mirror", mirror={"model": f"http://{mirror.address}/tiny"})
    assert made["repositories"]["model"]["commit"] == OLD
    assert "no mirror is named for drafter" in made["repositories"]["drafter"]["error"]
    assert not hub.asked
