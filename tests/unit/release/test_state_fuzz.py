"""Whatever stands in a file of state: no traceback, a sentence for a person, and nothing removed or forgotten."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import readiness_info
import release
import staged_prune
import transaction
from ansible.module_utils.sparklanes.rank import after_boot
from ansible.module_utils.sparklanes.release.store import Store
from conftest import RunModule

A, B = "a" * 12, "b" * 12
STATE = {"status": "serving", "lane": "l", "current": A, "last_good": A, "last_good_lane": "l", "reason": "", "deaths": []}
OPEN = {
    "id": "t",
    "phase": "stop",
    "controller": "c",
    "opened": 1.0,
    "heartbeat": 1.0,
    "lease_seconds": 900.0,
    "lane": "l",
    "from_release": A,
    "to_release": A,
    "boot": "b",
    "beat": 1.0,
}
SPEC = {
    "container": "sparklanes-sparks-rank0",
    "image": "r@sha256:1",
    "image_ids": [],
    "secret_env": [],
    "env": {},
    "labels": {},
    "mounts": [{"source": "/etc", "target": "/x"}],
    "options": {},
    "command": ["x"],
    "api": {"host": "h", "port": 1},
}
JOB = {"job": "stage", "pid": 1, "boot": "b", "phase": "p", "done": 1, "total": 2, "rate": 1.0, "began": 1.0, "beat": 1.0}
BAD: list[Any] = [None, 0, -1, 1e308, 10**40, "", "x", [], {}, [[]], {"a": 1}, True, "\ud800", "../..", float("nan")]
RAW = [b"", b"null", b"[]", b"\xff\xfe", b"\0" * 9, b'{"id": "t", "pha', b'{"a":' * 20_000, b"[" * 20_000, b"9" * 9_000]


def mutated(data: dict[str, Any], chance: random.Random) -> bytes:
    """A file that was cut, is of another type, lacks a key, has one too many, or one of another type."""
    if chance.random() < 0.15:
        return chance.choice(RAW)
    made = dict(data)
    key = chance.choice([*made, "new"])
    if chance.random() < 0.25:
        made.pop(key, None)
    else:
        made[key] = chance.choice(BAD)
    return json.dumps(made).encode()


def laid_out(root: Path) -> dict[Path, dict[str, Any]]:
    shutil.rmtree(root, ignore_errors=True)
    files: dict[Path, dict[str, Any]] = {
        root / "deployments/sparks/state.json": STATE,
        root / "deployments/sparks/transaction.json": OPEN,
        root / "deployments/sparks/container.json": {"name": "n", "id": "i"},
        root / f"releases/{A}/rank.json": SPEC,
        root / f"releases/{A}/release.json": {"lane": "l", "nodes": ["a"]},
        root / "jobs/stage/state.json": JOB,
        root / "jobs/stage/process.json": {"pid": 1},
        root / "staged/x/STAGED.json": {"path": str(root / "models/x"), "repo": "r/x", "source": "hub", "files": {}},
    }
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))
    (root / "models/x").mkdir(parents=True)
    return files


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark with nothing running, whose Docker is the stand-in."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(Path(__file__).parents[1] / "fake_docker.py")
    (tmp_path / "bin" / "ss").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ss").chmod(0o755)
    (tmp_path / "docker.json").write_text(json.dumps({"containers": [], "calls": [], "image": "r@sha256:1"}))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}", prepend=":")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(tmp_path / "docker.json"))
    return tmp_path / "lib"


@pytest.mark.parametrize("seed", range(6))
def test_no_file_of_state_breaks_a_module_or_loses_anything(node: Path, run_module: RunModule, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        files = laid_out(node)
        broken = chance.choice(list(files))
        for path in [*files]:
            if path.name == "transaction.json" and path != broken:
                path.unlink()  # else everything is refused for that alone
        broken.write_bytes(mutated(files[broken], chance))
        content = broken.read_bytes()
        what = f"{broken.relative_to(node)}: {content[:200]!r}"
        common = {"deployment": "sparks", "root": str(node)}
        run_module(release, {**common, "release": B, "spec": SPEC, "manifest": {"lane": "x"}, "transaction": None})
        run_module(transaction, {**common, "id": "mine", "state": "acquired", "phase": "stop", "controller": "c"}, check=True)
        run_module(transaction, {**common, "id": "mine", "state": "held"})
        run_module(transaction, {**common, "id": "mine", "state": "closed", "outcome": {"status": "stopped", "last_good": ""}})
        told = run_module(staged_prune, {"root": str(node), "models_dir": str(node / "models"), "state": "listed"})
        assert told.get("failed") or A not in [item["name"] for item in told["items"]], what
        after_boot.act("stay_down", ["sparks"], str(node), str(node / "log"))
        if "staged" not in broken.parts and "jobs" not in broken.parts:
            assert broken.read_bytes() == content, what
        # What runs stays frozen, whatever the file says: where it can't be read nothing goes.
        state = node / "deployments/sparks/state.json"
        if broken != state or told.get("failed"):
            assert A in Store("sparks", str(node)).releases(), what


@pytest.mark.parametrize("raw", range(len(RAW)))
@pytest.mark.parametrize("name", ["state.json", "transaction.json"])
def test_a_look_says_what_it_could_not_read(node: Path, run_module: RunModule, name: str, raw: int) -> None:
    laid_out(node)
    (node / "deployments/sparks/transaction.json").unlink()
    (node / "deployments/sparks" / name).write_bytes(RAW[raw])
    seen = readiness_info.recorded(Store("sparks", str(node)))
    part = seen["transaction" if name == "transaction.json" else "deployment_state"]
    assert name in part["unreadable"]
    assert "playbooks/recover.yml" in part["unreadable"] or "Copy it from another rank" in part["unreadable"]


def two_releases(node: Path) -> Store:
    """A serves, and B is what was last good."""
    laid_out(node)
    (node / "deployments/sparks/state.json").write_text(json.dumps({**STATE, "last_good": B}))
    shutil.copytree(node / "releases" / A, node / "releases" / B)
    return Store("sparks", str(node))


NOT_READ = [*RAW, b'{"nodes": 5}', b'{"nodes": {"a": 1}}', None]


@pytest.mark.parametrize("raw", range(len(NOT_READ)))
def test_a_damaged_release_that_serves_leaves_the_last_good_one_readable(node: Path, raw: int) -> None:
    store, path = two_releases(node), node / f"releases/{A}/release.json"
    content = NOT_READ[raw]
    path.unlink() if content is None else path.write_bytes(content)
    seen = readiness_info.recorded(store)
    assert seen["current_nodes"] is None
    assert (str(path) if content is not None else A) in seen["current_unread"]
    assert seen["last_good"]["manifest"] == {"lane": "l", "nodes": ["a"]}
    assert seen["releases"] == [A, B]


@pytest.mark.parametrize("raw", range(len(RAW)))
@pytest.mark.parametrize("name", ["release.json", "rank.json"])
def test_a_damaged_last_good_release_leaves_readable_who_serves(node: Path, name: str, raw: int) -> None:
    store, path = two_releases(node), node / f"releases/{B}" / name
    path.write_bytes(RAW[raw])
    seen = readiness_info.recorded(store)
    assert str(path) in seen["last_good"]["unreadable"]
    assert (seen["current_nodes"], seen.get("current_unread")) == (["a"], None)


def test_who_serves_is_not_known_by_a_state_that_is_not_read(node: Path) -> None:
    store = two_releases(node)
    store.state_path.write_bytes(b"{")
    seen = readiness_info.recorded(store)
    assert seen["current_nodes"] is None
    assert "state.json" in seen["current_unread"]
    store.state_path.write_text(json.dumps({**STATE, "current": "", "status": "stopped"}))
    assert readiness_info.recorded(store)["current_nodes"] == [], "nothing serves"
    store.state_path.unlink()
    assert readiness_info.recorded(store)["current_nodes"] == []


@pytest.mark.parametrize("kind", ["a folder", "a link", "no access", "too large"])
def test_what_is_no_file_of_ours_is_not_absent(node: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(node)
    path = node / "deployments/sparks/transaction.json"
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link":
        path.symlink_to(node / "nowhere")
    elif kind == "too large":
        with path.open("wb") as stream:
            stream.truncate(17 << 20)
    else:
        path.write_text("{}")

        def refuses(*_: Any, **__: Any) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("ansible.module_utils.sparklanes.common.files.os.open", refuses)
    lost = Store("sparks", str(node)).lost("t", readiness_info.clock.now())
    assert "transaction.json can't be read" in lost
    assert "-e break_lock=unreadable-" in lost or f"mv {path} {path}.broken" in lost
