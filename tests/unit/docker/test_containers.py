# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a container that goes away."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker import containers
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError, parse_inspect


def test_the_record_beside_a_saved_log_holds_no_secret(tmp_path: Path) -> None:
    words = ["serve", "/m", "--api-key", "SECRET"]
    entry = {
        "Id": "a",
        "Name": "/x",
        "Args": words[1:],
        "Config": {"Env": ["MINE=SECRET", "AWS_SECRET_ACCESS_KEY=SECRET", "HF_HOME=/x"], "Cmd": words, "Entrypoint": None},
    }
    binary = tmp_path / "docker"
    binary.write_text("#!/bin/sh\necho a line\n")
    binary.chmod(0o755)

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        return 0, json.dumps([entry]), ""

    path = tmp_path / "logs" / "x.log"
    Docker(run, str(binary)).save_logs(parse_inspect(json.dumps([entry]))[0], path, ["MINE"])
    assert path.read_text() == "a line\n"
    text = path.with_suffix(".inspect.json").read_text()
    assert "SECRET" not in text.replace("AWS_SECRET_ACCESS_KEY", "")
    assert json.loads(text)[0]["Config"]["Cmd"] == ["serve", "/m", "--api-key", "(hidden)"]
    assert json.loads(text)[0]["Config"]["Env"][2] == "HF_HOME=/x"


def test_a_daemon_that_hangs_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "QUESTION_SECONDS", 0.3)
    monkeypatch.setattr(containers, "DEED_SECONDS", 0.3)
    binary = tmp_path / "docker"
    binary.write_text("#!/bin/sh\nsleep 60\n")
    binary.chmod(0o755)
    docker, began = Docker(commands.run, str(binary)), time.monotonic()
    box = parse_inspect('[{"Id": "a", "Name": "/x"}]')[0]
    for ask in (docker.info, docker.containers, lambda: docker.call("start", "x")):
        with pytest.raises(DockerError, match="docker did not answer"):
            ask()
    saved = docker.save_logs(box, tmp_path / "x.log")
    assert (saved.path, saved.whole) == ("", False)
    assert saved.problem == "docker logs printed nothing and ended with exit code -9"
    assert not (tmp_path / "x.log").exists()
    assert time.monotonic() - began < 20
