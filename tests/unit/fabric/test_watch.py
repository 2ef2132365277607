# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A cut fabric is noticed within seconds, with its pair; a Spark that does not listen, or a watch that has ended, is none."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import fabric_watch
import pytest
from ansible.module_utils.sparklanes.common.registered import Look
from ansible.module_utils.sparklanes.fabric import exchange, watch
from ansible.module_utils.sparklanes.jobs.runner import Jobs
from ansible.module_utils.sparklanes.release.cause import weigh
from conftest import RunModule, free_port
from test_exchange import HERE, THERE, other_end, probe

BOOT = "b"


class Quiet:
    """A reporter that keeps nothing."""

    def phase(self, name: str) -> None: ...

    def alive(self) -> None: ...


def line(**more: Any) -> dict[str, Any]:
    return {**probe(), "since": 90.0, "tries": 3, "outcome": "silent", "error": "nothing came back within 3 s", **more}


def noted(*lines: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"boot": BOOT, "time": 99.0, "lines": list(lines), **more}


def test_what_does_not_come_back_for_seconds_is_cut() -> None:
    (found,) = watch.cut(noted(line(), line(peer="s3", tries=0, since=99.0)), 100.0, BOOT)
    assert (found["peer"], found["seconds"]) == ("s2", 10.0)
    text = watch.sentence([found])
    assert text == (
        "the fabric is cut: rail 0 ( 127.0.0.1) to s2 (127.0.0.2) for 10 s: no byte came back (nothing came back within 3 s)"
    )


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        noted(line(tries=1)),
        noted(line(since=97.0)),
        noted(line(), boot="another"),
        noted(line(), time=50.0),
        noted(line(since="x")),
        {"boot": BOOT, "time": 99.0, "lines": [{}]},
        {"boot": BOOT, "time": 99.0, "lines": None},
    ],
)
def test_what_nobody_measured_lately_accuses_no_fabric(data: Any) -> None:
    assert watch.cut(data, 100.0, BOOT) == []


def test_a_rank_waits_by_its_phase_or_by_its_silence() -> None:
    assert watch.waits("init", 0)
    assert watch.waits("rendezvous", 1)
    assert not watch.waits("weights", 5)
    assert watch.waits("kv_cache", 31)
    assert not watch.waits("serving", 500)
    assert not watch.waits("weights", None)


def run_watch(path: Path, port: int, seconds: float) -> threading.Thread:
    args = {"probes": [probe()], "path": str(path), "seconds": seconds, "port": port}
    thread = threading.Thread(target=watch.watch, args=(args, {}, Quiet()), daemon=True)
    thread.start()
    return thread


def until_written(path: Path, wanted: Any) -> dict[str, Any]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists():
            data: dict[str, Any] = json.loads(path.read_text())
            if wanted(data["lines"][0]):
                return data
        time.sleep(0.05)
    raise AssertionError("it was never written")


def test_the_watch_sees_a_peer_fall_silent_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SECONDS", 0.3)
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.1)
    path, port = tmp_path / "sparks.json", free_port()
    run_watch(path, port, 60)
    # Nobody listens yet: a refusal came through the fabric.
    assert until_written(path, lambda one: one["outcome"])["lines"][0]["tries"] == 0
    with other_end(port, lambda peer: None):
        data = until_written(path, lambda one: one["tries"] >= watch.CUT_TRIES)
        assert data["lines"][0]["outcome"] == "silent"
        assert watch.cut(data, data["lines"][0]["since"] + watch.CUT_SECONDS, data["boot"])
    echo = exchange.Echo([THERE], port)
    data = until_written(path, lambda one: one["outcome"] == "answered")
    assert data["lines"][0]["tries"] == 0
    assert exchange.ask(probe(THERE, HERE), 1, port)["outcome"] == "answered", "it answers the others meanwhile"
    echo.close()


def test_a_watch_that_ended_leaves_nothing_to_believe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.1)
    path = tmp_path / "sparks.json"
    run_watch(path, free_port(), 0.3).join()
    assert not path.exists(), "what is not measured any more is not there"


def test_the_module_starts_the_watch_anew_and_ends_it(
    tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_watch, "Jobs", lambda run, root: Jobs(run, root, systemd=False))
    monkeypatch.setattr(watch, "ROOT", tmp_path / "run")
    monkeypatch.setattr(watch, "record", lambda deployment: tmp_path / "run" / f"{deployment}.json")
    args = {"deployment": "sparks", "state": "started", "probes": [probe()], "jobs_dir": str(tmp_path / "jobs")}
    jobs = Jobs(lambda argv: (0, "", ""), tmp_path / "jobs", systemd=False)
    try:
        assert run_module(fabric_watch, args)["actions"] == ["Watch the fabric to s2"]
        assert run_module(fabric_watch, args)["actions"] == ["End the watch of the fabric", "Watch the fabric to s2"]
        until_written(tmp_path / "run" / "sparks.json", lambda one: one["outcome"])
    finally:
        ended = run_module(fabric_watch, {**args, "state": "absent"})
    assert ended["actions"] == ["End the watch of the fabric"]
    assert not jobs.status("fabric-sparks").running
    assert not run_module(fabric_watch, {**args, "state": "absent"})["changed"]
    assert not run_module(fabric_watch, {**args, "probes": []})["changed"], "one rank has nobody to ask"


def test_a_cut_fabric_is_hardware_and_no_death() -> None:
    """A person looks at the cable; no release is started over it, and no death is counted."""
    found = {
        "code": "fabric_cut",
        "message": watch.sentence([line(seconds=9.0)]),
        "remedy": watch.REMEDY,
        "hardware_or_memory": True,
    }
    rank = {"running": True, "container": {"status": "running"}, "log": {"failures": [found | {"consequence": False}]}}
    why = weigh({"s1": Look(rank), "s2": Look({"running": True, "container": {}, "log": {}})}, {"msg": "boot: failed"})
    assert why["sentence"].startswith("s1: the fabric is cut: rail 0")
    assert "to s2 (127.0.0.2)" in why["sentence"]
    assert (why["hardware_or_memory"], why["death"], why["id"]) == (True, "", "fabric_cut")
