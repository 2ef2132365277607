"""script/bench faults without a sandbox: its table, its injectors, and what it calls right and wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.faults import bench, injectors, nodes, plays, progress, report, runner, score, table
from benchmarks.faults.injectors import files, network, processes
from benchmarks.faults.nodes import Rank, Serving, field_of, rank_of

FAULTS = table.table()
CHECKS = {id_ for family in yaml.safe_load((ROOT / "docs/checks.yml").read_text()).values() for id_ in family.get("checks", {})}
CODE = "\n".join(path.read_text() for path in (ROOT / "module_utils/sparklanes").rglob("*.py"))


# --- the table


def test_the_table_has_enough_of_each_kind() -> None:
    assert len(FAULTS) >= 40
    assert {fault.at for fault in FAULTS} == {"before", *plays.MOMENTS}
    assert {fault.controller for fault in FAULTS} == set(table.CONTROLLER)
    assert {fault.run for fault in FAULTS} == set(table.VERBS)
    assert {fault.seconds for fault in FAULTS} == {table.NOTICE_SECONDS, table.SLOW_SECONDS}
    assert sum(fault.ends and not fault.ids and not fault.words for fault in FAULTS) >= 3, "runs in which nothing is amiss"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_what_a_fault_is_called_is_something_the_product_can_say(fault: table.Fault) -> None:
    for id_ in fault.ids:
        assert id_ in CHECKS if "." in id_ else f'"{id_}"' in CODE, f"{id_}: neither in docs/checks.yml nor a cause"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_each_fault_can_be_made_and_is_one(fault: table.Fault) -> None:
    made = fault.injectors()
    changes_the_run = bool(fault.arguments or fault.controller or fault.inventory)
    assert made or changes_the_run or fault.id == "control-healthy"
    assert all(isinstance(injector, injectors.Injector) for injector in made)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serves": ["everything"]}, "'everything' is none of"),
        ({"node": "spark-9"}, "'spark-9' is none of"),
        ({"at": "noon"}, "'noon' is none of"),
        ({"fault": {"hammer": None}}, "'hammer' is none of"),
        ({"ids": []}, "a run that fails names something"),
        ({"controller": "kill"}, "needs a moment and what follows"),
        ({"seconds": 7}, "seconds 7"),
        ({"surprise": 1}, "no such key: surprise"),
        ({"id": "Two Words"}, "id 'Two Words'"),
    ],
)
def test_a_line_that_means_nothing_is_refused(change: dict[str, Any], words: str) -> None:
    line = {"id": "one", "title": "t", "node": "spark-2", "ids": ["LOCK.FREE"]}
    assert table.read(yaml.safe_dump([line]))
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        table.read(yaml.safe_dump([{**line, **change}]))
    with pytest.raises(ValueError, match="twice"):
        table.read(yaml.safe_dump([line, line]))


# --- injectors


@pytest.mark.parametrize("kind", injectors.KNOWN.values(), ids=list(injectors.KNOWN))
def test_each_injector_undoes_what_it_did_or_says_that_nothing_is_left(kind: type[injectors.Injector]) -> None:
    assert not inspect.isabstract(kind)
    assert dataclasses.is_dataclass(kind)
    own = any("undo" in vars(base) for base in kind.__mro__ if base not in (injectors.Injector, injectors.Once))
    assert own or issubclass(kind, injectors.Once)
    assert any(kind.name in one for fault in FAULTS for one in fault.fault), "an injector that no fault uses"


def test_injectors_share_nothing_with_the_product() -> None:
    for path in (ROOT / "benchmarks/faults").rglob("*.py"):
        if path.name != "report.py":  # reads healthy logs with the product's reader, which is what it judges
            assert "module_utils" not in path.read_text(), path


class Played:
    """A node whose commands are run here, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = {"spark-1": self}

    def node(self, name: str) -> Played:
        return self

    def read(self, path: str) -> str | None:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else None

    def attempt(self, command: str, stdin: bytes = b"") -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", re.sub(r"(?<!\w)/var/", f"{self.root}/var/", command)], input=stdin, capture_output=True
        )
        return done.returncode, done.stdout.decode()

    def do(self, command: str, stdin: bytes = b"") -> str:
        code, out = self.attempt(command, stdin)
        assert code == 0, command
        return out.strip()


class Released(Played):
    """One with a release that is last good."""

    def __init__(self, root: Path, good: str) -> None:
        super().__init__(root)
        self.good = good

    def state(self, node: object) -> dict[str, Any]:
        return {"last_good": self.good}


def test_flipped_bytes_are_seen_by_no_time_and_come_back(tmp_path: Path) -> None:
    shard = tmp_path / "var/a.safetensors"
    shard.parent.mkdir()
    shard.write_bytes(bytes(range(256)))
    shard.chmod(0o444)
    before = shard.stat()
    for keep in (True, False):
        flip = files.Flip("spark-1", "/var/*.safetensors", keep_mtime=keep)
        flip.undo(Played(tmp_path))  # never ran: nothing to undo
        flip.inject(Played(tmp_path))
        assert shard.read_bytes() != bytes(range(256))
        assert (shard.stat().st_mtime_ns == before.st_mtime_ns) is keep
        assert shard.stat().st_size == before.st_size
        flip.undo(Played(tmp_path))
        assert shard.read_bytes() == bytes(range(256))
        assert (shard.stat().st_mtime_ns, shard.stat().st_mode) == (before.st_mtime_ns, before.st_mode)


def test_what_was_moved_comes_back_also_where_somebody_made_it_anew(tmp_path: Path) -> None:
    there = tmp_path / "var/model"
    there.mkdir(parents=True)
    (there / "kept").touch()
    away = files.Away("spark-1", "/var/model")
    away.inject(Played(tmp_path))
    assert not there.exists()
    there.mkdir()
    for _ in range(2):
        away.undo(Played(tmp_path))
        assert [path.name for path in (tmp_path / "var").iterdir()] == ["model"]
        assert (there / "kept").exists()


def test_a_cut_state_comes_back_unless_the_product_wrote_it_since(tmp_path: Path) -> None:
    state = tmp_path / "var/lib/sparklanes/deployments/sparks/state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"status": "serving"}')
    cut = files.WriteState("spark-1", "state.json")
    cut.inject(Played(tmp_path))
    assert state.read_text() == '{"status":'
    assert cut.touched(Played(tmp_path)) == ""
    cut.undo(Played(tmp_path))
    assert state.read_text() == '{"status": "serving"}'
    cut.inject(Played(tmp_path))
    state.write_text("{}")
    assert "written over" in cut.touched(Played(tmp_path))
    cut.undo(Played(tmp_path))
    assert state.read_text() == "{}"


def test_a_frozen_rank_is_cut_in_the_release_that_is_last_good(tmp_path: Path) -> None:
    frozen = tmp_path / "var/lib/sparklanes/releases/abc/rank.json"
    frozen.parent.mkdir(parents=True)
    frozen.write_text('{"rank": 1}!')
    cut = files.CutFrozen("spark-1")
    with pytest.raises(nodes.NodeError, match="no release is last good"):
        cut.inject(Released(tmp_path, ""))
    cut.undo(Released(tmp_path, "abc"))  # never ran: nothing to undo
    cut.inject(Released(tmp_path, "abc"))
    assert frozen.read_text() == '{"rank'
    frozen_then = Released(tmp_path, "def")  # another is last good by now
    assert cut.touched(frozen_then) == ""
    cut.undo(frozen_then)
    assert frozen.read_text() == '{"rank": 1}!'


def test_a_strangers_lock_has_the_heartbeat_of_a_clock_that_was_stepped(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/sparklanes/deployments/sparks"
    folder.mkdir(parents=True)
    lock = files.StrangersLock("spark-1", off=3600)
    lock.inject(Played(tmp_path))
    held = json.loads((folder / "transaction.json").read_text())
    assert 3500 < held["heartbeat"] - time.time() < 3700
    lock.undo(Played(tmp_path))
    assert not (folder / "transaction.json").exists()


TOP = """PID    RSS     COMMAND
 812  312004  /usr/bin/python3 /usr/local/bin/vllm serve /models/tiny --headless
 840  801232  VLLM::Worker_TP1
 841    9000  /usr/bin/python3 -c from multiprocessing.resource_tracker import main
"""


def test_the_process_that_computes_is_the_one_that_is_killed() -> None:
    assert processes.worker_of(TOP) == 840
    assert processes.worker_of(TOP.replace("VLLM::Worker_TP1", "python3 -c spawn_main")) == 840, "the largest"
    with pytest.raises(Exception, match="no process"):
        processes.worker_of("PID RSS COMMAND\n")


def test_a_dropped_protocol_is_both_ways_and_all_is_no_protocol() -> None:
    assert network.Drop("spark-2", "tcp", "fab0")._rules() == ["INPUT -i fab0 -p tcp -j DROP", "OUTPUT -o fab0 -p tcp -j DROP"]
    assert network.Drop("spark-2", device="fab0")._rules() == ["INPUT -i fab0 -j DROP", "OUTPUT -o fab0 -j DROP"]


# --- what is true, and what was said


def serving(release: str = "aaa", ids: Sequence[str] = ("1", "2"), text: str | None = "words", paused: bool = False) -> Serving:
    ranks = {name: Rank(id_, release, True, paused) for name, id_ in zip(table.NODES, ids, strict=False)}
    return Serving(ranks, (), text)


def fault(**more: Any) -> table.Fault:
    words = {"id": "x", "title": "t", "node": "spark-2", "ids": ["rank_killed"], "serves": ["last-good"], "logs": table.NODES}
    return table.Fault(**{**words, **more})


def evidence(**more: Any) -> score.Evidence:
    receipt = {
        "cause": {"id": "rank_killed", "host": "spark-2"},
        "gates": {"A": {"checks": [{"id": "LOCK.FREE", "status": "pass"}]}},
    }
    words: dict[str, Any] = {
        "lines": [
            (-3.0, "failed: long before"),
            (2.0, "TASK [rank : See what failed]"),
            (4.5, "spark-2  boot: failed: its container was killed"),
        ],
        "ended_well": False,
        "before": serving(),
        "after": serving(ids=("3", "4")),
        "good": "aaa",
        "text": "words",
        "receipts": [receipt],
        "logs": table.NODES,
    }
    return score.Evidence(**{**words, **more})


def test_all_right() -> None:
    verdict = score.judge(fault(), evidence())
    assert verdict.right
    assert (verdict.node, verdict.cause, verdict.serves, verdict.logs, verdict.ends) == (True,) * 5
    assert (verdict.found, verdict.notice, verdict.notes) == ("last-good", 4.5, [])


OTHER = {"cause": {"id": "peer_lost", "host": "spark-1"}}
CASES = {
    "another node": (
        {},
        {"receipts": [{"cause": {"id": "rank_killed", "host": "spark-1"}}]},
        "node",
        "named spark-1, not spark-2",
    ),
    "no node": ({}, {"receipts": [{"cause": {"id": "rank_killed", "host": ""}}]}, "node", "named no node, not spark-2"),
    "another cause": ({}, {"receipts": [OTHER]}, "cause", "said peer_lost spark-1, not rank_killed"),
    "nothing said": ({}, {"receipts": []}, "cause", "said no id, not rank_killed"),
    "never injected": ({}, {"missed": "the run never came there"}, "cause", "not injected: the run never came there"),
    "nothing serves": ({}, {"after": Serving()}, "serves", "serves: nothing, not last-good"),
    "one rank alone": ({}, {"after": serving(ids=("3",))}, "serves", "serves: broken: a rank runs on spark-1 only"),
    "another release": ({}, {"after": serving("bbb", ("3", "4"))}, "serves", "serves: new, not last-good"),
    "other tokens": ({}, {"after": serving(ids=("3", "4"), text="w0rds")}, "serves", "other tokens than it did"),
    "no generation": ({}, {"after": serving(ids=("3", "4"), text=None)}, "serves", "broken: no generation"),
    "paused": ({}, {"after": serving(ids=("3", "4"), paused=True)}, "serves", "is paused"),
    "restarted without need": ({"serves": ["same"]}, {}, "serves", "serves: last-good, not same"),
    "a stranger's thing": ({}, {"touched": "the container of somebody else was ended"}, "serves", "somebody else"),
    "a log lacks": ({}, {"logs": ["spark-1"]}, "logs", "no log of spark-2"),
    "a false pass": ({}, {"ended_well": True}, "ends", "it ended well"),
}


@pytest.mark.parametrize(("asked", "seen", "question", "words"), CASES.values(), ids=list(CASES))
def test_what_is_wrong_is_counted_and_said(asked: dict[str, Any], seen: dict[str, Any], question: str, words: str) -> None:
    verdict = score.judge(fault(**asked), evidence(**seen))
    assert not verdict.right
    assert getattr(verdict, question) is False
    assert words in "; ".join(verdict.notes)


TABLE = """
    msg: |-
        FAIL  WEIGHTS.STAGED         spark-2                    1 file changed  (want as staged)
        FAIL  PORT.FREE              spark-1, spark-2           8000
        WARN  PARITY.CLOCK           all                        not synchronised
        → spark-2 WEIGHTS.STAGED: stage again
"""


def test_rows_of_a_table_are_read_where_nothing_was_stopped() -> None:
    assert score.rows(TABLE) == [("WEIGHTS.STAGED", "spark-2"), ("PORT.FREE", "spark-1"), ("PORT.FREE", "spark-2")]
    refused = fault(ids=["WEIGHTS.STAGED"], serves=["same"], logs=[])
    seen = evidence(receipts=[], lines=[(9.0, line) for line in TABLE.splitlines()], after=serving(), logs=[])
    verdict = score.judge(refused, seen)
    assert verdict.right
    assert (verdict.logs, verdict.notice) == (None, 9.0)
    assert not score.judge(fault(ids=["PORT.FREE"], serves=["same"], logs=[]), seen).node, "both were named"


def test_words_tell_where_there_is_no_id() -> None:
    status = fault(ids=[], words="BROKEN", ends=True, serves=["any"], logs=[])
    lines = [(3.0, "sparks  BROKEN: no rank runs on spark-2"), (3.1, "spark-1  serving")]
    assert score.judge(status, evidence(receipts=[], lines=lines, ended_well=True)).right
    other = score.judge(status, evidence(receipts=[], lines=[(3.0, "BROKEN: spark-1")], ended_well=True))
    assert (other.cause, other.node) == (True, False)


def test_a_cause_where_nothing_is_amiss_is_a_false_alarm() -> None:
    well = fault(node="", ids=[], ends=True, logs=[])
    assert score.judge(well, evidence(receipts=[], ended_well=True, lines=[])).right
    assert "nothing was amiss" in score.judge(well, evidence(ended_well=True)).notes[0]


def test_a_fault_that_cuts_the_api_is_judged_by_the_containers() -> None:
    cut = evidence(after=serving(text=None, paused=True))
    assert score.serves(cut, cut=True) == "same"
    assert score.serves(cut, cut=False) == "broken: the rank of spark-1, spark-2 is paused"
    assert score.serves(evidence(after=Serving({}, table.NODES)), cut=False).startswith("unknown")


def test_docker_itself_is_asked() -> None:
    box = {"Id": "f00", "Name": "/sparklanes-sparks-rank1", "Config": {"Labels": {"sparklanes.release": "aaa"}}}
    assert rank_of([{**box, "State": {"Running": True, "Paused": True}}], "sparklanes-sparks-rank1") == Rank(
        "f00", "aaa", True, True
    )
    assert rank_of([{**box, "Config": {"Labels": None}}], "sparklanes-sparks-rank1") is None, "somebody else's of that name"
    assert rank_of([box], "sparklanes-sparks-rank0") is None
    assert [field_of(text, "phase") for text in (None, "", "\0garbage", "[]", '{"phase": "start"}')] == ["", "", "", "", "start"]


# --- figures


@pytest.mark.parametrize(("alarms", "trials", "bound"), [(0, 20, 0.1391), (0, 60, 0.0487), (1, 20, 0.2161), (3, 3, 1.0)], ids=str)
def test_the_upper_bound_is_the_exact_one(alarms: int, trials: int, bound: float) -> None:
    """Clopper and Pearson's, one-sided; of none seen it is 1 - 0.05^(1/n)."""
    assert score.upper_bound(alarms, trials) == pytest.approx(bound, abs=2e-4)
    assert score.upper_bound(0, 0) is None


def result(**more: Any) -> dict[str, Any]:
    words = dict.fromkeys(report.QUESTIONS, True) | {
        "right": True,
        "notice": 3.0,
        "ended_well": False,
        "printed": 80,
        "notes": [],
    }
    return {**words, **more}


def told(results: dict[str, Any], faults: list[table.Fault], healthy: int = 0) -> dict[str, Any]:
    logs = [("a.log", []), ("b.log", ["killed"])]
    return {figure.figure: json.loads(figure.line()) for figure in report.figures(results, faults, 2, healthy, logs)}


def test_figures_say_what_missed() -> None:
    one, two = fault(id="one", seconds=5), fault(id="two")
    results = {
        "1/one": result(),
        "2/one": result(notice=8.0),
        "1/two": result(right=False, node=False, notes=["named spark-1, not spark-2"], printed=120),
        "2/two": result(notice=None, logs=None),
        "healthy/1": result(ended_well=True, printed=55),
        "healthy/2": result(ended_well=True, printed=50, right=False, notes=["it ended as failed"]),
    }
    seen = told(results, [one, two], 2)
    assert (seen["faults.wrong"]["value"], seen["faults.wrong"]["ok"]) == (0.25, False)
    assert seen["faults.wrong"]["note"] == "1/two: named spark-1, not spark-2"
    assert (seen["faults.wrong_node"]["value"], seen["faults.wrong_node"]["note"]) == (0.25, "1/two")
    assert seen["faults.wrong_cause"]["ok"]
    assert (seen["faults.late_5s"]["value"], seen["faults.late_30s"]["value"]) == (0.5, 0.5)
    assert "2/one 8 s" in seen["faults.late_5s"]["note"]
    assert "2/two never" in seen["faults.late_30s"]["note"]
    assert (seen["faults.lines_failing"]["value"], seen["faults.lines_failing"]["ok"]) == (120, False)
    assert (seen["faults.lines_passing"]["value"], seen["faults.lines_passing"]["ok"]) == (55, True)
    assert (seen["faults.false_alarms"]["value"], seen["faults.false_alarms"]["ok"]) == (1, False)
    assert (seen["faults.false_alarms_logs"]["value"], seen["faults.false_alarms_logs"]["ok"]) == (1, False)
    assert "b.log: killed" in seen["faults.false_alarms_logs"]["note"]


def test_what_was_not_measured_is_not_ok() -> None:
    seen = told({"1/one": result()}, [fault(id="one")], healthy=3)
    assert (seen["faults.wrong"]["value"], seen["faults.wrong"]["ok"]) == (None, False)
    assert "not measured: 2/one" in seen["faults.wrong"]["note"]


def test_the_healthy_logs_are_those_of_the_tests_of_the_reader() -> None:
    found = report.log_alarms(ROOT)
    assert len([name for name, _ in found if name.startswith("gpu/")]) > 5
    assert len([name for name, _ in found if "/" not in name]) > 10
    assert all((ROOT / "tests/fixtures/engine" / name).exists() for name, _ in found)
    assert not [name for name, codes in found if codes]


# --- a run that goes on


def repository(folder: Path) -> Path:
    (folder / "file").write_text("a")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-q", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder


def test_results_belong_to_one_state_of_the_tree(tmp_path: Path) -> None:
    root = repository(tmp_path)
    clean = progress.tree(root)
    (root / "file").write_text("b")
    changed = progress.tree(root)
    (root / "new").write_text("c")
    assert len({clean, changed, progress.tree(root)}) == 3
    assert changed.startswith(f"{clean}-")


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = progress.Progress(tmp_path, "abc")
    first.keep("1/one", {"right": True})
    assert first.output("1/one", "text").read_text() == "text"
    assert progress.Progress(tmp_path, "abc").has("1/one")
    assert not progress.Progress(tmp_path, "abd").has("1/one")
    assert not progress.Progress(tmp_path, "abc", again=True).has("1/one")


def test_only_what_was_named_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert [fault.id for fault in bench.chosen(FAULTS, "killed-in-boot,overlay-worker", short=False)] == [
        "overlay-worker",
        "killed-in-boot",
    ]
    assert bench.chosen(FAULTS, "", short=False) == FAULTS
    with pytest.raises(SystemExit, match="no such fault: oops"):
        bench.chosen(FAULTS, "oops", short=False)
    assert len(bench.listed(FAULTS).splitlines()) == len(FAULTS)


@pytest.mark.parametrize("kind", ["at", "run", "controller", "then"])
def test_the_short_run_has_one_of_each_kind(kind: str) -> None:
    short = bench.chosen(FAULTS, "", short=True)
    assert 10 < len(short) < 30, "minutes, in a run of everything"
    missing = {getattr(fault, kind) for fault in FAULTS} - {getattr(fault, kind) for fault in short}
    assert not missing - {"twin-elsewhere"}, "which is another two-launches"


@pytest.mark.parametrize("was", ["up", "down"])
@pytest.mark.parametrize("ends", ["well", "halfway up", "interrupted"])
def test_a_sandbox_that_was_down_is_taken_down_however_it_ends(was: str, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[str] = []

    def typing(argv: list[str], check: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
        typed.append(argv[1])
        code = int((argv[1] == "status" and was == "down") or (argv[1] == "up" and ends == "halfway up"))
        if check and code:
            raise subprocess.CalledProcessError(code, argv)
        return subprocess.CompletedProcess(argv, code)

    monkeypatch.setattr(bench.subprocess, "run", typing)
    with contextlib.suppress(subprocess.CalledProcessError, KeyboardInterrupt), bench.sandbox():
        if ends == "interrupted":
            raise KeyboardInterrupt
    assert typed == ["status", *(["up", "down"] if was == "down" else [])]


def test_a_life_of_a_node_is_named_by_the_start_of_its_init() -> None:
    node = nodes.Node("spark-1", 0, "", "", None)  # type: ignore[arg-type]
    with subprocess.Popen(["sleep", "60"]) as init:
        node._pid = init.pid
        assert node.boot == node.boot > 0
        init.kill()


# --- plays


def test_a_signal_reaches_what_leads_a_session_of_its_own(tmp_path: Path) -> None:
    process = subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo $! > pid; wait"], cwd=tmp_path)
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert process.poll() is None
        child = int((tmp_path / "pid").read_text())
        assert plays.descendants(process.pid)[:2] == [process.pid, child]
    finally:
        for pid in plays.descendants(process.pid):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
        process.wait()


def test_lines_of_a_playbook_come_with_their_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/ansible-playbook"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho first; sleep 0.3; echo "$@"; exit 3\n')
    program.chmod(0o755)
    monkeypatch.setattr(plays.sys, "executable", str(program.parent / "python"))
    play = plays.Play(tmp_path, "playbooks/launch.yml", ["-e", "a=1"])
    assert (play.wait(), play.over) == (3, True)
    assert play.output == "first\n-i inventory/sandbox playbooks/launch.yml -l sparks -e a=1"
    assert play.lines[1].at - play.lines[0].at > 0.2
    play.send(9)  # it is over: nobody gets it


def test_the_smaller_inventory_lacks_one_node() -> None:
    text = yaml.safe_dump({"all": {"children": {"sparks": {"hosts": {"spark-1": {}, "spark-2": {}}, "vars": {"a": 1}}}}})
    made = yaml.safe_load(runner.without(text, "spark-2"))["all"]["children"]["sparks"]
    assert made == {"hosts": {"spark-1": {}}, "vars": {"a": 1}}


# --- the runner, on a fleet that is played


class Silent(Played):
    """A node on which nothing is open."""

    name, container = "spark-1", "sparklanes-sparks-rank0"

    def read(self, path: str) -> str | None:
        return "{}" if path.endswith("state.json") else None


class Staged:
    """A fleet whose ranks change with each playbook, as `after` says."""

    def __init__(self, root: Path, after: Sequence[Serving]) -> None:
        self.root = self.home = root
        self.now, self.after = serving(), list(after)
        self.nodes = {"spark-1": Silent(root)}

    def serving(self, ask: bool = True) -> Serving:
        return self.now

    def wait_ready(self) -> bool:
        return True

    def state(self, node: object) -> dict[str, Any]:
        return {"last_good": "aaa", "status": "serving"}

    def held(self) -> str:
        return "20260101T000000Z-beef"


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[runner.Runner, Staged, list[str]]:
    """A runner, its fleet, and what was typed. Each launch leaves a receipt and logs of both nodes."""
    fleet, typed = Staged(tmp_path, [serving(ids=("3", "4")), serving(ids=("5", "6"))]), []

    class Stub:
        def __init__(self, root: Path, playbook: str, arguments: Sequence[str] = (), *more: Any, **options: Any) -> None:
            self.argv = [playbook, *arguments]
            typed.append(" ".join(self.argv))
            self.began = time.monotonic()
            self.lines = [plays.Line(self.began + 2, "boot: failed on spark-2")]
            self.output = self.lines[0].text
            fleet.now = fleet.after.pop(0) if fleet.after else fleet.now
            self.folder = tmp_path / "artifacts/sparks" / str(len(typed))
            self.folder.mkdir(parents=True)

        def wait(self, limit: float = 0) -> int:
            (self.folder / "receipt.json").write_text('{"cause": {"id": "rank_killed", "host": "spark-2"}}')
            for name in table.NODES:
                (self.folder / f"{name}-rank.log").write_text("log")
            for path in self.folder.iterdir():
                os.utime(path, (time.time() + 1, time.time() + 1))  # a file system's clock may be some milliseconds behind
            return 2

        def send(self, number: int) -> None:
            typed.append(f"signal {int(number)}")

    monkeypatch.setattr(runner, "Play", Stub)
    monkeypatch.setattr(runner, "run", lambda root, playbook, *arguments, limit=0: Stub(root, playbook, arguments))
    monkeypatch.setattr(runner, "wait_for", lambda moment, fleet, play: True)
    made = runner.Runner(fleet, progress.Progress(tmp_path / "kept", "abc"))  # type: ignore[arg-type]
    made.good, made.text = "aaa", "words"
    return made, fleet, typed


class Hammer(injectors.Injector):
    """Counts what is done to it."""

    def __init__(self, breaks: bool = False) -> None:
        self.breaks, self.done = breaks, []

    def inject(self, fleet: Any) -> None:
        self.done.append("inject")
        if self.breaks:
            raise nodes.NodeError("no such container")

    def undo(self, fleet: Any) -> None:
        self.done.append("undo")


def played(hammer: Hammer, **more: Any) -> table.Fault:
    made = fault(**{"at": "boot", "new": True, **more})
    object.__setattr__(made, "injectors", lambda: [hammer])
    return made


def test_a_fault_is_injected_judged_undone_and_kept(staged: tuple[runner.Runner, Staged, list[str]]) -> None:
    made, _, typed = staged
    hammer = Hammer()
    made.fault(played(hammer), 1)
    kept = made.progress.results["1/x"]
    assert (kept["right"], kept["found"], kept["notes"], kept["healed"]) == (True, "last-good", [], "")
    assert hammer.done == ["inject", "undo"]
    assert typed == ["playbooks/launch.yml -e lane_max_num_seqs=7"]
    assert "boot: failed" in (made.fleet.root / kept["output"]).read_text()


def test_what_could_not_be_injected_is_wrong_and_undone(staged: tuple[runner.Runner, Staged, list[str]]) -> None:
    made, _, _ = staged
    hammer = Hammer(breaks=True)
    made.fault(played(hammer), 1)
    kept = made.progress.results["1/x"]
    assert kept["right"] is False
    assert "not injected: no such container" in kept["notes"]
    assert hammer.done == ["inject", "undo"]


def test_what_is_not_as_it_was_is_healed_first_by_a_launch(staged: tuple[runner.Runner, Staged, list[str]]) -> None:
    made, fleet, typed = staged
    fleet.after[0] = Serving()
    made.fault(played(Hammer()), 1)
    assert made.progress.results["1/x"]["healed"] == "launch"
    assert made.progress.results["1/x"]["notes"] == ["serves: nothing, not last-good"]
    assert typed[1:] == ["playbooks/launch.yml -e launch_forget_deaths=true"]


def test_a_controller_that_sleeps_wakes_up_after_another_broke_its_lock(staged: tuple[runner.Runner, Staged, list[str]]) -> None:
    made, fleet, typed = staged
    fleet.after.pop()
    made.fault(played(Hammer(), controller="sleep", then="recover", then_arguments=["-e", "break_lock={held}"]), 1)
    assert typed[1:] == [
        f"signal {int(signal.SIGSTOP)}",
        "playbooks/recover.yml -e break_lock=20260101T000000Z-beef",
        f"signal {int(signal.SIGCONT)}",
    ]
    assert "recover failed beside a controller that sleeps" in made.progress.results["1/x"]["notes"][0]
