# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A chain of Sparks on loopback, with real rsync daemons: it flows, and goes round what is broken."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from checkpoints import SECOND, checkpoint, flip, rot
from conftest import RunModule
from staging_nodes import Chain, Node, Start, hub, same, source

__all__ = ["hub", "source"]  # fixtures
Make = Callable[..., Chain]


@pytest.fixture
def chain(tmp_path: Path, run_module: RunModule, hub: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """`chain(count, *options of the Hub)`."""
    monkeypatch.setattr(jobs_runner, "SYSTEMD", tmp_path / "no-systemd")
    made: list[Node] = []

    def make(count: int, *options: str, patience: float = 3) -> Chain:
        made.extend(Node(tmp_path / f"s{n}", run_module, f"s{n}", f"127.0.0.{10 + n}") for n in range(1, count + 1))
        endpoint, revision = hub(*options)
        return Chain(made, revision, endpoint, patience)

    yield make
    for node in made:
        node.end()


def complete(chain: Chain, source: Path, results: list[dict[str, object]]) -> None:
    """All nodes have the very files of the source, by their bytes, and say so."""
    for node, result in zip(chain.nodes, results, strict=True):
        assert result["error"] == "", (node.name, result["error"])
        assert result["staged"] is True
        assert same(source, node.path), node.name
        assert not list(node.path.parent.glob(".*")), "nothing is left beside it"
    assert len({node.manifest_sha256(chain.revision) for node in chain.nodes}) == 1


def givers(result: dict[str, object]) -> str:
    actions = result["actions"]
    assert isinstance(actions, list)
    return " ".join(action.rpartition(" from ")[2] for action in actions if action.startswith("fetched"))


def test_each_takes_from_the_one_before_it(chain: Make, source: Path) -> None:
    made = chain(4)
    results = made.run()
    complete(made, source, results)
    assert [givers(result) for result in results[1:]] == ["s1 (5)", "s2 (5)", "s3 (5)"]
    for node in made.nodes:
        for file in node.root.rglob("*"):
            assert not file.is_file() or b"once-1" not in file.read_bytes(), file


def test_the_next_one_has_files_while_the_first_still_fetches(chain: Make, source: Path) -> None:
    made = chain(2, "--rate-mib", "0.008")
    made.lend()
    made.ask(0)
    made.ask(1)
    early = False
    while not (done := made.nodes[0].status())["finished"]:
        early = early or any(made.nodes[1].path.glob("*.json"))
        time.sleep(0.1)
    assert not done["job_failed"], done
    assert early
    complete(made, source, made.wait())


def test_a_dead_link_is_gone_round(chain: Make, source: Path) -> None:
    made = chain(3)
    made.lend()
    made.nodes[1].keep()  # its daemon is gone before the third asks
    for place in range(3):
        made.ask(place)
    results = made.wait()
    complete(made, source, results)
    assert givers(results[2]) == "s1 (5)"


def test_a_spark_that_stands_still_is_passed_over(chain: Make, source: Path) -> None:
    made = chain(3)
    made.lend()
    made.ask(1)
    stopped = made.nodes[1].pid("stage")
    os.kill(stopped, signal.SIGSTOP)
    try:
        made.ask(0)
        made.ask(2)
        for place in (0, 2):
            last = made.nodes[place].status(wait=60)
            assert (last["finished"], last["error"]) == (True, ""), last
        assert same(source, made.nodes[2].path)
        assert not made.nodes[1].path.exists()
    finally:
        os.kill(stopped, signal.SIGCONT)
    complete(made, source, made.wait())


def test_the_first_fails_and_nobody_calls_it_a_success(chain: Make, source: Path) -> None:
    made = chain(3, "--corrupt", f"acme/tiny/{SECOND}")
    results = made.run()
    assert all(result["job_failed"] for result in results)
    assert f"sent {SECOND} with" in results[0]["error"]
    for result in results[1:]:
        assert f"1 files of {made.nodes[results.index(result)].path} can't be had, such as {SECOND}: s" in result["error"]
        assert not result["staged"]
    assert f"its own staging failed: s1: {made.endpoint} sent {SECOND}" in results[1]["error"]


def test_rot_on_the_way_does_not_spread_and_is_taken_elsewhere(chain: Make, source: Path) -> None:
    made = chain(3)
    shutil.copytree(source, made.nodes[1].path)
    flip(made.nodes[1].path / SECOND, keep_mtime=True)
    made.lend()
    made.ask(0)
    made.nodes[0].status(wait=60)
    # The second believes its rotten file: a record says that it was right once.
    made.ask(1)
    assert not made.nodes[1].status(wait=60)["job_failed"]
    rot(made.nodes[1].path / SECOND, made.nodes[1].root / "staged")
    made.ask(2)
    results = made.wait()
    assert results[2]["error"] == ""
    assert same(source, made.nodes[2].path)
    assert givers(results[2]) == "s1 (1) and s2 (4)"


def test_a_complete_one_gives_to_all_and_fetches_nothing(chain: Make, source: Path) -> None:
    made = chain(3)
    shutil.copytree(source, made.nodes[0].path)
    made.endpoint = "http://127.0.0.1:9"
    assert made.nodes[0].stage(made.revision, source="directory")["staged"]
    made.lend()
    for place in (1, 2):
        made.ask(place)
    results = [made.nodes[place].status(wait=60) for place in (1, 2)]
    assert [result["error"] for result in results] == ["", ""]
    assert all(same(source, node.path) for node in made.nodes)


def test_larger_files_are_hashed_while_they_arrive(chain: Make, source: Path) -> None:
    checkpoint(source, size=3 << 20)
    made = chain(2)
    complete(made, source, made.run())
