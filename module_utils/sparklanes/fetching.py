# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that stages models: read what is there, fetch what is not, prove it, write the marker last.

Files arrive in a folder beside the model (`.<model>.incoming`) and are renamed into it one by one, each after its
whole content was read back and found right. So the model's folder never holds half a file, a second run goes on
where the first ended, and a run that finds one bad file fetches one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.sparklanes import hub
from ansible.module_utils.sparklanes.checks import FAIL, Check, sentence
from ansible.module_utils.sparklanes.jobs import JobError, Reporter, human_bytes
from ansible.module_utils.sparklanes.staging import (
    BLOCK,
    REFETCH,
    Content,
    Manifest,
    Model,
    Record,
    StagingError,
    Store,
    assess,
    check_room,
    few,
    from_hub,
    in_place,
    look,
    rot,
    shard_order,
    standing,
    with_digests,
)

JOB = "stage"
ATTEMPTS = 3
RETRY_WAIT = 1.0  # seconds, times the number of attempts: the Hub's client and rsync wait in their own time-outs


class Cancelled(Exception):
    """Another worker's failure, or the end of the job, ended this one."""


class Pace:
    """A limit in bytes per second that all workers share. Zero: none."""

    def __init__(self, rate: float, cancel: threading.Event) -> None:
        self.rate = rate
        self.cancel = cancel
        self.lock = threading.Lock()
        self.next = time.monotonic()

    def take(self, count: int) -> None:
        delay = 0.0
        if self.rate > 0:
            with self.lock:
                now = time.monotonic()
                self.next = max(self.next, now) + count / self.rate
                delay = self.next - now
        if (delay > 0 and self.cancel.wait(delay)) or self.cancel.is_set():
            raise Cancelled


def digest(path: Path, git: bool, pace: Pace, tick: Callable[[int], None]) -> tuple[Record, str]:
    """Read a file whole: (record, git's blob hash if asked for). Leaves nothing of it in the page cache.

    What was just written must be on the disk first: dirty pages can't be dropped. hashlib lets other threads run
    while it works on a block, so a thread a file uses as many cores as a process a file would.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        before = os.fstat(descriptor)
        sha256 = hashlib.sha256()
        sha1 = hashlib.sha1(b"blob %d\0" % before.st_size, usedforsecurity=False) if git else None
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        at = 0
        while count := os.preadv(descriptor, [buffer], at):
            sha256.update(view[:count])
            if sha1:
                sha1.update(view[:count])
            os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_DONTNEED)
            at += count
            tick(count)
            pace.take(count)
        # Read-ahead may have gone past the last block that was dropped.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or at != after.st_size:
        raise StagingError(f"{path} changed while it was read. Who writes to it?")
    return Record(after.st_size, after.st_mtime_ns, sha256.hexdigest()), sha1.hexdigest() if sha1 else ""


# --- where files come from ---------------------------------------------------------------------------------------


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
                list(command),
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
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return process.returncode, " | ".join(lines[-4:])[-1000:]

    def end(self) -> None:
        self.cancel.set()
        with self.lock:
            for process in self.running:
                process.terminate()


class Source:
    """Where a model's files come from. `fetch` brings one file below `incoming` and says where."""

    name = "the folder itself"
    fetches = False

    def manifest(self, model: Model, store: Store) -> Manifest:
        return in_place(model, Path(model.path), store.manifest())

    def prepare(self, report: Reporter) -> None:
        """What is needed before the first fetch."""

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        raise StagingError(f"{model.path}/{name} is missing, and nothing says where to take it from")

    def sweep(self, incoming: Path) -> None:
        """Remove what an interrupted client left and will not use again."""


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
        self.env = hub.client_environment(self.endpoint, token, home, os.environ)

    def manifest(self, model: Model, store: Store) -> Manifest:
        model.needs_commit()
        saved = store.manifest()
        if saved is not None and saved.of(model) and saved.source == "hub":
            return with_digests(model, saved)  # a commit does not change
        return from_hub(model, hub.tree(self.endpoint, model.repo, model.revision, self.token))

    def prepare(self, report: Reporter) -> None:
        report.phase(f"huggingface_hub {self.version}")
        hub.ensure_client(self.venv, self.version, self.pip_args, self.run, sys.executable)

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        command = hub.download_command(self.venv, model.repo, model.revision, name, incoming)
        code, output = self.run(command, self.env)
        if code != 0:
            raise StagingError(f"{self.endpoint} did not give {model.repo}/{name}: {output}")
        return incoming / name

    def sweep(self, incoming: Path) -> None:
        # Each start of the client uses a new random name; a killed one's file is never continued.
        for orphan in (incoming / ".cache").rglob("*.incomplete"):
            orphan.unlink(missing_ok=True)


class PeerSource(Source):
    """Another Spark that has the model, over the fabric, by rsync."""

    fetches = True

    def __init__(self, args: Mapping[str, Any], secret: str, run: Tool, rate: float, workers: int) -> None:
        self.url = args["url"].rstrip("/")
        self.name = urlsplit(self.url).hostname or self.url
        self.digests: Mapping[str, str] = args["manifests"]
        self.run = run
        self.limit = [f"--bwlimit={max(1, int(rate / workers / 1024))}"] if rate else []
        self.env = {**os.environ, "RSYNC_PASSWORD": secret}

    def _rsync(self, export: str, at: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # --append: what is in `folder` is the beginning of the file, left by a run that was cut; the hash decides.
        # --files-from: a name is taken as it is, whatever characters are in it.
        command = ["rsync", "--append", "--times", "--no-motd", "--contimeout=20", "--timeout=60", *self.limit]
        code, output = self.run(
            [*command, "--from0", "--files-from=-", f"{self.url}/{export}/", str(folder)], self.env, at + "\0"
        )
        if code != 0:
            raise StagingError(f"{self.name} did not give {export}/{at} (rsync status {code}): {output}")

    def manifest(self, model: Model, store: Store) -> Manifest:
        folder = store.folder / "peer"
        shutil.rmtree(folder, ignore_errors=True)
        file = f"{model.name}.json"
        self._rsync("manifests", file, folder)
        text = (folder / file).read_bytes()
        shutil.rmtree(folder)
        found, expected = hashlib.sha256(text).hexdigest(), self.digests.get(model.name, "none")
        if found != expected:
            raise StagingError(f"{self.name} sent manifest {found[:16]}… of {model.name}, not {expected[:16]}…")
        manifest = Manifest.from_dict(json.loads(text))
        if not manifest.of(model):
            raise StagingError(f"{self.name} lends {manifest.repo}@{manifest.revision[:12]}, not {model.revision[:12]}")
        return with_digests(model, manifest)

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        # A folder a file: two names may be one blob at the peer.
        folder = incoming / hashlib.sha256(name.encode()).hexdigest()[:16]
        at = content.at or name
        self._rsync(model.name, at, folder)
        return folder / at


# --- one model ---------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """What the work on all models shares."""

    host: str
    source: Source
    report: Reporter
    pace: Pace
    tool: Tool
    workers: int
    full: bool
    repair: bool
    reserve: int
    store_root: Path

    def each(self, names: Iterable[str], work: Callable[[str], None]) -> list[Exception]:
        """Do this for each name, several at a time. After a failure what has begun ends and nothing new begins."""
        errors: list[Exception] = []
        queue: Iterator[str] = iter(names)
        with ThreadPoolExecutor(self.workers) as pool:
            running: set[Future[None]] = set()
            try:
                while True:
                    while len(running) < self.workers and not errors and (name := next(queue, None)) is not None:
                        running.add(pool.submit(work, name))
                    if not running:
                        return errors
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    errors += [error for one in done if isinstance(error := one.exception(), Exception)]
            except BaseException:
                self.tool.end()
                raise


class Staging:
    """One model's way to its marker."""

    def __init__(self, job: Job, model: Model) -> None:
        self.job = job
        self.model = model
        self.folder = Path(model.path)
        self.incoming = incoming_of(model.path)
        self.store = Store(job.store_root, model.path)
        self.records: dict[str, Record] = {}
        self.lock = threading.RLock()
        self.standing = False
        self.saved = 0.0
        self.checks: list[Check] = []
        self.actions: list[str] = []
        self.manifest = Manifest("", "", {})
        self.before: Manifest | None = None

    def survey(self) -> int:
        """Learn what must be there; the bytes that are to come."""
        self.job.report.phase(f"{self.model.name}: list")
        self.before = self.store.manifest()
        self.manifest = self.job.source.manifest(self.model, self.store)
        assessment = assess(self.manifest, self.store.records(), look(self.folder))
        return self._to_come(assessment.to_fetch) if self.job.source.fetches else 0

    def run(self) -> None:
        """Raises what a person must hear; `checks` and `actions` tell the rest."""
        job, model = self.job, self.model
        self._forget_old_files(self.before)
        assessment = assess(self.manifest, self.store.records(), look(self.folder))
        marker = self.store.staged()
        self.standing = assessment.complete and marker is not None and marker.of(model)
        self.store.save_manifest(self.manifest)
        self.records = {name: record for name, record in self.store.records().items() if name in assessment.verified}
        self._save(now=True)
        try:
            self._read(assessment.unread + (assessment.verified if job.full else []))
            bad = [check for check in self.checks if check.status == FAIL]
            wanted = [name for name in self.manifest.files if name not in self.records]
            if wanted and job.source.fetches and (job.repair or not bad):
                self._fetch(wanted)
            elif wanted and not bad:
                size = sum(self.manifest.files[name].size for name in wanted)
                raise StagingError(
                    f"{job.host}: {self.folder} lacks {few(wanted)} ({human_bytes(size)}), and is to be used as it"
                    " is. Complete it by hand, or let it be fetched (model_weights_source: hub)"
                )
        finally:
            self._save(now=True)
        self._finish()

    def _save(self, now: bool = False) -> None:
        """Note what is known so far, so that a later run goes on from here. A model that stands complete keeps its
        marker while it is read again, until something is found bad."""
        with self.lock:
            if not self.standing and (now or time.monotonic() - self.saved > 1):
                self.store.save(self.manifest, self.records, complete=False)
                self.saved = time.monotonic()

    def _forget_old_files(self, before: Manifest | None) -> None:
        """Another revision stands here: what we put there and the new one lacks must go."""
        if before is None or before.of(self.model) or not self.job.source.fetches:
            return
        for name in sorted(set(before.files) - set(self.manifest.files)):
            path = self.folder / name
            if path.is_file():
                path.unlink()
                self.actions.append(f"removed {path}, which belonged to revision {before.revision[:12]} only")

    def _to_come(self, names: Iterable[str]) -> int:
        """Bytes that must still be written, those that an interrupted run left taken off."""
        needed: int = sum(self.manifest.files[name].size for name in names)
        return max(0, needed - sum(allocated(self.incoming)))

    def _read(self, names: Sequence[str]) -> None:
        if not names:
            return
        total = sum(self.manifest.files[name].size for name in names)
        self.job.report.phase(f"{self.model.name}: read", total)

        def work(name: str) -> None:
            content = self.manifest.files[name]
            self.job.report.update(file=name)
            record, sha1 = self._digest(self.folder / name, content, count=True)
            if content.matches(record.sha256, sha1):
                self._keep(name, record)
                return
            found, expected = (record.sha256, content.sha256) if content.sha256 else (sha1, content.git_sha1)
            with self.lock:
                self.checks.append(rot(self.model, self.job.host, name, found, expected))
                self.records.pop(name, None)
                self.standing = False
            self._save(now=True)

        self._raise(self.job.each(shard_order(self.manifest, names), work))
        self.actions.append(f"read {len(names)} files of {self.folder} ({human_bytes(total)})")

    def _fetch(self, names: Sequence[str]) -> None:
        total = sum(self.manifest.files[name].size for name in names)
        self.job.source.prepare(self.job.report)
        self.incoming.mkdir(parents=True, exist_ok=True)
        self.job.source.sweep(self.incoming)
        self.job.report.phase(f"{self.model.name}: fetch", total)
        ended = threading.Event()
        arrived = 0

        def count() -> None:
            while not ended.wait(1):
                with self.lock:
                    done = arrived
                self.job.report.update(done=min(total, done + sum(allocated(self.incoming))))

        def work(name: str) -> None:
            nonlocal arrived
            self.job.report.update(file=name)
            record = self._bring(name, self.manifest.files[name])
            with self.lock:
                arrived += record.size
            self._keep(name, record)

        counter = threading.Thread(target=count, daemon=True)
        counter.start()
        try:
            errors = self.job.each(shard_order(self.manifest, names), work)
        finally:
            ended.set()
            counter.join()
        self._raise(errors)
        self.job.report.update(done=total)
        self.actions.append(f"fetched {len(names)} files ({human_bytes(total)}) from {self.job.source.name}")

    def _bring(self, name: str, content: Content) -> Record:
        """Fetch, read back, and only then give it its name. A wrong one is fetched anew, whole."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                arrived = self.job.source.fetch(self.model, name, content, self.incoming)
                record, sha1 = self._digest(arrived, content)
                if record.size == content.size and content.matches(record.sha256, sha1):
                    break
                arrived.unlink()
                found = f"{record.size:,} bytes, sha256 {record.sha256[:16]}…"
                expected = f"{content.size:,} bytes, {(content.sha256 or content.git_sha1)[:16]}…"
                raise StagingError(
                    f"{self.job.host}: {self.job.source.name} sent {name} with {found}; expected {expected}."
                    " Its copy or the way here is bad: verify the source (model_weights_verify: full) and the network"
                )
            except StagingError:
                if attempt == ATTEMPTS or self.job.tool.cancel.wait(RETRY_WAIT * attempt):
                    raise
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        arrived.chmod(0o644)
        arrived.replace(target)
        sync_folder(target.parent)
        return record

    def _digest(self, path: Path, content: Content, count: bool = False) -> tuple[Record, str]:
        git = bool(content.git_sha1) and not content.sha256
        tick = (lambda n: self.job.report.update(add=n)) if count else (lambda n: self.job.report.alive())
        return digest(path, git, self.job.pace, tick)

    def _keep(self, name: str, record: Record) -> None:
        with self.lock:
            self.records[name] = record
        self._save()

    def _raise(self, errors: Sequence[Exception]) -> None:
        told = [error for error in errors if not isinstance(error, Cancelled)]
        if told:
            raise told[0]

    def _finish(self) -> None:
        """The marker, if this is the model that was asked for."""
        job = self.job
        job.report.phase(f"{self.model.name}: headers")
        bad = [check for check in self.checks if check.status == FAIL]
        lacking = [name for name in self.manifest.files if name not in self.records]
        if bad and not lacking:
            # Each was found bad and is now good.
            for check in bad:
                self.actions.append(f"replaced a bad file. {check.found}; expected {check.expected}")
            self.checks = [check for check in self.checks if check.status != FAIL]
        if lacking:
            return
        if job.source.fetches:
            shutil.rmtree(self.incoming, ignore_errors=True)
        # What was learnt in a first look is what must be from now on.
        files = {name: Content(record.size, record.sha256) for name, record in self.records.items()}
        learnt = Manifest(self.manifest.repo, self.manifest.revision, files, self.manifest.source)
        self.store.save_manifest(learnt)
        self.store.save(learnt, self.records, complete=True)
        after = standing(self.model, job.host, self.store)
        self.checks += [check for check in after.checks if check.status == FAIL]
        if not after.staged:
            self.store.save(learnt, self.records, complete=False)


def incoming_of(path: str) -> Path:
    """Where a model's files arrive: beside its folder, on the same disk."""
    real = Path(path).resolve()
    return real.parent / f".{real.name}.incoming"


def allocated(folder: Path) -> Iterator[int]:
    """Bytes on the disk of each file below a folder."""
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                stat = Path(here, name).stat()
                yield min(stat.st_size, stat.st_blocks * 512)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the job -----------------------------------------------------------------------------------------------------


def stage(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Stage all models of these arguments. The function that `jobs` runs."""
    os.environ.update({name[4:]: value for name, value in secrets.items() if name.startswith("env:")})
    cancel = threading.Event()
    tool = Tool(cancel)
    pace = Pace(float(args["rate"]), cancel)
    source = make_source(args, secrets, tool, report.path.parent / "hub-home")
    job = Job(
        host=args["host"],
        source=source,
        report=report,
        pace=pace,
        tool=tool,
        workers=int(args["workers"]),
        full=args["verify"] == "full",
        repair=bool(args["repair"]),
        reserve=int(args["reserve"]),
        store_root=Path(args["staged_dir"]),
    )
    works = [Staging(job, Model.from_dict(model)) for model in args["models"]]
    errors = []
    try:
        check_room(job.host, [(work.model, work.survey()) for work in works], job.reserve)
        for work in works:
            try:
                work.run()
            except (StagingError, hub.HubError, OSError) as error:
                errors.append(str(error))
    except (StagingError, hub.HubError, OSError) as error:
        errors.append(str(error))
    finally:
        tool.end()
        shutil.rmtree(report.path.parent / "hub-home", ignore_errors=True)
    standings = [standing(work.model, job.host, work.store) for work in works]
    checks = [check for work in works for check in work.checks]
    result = {
        "changed": any("fetched" in action or "removed" in action for work in works for action in work.actions)
        or not args["was_staged"],
        "staged": all(one.staged for one in standings) and not checks,
        "models": [one.to_dict() for one in standings],
        "actions": [action for work in works for action in work.actions],
        "checks": [check.to_dict() for check in checks],
    }
    told = [text if text.startswith(job.host) else f"{job.host}: {text}" for text in errors]
    told += [sentence(check) for check in checks if check.status == FAIL]
    if told or not result["staged"]:
        raise JobError("; ".join(told) or f"{job.host}: not complete: {REFETCH}", result)
    return result


def rate_limit(run: Callable[[list[str]], tuple[int, str, str]], rate: int, serving_rate: int) -> int:
    """The limit that applies now: the lower one while this Spark serves (a rank runs, or any process uses the GPU)."""
    for command in (
        ["docker", "ps", "--quiet", "--filter", "label=sparklanes.release"],
        ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
    ):
        if shutil.which(command[0]):
            code, output, _ = run(command)
            if code == 0 and output.strip():
                return min(rate or serving_rate, serving_rate)
    return rate


# What a connection to the outside may need. A proxy's address may hold a password, so these travel as secrets.
NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
)


def network_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a login on this Spark sets for the network; a unit of systemd would not see it."""
    return {f"env:{name}": value for name, value in environment.items() if name.upper() in NETWORK}


def make_source(args: Mapping[str, Any], secrets: Mapping[str, str], tool: Tool, home: Path) -> Source:
    kind = args["source"]
    if kind == "hub":
        return HubSource(args["hub"], secrets.get("token", ""), tool, home)
    if kind == "peer":
        rate, workers = float(args["rate"]), int(args["workers"])
        return PeerSource(args["peer"], secrets.get("peer_secret", ""), tool, rate, workers)
    return Source()
