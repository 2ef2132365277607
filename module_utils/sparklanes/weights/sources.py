# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where the files of a model come from: the Hub, a plain HTTP mirror, the Sparks before this one, or they lie here already.

A source says what the files must be, brings one file below a folder, and says where that file grows meanwhile, so that
it can be hashed on its way. What a source brings is never trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights.chain.choice import Choice, Offer, Peer, unseal
from ansible.module_utils.sparklanes.weights.digest import Cancelled, Pace
from ansible.module_utils.sparklanes.weights.folder import ModelStore, in_place
from ansible.module_utils.sparklanes.weights.model import (
    BLOCK,
    SHA256,
    Content,
    Manifest,
    Model,
    StagingError,
    safe_name,
    shard_order,
    with_digests,
)

HTTP_TIMEOUT = 60.0
# What rsync says of the disk that it writes to, which no other Spark could help with.
OUR_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large|Read-only file system")
# rsync begins with short messages to and fro. Without this each waits for the acknowledgement of the one before: 0.1 s a start.
SOCKET_OPTIONS = "TCP_NODELAY"
LISTS = ("manifest.json", "SHA256SUMS")
LIST_LIMIT = 64 << 20
# Seconds between two looks at an offer. Of the Spark that is waited for, a tenth of the time since it last had something
# new, within limits: soon where files come quickly, and cheap where each takes long. Of the others, which may have to step in, seldom.
LOOK_OFTEN, LOOK_LESS, LOOK_SELDOM = 0.1, 0.5, 2.0


class Tool:
    """Runs the programs that fetch, and ends them when the job ends."""

    def __init__(self, cancel: threading.Event) -> None:
        self.cancel = cancel
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[str]] = set()

    def __call__(self, command: Sequence[str], env: Mapping[str, str], text: str = "") -> tuple[int, str]:
        """(exit status, the last lines of its output)."""
        with self.lock:
            if self.cancel.is_set():
                raise Cancelled
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                dies_with_us(command),
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                env=dict(env),
                text=True,
                errors="replace",
            )
            self.running.add(process)
        try:
            output, _ = process.communicate(text)
        finally:
            with self.lock:
                self.running.discard(process)
        if self.cancel.is_set():
            raise Cancelled
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return process.returncode, " | ".join(lines[-4:])[-1000:]

    def end(self) -> None:
        self.cancel.set()
        with self.lock:
            for process in self.running:
                process.terminate()


def dies_with_us(command: Sequence[str]) -> list[str]:
    """The command, ended by the kernel when whoever started it is killed. A unit of systemd ends all its processes anyway."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else list(command)


class Feed:
    """The files that are still to come, in their order. Whatever asks it does so from one thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.left = list(names)
        self.changed = threading.Event()  # set when there may be something to take, or something that was taken has ended

    def take(self, busy: int) -> str | None:
        """The next file; None: there is none at present. `busy`: how many are under way."""
        return self.left.pop(0) if self.left else None

    def give_back(self, name: str) -> None:
        self.left.insert(0, name)


class Source:
    """Where a model's files come from. This one: nowhere, they are there."""

    name = "the folder itself"
    fetches = False
    # How often a file is asked for before the job fails.
    attempts = 3

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        return in_place(model, Path(model.path), store.manifest())

    def prepare(self, report: Reporter) -> None:
        """What is needed before the first fetch."""

    def feed(self, model: Model, manifest: Manifest, names: Sequence[str]) -> Feed:
        return Feed(list(shard_order(manifest, names)))

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        """Bring one file below `incoming` and say where."""
        raise StagingError(f"{model.path}/{name} is missing, and nothing says where to take it from")

    def growing(self, name: str, content: Content, incoming: Path) -> Path | None:
        """Where `fetch` is writing that file at this moment."""
        return None

    def refused(self, model: Model, name: str, why: str) -> None:
        """What was brought was not what it must be."""

    def accepted(self, model: Model, name: str) -> None:
        """What was brought has its final name."""

    def sweep(self, incoming: Path) -> None:
        """Remove what an interrupted client left and will not use again."""

    def end(self) -> None:
        """The job is over."""


def own_folder(name: str, incoming: Path) -> Path:
    """A folder a file: two names may be one file where they come from."""
    return incoming / hashlib.sha256(name.encode()).hexdigest()[:16]


def from_hub(model: Model, files: Mapping[str, weights_hub.HubFile]) -> Manifest:
    contents = {safe_name(name): Content(file.size, file.sha256, file.git_sha1) for name, file in files.items()}
    return with_digests(model, Manifest(model.repo, model.revision, contents, "hub"))


class HubSource(Source):
    """The Hub, by its own client."""

    fetches = True

    def __init__(self, args: Mapping[str, Any], token: str, run: Tool, home: Path) -> None:
        self.endpoint = args["endpoint"]
        self.name = self.endpoint
        self.token = token
        self.version = args["version"]
        self.venv = Path(args["venvs_dir"]) / f"hub-{self.version}"
        self.pip_args = list(args["pip_args"])
        self.run = run
        self.home = home
        self.env = weights_hub.client_environment(self.endpoint, token, home, os.environ)

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        model.needs_commit()
        saved = store.manifest()
        if saved is not None and saved.of(model) and saved.source == "hub":
            return with_digests(model, saved)  # a commit does not change
        return from_hub(model, weights_hub.tree(self.endpoint, model.repo, model.revision, self.token))

    def prepare(self, report: Reporter) -> None:
        report.phase(f"huggingface_hub {self.version}")
        weights_hub.ensure_client(self.venv, self.version, self.pip_args, self.run, sys.executable)

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        command = weights_hub.download_command(self.venv, model.repo, model.revision, name, incoming)
        code, output = self.run(command, self.env)
        if code != 0:
            raise StagingError(f"{self.endpoint} did not give {model.repo}/{name}: {output}")
        return incoming / name

    def growing(self, name: str, content: Content, incoming: Path) -> Path | None:
        final = incoming / name
        if final.exists():
            return final
        folder = (incoming / ".cache/huggingface/download" / name).parent
        tags = [tag for tag in (content.sha256, content.git_sha1) if tag]
        found = [path for tag in tags for path in folder.glob(f"*.{tag}.*incomplete")]
        return found[0] if len(found) == 1 else None

    def sweep(self, incoming: Path) -> None:
        # Each start of the client uses a new random name; a killed one's file is never continued.
        for orphan in (incoming / ".cache").rglob("*.incomplete"):
            orphan.unlink(missing_ok=True)

    def end(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


# --- a plain mirror --------------------------------------------------------------------------------------------------


def parse_sums(text: str) -> dict[str, str]:
    """SHA256SUMS: file → hash. Text and binary mark are alike; an escaped name is refused."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, name = line.partition(" ")
        if not SHA256.fullmatch(digest.lower()) or name[:1] not in (" ", "*"):
            raise StagingError(f"SHA256SUMS holds a line that is none: {line[:80]!r}")
        found[safe_name(name[1:].removeprefix("./"))] = digest.lower()
    return found


class MirrorSource(Source):
    """A folder behind a web server, with a list of its files: our own manifest.json, or SHA256SUMS, or the lane's sha256."""

    fetches = True

    def __init__(self, args: Mapping[str, Any], pace: Pace) -> None:
        self.urls: Mapping[str, str] = args["urls"]
        self.pins: Mapping[str, str] = args["lists"]
        self.name = " and ".join(sorted(set(self.urls.values())))
        self.pace = pace

    def _open(self, url: str, method: str = "GET", begin: int = 0) -> Any:
        request = urllib.request.Request(url, method=method)
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        return urllib.request.urlopen(request, timeout=HTTP_TIMEOUT)

    def _url(self, model: Model, name: str) -> str:
        if model.name not in self.urls:
            raise StagingError(f"no mirror is named for {model.name}: set model_weights_mirror")
        return f"{self.urls[model.name].rstrip('/')}/{quote(name)}"

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        return with_digests(model, self._listed(model))

    def _listed(self, model: Model) -> Manifest:
        for name in LISTS:
            url = self._url(model, name)
            try:
                with self._open(url) as answer:
                    text = answer.read(LIST_LIMIT)
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    continue
                raise StagingError(f"{url}: HTTP {error.code}. May this node read the mirror?") from error
            except OSError as error:
                raise StagingError(f"{url} does not answer ({getattr(error, 'reason', error)}). Check the address") from error
            pin, found = self.pins.get(model.name, ""), hashlib.sha256(text).hexdigest()
            if pin and pin != found:
                raise StagingError(f"{url} hashes to {found[:16]}…, not {pin[:16]}…. Is it the list that is meant?")
            if name == "SHA256SUMS":
                return self._with_sizes(model, parse_sums(text.decode(errors="replace")))
            try:
                files = Manifest.from_dict(json.loads(text)).files
            except ValueError as error:
                raise StagingError(f"{url} is no JSON: {error}") from error
            return Manifest(model.repo, model.revision, files, "mirror")
        if model.sha256:
            return self._with_sizes(model, model.sha256)
        raise StagingError(
            f"{self._url(model, '')} has neither {' nor '.join(LISTS)}, and lane_{model.name}.sha256 is empty: nothing says"
            " what the files must be. Run `sha256sum * > SHA256SUMS` beside them"
        )

    def _with_sizes(self, model: Model, sums: Mapping[str, str]) -> Manifest:
        def size(name: str) -> int:
            url = self._url(model, name)
            try:
                with self._open(url, "HEAD") as answer:
                    return int(answer.headers["Content-Length"])
            except (OSError, TypeError, ValueError) as error:
                raise StagingError(f"{url}: no size ({error}). Is the file there?") from error

        names = [name for name in sums if name not in LISTS]
        if not names:
            raise StagingError(f"{self._url(model, 'SHA256SUMS')} names no files")
        with ThreadPoolExecutor(8) as pool:
            sizes = dict(zip(names, pool.map(size, names), strict=True))
        files = {name: Content(sizes[name], sums[name]) for name in names}
        return Manifest(model.repo, model.revision, files, "mirror")

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        path = own_folder(name, incoming) / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        url = self._url(model, name)
        begin = path.stat().st_size if path.exists() else 0
        if begin > content.size:
            path.unlink()
            begin = 0
        if begin == content.size and path.exists():
            return path
        try:
            with self._open(url, begin=begin) as answer:
                whole = begin and answer.status != 206  # it does not know ranges
                with path.open("wb" if whole else "ab") as stream:
                    while block := answer.read(BLOCK):
                        stream.write(block)
                        stream.flush()
                        self.pace.take(len(block))
        except urllib.error.HTTPError as error:
            raise StagingError(f"{url}: HTTP {error.code}") from error
        except OSError as error:
            if error.errno is not None and error.filename:
                raise  # of the disk here
            raise StagingError(f"{url}: {getattr(error, 'reason', error)}") from error
        if path.stat().st_size < content.size:
            raise StagingError(f"{url} ended after {path.stat().st_size:,} of {content.size:,} bytes")
        return path

    def growing(self, name: str, content: Content, incoming: Path) -> Path | None:
        path = own_folder(name, incoming) / "file"
        return path if path.exists() else None


# --- the Sparks before this one --------------------------------------------------------------------------------------


class ChainSource(Source):
    """The Sparks before this one in the chain, over the fabric, by rsync."""

    fetches = True
    attempts = 1  # a file that did not come is given back, and perhaps taken from another one

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
        self.scouts: list[threading.Thread] = []

    def _rsync(self, url: str, files: Sequence[str], folder: Path, *options: str) -> tuple[int, str]:
        folder.mkdir(parents=True, exist_ok=True)
        # --files-from: a name is taken as it is, whatever characters are in it.
        command = ["rsync", "--no-motd", f"--sockopts={SOCKET_OPTIONS}", "--from0", "--files-from=-"]
        command += [*options, f"{url}/", str(folder)]
        return self.run(command, self.env, "".join(f"{file}\0" for file in files))

    # Listening to the others.

    def listen(self, models: Sequence[Model]) -> None:
        """From now on the offers of all peers are looked at. Once a job."""
        now, patience = time.monotonic(), float(self.args["patience"])
        names = [model.name for model in models]
        for name in names:
            self.choices[name] = Choice([Peer(peer) for peer in self.urls], now, patience, self.workers)
        for peer in self.urls:
            scout = threading.Thread(target=self._scout, args=(peer, names), daemon=True)
            self.scouts.append(scout)
            scout.start()

    def _scout(self, peer: str, models: Sequence[str]) -> None:
        news = time.monotonic()
        while not self.ended.is_set():
            try:
                if self._look(peer, models):
                    news = time.monotonic()
            except Cancelled:
                return
            except (StagingError, OSError) as error:
                with self.lock:
                    for choice in self.choices.values():
                        choice.silent(peer, str(error))
            with self.heard:
                self.heard.notify_all()
                self.changed.set()
                now = time.monotonic()
                awaited = any(choice.awaited_first(peer, now) for choice in self.choices.values())
            self.ended.wait(min(LOOK_LESS, max(LOOK_OFTEN, (now - news) / 10)) if awaited else LOOK_SELDOM)

    def _look(self, peer: str, models: Sequence[str]) -> bool:
        """Hear what it has now; whether that is more than before."""
        folder = self.aside / hashlib.sha256(peer.encode()).hexdigest()[:16]
        files = [f"{name}.json" for name in models]
        options = ("--ignore-times", "--contimeout=5", "--timeout=10")
        code, output = self._rsync(f"{self.urls[peer]}/offers", files, folder, *options)
        if code != 0:
            raise StagingError(f"rsync status {code}: {output}")
        more = False
        for name in models:
            offer = unseal((folder / f"{name}.json").read_bytes(), self.secret, peer)
            with self.lock:
                choice = self.choices[name]
                before, news = choice.peer(peer).offer, choice.peer(peer).news
                choice.told(peer, offer, time.monotonic())
                if choice.peer(peer).news != news:
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
            choice.starve(left, busy, now)
        return None

    # One file.

    def _offer(self, model: Model, name: str) -> tuple[str, Offer]:
        with self.lock:
            giver = self.givers[model.name, name]
            offer = self.choices[model.name].peer(giver).offer
        assert offer is not None, "it was chosen for what it offers"
        return giver, offer

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        giver, offer = self._offer(model, name)
        folder, at = own_folder(name, incoming), offer.verified[name].at or name
        # --append: what is in `folder` is the beginning of the file, left by a run that was cut; the hash decides.
        options = ("--append", "--times", "--contimeout=10", "--timeout=30", *self.limit)
        code, output = self._rsync(f"{self.urls[giver]}/{model.name}", [at], folder, *options)
        if code != 0 and (full := OUR_DISK.search(output)):
            raise OSError(0, full[0], str(folder))
        if code != 0:
            why = f"{giver} did not give {name} (rsync status {code}): {output}"
            with self.lock:
                self.choices[model.name].broke(giver, why, time.monotonic())
            raise StagingError(why)
        # Under one name, whoever gave it: the next one may have it elsewhere and goes on with what came.
        return folder / at

    def growing(self, name: str, content: Content, incoming: Path) -> Path | None:
        files = [path for path in own_folder(name, incoming).rglob("*") if path.is_file()]
        return files[0] if len(files) == 1 else None

    def refused(self, model: Model, name: str, why: str) -> None:
        with self.lock:
            self.choices[model.name].lied(self.givers[model.name, name], name, why)

    def accepted(self, model: Model, name: str) -> None:
        with self.lock:
            self.choices[model.name].arrived(time.monotonic())

    def takers(self, model: Model) -> dict[str, int]:
        """How many files came from whom, for the result."""
        counts: dict[str, int] = {}
        for (name, _), giver in self.givers.items():
            if name == model.name:
                counts[giver] = counts.get(giver, 0) + 1
        return counts

    def end(self) -> None:
        self.ended.set()
        self.run.end()
        for scout in self.scouts:
            scout.join()
        shutil.rmtree(self.aside, ignore_errors=True)


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


def make_source(args: Mapping[str, Any], secrets: Mapping[str, str], tool: Tool, report: Reporter, pace: Pace) -> Source:
    kind = args["source"]
    if kind == "hub":
        return HubSource(args["hub"], secrets.get("token", ""), tool, report.path.parent / "hub-home")
    if kind == "mirror":
        return MirrorSource(args["mirror"], pace)
    if kind == "chain":
        return ChainSource(
            args["chain"], secrets.get("chain_secret", ""), tool, report, float(args["rate"]), int(args["workers"])
        )
    return Source()
