from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.registered import Look, look
from ansible.module_utils.sparklanes.docker.containers import NO_DOCKER
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.release import status
from ansible.module_utils.sparklanes.release.status import Row, lines, verdict
from conftest import ROOT
from platforms import needs_root


def row(host: str, status: str = "serving", running: bool = True, **more: Any) -> Row:
    state = {"status": status, "lane": "x", "current": "a" * 12, "last_good": "a" * 12, "last_good_lane": "x"}
    rank = {"running": running, "progress": "serving" if running else "no rank runs here", "container": {"status": "running"}}
    return Row(
        host,
        Look({"deployment_state": state, **more}),
        Look(rank),
        {"rails": [{"hca": "rocep1s0f0", "ipv4": "10.1.0.1", "mtu": 9000}]},
    )


SILENT = look({"unreachable": True})


def test_a_serving_deployment_reads_well() -> None:
    text = "\n".join(lines([row("s1"), row("s2")]))
    assert "serving, passed all gates" in text
    assert "rocep1s0f0 10.1.0.1 mtu 9000" in text


def test_a_dead_rank_is_broken_whatever_the_last_launch_recorded() -> None:
    assert "no rank runs on s2" in verdict([row("s1"), row("s2", running=False)])


def test_without_a_bank_it_says_so() -> None:
    assert "not last good" in verdict([row("s1", "serving-unbanked"), row("s2", "serving-unbanked")])


def test_a_silent_host_is_a_row() -> None:
    text = "\n".join(lines([row("s1"), Row("s2", SILENT, SILENT)]))
    assert "no answer over ssh" in text
    assert "unknown: recorded as serving, but whether a rank runs on s2 could not be seen" in text


def test_a_silent_head_tells_nothing_and_the_others_do() -> None:
    text = "\n".join(lines([Row("s1", SILENT, SILENT), row("s2")]))
    assert "recorded as serving, but whether a rank runs on s1 could not be seen" in text
    assert "lane       x   release aaaaaaaaaaaa" in text


def test_where_nobody_answers_nothing_is_known() -> None:
    assert verdict([Row("s1", SILENT, SILENT), Row("s2", SILENT, SILENT)]) == "unknown: no Spark answers"


def test_a_rank_that_could_not_be_looked_at_says_why() -> None:
    asked = row("s1", "stopped")
    broken = Row("s1", asked.readiness, look({"failed": True, "msg": "docker ps failed (exit 1): no daemon"}))
    assert "the look failed: docker ps failed" in "\n".join(lines([broken]))


def test_a_look_that_failed_is_neither_a_silent_host_nor_a_dead_rank() -> None:
    """Who reads BROKEN launches again, and a launch would restart a lane that serves well."""
    broken = Row(
        "s2", look({"failed": True, "msg": "transaction.json is no JSON"}), Look({"running": True, "progress": "serving"})
    )
    text = "\n".join(lines([row("s1"), broken]))
    assert "serving, passed all gates" in text
    assert "the look failed: transaction.json is no JSON" in text
    assert "no answer over ssh" not in text
    assert verdict([broken]) == "unknown: no Spark could be looked at: s2: transaction.json is no JSON"


def test_what_was_recorded_is_no_answer_where_a_rank_could_not_be_seen() -> None:
    for unseen in (SILENT, look({"failed": True, "msg": "no daemon"})):
        said = verdict([row("s1", "stopped", False), Row("s2", row("s2", "stopped").readiness, unseen)])
        assert said == "unknown: recorded as stopped, but whether a rank runs on s2 could not be seen"


@needs_root
def test_the_screen_is_shown_though_the_looks_fail_on_every_host(tmp_path: Path) -> None:
    """The playbook itself, on two hosts whose Docker answers nothing."""
    there = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "fleet.yml").write_text(
        json.dumps({"all": {"children": {"sparks": {"hosts": {"s1": {}, "s2": {}}, "vars": there}}}})
    )
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'no daemon here' >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
    }
    sources = ["-i", str(ROOT / "inventory/shipped"), "-i", str(tmp_path / "fleet.yml")]
    command = ["ansible-playbook", *sources, str(ROOT / "playbooks/status.yml")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    said = [line.split() for line in done.stdout.splitlines()]
    for number, host in enumerate(("s1", "s2")):
        words = f"{number} {host} unknown - the look failed: docker ps failed (exit 1): no daemon here".split()
        assert said.count(words) == 1, done.stdout
    assert "could not be seen" in done.stdout


def test_disagreeing_ranks_are_broken() -> None:
    assert "disagree" in verdict([row("s1", "stopped", False), row("s2", "failed", False)])


def test_an_open_transaction_is_shown() -> None:
    open_ = {"id": "t1", "phase": "boot", "controller": "desk", "opened": 1, "heartbeat": 1, "lease_seconds": 1}
    assert "transaction t1 of desk in phase 'boot'" in "\n".join(lines([row("s1", transaction=open_), row("s2")]))


KNOWN: dict[str, Any] = {"docker": {"version": "28"}, "containers": [], "gpu": {"present": True, "error": "", "processes": []}}


def facts(release: str, current: str, running: bool = True) -> dict[str, Any]:
    box = {"name": "rank0", "running": running, "release": release, "deployment": "sparks", "lane": "x"}
    return {**KNOWN, "containers": [box], "deployment_state": {"current": current}}


def test_a_release_serves_only_where_every_rank_runs_it_and_the_record_agrees() -> None:
    same = facts("a", "a")
    assert readiness.serves(["s1", "s2"], {"s1": same, "s2": same}, "a")
    assert not readiness.serves(["s1", "s2"], {"s1": same, "s2": facts("a", "")}, "a")
    assert not readiness.serves(["s1", "s2"], {"s1": same, "s2": facts("a", "a", False)}, "a")
    assert not readiness.serves(["s1", "s2"], {"s1": same, "s2": None}, "a")
    assert not readiness.serves([], {}, "a")
    booting = {**same, "transaction": {"id": "t1", "phase": "start"}}
    assert not readiness.serves(["s1", "s2"], {"s1": same, "s2": booting}, "a"), "an interrupted launch left it in its boot"


def test_another_lane_that_serves_is_named() -> None:
    assert readiness.other_lane(facts("a", "a"), "y") == "x"
    assert readiness.other_lane(facts("a", "a"), "x") == ""
    assert readiness.other_lane(KNOWN, "x") == ""
    assert "something unknown" in readiness.other_lane({}, "x")


def test_what_may_serve_counts_as_another_lane() -> None:
    """Live settings of a lane would hurt a container of a person, and whatever runs behind a Docker that does not answer."""
    by_hand = {"name": "vllm", "running": True, "uses_gpu": True, "deployment": "", "lane": ""}
    assert readiness.other_lane({**KNOWN, "containers": [by_hand]}, "x") == "container vllm"
    assert readiness.other_lane({**KNOWN, "containers": [{**by_hand, "uses_gpu": False}]}, "x") == ""
    assert "did not say" in readiness.other_lane({**KNOWN, "docker": {"error": "it did not say"}}, "x")
    assert readiness.other_lane({**KNOWN, "docker": {"error": NO_DOCKER}, "gpu": {"processes": []}}, "x") == ""
    held = {**KNOWN, "gpu": {"processes": [{"pid": 7, "name": "python3"}]}}
    assert readiness.other_lane(held, "x") == "process python3 (pid 7)"
    assert readiness.other_lane({**held, **facts("a", "a"), "gpu": held["gpu"]}, "x") == "", "the process is the rank's"


def test_a_rail_that_is_amiss_is_seen() -> None:
    left = {"hca": "rocep1s0f0", "ipv4": None, "ipv6": "fd00::1", "mtu": 9000}
    assert status.rails({"rails": [left], "errors": [{"code": "HALF_MISSING"}]}) == "rocep1s0f0 fd00::1 mtu 9000, HALF_MISSING!"
    assert status.rails({"rails": [], "errors": [{"code": "NO_IPV4"}, {"code": "NO_IPV4"}]}) == "NO_IPV4!"
    assert status.rails({}) == "-"
