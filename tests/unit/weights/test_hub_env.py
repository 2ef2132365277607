# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a site says of the Hub's client reaches it, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_stage
import pytest
from ansible.module_utils.sparklanes.jobs.runner import Jobs, Started
from ansible.module_utils.sparklanes.weights.hub import client_environment
from conftest import RunModule
from staging_nodes import LOCK


def ask(tmp_path: Path, **more: Any) -> dict[str, Any]:
    model = {"name": "model", "path": str(tmp_path / "models/x"), "repo": "a/b", "revision": "c" * 40}
    return {
        "models": [model],
        "staged_dir": str(tmp_path / "staged"),
        "jobs_dir": str(tmp_path / "jobs"),
        "reserve_gib": 0,
        "hub_lock": LOCK,
        **more,
    }


def test_it_reaches_the_client_and_beats_our_own(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def start(_jobs: Jobs, _job: str, _function: Any, _args: Any, secrets: dict[str, str], **_more: Any) -> Started:
        given.update(secrets)
        return Started("stage", "1", True)

    monkeypatch.setattr(Jobs, "start", start)
    result = run_module(model_stage, ask(tmp_path, hub_env={"HF_XET_NUM_CONCURRENT_RANGE_GETS": 2}))
    assert not result.get("failed"), result
    base = {name.removeprefix("env:"): value for name, value in given.items() if name.startswith("env:")}
    assert client_environment("https://h", "", tmp_path, base)["HF_XET_NUM_CONCURRENT_RANGE_GETS"] == "2"


@pytest.mark.parametrize("name", ["HF_TOKEN", "HF_HOME", "LD_PRELOAD", "PATH"])
def test_no_other_variable_is_taken(tmp_path: Path, run_module: RunModule, name: str) -> None:
    result = run_module(model_stage, ask(tmp_path, hub_env={name: "x"}))
    assert result["failed"]
    assert f"hub_env has {name}; expected one of" in result["msg"]
