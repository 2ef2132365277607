# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A mirror, and a Hub, that do not what they should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.weights import hub_client

from benchmarks.hostile import models
from benchmarks.hostile.arena import LOCK, Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome
from benchmarks.hostile.plays.staging import asked, judged, truth
from benchmarks.hostile.servers import Silent, Site, Step

# What stands for the Hub's client where the case is about the list, or about what comes whatever client brought it.
CLIENT = """#!/usr/bin/env python3
import os, sys, urllib.request
words = sys.argv[2:]
revision, folder = (next(one.partition("=")[2] for one in words if one.startswith(f"--{name}=")) for name in ("revision", "local-dir"))
repo, file = words[words.index("--") + 1:]
target = os.path.join(folder, file)
os.makedirs(os.path.dirname(target), exist_ok=True)
with urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/{repo}/resolve/{revision}/{file}", timeout=5) as answer, open(target, "wb") as stream:
    while block := answer.read(1 << 20):
        stream.write(block)
"""


def steps_of(case: Case, default: str, rename: Mapping[str, str]) -> dict[str, list[Step]]:
    """Steps of a case by path: `answers` for the shard (or for whom `of` names), `list` for the list, more by path under `steps`."""
    found: dict[str, list[Step]] = {}
    words = case.with_
    if "answers" in words:
        found[rename[words.get("of", default)]] = list(words["answers"])
    if "list" in words:
        found[rename["list"]] = list(words["list"])
    for path, steps in (words.get("steps") or {}).items():
        found[rename.get(path, path)] = list(steps)
    return found


def listed(words: Mapping[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries of a list as the case changes them: of each file some keys (null: without it), `*` for all; files that are none."""
    for name, change in (words.get("entries") or {}).items():
        for one in [*entries] if name == "*" else [name]:
            entry = {**entries.get(one, {"size": 4, "sha256": models.sha256(b"evil")}), **change}
            entries[one] = {key: value for key, value in entry.items() if value is not None}
    return entries


def mirror(arena: Arena, case: Case) -> Outcome:
    """`lists`: manifest (default), sums or none (then the lane's own hashes). `pin`: what the list must hash to, `right` or a hash.
    `pins`: the lane's own sha256 of the shard. `entries`: changes of the list. `lies`: the list is of the evil files, in truth there are others."""
    words, files = case.with_, models.good()
    shown = {name: models.evil(content) for name, content in files.items()} if words.get("lies") else files
    kind = words.get("lists", "manifest")
    texts = {
        "manifest": json.dumps({**models.manifest(shown, "mirror"), "files": listed(words, models.entries(shown))}).encode(),
        "sums": models.sums(shown) + str(words.get("more", "")).encode(),
    }
    there = {f"/{name}": content for name, content in (shown if words.get("lies") == "all" else files).items()}
    there |= {"/more": b"evil"}
    name = {"manifest": "/manifest.json", "sums": "/SHA256SUMS"}.get(kind, "/manifest.json")
    if kind in texts:
        there[name] = texts[kind]
    rename = {"list": name, **{one: f"/{one}" for one in files}}
    site = Site(arena, there, steps_of(case, models.SHARD, rename))
    other = Site(arena, {path: models.evil(content) for path, content in there.items()}, {}, "other")
    if words.get("other_list"):
        other.files = {
            **there,
            name: json.dumps(models.manifest({one: models.evil(content) for one, content in files.items()})).encode(),
        }
        other.files = {**other.files, **{f"/{one}": models.evil(content) for one, content in files.items()}}
    site.other = other.url
    other.serve()
    url = site.serve()
    lane = truth(files) if kind == "none" else {models.SHARD: truth(files)[models.SHARD]} if words.get("pins") else {}
    pin = {"right": models.sha256(texts.get(kind, b""))}.get(words.get("pin", ""), words.get("pin", ""))
    said = arena.stage(
        asked(arena, sha256=lane),
        source="mirror",
        mirror={"urls": {"model": url}, "lists": {"model": pin} if pin else {}},
        seconds=float(words.get("seconds", 40)),
    )
    came = any(one["path"] in site.steps or not site.steps for one in arena.noted())
    return judged(arena, case, said, files, came)


def slow(arena: Arena, case: Case) -> Outcome:
    """A server that takes connections and says nothing."""
    port = Silent(arena, str(case.with_.get("greeting", "")).encode()).serve()
    source: dict[str, Any] = {"source": "mirror", "mirror": {"urls": {"model": f"http://127.0.0.1:{port}"}, "lists": {}}}
    return judged(arena, case, arena.stage(asked(arena), **source), models.good(), bool(arena.noted()))


def client(arena: Arena) -> None:
    """Where the product looks for the Hub's client."""
    lock = hub_client.read(LOCK)
    hf = arena.node / "venvs" / lock.name / "bin" / "hf"
    hf.parent.mkdir(parents=True)
    hf.write_text(CLIENT)
    hf.chmod(0o755)
    (hf.parents[1] / "sparklanes-ready").write_text(lock.digest)


def hub(arena: Arena, case: Case) -> Outcome:
    """`tree`: the list's text instead of the right one; `files`: changes of its entries; `pins`: the lane's own hash of the shard; `token`."""
    words, files = case.with_, models.good()
    base = f"/{models.REPO}/resolve/{models.COMMIT}"
    where = f"/api/models/{models.REPO}/tree/{models.COMMIT}"
    entries = models.tree(files)
    for name, change in (words.get("files") or {}).items():
        entry = next((one for one in entries if one["path"] == name), None)
        if entry is None:
            entries.append(entry := {"type": "file", "path": name, "size": 4, "oid": models.git_sha1(b"evil")})
        for key, value in change.items():
            entry[key] = value
    text = str(words["tree"]) if "tree" in words else json.dumps(entries)
    if times := words.get("times"):
        text = text * int(times)
    shown = {name: models.evil(content) for name, content in files.items()}
    there = {where: text.encode(), **{f"{base}/{name}": content for name, content in files.items()}}
    rename = {"list": where, **{name: f"{base}/{name}" for name in files}}
    site = Site(arena, there, steps_of(case, models.SHARD, rename), "hub")
    evil = {f"{base}/{name}": content for name, content in shown.items()}
    other = Site(arena, {**evil, where: json.dumps(models.tree(shown)).encode()}, {}, "other")
    site.other = other.url
    other.serve()
    site.serve()
    client(arena)
    lane = {models.SHARD: truth(files)[models.SHARD]} if words.get("pins") else {}
    token = {"token": arena.outside.secret} if words.get("token") else {}
    said = arena.stage(
        asked(arena, sha256=lane), source="hub", endpoint=site.url, **token, seconds=float(words.get("seconds", 40))
    )
    came = any(one["at"] == "hub" for one in arena.noted())
    outcome = judged(arena, case, said, files, came)
    outcome.touched += [
        f"the token went to {one['at']}"
        for one in arena.noted()
        if one["at"] != "hub" and arena.outside.secret in one.get("authorization", "")
    ]
    return outcome


PLAYS = {"mirror": mirror, "slow": slow, "hub": hub}
