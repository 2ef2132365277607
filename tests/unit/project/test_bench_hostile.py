# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""script/bench hostile: its table, its judge, and that a hole in the product turns a figure red: a judge that can't fail proves nothing."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.common import web
from ansible.module_utils.sparklanes.docker import jit_cache as docker_jit_cache
from ansible.module_utils.sparklanes.engine import lines
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.weights import folder, model, sources
from ansible.module_utils.sparklanes.weights.chain import take
from ansible.module_utils.sparklanes.weights.model import Content
from conftest import ROOT
from platforms import needs_root

sys.path.insert(0, str(ROOT))

from benchmarks.hostile import bench, cases, flips, judge
from benchmarks.hostile.arena import Arena
from benchmarks.hostile.judge import Outcome
from benchmarks.hostile.plays import PLAYS

CASES = cases.table(list(PLAYS))


def test_the_table_has_enough_of_each_group_and_uses_each_play() -> None:
    counts = Counter(case.group for case in CASES)
    assert len(CASES) >= bench.LEAST_CASES
    assert set(counts) == set(cases.GROUPS)
    assert min(counts.values()) >= 10
    assert {case.play for case in CASES} == set(PLAYS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"play": "hammer"}, "'hammer' is none of"),
        ({"ends": "well"}, "'well' is none of"),
        ({"surprise": 1}, "no such key: surprise"),
        ({"id": "Two Words"}, "id 'Two Words'"),
    ],
)
def test_a_line_that_means_nothing_is_refused(change: dict[str, Any], words: str) -> None:
    line = {"id": "one", "title": "t", "play": "mirror"}
    assert cases.read(yaml.safe_dump([line]), "mirror", list(PLAYS))
    with pytest.raises(ValueError, match=words):
        cases.read(yaml.safe_dump([{**line, **change}]), "mirror", list(PLAYS))


def test_the_judge_shares_nothing_with_the_product() -> None:
    tree = ast.parse((ROOT / "benchmarks/hostile/judge.py").read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path / "arena")


def test_what_lies_outside_is_watched(arena: Arena) -> None:
    outside = arena.outside
    assert outside.touched() == []
    (outside.folder / "cron.d/job").touch()
    (outside.folder / "victim").write_text("important\n")
    (outside.folder / "passwd").unlink()
    told = {"cron.d was changed", "cron.d/job was made", "passwd was removed", "victim was changed"}
    assert set(outside.touched()) == {*told, ". was changed"}
    assert outside.given_away({"a": b"x", "b": outside.secret.encode()}) == ["the secret of shadow is in b"]


def test_what_is_kept_is_compared_with_the_truth(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    true = {"a": judge.sha256(tmp_path / "a"), "b": "x"}
    assert judge.kept(tmp_path, {"a": true["a"]}) == ["b is a link, not listed"]
    assert len(judge.kept(tmp_path, {"a": "0" * 64})) == 2


def test_a_traceback_a_hang_and_a_control_are_seen(arena: Arena) -> None:
    arena.run("breaks", lambda: [][1])  # type: ignore[misc]
    arena.run("hangs", lambda: time.sleep(60), seconds=0.3)
    arena.run("is well", lambda: print('{"msg": "x"}'))
    outcome = judge.printed(arena.says)
    arena.end()
    assert len(outcome.tracebacks) == 1
    assert outcome.tracebacks[0].startswith("breaks: IndexError")
    assert outcome.without_end == ["hangs did not end"]
    assert arena.says[-1].result == {"msg": "x"}
    assert judge.controls("a\x1b[2J\u202e") == ["'\\x1b' is shown", "'\\u202e' is shown"]


def any_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Content, "matches", lambda *_: True)


def any_name(patch: pytest.MonkeyPatch) -> None:
    for module in (model, sources, folder):
        patch.setattr(module, "safe_name", lambda name: name)
        patch.setattr(module, "of_model", lambda _: True)


def never() -> Any:
    class Never:
        def search(self, _: str) -> None:
            return None

    return Never()


def any_line(patch: pytest.MonkeyPatch) -> None:
    for name in ("_ACCESS", "_ASKED"):
        patch.setattr(lines, name, never())


HOLES: list[tuple[str, str, str, Callable[[pytest.MonkeyPatch], None]]] = [
    ("mirror", "mirror-evil-code-right-list", "wrong_bits", any_bytes),
    (
        "mirror",
        "mirror-list-with-nothing",
        "tracebacks",
        lambda patch: patch.setattr("ansible.module_utils.sparklanes.weights.steps.StagingError", TypeError),
    ),
    (
        "neighbour",
        "neighbour-evil-code",
        "wrong_bits",
        lambda patch: [any_bytes(patch), patch.setattr(take.ChainSource, "promised", lambda *_: "")][0],
    ),
    (
        "neighbour",
        "neighbour-endless",
        "without_end",
        lambda patch: patch.setattr(take, "writes_at_most", lambda _, command: list(command)),
    ),
    ("hub", "hub-list-sent-into-the-open", "wrong_bits", lambda patch: patch.setattr(web, "in_the_open", lambda _: False)),
    ("urls", "log-prompt-of-another-boot", "verdicts", any_line),
    ("names", "names-above-mirror", "touched", any_name),
    ("archives", "archive-absolute", "touched", lambda patch: patch.setattr(docker_jit_cache, "_name", lambda _, name: name)),
    ("links", "link-log-part", "touched", lambda patch: patch.setattr(os, "O_NOFOLLOW", 0)),
    ("states", "state-transaction-raw", "verdicts", lambda patch: patch.setattr(Store, "transaction", lambda _: None)),
]


def test_each_group_has_a_hole_that_is_looked_for() -> None:
    assert {group for group, *_ in HOLES} == set(cases.GROUPS)
    known = {case.id: case.group for case in CASES}
    assert all(known[id_] == group for group, id_, *_ in HOLES)


@needs_root
@pytest.mark.parametrize(("group", "id_", "kind", "plant"), HOLES, ids=[f"{id_}" for _, id_, *_ in HOLES])
def test_a_planted_hole_turns_the_figure_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, id_: str, kind: str, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    tmp_path.chmod(0o755)
    case = next(one for one in CASES if one.id == id_)
    assert bench.play(case, tmp_path / "whole", 1).red == [], "without a hole nothing is red"
    plant(monkeypatch)
    outcome = bench.play(case, tmp_path / "hole", 1)
    assert getattr(outcome, kind), outcome.red
    red = {figure.figure: figure for figure in bench.figures({id_: outcome}, [case], whole=False) if not figure.ok}
    assert f"hostile.{next(name for one, name, _ in bench.KINDS if one == kind)}" in red


def test_too_few_cases_are_red() -> None:
    shown = {figure.figure: figure for figure in bench.figures({"a": Outcome()}, CASES[:1], whole=True)}
    assert not shown["hostile.cases_lacking"].ok
    assert all(figure.ok for name, figure in shown.items() if name != "hostile.cases_lacking")


@needs_root
@pytest.mark.parametrize("way", sorted(flips.WAYS))
def test_a_flip_that_is_not_found_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(flips, "SHARE", ((way, 1.0),))
    done = flips.trial(20, 3, tmp_path)
    assert (done.made, done.found, done.wrong) == (20, 20, [])
    any_bytes(monkeypatch)
    monkeypatch.setattr(take.ChainSource, "promised", lambda *_: "")
    done = flips.trial(20, 3, tmp_path)
    assert done.found < done.made if way != "rsync" else done.made == 20
