# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which commit of a repository a name means now, when it was made, and what it holds: asked of the Hub or of a mirror, without a file of it.

A mirror is a folder behind a web server. Of which commit its files are says its manifest.json, if anything does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from ansible.module_utils.sparklanes.common import web
from ansible.module_utils.sparklanes.common.secrets import blanked
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.weights import hub
from ansible.module_utils.sparklanes.weights.hub import COMMIT, REPO, HubError, HubFile

# Of one answer that is no list of files, and of a file that is read to be hashed.
ANSWER_LIMIT = 8 << 20
SMALL = 4 << 20
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class Commit:
    """One commit: its 40 digits, when it was made (as the Hub writes it) and what its author says of it."""

    id: str
    date: str = ""
    title: str = ""


def _json(endpoint: str, path: str, repo: str, revision: str, token: str) -> Any:
    answer = hub.ask(f"{endpoint}/api/models/{quote(repo)}/{path}", endpoint, repo, revision, token, ANSWER_LIMIT)
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise HubError(f"{endpoint} answers of {repo} with no JSON ({str(error)[:100]}). Is it a Hub?") from error


def resolve(endpoint: str, repo: str, revision: str, token: str = "") -> Commit:
    """The commit that a branch, a tag or a commit means now."""
    endpoint = endpoint.rstrip("/")
    told = _json(endpoint, f"revision/{quote(revision, safe='')}", repo, revision, token)
    commit = told.get("sha") if isinstance(told, Mapping) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise HubError(f"{endpoint} names no commit of {repo}@{said(revision, 40)}: it says {said(commit, 60)!r}")
    name = told.get("id") or repo
    if str(name).lower() != repo.lower():
        raise HubError(
            f"{repo} is {said(name, 100)} at {endpoint} now: it was renamed or given away. If that one is meant, write its name as repo"
        )
    return Commit(commit)


def history(endpoint: str, repo: str, revision: str, token: str = "") -> list[Commit]:
    """The newest commits up to a revision, the newest first: the first page that the Hub has of them. None where it doesn't tell."""
    endpoint = endpoint.rstrip("/")
    try:
        told = _json(endpoint, f"commits/{quote(revision, safe='')}", repo, revision, token)
    except HubError:
        return []  # A mirror of the Hub may know no history; the commit itself was told before.
    found = []
    for entry in told if isinstance(told, list) else []:
        if isinstance(entry, Mapping) and COMMIT.fullmatch(str(entry.get("id"))):
            found.append(Commit(str(entry["id"]), said(entry.get("date") or "", 40), said(entry.get("title") or "", 80)))
    return found


def contents(files: Mapping[str, HubFile]) -> dict[str, Any]:
    """What a list of files says of them: how many, their bytes, the shards, and the sha256 of those that have one."""
    shards = [name for name in files if name.endswith(WEIGHTS) and "/" not in name]
    return {
        "files": len(files),
        "bytes": sum(file.size for file in files.values()),
        "shards": len(shards),
        "sha256": {name: file.sha256 for name, file in files.items() if file.sha256},
    }


def hashed(endpoint: str, repo: str, commit: str, name: str, file: HubFile, token: str = "") -> str:
    """sha256 of a small file, which must be the one in the list; empty where it can't be had."""
    endpoint = endpoint.rstrip("/")
    if file.size > SMALL:
        return ""
    url = f"{endpoint}/{quote(repo)}/resolve/{commit}/{quote(name)}"
    try:
        body = hub.ask(url, endpoint, repo, commit, token, SMALL, along=True).body
    except HubError:
        return ""
    git = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    found = hashlib.sha256(body).hexdigest()
    return found if (file.sha256 or git) in (found, git) and (not file.git_sha1 or git == file.git_sha1) else ""


def of_hub(endpoint: str, token: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the Hub says of one repository. wanted: `repo`, `ask` (a revision, empty: none), `pinned` (a commit, empty: none), `hash` (names)."""
    repo, asked, pinned = str(wanted["repo"]), str(wanted.get("ask") or ""), str(wanted.get("pinned") or "")
    if not REPO.fullmatch(repo):
        raise HubError(f"{said(repo, 100)!r} is no name of a repository; expected owner/name")
    found: dict[str, Any] = {"source": blanked(endpoint.rstrip("/")), "commit": "", "date": "", "pinned": {}}
    newest: Sequence[Commit] = []
    if asked:
        commit = resolve(endpoint, repo, asked, token).id
        newest = history(endpoint, repo, commit, token)
        first = newest[0] if newest and newest[0].id == commit else Commit(commit)
        files = hub.tree(endpoint, repo, commit, token)
        small = {
            name: hashed(endpoint, repo, commit, name, files[name], token) for name in wanted.get("hash") or [] if name in files
        }
        holds = contents(files)
        holds["sha256"] |= {name: value for name, value in small.items() if value}
        found |= {"asked": asked, "commit": commit, "date": first.date, "title": first.title, **holds}
    if pinned:
        found["pinned"] = _pinned(endpoint, repo, pinned, newest, token)
    return found


def _pinned(endpoint: str, repo: str, pinned: str, newest: Sequence[Commit], token: str) -> dict[str, Any]:
    """What the Hub knows of a commit that is pinned. behind: how many commits are newer, None where the first page doesn't have it."""
    ids = [one.id for one in newest]
    if pinned in ids:
        return {"commit": pinned, "date": newest[ids.index(pinned)].date, "behind": ids.index(pinned), "error": ""}
    try:
        resolve(endpoint, repo, pinned, token)
    except HubError as error:
        return {"commit": pinned, "date": "", "behind": None, "error": str(error)}
    date = next((one.date for one in history(endpoint, repo, pinned, token) if one.id == pinned), "")
    return {"commit": pinned, "date": date, "behind": None, "error": ""}


def of_mirror(url: str, pin: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The commit that the manifest.json of a mirror says its files are of. pin: what that list must hash to, empty where nobody says."""
    where = f"{url.rstrip('/')}/manifest.json"
    try:
        answer = web.get(where, hub.LIST_LIMIT, what="its list")
    except web.Refused as error:
        if error.status in (404, 410):
            raise HubError(
                f"{blanked(where)} is not there, and no other list says of which commit the files are. Who filled the mirror knows; or ask "
                "the Hub: -e model_weights_source=hub"
            ) from error
        raise HubError(f"{blanked(where)}: HTTP {error.status}. May this machine read the mirror?") from error
    except web.Unanswered as error:
        raise HubError(f"{blanked(where)} does not answer ({error}). Check the address (model_weights_mirror)") from error
    hashes = hashlib.sha256(answer.body).hexdigest()
    if pin and pin != hashes:
        raise HubError(
            f"{blanked(where)} hashes to {hashes[:16]}…, not {pin[:16]}… (model_weights_mirror_lists). Is it the list that is meant?"
        )
    try:
        told = json.loads(answer.body)
        commit, repo = str(told["revision"]), str(told["repo"])
        files = {
            str(name): HubFile(int(entry["size"]), str(entry.get("sha256") or ""), "") for name, entry in told["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(f"{blanked(where)} is no list that names repo, revision and files ({type(error).__name__})") from error
    if repo != str(wanted["repo"]) or not COMMIT.fullmatch(commit):
        raise HubError(f"{blanked(where)} is of {said(repo, 80)}@{said(commit, 40)}; expected a commit of {wanted['repo']}")
    pinned = str(wanted.get("pinned") or "")
    return {
        "source": blanked(where),
        "asked": "its list" if wanted.get("ask") else "",
        "commit": commit if wanted.get("ask") else "",
        "date": "",
        "since": _iso(answer.headers.get("Last-Modified", "")),
        "title": "",
        **contents(files),
        "pinned": {"commit": pinned, "date": "", "behind": 0 if pinned == commit else None, "error": ""} if pinned else {},
    }


def _iso(text: str) -> str:
    try:
        return parsedate_to_datetime(text).isoformat()
    except (TypeError, ValueError):
        return ""
