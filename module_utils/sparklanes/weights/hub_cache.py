# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The cache of the Hub's client: a folder a repository, in it `blobs/` with the files and `snapshots/COMMIT/` with links to them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_SNAPSHOT = re.compile(r"(?P<repository>/(?:[^/]+/)*models--[^/]+)/(?P<below>snapshots/(?P<commit>[^/]+)(?:/[^/]+)*)/?")
_REPOSITORY = re.compile(r"/(?:[^/]+/)*models--[^/]+(?:/snapshots)?/?")
# What no engine reads beside safetensors: words and pictures for people, and the same weights in other formats.
_PAPERS = re.compile(r"(?i)(readme|licen[cs]e|notice|\.git).*|.*\.(md|pdf|png|jpe?g|gif|svg|webp|mp4)")
_OTHER_FORMATS = re.compile(r"(?i).*\.(bin|pth?|gguf|onnx|h5|msgpack|ot|tflite)|consolidated.*\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """A folder of a cache that holds a model. Its links lead to `blobs/`, so whoever uses it needs the repository's folder."""

    repository: str
    below: str  # snapshots/COMMIT, or a folder in it
    commit: str


def snapshot(path: str) -> Snapshot | None:
    """What a path is by its names, if it lies in a cache; nothing is looked at."""
    found = _SNAPSHOT.fullmatch(path)
    return Snapshot(found["repository"], found["below"], found["commit"]) if found else None


def no_snapshot(path: str) -> bool:
    """Whether a path is the folder of a repository in a cache, where a snapshot of it is wanted."""
    return bool(_REPOSITORY.fullmatch(path))


def place_inside(path: str, mounts: Iterable[Mapping[str, Any]]) -> str:
    """Where a rank with these mounts sees a model's folder, empty where it doesn't: a repository is mounted whole, anything else as it is."""
    targets = {str(mount["source"]).rstrip("/"): str(mount["target"]).rstrip("/") for mount in reversed(list(mounts))}
    cached = snapshot(path)
    if cached and cached.repository in targets:
        return f"{targets[cached.repository]}/{cached.below}"
    return targets.get(path, "")


def needed(name: str) -> bool:
    """Whether an engine may read this file of a repository. An engine that filled a cache by itself left the others out."""
    last = PurePosixPath(name).name
    return not (_PAPERS.fullmatch(last) or _OTHER_FORMATS.fullmatch(last))


def repository(repo: str) -> str:
    """The folder of org/name in a cache."""
    return f"models--{repo.replace('/', '--')}"


def folders(environment: Mapping[str, str], home: str) -> list[str]:
    """Where the client of whoever has this environment and home keeps its cache, links resolved: the one that it uses, and the one that it
    uses where nothing is set, as what fills a cache may have another environment than a login. Of those that they can enter."""
    usual = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    mine = environment.get("HF_HOME") or f"{usual}/huggingface"
    said = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or f"{mine}/hub"
    found = []
    for path in (said, f"{home}/.cache/huggingface/hub"):
        real = os.path.realpath(os.path.expandvars(path))
        if os.access(real, os.R_OK | os.X_OK) and Path(real).is_dir():
            found.append(real)
    return list(dict.fromkeys(found))
