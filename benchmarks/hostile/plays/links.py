# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Links of somebody else where root reads, writes or removes: there from the beginning, or put there while it is at work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import locks, ours
from ansible.module_utils.sparklanes.docker import logs
from ansible.module_utils.sparklanes.docker.archive import ArchiveError
from ansible.module_utils.sparklanes.release import archive
from ansible.module_utils.sparklanes.screen.log import Log

from benchmarks.hostile import judge, models
from benchmarks.hostile.arena import Arena, free_port
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome, Said
from benchmarks.hostile.plays.archives import exchanged
from benchmarks.hostile.plays.neighbours import LEND_SECRET, rsync
from benchmarks.hostile.plays.staging import asked, ended, everywhere, staged, truth
from benchmarks.hostile.servers import Site

NOBODY = 65534


def given(path: Path, mode: int = 0o755) -> Path:
    """A folder that belongs to somebody else."""
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(mode)
    return path


def mirrored(arena: Arena, path: Path, files: dict[str, bytes], drip: float = 0.0) -> Said:
    site = Site(
        arena,
        {"/manifest.json": json.dumps(models.manifest(files, "mirror")).encode(), **{f"/{n}": c for n, c in files.items()}},
        {},
    )
    if drip:
        site.steps = {f"/{name}": [{"body": "right", "drip": drip}] for name in files}
    site.serve()
    return arena.stage(asked(arena, path=str(path)), source="mirror", mirror={"urls": {"model": site.url}, "lists": {}})


def arriving(arena: Arena, case: Case) -> Outcome:
    """A model is fetched; `owner`: whose the folder above it is (root, nobody, sticky); `link`: what lies where it comes to."""
    words, outside = case.with_, arena.outside.folder
    above = arena.node / "models" / "user"
    modes = {"root": 0o755, "nobody": 0o755, "sticky": 0o1777}
    owner = words.get("owner", "root")
    if words.get("swaps") == "above":
        above = given(given(above) / "hub")
    elif owner == "nobody":
        given(above)
    else:
        above.mkdir()
        above.chmod(modes[owner])
    path = above / "tiny"
    files = {**models.good(), "sub/more.json": b"{}"}
    LINKS[words["link"]](path, outside)
    arena.outside.before = judge.snapshot(outside)  # a hard link counts there
    if words.get("swaps"):
        mine = above if words["swaps"] == "above" else path if words["swaps"] == "folder" else path / "sub"
        if words["swaps"] != "above":
            given(mine)
        aside = given(arena.node / "models" / "elsewhere") / "aside"
        aside.symlink_to(outside / "other-model")
        os.chown(aside, NOBODY, NOBODY, follow_symlinks=False)
        arena.adversary(lambda: exchanged(mine, aside))
    said = mirrored(arena, path, files, float(words.get("drip", 0)))
    outcome = everywhere(arena)
    real = [
        one
        for one in (path, arena.node / "models/elsewhere/aside")
        if one.is_dir() and not one.is_symlink() and one.name != "user"
    ]
    for one in real if not words.get("swaps") else []:
        outcome.wrong_bits += [
            bad for bad in judge.kept(one, truth(files)) if words["link"] == "none" or staged(said) or "a link" not in bad
        ]
    outcome.wrong_bits += judge.recorded(arena.node / "staged", truth(files))
    ended(case, outcome, staged(said), said)
    return outcome


def hashed(name: str) -> str:
    return models.sha256(name.encode())[:16]


def made(path: Path, *parts: str) -> Path:
    where = path.joinpath(*parts)
    where.parent.mkdir(parents=True, exist_ok=True)
    return where


def incoming_link(path: Path, outside: Path) -> None:
    link = path.parent / ".tiny.incoming"
    link.symlink_to(outside / "cron.d")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)


def incoming_of_nobody(path: Path, outside: Path) -> None:
    given(path.parent / ".tiny.incoming")
    made(path.parent, ".tiny.incoming", hashed(models.CONFIG), "file").symlink_to(outside / "victim")


LINKS: dict[str, Callable[[Path, Path], Any]] = {
    "none": lambda path, outside: None,
    "file": lambda path, outside: made(path, models.CONFIG).symlink_to(outside / "victim"),
    "folder": lambda path, outside: made(path, "sub").symlink_to(outside / "cron.d"),
    "model": lambda path, outside: path.symlink_to(outside / "other-model"),
    "incoming": incoming_link,
    "incoming file": lambda path, outside: made(path.parent, ".tiny.incoming", hashed(models.CONFIG), "file").symlink_to(
        outside / "victim"
    ),
    "incoming folder": lambda path, outside: made(path.parent, ".tiny.incoming", hashed(models.CONFIG)).symlink_to(
        outside / "cron.d"
    ),
    "incoming hard link": lambda path, outside: os.link(
        outside / "other-model/config.json", made(path.parent, ".tiny.incoming", hashed(models.CONFIG), "file")
    ),
    "incoming of nobody": incoming_of_nobody,
    "dangling": lambda path, outside: made(path, models.CONFIG).symlink_to(outside / "cron.d" / "job"),
}


def used(arena: Arena, case: Case) -> Outcome:
    """A folder of somebody else is used as it lies, then lent: `link` is what is in it, `to` where it leads; `cache`: it is a Hub cache."""
    words, outside = case.with_, arena.outside.folder
    home = given(arena.node / "models" / "user")
    files = models.good()
    if words.get("cache"):
        repository = home / "hub" / "models--acme--tiny"
        path = repository / "snapshots" / models.COMMIT
        (repository / "blobs").mkdir(parents=True)
        path.mkdir(parents=True)
        for name, content in files.items():
            (repository / "blobs" / models.sha256(content)).write_bytes(content)
            (path / name).symlink_to(f"../../blobs/{models.sha256(content)}")
        other = home / "hub" / "models--other--one" / "blobs"
        other.mkdir(parents=True)
        (other / "x").write_text(f"of another repository {arena.outside.secret}")
    else:
        path = given(home / "tiny")
        for name, content in files.items():
            (path / name).write_bytes(content)
    for one in [home, *home.rglob("*")]:
        os.chown(one, NOBODY, NOBODY, follow_symlinks=False)
    if "link" in words:
        (path / words["link"]).unlink(missing_ok=True)
        (path / words["link"]).symlink_to(str(words["to"]).format(outside=outside, home=home))
    if words.get("pipe"):
        os.mkfifo(path / words["pipe"])
    if words.get("device"):
        os.mknod(path / words["device"], 0o600 | 0o020000, os.makedev(1, 5))
    if words.get("swaps"):
        aside = arena.node / "models" / "aside"
        aside.symlink_to(outside / "shadow")
        arena.adversary(lambda: exchanged(path / models.CONFIG, aside))
    said = arena.stage(asked(arena, path=str(path)), source="directory")
    outcome = Outcome()
    got = arena.root / "got"
    lent: dict[str, Any] = {
        "models": [asked(arena, path=str(path))],
        "address": ["127.0.0.1"],
        "port": free_port(),
        "allow": ["127.0.0.0/8"],
        "secret": LEND_SECRET,
        **arena.places("staged", "jobs"),
    }
    if not arena.module("model_lend", lent).failed:
        for options in ("-r", "-rL", "-rl"):
            rsync(lent["port"], models.user_of(LEND_SECRET), LEND_SECRET, options, "{at}/model/", str(got / options))
        arena.module("model_lend", {"state": "kept", "models": [], **arena.places("jobs")})
    texts = (
        {str(one): one.read_bytes() for one in got.rglob("*") if one.is_file() and not one.is_symlink()} if got.is_dir() else {}
    )
    outcome.touched += arena.outside.given_away(texts)
    outcome.add(everywhere(arena))
    ended(case, outcome, staged(said), said)
    return outcome


def state(arena: Arena, case: Case) -> Outcome:
    """`places`: a link to outside in place of a file or folder of a Spark's own state; `asks`: what the product then does."""
    words, outside = case.with_, arena.outside.folder
    path = arena.node / words["place"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(str(words["to"]).format(outside=outside))
    if words.get("owner") == "nobody":
        path.unlink()
        path.touch()
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o666)
    said = ASKS[words["asks"]](arena, path)
    outcome = everywhere(arena)
    ended(case, outcome, not said.failed, said)
    return outcome


def transaction(arena: Arena, path: Path) -> Said:
    return arena.module(
        "transaction",
        {"deployment": "sparks", "id": "mine", "state": "acquired", "phase": "stop", "controller": "c", "root": str(arena.node)},
    )


def raised(arena: Arena, what: str, work: Callable[[], Any]) -> Said:
    """A function of the product that modules call; a refusal of its own is a sentence, and exit status 1."""

    def inner() -> None:
        try:
            print(json.dumps({"done": str(work())}))
        except (ValueError, OSError, ArchiveError, ours.NotOurs, locks.Busy) as error:
            print(json.dumps({"failed": True, "msg": str(error)}))

    return arena.run(what, inner)


def pruned(arena: Arena, path: Path) -> Said:
    """Everything that may go goes."""
    staged_ = arena.node / "staged" / "x"
    staged_.mkdir(parents=True)
    (staged_ / "STAGED.json").write_text(json.dumps({"path": str(path), "repo": "a/b", "source": "hub", "files": {}}))
    args = {
        "root": str(arena.node),
        "models_dir": str(arena.node / "models"),
        "certificates_dir": str(arena.node / "certs"),
        "state": "pruned",
    }
    return arena.module("staged_prune", args)


def logged(arena: Arena, path: Path) -> Said:
    (arena.laid / "log").write_text("x\n" * 100)
    final = path.with_name("rank0.log")
    return raised(arena, "logs.save", lambda: logs.save(["cat", str(arena.laid / "log")], "c", final))


ASKS: dict[str, Callable[[Arena, Path], Said]] = {
    "transaction": transaction,
    "stage": lambda arena, path: mirrored(arena, arena.node / "models" / "tiny", models.good()),
    "prune": pruned,
    "registry": lambda arena, path: arena.module(
        "image_registry", {"state": "kept", "registry_dir": str(path), **arena.places("jobs")}
    ),
    "logs": logged,
    "run log": lambda arena, path: raised(arena, "screen.log", lambda: run_log(path)),
    "archive": lambda arena, path: raised(arena, "archive", lambda: archived(path)),
    "remove": lambda arena, path: raised(arena, "ours.remove", lambda: ours.remove(path, archive.PURPOSE)),
    "lock": lambda arena, path: raised(arena, "locks", lambda: locked(path)),
    "jit": lambda arena, path: arena.module(
        "jit_cache", {"path": str(path), "state": "packed", "archive": str(arena.node / "k.tar")}
    ),
}


def run_log(path: Path) -> str:
    log = Log(path.parent, "launch")
    log.write("x")
    log.move(path)
    log.write("y")
    return log.problem


def archived(path: Path) -> str:
    archive.claim(path, "lane")
    archive.sweep(path, 1e12)
    return "swept"


def locked(path: Path) -> str:
    with locks.locked(path, "works", 0.2):
        return "locked"


PLAYS = {"arriving": arriving, "used": used, "state": state}
