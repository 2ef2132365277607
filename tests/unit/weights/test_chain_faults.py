# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whatever is killed, cut, filled up or spoilt: staging is run again until it is complete, and then it is the source, byte by byte.

Seeds: SPARKLANES_SEEDS=1,2,3 chooses those of the random test.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import platforms
import pytest
from ansible.module_utils.sparklanes.weights import safetensors
from checkpoints import SECOND, checkpoint, flip, shard
from staging_nodes import Chain, hub, same, source
from test_chain_nodes import chain

__all__ = ["chain", "hub", "source"]  # fixtures
Make = Callable[..., Chain]
SEEDS = [int(seed) for seed in os.environ.get("SPARKLANES_SEEDS", "1,2,3").split(",")]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                queue += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def kill_something(made: Chain, dice: random.Random) -> None:
    """kill -9 of one process of one job of one node: its Python, a tool, a daemon or a transfer."""
    node = dice.choice(made.nodes)
    pid = node.pid(dice.choice(["stage", "lend"]))
    if pid:
        try:
            os.kill(dice.choice(family(pid)), signal.SIGKILL)
        except ProcessLookupError:
            return


def spoil(made: Chain, dice: random.Random) -> None:
    """Wrong bytes, a cut or a stray beginning among the files under way, or rot in a verified file with a new mtime."""
    node = dice.choice(made.nodes)
    files = [path for path in node.path.parent.rglob("*") if path.is_file() and path.stat().st_size > 10]
    if not files:
        return
    path = dice.choice(files)
    try:
        if dice.random() < 0.5:
            os.truncate(path, dice.randrange(path.stat().st_size))
        else:
            flip(path, keep_mtime=False, at=dice.randrange(path.stat().st_size))
    except (FileNotFoundError, ValueError, IndexError):
        return  # it was renamed meanwhile


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_and_spoilt_at_random_it_ends_as_the_source(chain: Make, source: Path, seed: int) -> None:
    dice = random.Random(seed)
    checkpoint(source, shards=6, size=dice.choice([4096, 200_000]), seed=seed)
    made = chain(3, "--rate-mib", "0.4")
    for attempt in range(12):
        made.lend()
        for place in range(3):
            made.ask(place)
        for _ in range(dice.randrange(5) if attempt < 6 else 0):
            time.sleep(dice.random() * 2)
            dice.choice([kill_something, kill_something, spoil])(made, dice)
        results = made.wait()
        for node, result in zip(made.nodes, results, strict=True):
            if not result["job_failed"]:
                # A file may be spoilt after it was read; a look then says so, or all is as it should be.
                assert same(source, node.path) or not node.ask(made.revision, state="planned")["staged"], (
                    seed,
                    attempt,
                    node.name,
                )
        if all(node.ask(made.revision, state="planned")["staged"] for node in made.nodes):
            break
    assert all(same(source, node.path) for node in made.nodes), seed
    assert not [path for node in made.nodes for path in node.path.parent.glob(".*")]


def test_a_source_that_dies_midway_costs_a_rerun(chain: Make, source: Path) -> None:
    made = chain(2, "--rate-mib", "0.004")
    made.lend()
    made.ask(0)
    made.ask(1)
    while not list(made.nodes[1].path.glob("*")):
        time.sleep(0.1)
    made.nodes[0].jobs.stop("stage")
    made.nodes[0].keep()
    last = made.nodes[1].status(wait=90)
    assert last["job_failed"]
    assert "can't be had, such as" in last["error"]
    kept = {path.name: path.stat().st_ino for path in made.nodes[1].path.iterdir()}
    results = made.run()
    assert [result["error"] for result in results] == ["", ""]
    assert all(same(source, node.path) for node in made.nodes)
    assert kept.items() <= {path.name: path.stat().st_ino for path in made.nodes[1].path.iterdir()}.items(), "nothing twice"


@platforms.needs_root
def test_a_disk_that_fills_up_midway_is_told_and_costs_nothing(chain: Make, source: Path) -> None:
    checkpoint(source, size=300_000)
    # So slowly that little has come when the disk is filled.
    made = chain(2, "--rate-mib", "0.5")
    small = made.nodes[1].path.parent
    small.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(small)], check=False, capture_output=True
    ).returncode:
        platforms.skip("mount")
    try:
        made.lend()
        made.ask(0)
        made.ask(1)
        filler = small / "filler"
        filler.write_bytes(bytes(3 << 20))
        made.nodes[0].status(wait=60)
        last = made.nodes[1].status(wait=90)
        assert last["job_failed"], "3.6 MB into 2"
        assert "No space left" in last["error"] or "needs" in last["error"], last["error"]
        assert not made.nodes[1].ask(made.revision, state="planned")["staged"]
        filler.unlink()
        made.ask(1)
        assert made.nodes[1].status(wait=90)["error"] == ""
        assert same(source, made.nodes[1].path)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_stagings_at_once_are_one(chain: Make, source: Path) -> None:
    made = chain(2, "--rate-mib", "0.01")
    made.lend()
    first = [made.ask(place)["attached"] for place in (0, 1)]
    made.secret = "once-2"
    made.lend()
    second = [made.ask(place)["attached"] for place in (0, 1)]
    assert (first, second) == ([False, False], [True, True])
    assert [result["error"] for result in made.wait()] == ["", ""]
    assert all(same(source, node.path) for node in made.nodes)


def lying(source: Path, kind: str) -> None:
    """A checkpoint that its publisher made wrong: the hashes are right, the headers are not."""
    path = source / SECOND
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    if kind == "header longer than the file":
        path.write_bytes(struct.pack("<Q", len(data) * 2) + data[8:])
    elif kind == "100 MB header":
        path.write_bytes(struct.pack("<Q", safetensors.MAX_HEADER + 1) + data[8:])
    elif kind == "overlap":
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    elif kind == "truncated":
        path.write_bytes(data[:-9])
    elif kind == "one name twice":
        text = data[8 : 8 + length].replace(names[1].encode(), names[0].encode())
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    elif kind == "index lies":
        index = json.loads((source / safetensors.INDEX).read_text())
        index["weight_map"][names[0]] = "model-00001-of-00003.safetensors"
        (source / safetensors.INDEX).write_text(json.dumps(index))
    elif kind == "a shard twice":
        shutil.copyfile(path, source / "copy.safetensors")
    elif kind == "a shard less":
        path.unlink()
    elif kind == "zero scales":
        path.write_bytes(shard({"layers.1.weight_scale": ("BF16", [64], bytes(128))}))


KINDS = (
    "header longer than the file",
    "100 MB header",
    "overlap",
    "truncated",
    "one name twice",
    "index lies",
    "a shard twice",
    "a shard less",
    "zero scales",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_lies_is_never_called_staged(chain: Make, source: Path, kind: str) -> None:
    lying(source, kind)
    made = chain(1)
    result = made.nodes[0].stage(made.revision, endpoint=made.endpoint, guards={"expect": {"shards": 3}})
    assert result["failed"], kind
    assert result["msg"].startswith("s1"), result["msg"]
    assert not made.nodes[0].ask(made.revision, state="planned")["staged"]
