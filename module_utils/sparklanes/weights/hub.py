# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Hub: what a repository holds at a commit, and one file of it by the Hub's own client.

The list comes from one plain request. The bytes come through `huggingface_hub`, locked in a virtual environment
of its own (hub_client.py): it knows the Hub's storage back ends, its retries and its tokens. What it delivers is never
trusted (it reports success for wrong bytes under the right ETag); stage.py hashes every file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ansible.module_utils.sparklanes.common import again, web
from ansible.module_utils.sparklanes.common.secrets import blanked

ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")
REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
TIMEOUT = web.TIMEOUT
# Bytes of a whole list of files: a hundred thousand have some 20 MiB. Pages of one: the Hub puts 1,000 files on each.
LIST_LIMIT = 64 << 20
PAGE_LIMIT = 1000


class HubError(Exception):
    """The Hub's answer, in words for a person."""


@dataclass(frozen=True)
class HubFile:
    """One file at one commit. Large ones have a sha256, all have git's blob hash."""

    size: int
    sha256: str
    git_sha1: str


def token_refusal(endpoint: str) -> str:
    """Why a token can't be sent to this Hub unseen by others; empty where it can."""
    if not web.in_the_open(endpoint):
        return ""
    return (
        f"the token for the Hub would go to {blanked(endpoint)} without TLS, for anybody on the way to read. Give an https:// address "
        "(model_weights_hub_endpoint) or no token (model_weights_token: ''); where that network is yours alone: model_weights_token_over_http: true"
    )


def parse_tree(entries: Any) -> dict[str, HubFile]:
    """The files in one page of the tree API."""
    files: dict[str, HubFile] = {}
    try:
        for entry in entries:
            if entry["type"] != "file":
                continue
            lfs = entry.get("lfs") or {}
            # An LFS file's git hash is that of its pointer, not of its content.
            git = "" if lfs else entry["oid"]
            if not isinstance(entry["path"], str):
                raise ValueError(f"a path is {entry['path']!r:.80}")
            files[entry["path"]] = HubFile(lfs.get("size", entry["size"]), lfs.get("oid", ""), git)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HubError(f"the Hub's list of files is unreadable ({type(error).__name__}: {error})") from error
    return files


def explain(status: int, code: str, repo: str, revision: str, endpoint: str, attempt: int = 1) -> str:
    """What a refusal of attempt `attempt` means and what to do about it."""
    where = f"{repo}@{revision[:12]} at {endpoint}"
    if code == "RepoNotFound":  # with 401 to who shows no token: it tells nobody which private ones there are
        return f"{where}: no such repository ({status}), or a private one. Check its name; a private one needs a token that may read it"
    if status in (401, 403) or code == "GatedRepo":
        return f"{where}: access denied ({status}). Accept the model's terms on its page, then give a token that may read it"
    if code == "RevisionNotFound":
        return f"{where}: no such revision. Take the commit's 40 hex digits from the model's history page"
    if status == 404:
        return f"{where}: not found. Check the repository's name (a private one needs a token)"
    if status == 429:
        return f"{where}: too many requests ({status}){again.waited(attempt)}. Give a token, which raises the limit, or wait for a while"
    if status >= 500:
        return f"{where}: the Hub answers HTTP {status} {code}".rstrip() + f"{again.waited(attempt)}. Run this again later"
    return f"{where}: HTTP {status} {code}".rstrip()


def ask(
    url: str, endpoint: str, repo: str, revision: str, token: str, limit: int, timeout: float = TIMEOUT, along: bool = False
) -> web.Answer:
    """One answer of the Hub; HubError says what a refusal means. The token goes to no other server (along: by a redirect to the same one)."""
    try:
        secret = f"Bearer {token}" if token else ""
        return web.get(url, limit, secret, what="its list", timeout=timeout, along=along)
    except web.Refused as error:
        code = error.headers.get("X-Error-Code", "")
        raise HubError(explain(error.status, code, repo, revision, endpoint, error.attempt)) from error
    except web.Unanswered as error:
        raise HubError(
            f"{endpoint} does not answer ({error}). Check the node's route, proxy and DNS, or set another endpoint"
        ) from error


def server_of(url: str) -> tuple[str, str]:
    """Scheme and server of an address by somebody else's word, which may be none."""
    try:
        return urlsplit(url)[:2]
    except ValueError:
        return "", repr(url[:80])


def tree(endpoint: str, repo: str, revision: str, token: str = "", timeout: float = TIMEOUT) -> dict[str, HubFile]:
    """The files of a repository at a commit, by name."""
    endpoint = endpoint.rstrip("/")
    url = f"{endpoint}/api/models/{quote(repo)}/tree/{quote(revision)}?recursive=true&expand=false"
    files: dict[str, HubFile] = {}
    left = LIST_LIMIT
    for _ in range(PAGE_LIMIT):
        if server_of(url) != server_of(endpoint):
            raise HubError(f"{endpoint} sends the list of {repo} on to another server, {server_of(url)[1]}")
        answer = ask(url, endpoint, repo, revision, token, left, timeout)
        left -= len(answer.body)
        try:
            files |= parse_tree(json.loads(answer.body))
        except (ValueError, RecursionError) as error:
            raise HubError(f"{endpoint} sends a list that is no JSON ({error})") from error
        following = NEXT.search(answer.headers.get("Link", ""))
        if not following:
            break
        url = following[1]
    else:
        raise HubError(f"{endpoint} sends a list of {repo} that has not ended after {PAGE_LIMIT:,} pages")
    if not files:
        raise HubError(f"{repo}@{revision[:12]} at {endpoint} holds no files")
    return files


# --- the client in its own environment -----------------------------------------------------------------------


# Several clients run at once beside a serving lane that leaves a few GiB, and each would take 2 to 8 GiB for buffers (xet-core issue 883;
# the defaults of its download_buffer_size and _limit). The older variable limits the same by the number of requests.
XET_LIMITS = {
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": "64mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": "64mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": "256mb",
    "HF_XET_RECONSTRUCTION_MIN_RECONSTRUCTION_FETCH_SIZE": "32mb",
    "HF_XET_RECONSTRUCTION_MAX_RECONSTRUCTION_FETCH_SIZE": "256mb",
    "HF_XET_NUM_CONCURRENT_RANGE_GETS": "8",
    "HF_XET_DATA_MAX_CONCURRENT_FILE_DOWNLOADS": "1",
}
# What a site may set of the client's own variables; each beats ours. All others stay away: a token, another cache, an offline switch.
SITE_VARIABLES = frozenset(
    {*XET_LIMITS, "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DISABLE_XET", "HF_XET_HIGH_PERFORMANCE",
     "HF_XET_RECONSTRUCT_WRITE_SEQUENTIALLY", "HF_XET_FIXED_DOWNLOAD_CONCURRENCY", "HF_DEBUG"}
)  # fmt: skip


def client_environment(endpoint: str, token: str, home: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of one client process: our limits, what the site set of SITE_VARIABLES, and the token, which is in nothing else."""
    ours = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "PIP_")  # an index of pip may hold a password
    chosen = {name: value for name, value in base.items() if not name.startswith(ours)}
    chosen |= XET_LIMITS | {
        "HF_ENDPOINT": endpoint.rstrip("/"),
        "HF_HOME": str(home),
        "HOME": str(home),
        "TMPDIR": str(home.parent),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "60",
        # A second copy of every chunk on the node's disk would be of no use: each file is fetched once.
        "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
        "NO_COLOR": "1",
    }
    chosen |= {name: value for name, value in base.items() if name in SITE_VARIABLES and value}
    if token:
        chosen["HF_TOKEN"] = token
    return chosen


def download_command(venv: Path, repo: str, revision: str, file: str, folder: Path) -> list[str]:
    return [str(venv / "bin" / "hf"), "download", f"--revision={revision}", f"--local-dir={folder}", "--", repo, file]
