# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Take files from the Sparks before this one in the chain, over the fabric, by rsync."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights.chain.choice import Choice, Peer
from ansible.module_utils.sparklanes.weights.chain.offer import OFFER_LIMIT, unseal
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, StagingError, shard_order, with_digests
from ansible.module_utils.sparklanes.weights.pace import Cancelled
from ansible.module_utils.sparklanes.weights.tools import (
    SOCKET_OPTIONS,
    Feed,
    Source,
    Tool,
    need_rsync,
    own_folder,
    writes_at_most,
)

# What rsync says of the disk that it writes to, which no other Spark could help with. Not EFBIG: a file that goes on after its size meets that.
OUR_DISK = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")
# Seconds between two looks at an offer. Of the Spark that is waited for, a tenth of the time since it last had something
# new, within limits: soon where files come quickly, and cheap where each takes long. Of the others, which may have to step in, seldom.
LOOK_OFTEN, LOOK_LESS, LOOK_SELDOM = 0.1, 0.5, 2.0


class ChainSource(Source):
    """The Sparks before this one in the chain, over the fabric, by rsync."""

    fetches = True
    attempts = 1  # a file that did not come is given back, and perhaps taken from another one
    rate = "chain"

    def __init__(self, args: Mapping[str, Any], secret: str, run: Tool, report: Reporter, rate: float, workers: int) -> None:
        self.args = args
        self.secret = secret
        self.run = run
        self.report = report
        self.workers = workers
        self.urls = {peer["name"]: peer["url"].rstrip("/") for peer in args["peers"]}
        self.name = next(iter(self.urls), "nobody") if len(self.urls) < 2 else "the Sparks before it"
        self.limit = [f"--bwlimit={max(1, int(rate / workers / 1024))}"] if rate else []
        self.env = {**os.environ, "RSYNC_PASSWORD": secret}
        self.aside = report.path.parent / "offers"
        self.lock = threading.RLock()
        self.heard = threading.Condition(self.lock)
        self.ended = threading.Event()
        self.changed = threading.Event()
        self.choices: dict[str, Choice] = {}
        self.givers: dict[tuple[str, str], str] = {}
        self.promises: dict[tuple[str, str], Content] = {}
        self.scouts: list[threading.Thread] = []

    def _rsync(self, url: str, files: Sequence[str], folder: Path, largest: int, *options: str) -> tuple[int, str]:
        """largest: bytes of a file. --max-size goes by what the other says of it, which may not be what it sends."""
        folder.mkdir(parents=True, exist_ok=True)
        # --files-from: a name is taken as it is, whatever characters are in it.
        command = ["rsync", "--no-motd", f"--sockopts={SOCKET_OPTIONS}", "--from0", "--files-from=-"]
        command += [f"--max-size={largest}", *options, "--", f"{url}/", str(folder)]
        # By --timeout alone it would wait for ever for one that takes its signs of life and gives nothing.
        return self.run(
            writes_at_most(largest, command), self.env, "".join(f"{file}\0" for file in files), lambda: size_of(folder)
        )

    # Listening to the others.

    def begin(self, models: Sequence[Model]) -> None:
        """From now on the offers of all peers are looked at."""
        need_rsync()
        now, patience = time.monotonic(), float(self.args["patience"])
        names = [model.name for model in models]
        for name in names:
            self.choices[name] = Choice([Peer(peer) for peer in self.urls], now, patience, self.workers)
        for peer in self.urls:
            scout = threading.Thread(target=self._scout, args=(peer, names), daemon=True)
            self.scouts.append(scout)
            scout.start()

    def _scout(self, peer: str, models: Sequence[str]) -> None:
        changed = time.monotonic()
        while not self.ended.is_set():
            try:
                if self._look(peer, models):
                    changed = time.monotonic()
            except Cancelled:
                return
            except Exception as error:  # whatever one Spark shows, it is listened to again
                with self.lock:
                    for choice in self.choices.values():
                        choice.silent(peer, str(error))
            with self.heard:
                self.heard.notify_all()
                self.changed.set()
                now = time.monotonic()
                awaited = any(choice.awaited_first(peer, now) for choice in self.choices.values())
            self.ended.wait(min(LOOK_LESS, max(LOOK_OFTEN, (now - changed) / 10)) if awaited else LOOK_SELDOM)

    def _look(self, peer: str, models: Sequence[str]) -> bool:
        """Hear what it has now; whether that is more than before."""
        folder = self.aside / hashlib.sha256(peer.encode()).hexdigest()[:16]
        files = [f"{name}.json" for name in models]
        options = ("--ignore-times", "--contimeout=5", "--timeout=10")
        code, output = self._rsync(f"{self.urls[peer]}/offers", files, folder, OFFER_LIMIT, *options)
        if code != 0:
            raise StagingError(f"rsync status {code}: {output}")
        more = False
        for name in models:
            offer = unseal(bounded(folder / f"{name}.json"), self.secret, peer)
            with self.lock:
                choice = self.choices[name]
                before, change = choice.peer(peer).offer, choice.peer(peer).last_change
                choice.offered(peer, offer, time.monotonic())
                if choice.peer(peer).last_change != change:
                    self.report.alive()  # it goes on somewhere before us
            more |= before is None or (before.manifest, before.verified) != (offer.manifest, offer.verified)
        return more

    # What must be there, and what comes when.

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        """The first offer that says what the model's files are; waits for it."""
        choice = self.choices[model.name]
        self.report.phase(f"{model.name}: wait for {self.name}")
        with self.heard:
            while True:
                for peer in choice.peers:
                    manifest = peer.offer.manifest if peer.offer else None
                    if manifest is not None and manifest.of(model):
                        return with_digests(model, manifest)
                why = choice.hopeless([], time.monotonic())
                if why:
                    raise StagingError(f"nobody before this Spark has {model.name} ({model.path}): {why}")
                self._wait()

    def feed(self, model: Model, manifest: Manifest, names: Sequence[str]) -> Feed:
        return ChainFeed(self, model, list(shard_order(manifest, names)))

    def _wait(self) -> None:
        """With the lock held."""
        self.heard.wait(LOOK_LESS)
        if self.run.cancel.is_set():
            raise Cancelled

    def next(self, model: Model, left: Sequence[str], busy: int) -> str | None:
        choice = self.choices[model.name]
        with self.lock:
            now = time.monotonic()
            for name in left:
                if (giver := choice.giver(name, now)) is not None:
                    self.givers[model.name, name] = giver.name
                    return name
            if busy == 0 and (why := choice.hopeless(left, now)):
                raise StagingError(f"{len(left)} files of {model.path} can't be had, such as {left[0]}: {why}")
            choice.pass_over_stalled(left, busy, now)
        return None

    # One file.

    def _promise(self, model: Model, name: str, content: Content) -> tuple[str, Content]:
        """(who gives it, what it says that it has). It must be what the manifest lists, where that lists a hash, and have one of its own."""
        with self.lock:
            giver = self.givers[model.name, name]
            offer = self.choices[model.name].peer(giver).offer
            assert offer is not None, "it was chosen for what it offers"
            has = offer.verified.get(name)
            if has is None:
                raise StagingError(f"{giver} has {name} no more")
            if not has.sha256 or has.size != content.size or has.sha256 != (content.sha256 or has.sha256):
                why = f"{giver} offers {name} with {has.size:,} bytes, sha256 {has.sha256[:16] or 'not known'}"
                why += f"; expected {content.size:,} bytes, {content.sha256[:16] or 'any sha256 that it has found'}"
                self.choices[model.name].bad_content(giver, name, why)
                raise StagingError(why)
            self.promises[model.name, name] = has
        return giver, has

    def promised(self, model: Model, name: str) -> str:
        with self.lock:
            return self.promises[model.name, name].sha256

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        giver, has = self._promise(model, name, content)
        folder, at = own_folder(name, incoming), has.at or name
        path = folder / PurePosixPath(at).name
        begun = continued(folder, path.name, content.size)
        before = size_of(folder)
        # A new file is written aside and gets its name when it is whole, or its beginning when the transfer is cut.
        options = (
            "--append" if begun else "--partial",
            "--no-relative",
            "--times",
            "--contimeout=10",
            "--timeout=30",
            *self.limit,
        )
        code, output = self._rsync(f"{self.urls[giver]}/{model.name}", [at], folder, content.size, *options)
        if code != 0 and (full := OUR_DISK.search(output)):
            raise OSError(0, full[0], str(folder))
        if code != 0:
            why = f"{giver} did not give {name} (rsync status {code}): {output}"
            with self.lock:
                self.choices[model.name].transfer_failed(giver, name, why, time.monotonic(), size_of(folder) > before)
            raise StagingError(why)
        return path

    def refused(self, model: Model, name: str, why: str) -> None:
        with self.lock:
            self.choices[model.name].bad_content(self.givers[model.name, name], name, why)

    def accepted(self, model: Model, name: str) -> None:
        with self.lock:
            self.choices[model.name].arrived(time.monotonic())

    def origin(self, model: Model) -> str:
        counts = Counter(giver for (name, _), giver in self.givers.items() if name == model.name)
        return " and ".join(f"{giver} ({count})" for giver, count in sorted(counts.items()))

    def end(self) -> None:
        self.ended.set()
        self.run.end()
        for scout in self.scouts:
            scout.join()
        shutil.rmtree(self.aside, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes of what has come into a folder, whole or not."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def bounded(path: Path) -> bytes:
    """What was shown, and no more of it than can be an offer."""
    with path.open("rb") as stream:
        return stream.read(OFFER_LIMIT + 1)


def continued(folder: Path, name: str, size: int) -> bool:
    """Whether the beginning of a file lies in its folder, alone and by this name, so that it can be gone on with.

    An attempt that was cut may have left it under another name: that of another giver, or the one that rsync writes aside to.
    Each is the beginning of one and the same file; the hash of the whole decides.
    """
    left = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    best = max(((path.stat().st_size, path) for path in left if path.stat().st_size <= size), default=(0, folder))
    aside = folder.with_suffix(".begun")
    if best[0]:
        best[1].replace(aside)
    shutil.rmtree(folder, ignore_errors=True)
    if best[0]:
        folder.mkdir(parents=True)
        aside.replace(folder / name)
    return best[0] > 0


class ChainFeed(Feed):
    """Files as they are offered."""

    def __init__(self, source: ChainSource, model: Model, names: Sequence[str]) -> None:
        super().__init__(names)
        self.changed = source.changed
        self.source = source
        self.model = model

    def take(self, busy: int) -> str | None:
        if not self.left:
            return None
        name = self.source.next(self.model, self.left, busy)
        if name is not None:
            self.left.remove(name)
        return name
