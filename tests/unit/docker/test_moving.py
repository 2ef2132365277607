# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Images on their way, by a Docker that hangs: it is ended, asked again, and what stood still is said."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_image_pull
import image_registry
import pytest
from ansible.module_utils.sparklanes.common import commands, stall
from ansible.module_utils.sparklanes.docker import archive, moving
from ansible.module_utils.sparklanes.docker.archive import ArchiveError
from ansible.module_utils.sparklanes.docker.images import explain
from conftest import RunModule

Hang = Callable[..., None]
NAME = "ghcr.io/acme/engine@sha256:" + "d" * 64
HINT = "On the Spark, `journalctl -u docker`"


class Fake:
    def __init__(self, root: Path) -> None:
        self.state = root / "docker.json"
        self.state.write_text(json.dumps({"calls": [], "containers": [], "image": ""}))

    def hang(self, **times: int) -> None:
        self.state.write_text(json.dumps({**json.loads(self.state.read_text()), "hangs": times}))

    def asked(self, what: str) -> int:
        return sum(call[0] == what for call in json.loads(self.state.read_text())["calls"])


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(Path(__file__).parents[1] / "fake_docker.py")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(fake.state))
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(stall, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(stall, "SECONDS", 8.0)  # the start of a fake takes a second where much else runs
    monkeypatch.setattr(moving, "moved", lambda: 7)
    return fake


@pytest.fixture
def tar(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "engine.tar"
    path.write_bytes(os.urandom(6 * 1024**2))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("what", ["pull", "push"])
def test_what_hung_once_is_asked_again(docker: Fake, what: str) -> None:
    docker.hang(**{what: 1})
    assert moving.run(what, NAME)[0] == 0
    assert docker.asked(what) == 2


@pytest.mark.parametrize("what", ["pull", "push"])
def test_what_hangs_is_given_up_and_named(docker: Fake, what: str) -> None:
    docker.hang(**{what: 9})
    code, _, error = moving.run(what, NAME)
    assert (code, error) == (commands.TIMED_OUT, f"docker {what} stood still for 8 s and was ended, 2 times")
    assert docker.asked(what) == 2
    assert HINT in explain(error)


def test_a_load_that_hangs_is_ended_and_asked_again(docker: Fake, tar: tuple[Path, str], tmp_path: Path) -> None:
    docker.hang(load=1)
    assert archive.load(*tar, str(tmp_path)) == [f"loaded-{6 * 1024**2}"]
    docker.hang(load=9)
    with pytest.raises(ArchiveError, match=rf"docker load of {tar[0]} stood still for 8 s and was ended, 2 times → .*{HINT}"):
        archive.load(*tar, str(tmp_path))
    assert docker.asked("load") == 4


def test_a_save_that_hangs_leaves_nothing_and_is_asked_again(docker: Fake, tmp_path: Path) -> None:
    target, told = tmp_path / "store/image.tar", [0]
    docker.hang(save=1)
    archive.save("engine", target, told=told.append)
    assert (target.read_text(), sum(told)) == ("whole\n", 6), "what came of the one that hung counts no more"
    docker.hang(save=9)
    with pytest.raises(ArchiveError, match=rf"docker save of engine stood still for 8 s and was ended, 2 times → .*{HINT}"):
        archive.save("engine", tmp_path / "store/other.tar")
    assert [path.name for path in target.parent.iterdir()] == ["image.tar"]


def test_what_docker_moves_is_getting_on(docker: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of gigabytes comes without a word of the client."""
    steps = itertools.count(0, moving.LEAST)
    monkeypatch.setattr(moving, "moved", lambda: next(steps))
    monkeypatch.setattr(stall, "SECONDS", 0.3)
    slow = docker.state.parent / "bin/docker"
    slow.unlink()
    slow.write_text("#!/bin/sh\nsleep 1.5\necho done\n")
    slow.chmod(0o755)
    assert moving.run("pull", NAME)[:2] == (0, "done\n")
    monkeypatch.setattr(moving, "moved", lambda: None)
    assert moving.run("pull", NAME)[:2] == (0, "done\n"), "what nobody can count ends nothing"


def test_a_pull_that_hangs_names_its_spark(
    docker: Fake, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_image_pull.EngineImage, "daemon", {"image_store": "overlay2", "image_root": str(tmp_path)})
    monkeypatch.setattr(engine_image_pull.EngineImage, "remote_bytes", lambda *_: 0)
    docker.hang(pull=9)
    repository, _, digest = NAME.partition("@")
    ask: dict[str, Any] = {"repository": repository, "digest": digest, "host": "spark-1", "images_dir": str(tmp_path)}
    said = run_module(engine_image_pull, ask)["msg"]
    assert said.startswith(f"spark-1: {NAME} could not be pulled: docker pull stood still for 8 s and was ended, 2 times → ")
    assert HINT in said


def test_a_push_that_hangs_is_no_digest(docker: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = image_registry.Registry.__new__(image_registry.Registry)
    registry.docker, registry.module, registry.params = image_registry.Docker(lambda *_, **__: (0, "", "")), None, {"image": "x"}
    assert registry.push("10.0.0.1:1/x:staged") == "sha256:" + "a" * 64
    docker.hang(push=9)
    with pytest.raises(image_registry.DockerError, match="docker push stood still for 8 s and was ended, 2 times"):
        registry.push("10.0.0.1:1/x:staged")


def test_the_kernel_counts_what_the_daemons_moved(tmp_path: Path) -> None:
    def process(number: int, name: str, io: str | None) -> None:
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
        if io is not None:
            (tmp_path / str(number) / "io").write_text(io)

    (tmp_path / "self").mkdir()
    assert moving.moved(tmp_path) is None
    process(1, "dockerd", "rchar: 10\nwchar: 5\nsyscr: 9\nsyscw: 9\nread_bytes: 4\nwrite_bytes: 4\ncancelled_write_bytes: 0\n")
    process(2, "containerd", "rchar: 100\nwchar: 50\n")
    process(3, "python3", "rchar: 1000\nwchar: 1000\n")
    process(4, "dockerd", None)
    process(5, "dockerd", "odd")
    assert moving.moved(tmp_path) == 165
