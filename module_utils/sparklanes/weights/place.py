# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where a Spark has a model: at the lane's path, or as a snapshot of the lane's commit in a Hub cache that somebody has filled.

Whatever lies at the lane's path wins. A snapshot is used as it lies, whole or not at all, and once staging has read it that one is kept until its
files go away: each look decides by the disk and by what staging noted, so that all that ask get one answer.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.host.mounts import Mount, where
from ansible.module_utils.sparklanes.weights.folder import ModelStore, listed, listing
from ansible.module_utils.sparklanes.weights.home import LIST, Home, LeadsAway
from ansible.module_utils.sparklanes.weights.hub import COMMIT, REPO
from ansible.module_utils.sparklanes.weights.hub_cache import needed, repository, snapshot
from ansible.module_utils.sparklanes.weights.model import Model
from ansible.module_utils.sparklanes.weights.safetensors import INDEX, SUFFIX

# <linux/fs.h>: FS_IOC_GETFLAGS, and FS_ENCRYPT_FL of a folder that fscrypt has encrypted
GET_FLAGS, ENCRYPTED = 0x80086601, 0x800
# Mounted when somebody logs in or looks, not at the boot.
LATE = ("autofs", "ecryptfs")


@dataclass(frozen=True)
class Cache:
    """A folder with a `models--…` folder a repository. Beside root only `owner` may have a say in what lies there; None: whoever, as a person named it."""

    path: str
    owner: int | None = None


@dataclass(frozen=True)
class Place:
    """Of one model: the lane's own path, the folder that is used, and a line for each cache that has something of it and is not used."""

    model: Model
    path: str
    passed_over: tuple[str, ...] = ()

    @property
    def cached(self) -> bool:
        return self.path != self.model.path

    def to_dict(self, host: str) -> dict[str, Any]:
        one = self.model
        used = [f"{self.path} is used where it lies, instead of {one.path}"] if self.cached else []
        return {
            "name": one.name,
            "repo": one.repo,
            "revision": one.revision,
            "instead_of": one.path,
            "path": self.path,
            "cached": self.cached,
            "said": [f"{host}: {one.name}: {line}" for line in (*used, *self.passed_over)],
        }


def place(model: Model, caches: Sequence[Cache], staged: Path) -> Place:
    """caches: in the order in which they are taken."""
    if snapshot(model.path) or not (COMMIT.fullmatch(model.revision) and REPO.fullmatch(model.repo)) or _holds(model, staged):
        return Place(model, model.path)
    whole: list[str] = []
    passed_over: list[str] = []
    seen: set[str] = set()
    for cache in caches:
        home = Path(cache.path, repository(model.repo))
        path = home / "snapshots" / model.revision
        try:
            if cache.path in seen or not home.is_dir():
                continue
            seen.add(cache.path)
            why = _unfit(model, path, cache.owner) if path.is_dir() else f"it has other commits than {model.revision[:12]}"
        except LeadsAway as error:
            why = error.found
        except OSError as error:
            why = f"root can't read it ({error.strerror or error})"
        if why:
            passed_over.append(f"{home} is not used: {why}")
        else:
            whole.append(str(path))
    # The one that staging has read, or has begun to.
    whole.sort(key=lambda path: ModelStore(staged, path).manifest() is None)
    return Place(model, whole[0] if whole else model.path, tuple(passed_over))


def _holds(model: Model, staged: Path) -> bool:
    """Whether files of it lie at the lane's own path. Those of another commit, which we put there, are none."""
    before = ModelStore(staged, model.path).manifest()
    if before is not None and not before.of(model):
        return False
    try:
        return any(listing(Path(model.path)))
    except (LeadsAway, OSError):
        return True  # whatever that is, it is for whoever stages to say


def _unfit(model: Model, path: Path, owner: int | None) -> str:
    """Why a snapshot is not used as it lies; empty where it is."""
    with Home(path) as home:
        other = home.reader
    # Whoever they are could change what root's container runs, as code of the model.
    if owner is not None and other and other[0] != owner:
        return "others than root and the user who logs in can write to it. To use it all the same: model_weights_hub_caches"
    if late := _late(path):
        return f"{late}. To use it all the same, name it: lane_{model.name}_host: {{path: {path}}}"
    if lacks := _lacks(model, path):
        return f"{lacks}. Complete it (`hf download {model.repo} --revision {model.revision}`), or the model is fetched to {model.path}"
    return ""


def _late(path: Path) -> str:
    """Why a folder may not be there after a boot, when ranks start again and nobody is logged in."""
    mount = where(str(path))
    if mount is None or _comes_late(mount):
        return f"its disk may be missing after a boot ({f'{mount.kind} at {mount.point}' if mount else 'no mount is known'})"
    return "it is encrypted, and locked until its owner logs in" if _encrypted(path) else ""


def _comes_late(mount: Mount) -> bool:
    return mount.shared or mount.kind.startswith("fuse") or mount.kind in LATE or mount.device.startswith("/dev/mapper/home-")


def _encrypted(path: Path) -> bool:
    flags = array.array("l", [0])
    with contextlib.suppress(OSError):  # a file system without such flags
        descriptor = os.open(path, LIST)
        try:
            fcntl.ioctl(descriptor, GET_FLAGS, flags)
        finally:
            os.close(descriptor)
    return bool(flags[0] & ENCRYPTED)


def _lacks(model: Model, path: Path) -> str:
    """What a snapshot lacks to be the whole model, as far as that is known without asking the Hub."""
    seen, dead = listing(path)
    with Home(path) as home:
        known = listed(home, model.revision)
        mapped = (home.json(INDEX) or {}).get("weight_map") if INDEX in seen else None
        unfinished = [name for name in home.names("blobs") if name.endswith(".incomplete")]
    shards = [name for name in seen if name.endswith(SUFFIX)]
    wanted = {"config.json", *model.sha256, *(mapped.values() if isinstance(mapped, dict) else ()), *filter(needed, known)}
    lost = sorted({*dead, *(str(name) for name in wanted if name not in seen)})
    short = [name for name, content in known.items() if name in seen and seen[name].size != content.size]
    if lost:
        return f"it lacks {len(lost)} files ({lost[0]}{', …' if len(lost) > 1 else ''})"
    if short:
        return f"{short[0]} has {seen[short[0]].size:,} of {known[short[0]].size:,} bytes"
    if not shards or (model.shards and len(shards) != model.shards):
        return f"it has {len(shards)} shards, expected {model.shards or 'some'}"
    if unfinished and not known:
        return f"a download into it has not ended ({len(unfinished)} files *.incomplete)"
    return ""
