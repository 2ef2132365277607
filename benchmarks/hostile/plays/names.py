# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Names of files by somebody else's word: in a list of a mirror or of the Hub, or in a folder that belongs to somebody else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ansible.module_utils.sparklanes.screen.words import clean

from benchmarks.hostile import judge, models
from benchmarks.hostile.arena import Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome, Said
from benchmarks.hostile.plays.staging import asked, ended, everywhere, folder, staged, truth, words
from benchmarks.hostile.plays.webs import client
from benchmarks.hostile.servers import Site

MORE = b"more\n"
NOBODY = 65534


class Named(Site):
    """Has each file of a model under its name as it is quoted, and one more of which nobody knows how it is asked for."""

    def __init__(self, arena: Arena, files: Mapping[str, bytes], base: str) -> None:
        super().__init__(arena, {**{f"{base}/{name}": content for name, content in files.items()}}, {})
        self.base = base

    def step(self, path: str, method: str) -> Mapping[str, Any]:
        if path not in self.files and path.startswith(self.base + "/"):
            name = unquote(path.removeprefix(self.base + "/"), errors="surrogateescape")
            self.files = {**self.files, path: self.files.get(f"{self.base}/{name}", MORE)}
        return super().step(path, method)


def mirror(arena: Arena, name: str, files: Mapping[str, bytes]) -> Said:
    text = json.dumps(models.manifest(files, "mirror"))
    site = Named(arena, {"manifest.json": text.encode(), **files}, "")
    site.serve()
    return arena.stage(asked(arena), source="mirror", mirror={"urls": {"model": site.url}, "lists": {}})


def sums(arena: Arena, name: str, files: Mapping[str, bytes]) -> Said:
    site = Named(arena, {"SHA256SUMS": models.sums(files), **files}, "/m")
    site.steps = {"/m/manifest.json": [{"status": 404, "body": "no"}]}
    site.serve()
    return arena.stage(asked(arena), source="mirror", mirror={"urls": {"model": f"{site.url}/m"}, "lists": {}})


def hub(arena: Arena, name: str, files: Mapping[str, bytes]) -> Said:
    base = f"/{models.REPO}/resolve/{models.COMMIT}"
    site = Named(arena, files, base)
    where = f"/api/models/{models.REPO}/tree/{models.COMMIT}"
    site.files = {**site.files, where: json.dumps(models.tree(files)).encode()}
    site.serve()
    client(arena)
    return arena.stage(asked(arena), source="hub", endpoint=site.url)


def there(arena: Arena, name: str, files: Mapping[str, bytes]) -> Said:
    """The folder belongs to somebody else, who has put it there."""
    folder(arena).mkdir()
    for one, content in files.items():
        path = folder(arena) / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path in [folder(arena), *folder(arena).rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    return arena.stage(asked(arena), source="directory")


WAYS = {"mirror": mirror, "sums": sums, "hub": hub, "folder": there}


def names(arena: Arena, case: Case) -> Outcome:
    """`names`: each alone in a list beside right files; `by`: who says it."""
    outcome = Outcome()
    for number, text in enumerate(case.with_["names"]):
        name = str(text) if isinstance(text, str) else str(text["name"]) * int(text["long"])
        inner = Arena(arena.root / str(number), number + 1)
        inner.outside = arena.outside
        try:
            outcome.add(alone(inner, case, name))
        finally:
            inner.end()
        arena.note(name=name[:40])
    outcome.touched += arena.outside.touched()
    return outcome


def alone(arena: Arena, case: Case, name: str) -> Outcome:
    right = models.good()
    files = {**right, name: MORE}
    way = case.with_["by"]
    try:
        said = WAYS[way](arena, name, files)
    except (OSError, ValueError) as error:
        if way == "folder":  # no file can have it here
            return Outcome()
        return Outcome(unexpected=[f"{name[:40]!r}: {error}"])
    outcome = everywhere(arena)
    ended(case, outcome, staged(said), said)
    if way != "folder":
        outcome.wrong_bits += judge.kept(folder(arena), {one.removeprefix("./"): digest for one, digest in truth(files).items()})
    strays = [
        str(path)
        for path in sorted((arena.node / "models").rglob("*"))
        if path.is_file() and not path.is_relative_to(folder(arena)) and ".incoming" not in str(path)
    ]
    outcome.touched += [f"{path} was made" for path in strays]
    shown = clean(" ".join([words(said), *map(str, said.result.get("actions") or [])]))
    outcome.unexpected += judge.controls(shown)
    for kind in vars(outcome).values():
        kind[:] = [f"{name[:40]!r}: {one}" for one in kind]
    return outcome


PLAYS = {"names": names}
