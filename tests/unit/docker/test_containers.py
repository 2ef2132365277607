# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a container that goes away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.docker.containers import Docker, parse_inspect


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
