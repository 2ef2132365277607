from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.registered import Look, look
from ansible.module_utils.sparklanes.docker.containers import NO_DOCKER
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.release import status
from ansible.module_utils.sparklanes.release.status import Row, lines, verdict
from conftest import ROOT
from platforms import needs_root

RELEASE = "a" * 12
GOOD = Look({"checks": [{"id": "ENGINE.COMPLETION", "status": "pass"}], "facts": {"model": "tiny"}})
HUNG = Look({"checks": [{"id": "ENGINE.COMPLETION", "status": "fail", "found": "no answer in 60 s"}]})
NOT_ASKED = look(None)
NOW = 1_800_000_000.0


def row(host: str, status: str = "serving", running: bool = True, rank: dict[str, Any] | None = None, **more: Any) -> Row:
    state = {"status": status, "lane": "x", "current": RELEASE, "last_good": RELEASE, "last_good_lane": "x"}
    doing = {
        "running": running,
        "release": RELEASE,
        "lane": "x",
        "api": {"host": "0.0.0.0", "port": 8000},
        "progress": "serving" if running else "no rank runs here",
        "container": {"status": "running", "started_at": "2026-11-30T03:10:22.123Z"},
    }
    return Row(
        host,
        Look({"deployment_state": state, "time": NOW, **more}),
        Look({**doing, **(rank or {})}),
        {"rails": [{"hca": "rocep1s0f0", "ipv4": "10.1.0.1", "mtu": 9000}]},
    )


def transaction(phase: str = "boot", **more: Any) -> dict[str, Any]:
    made = {
        "id": "t1",
        "phase": phase,
        "controller": "me@desk",
        "opened": NOW - 600,
        "heartbeat": NOW - 30,
        "lease_seconds": 900,
        "age_seconds": 30,
    }
    return {**made, "lane": "big", "to_release": "b" * 12, "expired": False, **more}


SILENT = look({"unreachable": True})
ENDED: dict[str, Any] = {"running": False, "container": {"status": "exited", "exit_code": 137}}
LINK_DOWN = {"rails": [], "errors": [{"code": "SOCKET_DOWN", "message": "eth1 is down."}]}


def says(*rows: Row, probe: Look = GOOD, ended: tuple[str, ...] = ()) -> str:
    return verdict(rows, probe, ended).says


def test_a_serving_deployment_reads_well() -> None:
    text = "\n".join(lines([row("s1"), row("s2")], GOOD, elsewhere="10.0.0.1"))
    assert "status     serving, passed all gates; every rank runs and a generation succeeded just now\n" in text
    assert "lane       x   release aaaaaaaaaaaa   since 2026-11-30 03:10:22Z\n" in text
    assert "endpoint   http://10.0.0.1:8000/v1   model tiny\n" in text
    assert "rocep1s0f0 10.1.0.1 mtu 9000" in text
    assert "next" not in text, "there is nothing to do"


def test_a_dead_rank_is_broken_whatever_the_last_launch_recorded() -> None:
    for recorded in ("serving", "serving-unbanked", "restored", "suspect"):
        said = says(row("s1", recorded), row("s2", recorded, rank=ENDED))
        assert said.startswith("BROKEN: no rank runs on s2 (it ended with exit code 137)")
        assert f"It was recorded as {recorded}." in said


@pytest.mark.parametrize("recorded", ["serving", "serving-unbanked", "restored", "suspect"])
@pytest.mark.parametrize(
    ("rank", "probe", "words"),
    [
        ({"container": {"status": "paused"}}, NOT_ASKED, "the rank on s2 is paused"),
        ({"failure": "CUDA error: an illegal access."}, HUNG, "the rank on s2 failed: CUDA error: an illegal access"),
        ({"failure": "CUDA error: an illegal access."}, NOT_ASKED, "the rank on s2 failed: CUDA error: an illegal access"),
        (
            {"failure": "It fell back to sockets", "log": {"failures": [{"code": "socket_fallback"}]}},
            GOOD,
            "the rank on s2 failed: It fell",
        ),
        ({"failure": "its last line: x", **ENDED}, GOOD, "no rank runs on s2 (it ended with exit code 137)"),
        ({"release": "b" * 12}, GOOD, "s2 runs release bbbbbbbbbbbb"),
        ({}, HUNG, "no generation just now: no answer in 60 s"),
        ({}, Look({"checks": []}), "no generation just now: no generation was made"),
    ],
    ids=[
        "paused",
        "failed",
        "failed, not asked",
        "wrong from its boot on",
        "ended",
        "another release",
        "hung",
        "nothing generated",
    ],
)
def test_what_does_not_serve_is_in_the_headline(recorded: str, rank: dict[str, Any], probe: Look, words: str) -> None:
    said = says(row("s1", recorded), row("s2", recorded, rank=rank), probe=probe)
    assert said.startswith("BROKEN: ")
    assert words in said


@pytest.mark.parametrize("recorded", ["serving", "serving-unbanked", "restored", "restored-judged", "suspect"])
@pytest.mark.parametrize("host", ["s1", "s2"])
def test_a_failure_in_a_log_is_a_warning_where_a_generation_succeeded_after_it(recorded: str, host: str) -> None:
    """Who reads BROKEN launches again, and a launch would restart a lane that serves."""
    spoke = {
        "failure": "a request ended in an exception.",
        "remedy": "Read its log.",
        "progress": "failed: a request ended in an exception",
        "log": {"headless": host == "s2", "phase": "serving", "failures": [{"code": "engine_exception"}]},
    }
    rows = [row(name, recorded, rank=spoke if name == host else None) for name in ("s1", "s2")]
    assert "every rank runs and a generation succeeded just now" in says(*rows)
    text = "\n".join(lines(rows, GOOD))
    assert "BROKEN" not in text
    assert f"warning    {host}: its log says: a request ended in an exception. Read its log.\n" in text
    assert text.count("a request ended") == 1, "said once"
    assert "failed:" not in text
    assert "warning" not in "\n".join(lines(rows, HUNG)), "then it is the headline"
    open_ = transaction("judge", expired=True)
    held = [Row(one.host, row(one.host, transaction=open_).readiness, one.rank, one.fabric) for one in rows]
    assert "runs and answered just now" in says(*held)


@pytest.mark.parametrize("recorded", ["serving", "restored"])
def test_a_fabric_that_is_down_is_in_the_headline(recorded: str) -> None:
    cut = row("s2", recorded)
    said = says(row("s1", recorded), Row("s2", cut.readiness, cut.rank, LINK_DOWN))
    assert said.startswith("BROKEN: the fabric of s2 is not usable: eth1 is down; a generation succeeded just now.")
    assert says(row("s1", recorded), Row("s2", cut.readiness, cut.rank, {})).startswith(
        "BROKEN: the fabric of s2 could not be seen"
    )
    assert not says(Row("s1", cut.readiness, cut.rank, {})).startswith("BROKEN"), "one rank alone has no fabric"


def test_ranks_that_boot_by_themselves_are_not_broken() -> None:
    """As after a power cut, where the policy is to start what was last good: no transaction is open then."""
    boots = {"log": {"phase": "weights"}, "progress": "loading weights, 3 of 9"}
    said = says(row("s1", rank=boots), row("s2", rank=boots), probe=HUNG)
    assert said == "starting, nothing answers yet: s1: loading weights, 3 of 9. It was recorded as serving"
    assert says(row("s1", rank={"log": {"phase": "serving"}}), row("s2"), probe=HUNG).startswith("BROKEN")
    assert says(row("s1", rank=boots), row("s2", rank=ENDED), probe=HUNG).startswith("BROKEN")


def test_nothing_serves_for_certain_that_was_not_asked() -> None:
    said = says(row("s1"), row("s2"), probe=look({"failed": True, "msg": "no module"}))
    assert said == "unknown: recorded as serving and every rank runs, but the API was not asked for a generation (no module)"


def test_without_a_bank_and_after_a_restore_it_says_so() -> None:
    assert "not last good" in says(row("s1", "serving-unbanked"), row("s2", "serving-unbanked"))
    assert says(row("s1", "restored"), row("s2", "restored")).startswith("restored, not judged")


def test_a_launch_at_work_is_told_with_its_phase_and_who_does_it() -> None:
    for recorded in ("serving", "restored", "failed", "stopped"):
        for running in (True, False):
            there = [
                row("s1", recorded, running, transaction=transaction()),
                row("s2", recorded, running, transaction=transaction()),
            ]
            said = says(*there)
            assert said.startswith(
                "launching lane big, phase 'boot', by me@desk, since 2027-01-15 07:50:00Z, last heartbeat 30 s ago"
            )
            assert "serving" not in said
            assert "BROKEN" not in said


def test_what_is_no_launch_is_called_by_its_name() -> None:
    assert says(row("s1", transaction=transaction("reboot", lane=""))).startswith("rebooting, phase 'reboot'")
    assert says(row("s1", transaction=transaction("restore"))).startswith("restoring the last good release")
    assert says(row("s1", transaction=transaction("stop", lane=""))).startswith("stopping or recovering")


@pytest.mark.parametrize(
    ("held", "ended"), [({"expired": True, "heartbeat": NOW - 4000}, ()), ({}, ("t1",))], ids=["lease ended", "process gone"]
)
def test_an_interrupted_launch_says_where_and_what_serves_now(held: dict[str, Any], ended: tuple[str, ...]) -> None:
    open_ = transaction("judge", **held)
    said = verdict([row("s1", transaction=open_), row("s2", transaction=open_)], GOOD, ended)
    assert said.says.startswith("interrupted while launching lane big, in phase 'judge' (")
    assert said.says.endswith("Now: release aaaaaaaaaaaa runs and answered just now, judged by nobody since.")
    assert "passed all gates" not in said.says
    assert "playbooks/launch.yml goes on with it (-e lane=big), playbooks/recover.yml" in said.next
    gone = says(row("s1", running=False, transaction=open_), row("s2", running=False, transaction=open_), ended=ended)
    assert gone.endswith("Now: nothing runs.")
    half = says(row("s1", transaction=open_), row("s2", rank=ENDED, transaction=open_), ended=ended)
    assert "serves nothing for certain (no rank runs on s2" in half
    unseen = says(Row("s1", row("s1", transaction=open_).readiness, SILENT), ended=ended)
    assert unseen.endswith("Now: whether anything runs on s1 could not be seen.")


def test_the_heartbeat_is_counted_where_it_lies() -> None:
    assert "last heartbeat 7 s ago" in says(row("s1", transaction=transaction(age_seconds=7)))


@pytest.mark.parametrize("part", ["transaction", "deployment_state"])
def test_what_cannot_be_read_is_said_with_its_file_and_what_runs(part: str) -> None:
    broken = row("s2", **{part: {"id": "unreadable-1", "unreadable": "/var/lib/x.json can't be read (it is empty)"}})
    said = says(row("s1"), broken)
    assert said.startswith(
        "unknown: s2: /var/lib/x.json can't be read (it is empty). Now: release aaaaaaaaaaaa runs and answered"
    )


def test_what_runs_though_it_was_stopped_is_broken_and_what_does_not_is_not() -> None:
    assert says(row("s1", "stopped"), row("s2", "stopped", False)) == "BROKEN: recorded as stopped, and a rank runs on s1"
    assert says(row("s1", "stopped", False)) == "stopped, nothing serves"
    assert says(row("s1", "failed", False)) == "failed, nothing serves"


def test_a_generation_is_asked_for_only_where_every_rank_can_help() -> None:
    def known(rank: Any) -> dict[str, Any]:
        return {"status_rank": rank, "status_readiness": {"readiness": {}}}

    good, api = {"running": True, "container": {}}, {"api": {"host": "h", "port": 1}}
    assert status.askable({"s1": known({**good, **api}), "s2": known(good)}, ["s1", "s2"])
    for bad in ({"running": False}, {**good, "container": {"status": "paused"}}, {"unreachable": True}, {"failed": True}, None):
        assert not status.askable({"s1": known({**good, **api}), "s2": known(bad)}, ["s1", "s2"]), bad
    assert not status.askable({"s1": known({**good, "api": {}}), "s2": known(good)}, ["s1", "s2"])


def test_nothing_is_offered_that_is_not_there() -> None:
    """A lane that no launch has judged is not last good: what would bring it back refuses."""
    for last_good in ("", RELEASE):
        state = {"status": "serving-unbanked", "lane": "x", "current": RELEASE, "last_good": last_good}
        broken = [row("s1", deployment_state=state), row("s2", running=False, deployment_state=state)]
        left = [row("s1", running=False, deployment_state=state, transaction=transaction(expired=True))]
        for rows in (broken, left):
            offered = verdict(rows).next
            assert "playbooks/launch.yml" in offered
            assert ("starts the last good release" in offered) == bool(last_good)


def test_no_generation_is_sent_over_a_link_that_is_down() -> None:
    rank, api = {"running": True, "container": {}}, {"api": {"host": "h", "port": 1}}
    down = {"roce_fabric": {"errors": [{"code": "LINK_DOWN", "message": "fab0 is down"}]}}
    seen: dict[str, Any] = {"s1": {"status_rank": {**rank, **api}}, "s2": {"status_rank": rank, **down}}
    assert not status.askable(seen, ["s1", "s2"])
    assert status.askable({"s1": {"status_rank": {**rank, **api}, **down}}, ["s1"]), "one rank alone needs no fabric"


def test_how_long_ago() -> None:
    assert [status.ago(seconds) for seconds in (-1, 59, 119, 120, 7199, 7200, 200_000)] == [
        "0 s", "59 s", "119 s", "2 min", "119 min", "2 h", "2 d"
    ]  # fmt: skip


def test_a_silent_host_is_a_row() -> None:
    text = "\n".join(lines([row("s1"), Row("s2", SILENT, SILENT)]))
    assert "no answer over ssh" in text
    assert "unknown: recorded as serving, but whether a rank runs on s2 could not be seen" in text


def test_a_silent_head_tells_nothing_and_the_others_do() -> None:
    text = "\n".join(lines([Row("s1", SILENT, SILENT), row("s2")]))
    assert "recorded as serving, but whether a rank runs on s1 could not be seen" in text
    assert "lane       x   release aaaaaaaaaaaa" in text


def test_where_nobody_answers_nothing_is_known() -> None:
    assert says(Row("s1", SILENT, SILENT), Row("s2", SILENT, SILENT)) == "unknown: no Spark answers"


def test_a_rank_that_could_not_be_looked_at_says_why() -> None:
    asked = row("s1", "stopped")
    broken = Row("s1", asked.readiness, look({"failed": True, "msg": "docker ps failed (exit 1): no daemon"}))
    assert "the look failed: docker ps failed" in "\n".join(lines([broken]))


def test_a_look_that_failed_is_neither_a_silent_host_nor_a_dead_rank() -> None:
    """Who reads BROKEN launches again, and a launch would restart a lane that serves well."""
    broken = Row(
        "s2",
        look({"failed": True, "msg": "transaction.json is no JSON"}),
        Look({"running": True, "release": RELEASE, "progress": "serving"}),
        row("s2").fabric,
    )
    text = "\n".join(lines([row("s1"), broken], GOOD))
    assert "serving, passed all gates" in text
    assert "the look failed: transaction.json is no JSON" in text
    assert "no answer over ssh" not in text
    assert says(broken) == "unknown: no Spark could be looked at: s2: transaction.json is no JSON"


def test_what_was_recorded_is_no_answer_where_a_rank_could_not_be_seen() -> None:
    for unseen in (SILENT, look({"failed": True, "msg": "no daemon"})):
        said = says(row("s1", "stopped", False), Row("s2", row("s2", "stopped").readiness, unseen))
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
    assert "disagree" in says(row("s1", "stopped", False), row("s2", "failed", False))


def test_an_open_transaction_is_shown() -> None:
    text = "\n".join(lines([row("s1", transaction=transaction()), row("s2")]))
    assert "open       transaction t1 of me@desk in phase 'boot' (seen on s1)" in text


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
