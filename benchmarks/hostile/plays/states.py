# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Records, states and locks that are damaged, of other types, without an end, or written by somebody who wants to be believed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.hostile import judge, models
from benchmarks.hostile.arena import Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome, Said
from benchmarks.hostile.plays.staging import asked, everywhere, folder, staged, told, truth, words

A = "a" * 12
BOOT = "b"
SPEC = {
    "container": "sparklanes-sparks-rank0", "image": "r@sha256:1", "image_ids": [], "secret_env": [], "env": {}, "labels": {},
    "mounts": [{"source": "/etc", "target": "/x"}], "options": {}, "command": ["x"], "api": {"host": "h", "port": 1}, "jit_cache": "",
}  # fmt: skip
JOB = {
    "job": "stage", "pid": 1, "boot": BOOT, "phase": "p", "file": "", "done": 1, "total": 2, "unit": "bytes", "rate": 1.0, "began": 1.0,
    "beat": 1.0, "moved": 1.0, "finished": True, "failed": False, "error": "",
}  # fmt: skip
OPEN = {
    "id": "t", "phase": "stop", "controller": "c", "opened": 1.0, "heartbeat": 1.0, "lease_seconds": 900.0, "lane": "l",
    "from_release": A, "to_release": A, "boot": BOOT, "beat": 1.0,
}  # fmt: skip
STATE = {"status": "serving", "lane": "l", "current": A, "last_good": A, "last_good_lane": "l", "reason": "", "deaths": []}
RAW: Mapping[str, bytes] = {
    "empty": b"",
    "half": b'{"id": "t", "pha',
    "null": b"null",
    "a list": b"[]",
    "a number": b"9" * 9000,
    "no UTF-8": b"\xff\xfe\x00\x80",
    "zeros": b"\0" * 5000,
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "doubled keys": b'{"id": "t", "id": 5, "files": {}, "files": 7, "path": 1, "path": "/x", "last_good": "", "last_good": 9}',
    "huge": b'{"x": "' + b"x" * (40 << 20) + b'"}',
    "infinite": b'{"opened": Infinity, "heartbeat": -Infinity, "lease_seconds": 1e999, "done": NaN, "pid": NaN, "read": NaN}',
}
VALUES: tuple[Any, ...] = (None, -1, 1e308, 10**400, "", "x", [], {}, [[]], {"a": 1}, True, "\ud800", "../..", float("nan"))
PLACES = ("folder", "pipe", "socket", "link", "device", "nobody")


def laid_out(arena: Arena) -> dict[str, Any]:
    """A Spark's state: files below its root, and what is in each."""
    path = str(folder(arena))
    name = f"staged/tiny-{models.sha256(path.encode())[:8]}"
    return {
        "deployments/sparks/state.json": STATE,
        "deployments/sparks/transaction.json": OPEN,
        "deployments/sparks/container.json": {"name": "sparklanes-sparks-rank0", "id": "i"},
        f"releases/{A}/rank.json": SPEC,
        f"releases/{A}/release.json": {"lane": "l", "nodes": ["a"]},
        "jobs/stage/state.json": JOB,
        "jobs/stage/spec.json": {"schema": "sparklanes-job/1", "job": "stage", "function": "x:y", "secrets": False, "args": {}},
        "jobs/stage/process.json": {"pid": 1},
        "jobs/stage/result.json": {"staged": True, "actions": []},
        f"{name}/STAGED.json": {**models.manifest({}), "path": path},
        f"{name}/PARTIAL.json": {**models.manifest({}), "path": path},
        f"{name}/manifest.json": models.manifest(models.good()),
        "staged/rates.json": {"read": 1, "fetch": 1},
        "images/aaaa.json": {"id": "sha256:aa"},
        "boot-starts.json": {"starts": [{"release": A, "at": 1, "boot_id": "x"}]},
    }


def mutations(arena: Arena, data: Mapping[str, Any], raw: bool) -> Iterator[tuple[str, bytes]]:
    """What a file may hold instead: raw bytes, or the same with a field of another type, missing, or one too many."""
    if raw:
        yield from RAW.items()
        return
    for key in [*data, "surprise"]:
        yield f"{key} missing", json.dumps({one: value for one, value in data.items() if one != key}).encode()
        for value in arena.chance.sample(VALUES, 4):
            yield f"{key} {value!r:.20}", json.dumps({**data, key: value}).encode()
    if "files" in data:
        entry = {"size": 27, "mtime_ns": 1, "ctime_ns": 1, "sha256": "0" * 64}
        for key in [*entry, "surprise"]:
            for value in arena.chance.sample(VALUES, 4):
                yield (
                    f"{key} of a file {value!r:.20}",
                    json.dumps({**data, "files": {models.CONFIG: {**entry, key: value}}}).encode(),
                )
        for name in ("../../x", "-x", "a\n", "x" * 3000):
            yield f"a file {name!r:.20}", json.dumps({**data, "files": {name: entry}}).encode()


def asks(arena: Arena, place: str) -> list[Callable[[], Said]]:
    """What the product does that reads this file."""
    common = {"deployment": "sparks", "root": str(arena.node)}
    lock = {**common, "id": "mine", "phase": "stop", "controller": "c"}

    def transaction() -> Said:
        return arena.module("transaction", {**lock, "state": "acquired"}, check=True)

    def prune() -> Said:
        return arena.module(
            "staged_prune",
            {
                "root": str(arena.node),
                "models_dir": str(arena.node / "models"),
                "certificates_dir": str(arena.node / "c"),
                "state": "listed",
            },
        )

    def planned() -> Said:
        return arena.module(
            "model_stage", {"models": [asked(arena)], "state": "planned", "host": "s", **arena.places("staged", "jobs", "venvs")}
        )

    def status() -> Said:
        return arena.module("job_status", {"job": "stage", **arena.places("jobs")})

    def ready() -> Said:
        return arena.module("readiness_info", common)

    def boot() -> Said:
        from ansible.module_utils.sparklanes.rank import after_boot

        return arena.run("after_boot", lambda: after_boot.act("stay_down", ["sparks"], str(arena.node), str(arena.node / "log")))

    def rank() -> Said:
        return arena.module("rank", {**common, "state": "started", "release": A, "log_root": str(arena.node / "log")}, check=True)

    def kept() -> Said:
        return arena.module("model_lend", {"state": "kept", "models": [], **arena.places("jobs")})

    def known() -> Said:
        return arena.module("rank_info", common)

    top = place.partition("/")[0]
    return {
        "deployments": [transaction, prune, ready, boot, known],
        "releases": [prune, ready, rank],
        "jobs": [status, planned, prune, kept],
        "staged": [planned, prune],
        "images": [prune],
        "boot-starts.json": [boot],
    }[top]


def odd(path: Path, kind: str, arena: Arena) -> None:
    """Something that is no file of ours, where one should be."""
    path.unlink()
    if kind == "folder":
        path.mkdir()
        (path / "x").touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            os.chdir(path.parent)
            one.bind(path.name)
    elif kind == "link":
        path.symlink_to(arena.outside.folder / "passwd")
    elif kind == "device":
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    elif kind == "nobody":
        path.write_text("{}")
        os.chown(path, 65534, 65534)
        path.chmod(0o666)


def state(arena: Arena, case: Case) -> Outcome:
    """`file`: which one (a name, or its end); `how`: raw, fields or place. The others are as they should be."""
    files = laid_out(arena)
    broken = next(name for name in files if name.endswith(case.with_["file"]))
    for name, content in models.good().items():
        (folder(arena) / name).parent.mkdir(parents=True, exist_ok=True)
        (folder(arena) / name).write_bytes(models.evil(content))  # so that nothing may be called complete
    how, outcome = case.with_["how"], Outcome()
    what: list[tuple[str, bytes]] = (
        [(one, b"") for one in PLACES] if how == "place" else list(mutations(arena, files[broken], how == "raw"))
    )
    if how == "fields" and len(what) > 24:
        what = arena.chance.sample(what, 24)
    lock = "deployments/sparks/transaction.json"
    for kind, content in what:
        for name, data in files.items():
            path = arena.node / name
            if path.is_dir() and not path.is_symlink():
                for one in path.iterdir():
                    one.unlink()
                path.rmdir()
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != lock or broken == lock:  # else all is refused for that alone
                path.write_bytes(json.dumps(data).encode())
        path = arena.node / broken
        path.write_bytes(content)
        if how == "place":
            odd(path, kind, arena)
        for ask in asks(arena, broken):
            said = ask()
            judged(outcome, broken, kind, how, said)
            seen = judge.printed([said])
            for found in vars(seen).values():
                found[:] = [f"{kind}: {text}" for text in found]
            outcome.add(seen)
    arena.says.clear()  # each was judged
    outcome.add(everywhere(arena))
    return outcome


def judged(outcome: Outcome, broken: str, kind: str, how: str, said: Said) -> None:
    """Nothing is given away by a file that can't be read."""
    unreadable = how == "raw" or (how == "place" and kind != "nobody")
    if said.what == "transaction" and broken.endswith("transaction.json") and unreadable and not said.failed:
        outcome.verdicts.append(f"{kind}: a lock that can't be read was given")
    if said.what == "transaction" and broken.endswith("state.json") and unreadable and not said.failed:
        outcome.verdicts.append(f"{kind}: a state that can't be read was taken for one")
    gone = [one["name"] for one in said.result.get("items") or [] if one.get("kind") == "release"]
    if (
        said.what == "staged_prune"
        and unreadable
        and "deployments" in broken
        and "container" not in broken
        and gone
        and not said.failed
    ):
        outcome.verdicts.append(f"{kind}: prune would remove {gone}")
    if said.what == "model_stage" and told(said).get("staged"):
        outcome.wrong_bits.append(f"{kind}: evil files are called complete")
    if said.failed and not words(said):
        outcome.unexpected.append(f"{kind}: {said.what} failed without a word")


def claimed(arena: Arena, case: Case) -> Outcome:
    """Records that say what is not so, of files that are other ones: `record` changes them after the product has made them right.
    `touch`: what is done to the file."""
    from benchmarks.hostile.plays.neighbours import lay_out

    files = lay_out(arena)
    path = folder(arena) / case.with_.get("file", models.SHARD)
    before = path.stat()
    how = case.with_["how"]
    content = models.evil(files[path.name])
    if how == "in place":
        with path.open("r+b") as stream:
            stream.write(content)
    elif how == "replaced":
        other = path.with_name("other")
        other.write_bytes(content)
        other.replace(path)
    elif how == "mapped":
        import mmap

        with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as area:
            area[: len(content)] = content
    elif how == "by another name":
        os.link(path, arena.node / "same")
        (arena.node / "same").write_bytes(content)
        (arena.node / "same").unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    said = arena.module(
        "model_stage", {"models": [asked(arena)], "state": "planned", "host": "s", **arena.places("staged", "jobs", "venvs")}
    )
    outcome = everywhere(arena)
    if told(said).get("staged"):
        outcome.wrong_bits.append("a file that was written to is called complete")
    again = arena.stage(asked(arena), source="directory")
    if staged(again) and judge.kept(folder(arena), truth(files)):
        outcome.wrong_bits.append("another file is called complete once it was read")
    return outcome


PLAYS = {"damaged": state, "claimed": claimed}
