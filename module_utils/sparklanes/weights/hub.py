# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Hub: what a repository holds at a commit, and one file of it by the Hub's own client.

The list comes from one plain request. The bytes come through `huggingface_hub`, locked in a virtual environment
of its own (hub_client.py): it knows the Hub's storage back ends, its retries and its tokens. What it delivers is never
trusted (it reports success for wrong bytes under the right ETag); stage.py hashes every file.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ansible.module_utils.sparklanes.common import again
from ansible.module_utils.sparklanes.common.interfaces import interfaces
from ansible.module_utils.sparklanes.common.secrets import blanked

ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")
REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
TIMEOUT = 30.0
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


def in_the_open(address: str) -> bool:
    """Whether others may read and change what goes to an address and comes from it: not by TLS, nor without leaving the machine."""
    try:
        parts = urlsplit(address)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        return True
    return scheme != "https" and (scheme != "http" or bool(interfaces(host)))


def token_refusal(endpoint: str) -> str:
    """Why a token can't be sent to this Hub unseen by others; empty where it can."""
    if not in_the_open(endpoint):
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


def read_list(answer: Any, limit: int, asked: str = "") -> bytes:
    """The body of an answer. One that is too long or was cut is an OSError: half a list would pass for a whole one.

    asked: the address, if what is listed rests on it alone. A list that was sent on from there into the open is an OSError too.
    """
    if asked and in_the_open(answer.url) and not in_the_open(asked):
        raise OSError(f"it sends its list on to {blanked(answer.url)}, without TLS, where anybody on the way can write it")
    text: bytes = answer.read(limit + 1)
    if len(text) > limit:
        raise OSError(f"its list has more than {limit:,} bytes")
    if answer.length:
        raise OSError(f"its list was cut after {len(text):,} bytes, {answer.length:,} before its end")
    return text


def _page(endpoint: str, url: str, repo: str, revision: str, token: str, timeout: float, left: int) -> tuple[bytes, str]:
    """One page of a list and the address of the next (empty: none). A server that is short of something is asked again, as it says."""
    request = urllib.request.Request(url)
    if token:
        # Not sent on where the answer is a redirect to somewhere else.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    for attempt in itertools.count(1):
        wait = None
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                page = read_list(answer, left, url)
                found = NEXT.search(answer.headers.get("Link", ""))
                return page, found[1] if found else ""
        except urllib.error.HTTPError as error:
            if error.code in again.STATUSES:
                wait = again.delay(attempt, retry_after=error.headers.get("Retry-After", ""))
            if wait is None:
                code = error.headers.get("X-Error-Code", "")
                raise HubError(explain(error.code, code, repo, revision, endpoint, attempt)) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if again.momentary(str(reason)):
                wait = again.delay(attempt)
            if wait is None:
                raise HubError(
                    f"{endpoint} does not answer ({reason}). Check the node's route, proxy and DNS, or set another endpoint"
                ) from error
        time.sleep(wait)
    raise AssertionError("counting ended")


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
        page, following = _page(endpoint, url, repo, revision, token, timeout, left)
        left -= len(page)
        try:
            files |= parse_tree(json.loads(page))
        except (ValueError, RecursionError) as error:
            raise HubError(f"{endpoint} sends a list that is no JSON ({error})") from error
        if not following:
            break
        url = following
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
