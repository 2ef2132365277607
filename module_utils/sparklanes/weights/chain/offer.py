# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a Spark offers to the next ones of the chain, sealed for those who know the secret of a staging.

Each Spark that has or gets a model shows an *offer*: what the model must be, which of its files it has read and found
right, and how its own staging goes on. The next Spark in the chain takes a file from the nearest one before it
as soon as that one offers it, so that each link carries each file once and all links work at the same time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import read_json, write_atomically
from ansible.module_utils.sparklanes.common.record import MORE, known
from ansible.module_utils.sparklanes.host.mounts import where
from ansible.module_utils.sparklanes.jobs.state import State, process_alive
from ansible.module_utils.sparklanes.weights.folder import ModelStore, assess, look
from ansible.module_utils.sparklanes.weights.home import Home, LeadsAway
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, StagingError

SCHEMA = "sparklanes-offer/2"
# Bytes. It names each file twice with a hash: a hundred thousand files have some 50 MB.
OFFER_LIMIT = 64 << 20
# Bytes of its first line, which has 83 for each staging that joined.
HEAD_LIMIT = 1 << 16


@dataclass(frozen=True)
class Work:
    """How a Spark's own staging goes on."""

    running: bool = False
    failed: bool = False
    error: str = ""
    phase: str = ""
    done: int = 0


@dataclass(frozen=True)
class Offer:
    """What one Spark says of one model. `verified`: the files it has read and found right, and where its export has them."""

    name: str
    manifest: Manifest | None = None
    verified: Mapping[str, Content] = field(default_factory=dict)
    work: Work = Work()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "manifest": self.manifest.to_dict() if self.manifest else None,
            "verified": Manifest("", "", self.verified).to_dict()["files"],
            "work": asdict(self.work),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Offer:
        manifest = Manifest.from_dict(data["manifest"]) if data["manifest"] else None
        verified = Manifest.from_dict({"repo": "", "revision": "", "files": data["verified"]}).files
        work = known(Work, data["work"])
        del work[MORE]
        return cls(str(data["name"]), manifest, verified, Work(**work))


def user_of(secret: str) -> str:
    """The user name that goes with a secret: each staging has its own, so a second one can join."""
    return "stage-" + hashlib.sha256(secret.encode()).hexdigest()[:12]


def seal(offer: Offer, secrets: Iterable[str]) -> str:
    """An offer as text, with a seal for each staging. rsync proves the taker to the giver; this proves the giver."""
    text = json.dumps(offer.to_dict(), sort_keys=True)
    seals = [f"{user_of(secret)}:{_seal(text.encode(), secret)}" for secret in secrets]
    return " ".join([SCHEMA, *seals]) + f"\n{text}"


def unseal(text: bytes, secret: str, giver: str) -> Offer:
    """The offer, if it comes from somebody who knows the secret of this staging. Until that is known nothing in it is read but its first line."""
    if len(text) > OFFER_LIMIT:
        raise StagingError(f"{giver} shows an offer of more than {OFFER_LIMIT:,} bytes")
    end = text.find(b"\n", 0, HEAD_LIMIT)
    mine = f"{user_of(secret)}:{_seal(memoryview(text)[end + 1 :], secret)}".encode() if end > 0 else b""
    if not mine or not any(hmac.compare_digest(one, mine) for one in text[:end].split(b" ")):
        raise StagingError(f"{giver} shows an offer that is not of this staging")
    try:
        return Offer.from_dict(json.loads(text[end + 1 :]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StagingError(f"{giver} shows an offer that is unreadable ({type(error).__name__}: {error})") from error


def _seal(text: bytes | memoryview, secret: str) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def secrets_of(run: Path) -> list[str]:
    return [line.partition(":")[2] for line in (run / "secrets").read_text().splitlines()]


def export_root(folder: Path, names: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """(the folder to export, where in it each file is): the model's own, or the one that holds what its links point at (a Hub cache's blobs)."""
    with Home(folder) as home:
        places = {name: home.place(name) for name in names}
        linked = {place.parent for name, place in places.items() if place != home.real / name}
        plain = {home.real} if not names or any(place == home.real / name for name, place in places.items()) else set()
        root = Path(os.path.commonpath([*linked, *plain]))
        if not root.is_relative_to(home.bound):
            raise LeadsAway(f"{root} is not within {home.bound}", "Nothing of it is lent")
    return root, {name: place.relative_to(root).as_posix() for name, place in places.items()}


def offer(model: Model, store: ModelStore, work: Work, shared: bool = False) -> tuple[Offer, Path | None]:
    """(what can be taken now, the folder to export, None: none yet). By the records and a look at each file; nothing is read.

    `shared`: files on a network file system may be lent, too. Else each Spark takes them from the server itself.
    """
    folder = Path(model.path)
    manifest = store.manifest()
    if manifest is None or not manifest.of(model):
        return Offer(model.name, work=work), None
    records = store.records()
    mount = where(model.path)
    verified = assess(manifest, records, look(folder)).verified if shared or not (mount and mount.shared) else []
    try:
        root, places = export_root(folder, verified)
    except FileNotFoundError:  # not there yet, or a file went a moment ago
        return Offer(model.name, manifest, {}, work), None
    files = {
        name: Content(records[name].size, records[name].sha256, at="" if places[name] == name else places[name])
        for name in verified
    }
    return Offer(model.name, manifest, files, work), root


def work_of(folder: Path, boot: str, since: float, alive: Any = process_alive) -> Work:
    """How this Spark's own staging goes on. What ended before this lending began tells nothing."""
    data = read_json(folder / "state.json")
    if not data:
        return Work()
    state = State.from_dict(data)
    running = not state.finished and state.boot == boot and alive(state.pid, folder)
    if not running and (state.boot != boot or state.began < since):
        return Work()
    died = not running and not state.finished
    error = "its process is gone" if died else state.error
    return Work(running, state.failed or died, error, state.phase, state.done)


@dataclass
class Offers:
    """The offers of this Spark, as files that the daemon exports."""

    models: Sequence[Model]
    staged_dir: Path
    work_folder: Path
    run: Path
    shared: bool
    since: float
    boot: str = field(default_factory=boot_id)
    roots: dict[str, Path] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)

    def stamps(self) -> list[tuple[int, int]]:
        """What changes when staging notes something, or a second one joins: each such file is replaced by a new one."""
        stores = [ModelStore(self.staged_dir, model.path) for model in self.models]
        paths = [self.run / "secrets", self.work_folder / "state.json"]
        paths += [path for store in stores for path in (store.folder / "manifest.json", store.partial, store.marker)]
        found = []
        for path in paths:
            try:
                stat = path.stat()
            except OSError:
                found.append((0, 0))
            else:
                found.append((stat.st_ino, stat.st_mtime_ns))
        return found

    def refresh(self) -> bool:
        """Show what is true now. Whether a folder to export is another one than before."""
        (self.run / "nothing").mkdir(exist_ok=True)
        secrets = secrets_of(self.run)
        work = work_of(self.work_folder, self.boot, self.since)
        moved = False
        for model in self.models:
            made, root = offer(model, ModelStore(self.staged_dir, model.path), work, self.shared)
            if self.shown.get(model.name) != (made, secrets):
                write_atomically(self.run / "offers" / f"{model.name}.json", seal(made, secrets), 0o644)
                self.shown[model.name] = (made, secrets)
            root = root or self.run / "nothing"
            moved = moved or self.roots.get(model.name) != root
            self.roots[model.name] = root
        return moved
