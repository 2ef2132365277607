# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that stages models: read what is there, take what is not, prove it, write the marker last.

Files arrive in a folder beside the model (`.<model>.incoming`) and are renamed into it one by one, each after its
whole content was hashed and found right. So the model's folder never holds half a file, a second run goes on
where the first ended, and a run that finds one bad file fetches one file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, Check, sentence
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights.chain.take import ChainSource
from ansible.module_utils.sparklanes.weights.digest import Cancelled, Follower, Pace, digest
from ansible.module_utils.sparklanes.weights.folder import ModelStore, assess, look
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError, shard_order
from ansible.module_utils.sparklanes.weights.plan import note_rate
from ansible.module_utils.sparklanes.weights.room import check_room
from ansible.module_utils.sparklanes.weights.sources import make_source
from ansible.module_utils.sparklanes.weights.standing import REFETCH, few, rot, standing
from ansible.module_utils.sparklanes.weights.tools import Feed, Source, Tool

JOB = "stage"
RETRY_WAIT = 1.0  # seconds, times the number of attempts: the Hub's client and rsync wait in their own time-outs
# Seconds. The next Spark of a chain waits for what is noted: each file at once, those that are verified meanwhile together.
COUNT_EVERY, NOTE_REST = 0.25, 0.05
ASK_AGAIN = 0.5  # seconds until it is looked for a file to take where nothing called for it: time alone may give one free


# --- one model ---------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """What the work on all models shares."""

    host: str
    source: Source
    report: Reporter
    tool: Tool
    workers: int
    verify_workers: int
    verify_pace: Pace
    full: bool
    repair: bool
    reserve: int
    store_root: Path

    def each(self, feed: Feed, work: Callable[[str], None], workers: int) -> list[Exception]:
        """Do this for each name, several at a time. After a failure what has begun ends and nothing new begins."""
        errors: list[Exception] = []
        with ThreadPoolExecutor(workers) as pool:
            running: set[Future[None]] = set()
            try:
                while True:
                    while len(running) < workers and not errors:
                        try:
                            name = feed.take(len(running))
                        except StagingError as hopeless:
                            errors.append(hopeless)
                            break
                        if name is None:
                            break
                        begun = pool.submit(work, name)
                        begun.add_done_callback(lambda _: feed.changed.set())
                        running.add(begun)
                    if not running and (errors or not feed.left):
                        return errors
                    feed.changed.wait(ASK_AGAIN)
                    feed.changed.clear()  # before the look, so that nothing that comes after it is missed
                    done = {one for one in running if one.done()}
                    running -= done
                    errors += [error for one in done if isinstance(error := one.exception(), Exception)]
                    if not running and not done and self.tool.cancel.is_set():
                        raise Cancelled
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
        self.store = ModelStore(job.store_root, model.path)
        self.records: dict[str, Record] = {}
        self.lock = threading.RLock()
        self.standing = False
        self.news = threading.Event()
        self.learnt = False
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

    def adopt(self) -> None:
        """From here on this is what must be here; the next Sparks of a chain can learn it."""
        self._forget_old_files(self.before)
        assessment = assess(self.manifest, self.store.records(), look(self.folder))
        marker = self.store.staged()
        self.standing = assessment.complete and marker is not None and marker.of(self.model)
        self.store.save_manifest(self.manifest)
        self.records = {name: record for name, record in self.store.records().items() if name in assessment.verified}
        self._save()

    def run(self) -> None:
        """Raises what a person must hear; `checks` and `actions` tell the rest."""
        job = self.job
        assessment = assess(self.manifest, self.store.records(), look(self.folder))
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
        self._finish()

    def _save(self) -> None:
        """Note what is known so far, so that a later run goes on from here and the next Spark of a chain can take it.
        A model that stands complete keeps its marker while it is read again, until something is found bad."""
        with self.lock:
            self.news.clear()
            if not self.standing:
                if self.learnt:
                    self.store.save_manifest(self.manifest)
                    self.learnt = False
                self.store.save(self.manifest, self.records, complete=False)

    @contextlib.contextmanager
    def _noting(self, count: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Meanwhile what becomes known is noted at once; while that is written, more may come and is noted together."""
        ended = threading.Event()

        def note() -> None:
            while not ended.wait(NOTE_REST):
                if self.news.wait(COUNT_EVERY):
                    with contextlib.suppress(OSError):  # a full disk is told by whoever writes the model
                        self._save()
                count()

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self.news.set()
            thread.join()
            self._save()

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
            self._save()

        began = time.monotonic()
        with self._noting():
            errors = self.job.each(Feed(list(shard_order(self.manifest, names))), work, self.job.verify_workers)
        self._raise(errors)
        note_rate(self.job.store_root, "read", total, time.monotonic() - began)
        self.actions.append(f"read {len(names)} files of {self.folder} ({human_bytes(total)})")

    def _fetch(self, names: Sequence[str]) -> None:
        source, manifest = self.job.source, self.manifest
        total = sum(manifest.files[name].size for name in names)
        source.prepare(self.job.report)
        self.incoming.mkdir(parents=True, exist_ok=True)
        source.sweep(self.incoming)
        self.job.report.phase(f"{self.model.name}: fetch", total)
        feed = source.feed(self.model, manifest, names)
        arrived = 0

        def count() -> None:
            with self.lock:
                done = arrived
            self.job.report.update(done=min(total, done + sum(allocated(self.incoming))))

        def work(name: str) -> None:
            nonlocal arrived
            self.job.report.update(file=name)
            try:
                record = self._bring(name, manifest.files[name])
            except StagingError:
                if source.attempts > 1:
                    raise
                feed.give_back(name)  # the source knows why, and when it is hopeless
                return
            with self.lock:
                arrived += record.size
            self._keep(name, record)
            source.accepted(self.model, name)

        began = time.monotonic()
        with self._noting(count):
            errors = self.job.each(feed, work, self.job.workers)
        self._raise(errors)
        self.job.report.update(done=total)
        note_rate(self.job.store_root, "fetch" if source.attempts > 1 else "chain", total, time.monotonic() - began)
        told = source.name
        if isinstance(source, ChainSource):
            told = " and ".join(f"{giver} ({count})" for giver, count in sorted(source.takers(self.model).items()))
        self.actions.append(f"fetched {len(names)} files ({human_bytes(total)}) from {told}")

    def _bring(self, name: str, content: Content) -> Record:
        """Fetch, hash on the way, and only then give it its name. A wrong one is fetched anew, whole."""
        source = self.job.source
        for attempt in range(1, source.attempts + 1):
            try:
                arrived, record, sha1 = self._receive(name, content)
                if record.size == content.size and content.matches(record.sha256, sha1):
                    break
                arrived.unlink()
                found = f"{record.size:,} bytes, sha256 {record.sha256[:16]}…"
                expected = f"{content.size:,} bytes, {(content.sha256 or content.git_sha1)[:16]}…"
                why = f"sent {name} with {found}; expected {expected}"
                source.refused(self.model, name, why)
                raise StagingError(
                    f"{self.job.host}: {source.name} {why}."
                    " Its copy or the way here is bad: verify the source (model_weights_verify: full) and the network"
                )
            except StagingError:
                if attempt == source.attempts or self.job.tool.cancel.wait(RETRY_WAIT * attempt):
                    raise
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        arrived.chmod(0o644)
        arrived.replace(target)
        sync_folder(target.parent)
        return record

    def _receive(self, name: str, content: Content) -> tuple[Path, Record, str]:
        """Where the file arrived, and its digests: of its bytes as they came, or else of a second look at all of them."""
        source = self.job.source
        git = bool(content.git_sha1) and not content.sha256

        def find() -> Path | None:
            return source.growing(name, content, self.incoming)

        with Follower(find, content.size, git, lambda count: self.job.report.alive()) as follower:
            arrived = source.fetch(self.model, name, content, self.incoming)
            found = follower.result(arrived)
        if found is None or not content.matches(found[0].sha256, found[1]):
            found = self._digest(arrived, content)
        return arrived, *found

    def _digest(self, path: Path, content: Content, count: bool = False) -> tuple[Record, str]:
        git = bool(content.git_sha1) and not content.sha256
        tick = (lambda n: self.job.report.update(add=n)) if count else (lambda n: self.job.report.alive())
        return digest(path, git, self.job.verify_pace, tick)

    def _keep(self, name: str, record: Record) -> None:
        with self.lock:
            self.records[name] = record
            content = self.manifest.files[name]
            if not content.sha256:
                # git's hash proved it, or nothing was known of it. From now on its sha256 does.
                files = {**self.manifest.files, name: Content(content.size, record.sha256, content.git_sha1, content.at)}
                self.manifest = Manifest(self.manifest.repo, self.manifest.revision, files, self.manifest.source)
                self.learnt = True
        self.news.set()

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
    source = make_source(args, secrets, tool, report, pace)
    job = Job(
        host=args["host"],
        source=source,
        report=report,
        tool=tool,
        workers=int(args["workers"]),
        verify_workers=int(args["verify_workers"]),
        verify_pace=Pace(float(args["verify_rate"]), cancel),
        full=args["verify"] == "full",
        repair=bool(args["repair"]),
        reserve=int(args["reserve"]),
        store_root=Path(args["staged_dir"]),
    )
    works = [Staging(job, Model.from_dict(model)) for model in args["models"]]
    errors = []
    try:
        if isinstance(source, ChainSource):
            source.listen([work.model for work in works])
        check_room(job.host, [(work.model, work.survey()) for work in works], job.reserve, args["also"])
        for work in works:
            work.adopt()
        for work in works:
            try:
                work.run()
            except (StagingError, weights_hub.HubError, OSError) as error:
                errors.append(str(error))
    except (StagingError, weights_hub.HubError, OSError) as error:
        errors.append(str(error))
    finally:
        tool.end()
        source.end()
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


def rate_limit(serving: bool, rate: int, serving_rate: int) -> int:
    """The limit that applies now: the lower one while this Spark serves, or may (`gpu.occupied`). Zero is none."""
    return tighter(rate, serving_rate) if serving else rate


def tighter(*limits: int) -> int:
    """The lowest of several limits, of which zero is none."""
    return min((limit for limit in limits if limit), default=0)


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
