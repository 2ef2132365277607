# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A model from a folder behind a plain web server: with ranges (the sandbox's Hub serves as one) and without."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.sums import write
from ansible.module_utils.sparklanes.weights.model import StagingError
from ansible.module_utils.sparklanes.weights.sources import listed
from checkpoints import SECOND
from staging_nodes import Node, Start, hub, node, same, source

__all__ = ["hub", "node", "source"]  # fixtures


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def plain(source: Path) -> Iterator[str]:
    """A server that knows no ranges."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(source))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def sums(folder: Path) -> str:
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return "".join(lines)


def stage(node: Node, url: str, pin: str = "", **args: Any) -> dict[str, Any]:
    mirror = {"urls": {"model": url}, "lists": {"model": pin} if pin else {}}
    return node.stage("c" * 40, source="mirror", mirror=mirror, **args)


def begun(node: Node, name: str, data: bytes) -> None:
    """As an interrupted download left it."""
    path = node.path.parent / ".tiny.incoming" / hashlib.sha256(name.encode()).hexdigest()[:16] / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


@pytest.mark.parametrize("ranges", [True, False])
def test_what_the_list_names_is_fetched_and_goes_on_where_it_was_cut(
    node: Node, hub: Start, source: Path, plain: str, ranges: bool
) -> None:
    text = sums(source)
    endpoint, revision = hub()
    url = f"{endpoint}/acme/tiny/resolve/{revision}" if ranges else plain
    whole = (source / SECOND).read_bytes()
    begun(node, SECOND, whole[:5000])
    begun(node, "config.json", b"wrong")
    result = stage(node, url, hashlib.sha256(text.encode()).hexdigest())
    assert result["msg"] == ""
    assert result["staged"]
    (source / "SHA256SUMS").unlink()
    assert same(source, node.path)
    assert "job" not in node.ask("c" * 40, source="mirror", mirror={"urls": {"model": "http://127.0.0.1:9"}})


def test_a_list_of_ours_serves_as_well(node: Node, hub: Start, source: Path, plain: str) -> None:
    endpoint, revision = hub()
    assert node.stage(revision, endpoint=endpoint)["staged"]
    manifest = next((node.root / "staged").glob("*/manifest.json")).read_bytes()
    (source / "manifest.json").write_bytes(manifest)
    other = Node(node.root / "other", node.run_module, "s2")
    mirror = {"urls": {"model": plain}}
    result = other.stage(revision, source="mirror", mirror=mirror)
    assert result["msg"] == ""
    assert same(other.path, node.path)


def test_the_lanes_own_hashes_are_a_list(node: Node, source: Path, plain: str) -> None:
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in source.iterdir()}
    result = stage(node, plain, guards={"sha256": digests})
    assert result["msg"] == ""
    assert same(source, node.path)


def test_what_is_wrong_is_said(node: Node, source: Path, plain: str) -> None:
    assert "nothing says what the files must be" in stage(node, plain)["msg"]
    text = sums(source)
    assert (
        f"hashes to {hashlib.sha256(text.encode()).hexdigest()[:16]}…, not ffffffffffffffff…"
        in stage(node, plain, "f" * 64)["msg"]
    )
    (source / SECOND).write_bytes((source / SECOND).read_bytes()[:-1] + b"?")
    result = stage(node, plain)
    assert f"sent {SECOND} with" in result["msg"]
    assert not (node.path / SECOND).exists()
    (source / SECOND).unlink()
    assert f"{plain}{SECOND}: no size" in stage(node, plain)["msg"]
    assert "does not answer" in stage(node, "http://127.0.0.1:9")["msg"]
    missing = node.stage("c" * 40, source="mirror", mirror={"urls": {}})
    assert "no mirror is named for model" in missing["msg"]


@pytest.mark.parametrize(
    ("url", "pin", "warns"),
    [
        ("http://mirror/x", "", True), ("http://10.0.0.1:80/x", "", True), ("ftp://mirror/x", "", True), ("http://[::", "", True),
        ("http://mirror/x", "f" * 64, False), ("https://mirror/x", "", False), ("http://127.0.0.1:8/x", "", False), ("", "", False),
    ],
)  # fmt: skip
def test_a_mirror_in_the_open_whose_list_nothing_pins_is_a_warning(node: Node, url: str, pin: str, warns: bool) -> None:
    mirror = {"urls": {"model": url} if url else {}, "lists": {"model": pin} if pin else {}}
    result = node.ask("c" * 40, state="planned", source="mirror", mirror=mirror)
    found = [check for check in result["checks"] if check["id"] == "SOURCE.UNPINNED"]
    assert [check["status"] for check in found] == ["warn"] * warns
    assert all("model_weights_mirror_lists: {model: …}" in check["remedy"] for check in found)
    assert "SOURCE.UNPINNED" not in str(node.ask("c" * 40, state="planned", mirror=mirror)), "nobody asks it"


def test_a_list_without_a_hash_is_refused_and_names_the_file(node: Node, source: Path, plain: str) -> None:
    files: dict[str, dict[str, Any]] = {file.name: {"size": file.stat().st_size} for file in source.iterdir()}
    for name in files:
        files[name]["sha256"] = hashlib.sha256((source / name).read_bytes()).hexdigest()
    (bare := files[SECOND]).pop("sha256")
    (source / "manifest.json").write_text(json.dumps({"repo": "acme/tiny", "revision": "c" * 40, "files": files}))
    assert f"mirror says no hash of {SECOND}, so any bytes would pass for it" in stage(node, plain)["msg"]
    assert not node.path.exists()
    own = {SECOND: hashlib.sha256((source / SECOND).read_bytes()).hexdigest()}
    assert stage(node, plain, guards={"sha256": own})["msg"] == ""
    assert bare == {"size": (node.path / SECOND).stat().st_size}


@pytest.mark.parametrize("line", ["abc  x", f"{'a' * 64}  ../x", f"{'a' * 64}  --help"])
def test_a_line_that_names_no_file_of_a_model_is_refused(line: str) -> None:
    with pytest.raises(StagingError):
        listed(line.encode())


def test_a_list_of_an_archive_is_read() -> None:
    made = {"config.json": "a" * 64, "d/y z": "b" * 64}
    assert listed(write(made).encode()) == made
