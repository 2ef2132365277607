# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The cache of the Hub's client: a folder a repository, in it `blobs/` with the files and `snapshots/COMMIT/` with links to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SNAPSHOT = re.compile(r"(?P<repository>/(?:[^/]+/)*models--[^/]+)/(?P<below>snapshots/(?P<commit>[^/]+)(?:/[^/]+)*)/?")
_REPOSITORY = re.compile(r"/(?:[^/]+/)*models--[^/]+(?:/snapshots)?/?")


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
