# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The way of one model to its marker: survey, adopt, then read what is there, fetch what is not, and finish.

Each step is handed what the one before it made: a Survey, then a Tracker. The caller's thread takes the steps and alone
writes an Outcome; files are read and fetched by threads that share the Tracker and nothing else.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible.module_utils.sparklanes.common import again
from ansible.module_utils.sparklanes.common.checks import FAIL, Check
from ansible.module_utils.sparklanes.common.files import remove
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights.digest import Arrival, digest
from ansible.module_utils.sparklanes.weights.folder import ModelStore, allocated, assess, incoming_of, look, with_ctime
from ansible.module_utils.sparklanes.weights.home import Home, LeadsAway, private
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError, shard_order
from ansible.module_utils.sparklanes.weights.pace import Cancelled, Pace
from ansible.module_utils.sparklanes.weights.plan import note_rate
from ansible.module_utils.sparklanes.weights.standing import few, rot, standing
from ansible.module_utils.sparklanes.weights.tools import Feed, Source, Tool, for_each
from ansible.module_utils.sparklanes.weights.tracker import Tracker

RETRY_WAIT = 1.0  # seconds, times the number of attempts: the Hub's client and rsync wait in their own time-outs


@dataclass(frozen=True)
class Context:
    """What the work on all models of a job shares."""

    host: str
    source: Source
    report: Reporter
    tool: Tool
    workers: int
    verify_workers: int
    verify_pace: Pace
    arrival_pace: Pace
    full: bool  # read also what was verified before
    repair: bool
    store_root: Path


@dataclass(frozen=True)
class Survey:
    """A model before anything of it is changed."""

    model: Model
    store: ModelStore
    manifest: Manifest  # what must be there
    before: Manifest | None  # what had to be there until now
    to_come: int  # bytes that are still to be written


@dataclass
class Outcome:
    """What was found bad and what was done, for the job's result."""

    checks: list[Check] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    @property
    def bad(self) -> list[Check]:
        return [check for check in self.checks if check.status == FAIL]


def survey(context: Context, model: Model) -> Survey:
    """Learn what must be there and how much is to come. Changes nothing."""
    context.report.phase(f"{model.name}: list")
    store = ModelStore(context.store_root, model.path)
    before = store.manifest()
    manifest = context.source.manifest(model, store)
    if not manifest.files:
        raise StagingError(f"{context.source.name} lists no files of {model.name} ({model.path}). Is it the model that is meant?")
    to_come = 0
    if context.source.fetches:
        assessment = assess(manifest, store.records(), look(Path(model.path)))
        needed: int = sum(manifest.files[name].size for name in assessment.to_fetch)
        to_come = max(0, needed - sum(allocated(incoming_of(model.path))))  # an interrupted run may have left some
    return Survey(model, store, manifest, before, to_come)


def adopt(context: Context, asked: Survey, outcome: Outcome) -> Tracker:
    """From here on this is what must be there; the next Sparks of a chain can learn it."""
    model, store, manifest = asked.model, asked.store, asked.manifest
    if context.source.fetches and asked.before is not None and not asked.before.of(model):
        outcome.actions += remove_old_files(Path(model.path), asked.before, manifest)
    records = store.records()
    seen = look(Path(model.path))
    assessment = assess(manifest, records, seen)
    marker = store.staged()
    complete = assessment.complete and marker is not None and marker.of(model)
    store.save_manifest(manifest)
    verified = {name: with_ctime(records[name], seen[name]) for name in assessment.verified}
    tracker = Tracker(model, store, manifest, verified, complete)
    tracker.save()
    return tracker


def remove_old_files(folder: Path, before: Manifest, manifest: Manifest) -> list[str]:
    """Another revision stands here: what we put there and the new one lacks must go."""
    if not folder.exists():
        return []
    with Home(folder) as home:
        removed = [name for name in sorted(set(before.files) - set(manifest.files)) if home.remove(name)]
    return [f"removed {folder / name}, which belonged to revision {before.revision[:12]} only" for name in removed]


def complete(context: Context, tracker: Tracker, outcome: Outcome) -> None:
    """All that is left to do after `adopt`. Raises what a person must hear; `outcome` holds the rest."""
    folder, manifest = Path(tracker.model.path), tracker.manifest
    assessment = assess(manifest, tracker.store.records(), look(folder))
    read(context, tracker, outcome, assessment.unread + (assessment.verified if context.full else []))
    lacking = tracker.lacking()
    if lacking and context.source.fetches and (context.repair or not outcome.bad):
        fetch(context, tracker, outcome, lacking)
    elif lacking and not outcome.bad:
        size = sum(manifest.files[name].size for name in lacking)
        raise StagingError(
            f"{context.host}: {folder} lacks {few(lacking)} ({human_bytes(size)}), and is to be used as it"
            " is. Complete it by hand, or let it be fetched (model_weights_source: hub)"
        )
    finish(context, tracker, outcome)


def read(context: Context, tracker: Tracker, outcome: Outcome, names: Sequence[str]) -> None:
    """Read files that are there, and find out which of them are right."""
    if not names:
        return
    model, manifest = tracker.model, tracker.manifest
    total = sum(manifest.files[name].size for name in names)
    context.report.phase(f"{model.name}: read", total)

    def work(name: str) -> Check | None:
        content = manifest.files[name]
        context.report.update(file=name)
        record, sha1 = digest(
            Path(model.path), name, content.by_git, context.verify_pace, lambda count: context.report.update(add=count)
        )
        if content.matches(record.sha256, sha1):
            tracker.found_right(name, record)
            return None
        tracker.found_bad(name)
        found, expected = (record.sha256, content.sha256) if content.sha256 else (sha1, content.git_sha1)
        return rot(model, context.host, name, found, expected)

    began = time.monotonic()
    with tracker.saving():
        checks, errors = for_each(Feed(list(shard_order(manifest, names))), work, context.verify_workers, context.tool)
    outcome.checks += [check for check in checks if check is not None]
    raise_first(errors)
    note_rate(context.store_root, "read", total, time.monotonic() - began)
    outcome.actions.append(f"read {len(names)} files of {model.path} ({human_bytes(total)})")


def fetch(context: Context, tracker: Tracker, outcome: Outcome, names: Sequence[str]) -> None:
    """Bring files from the source, each hashed before it gets its name."""
    model, manifest, source, report = tracker.model, tracker.manifest, context.source, context.report
    incoming = incoming_of(model.path)
    total = sum(manifest.files[name].size for name in names)
    source.prepare(report)
    private(incoming)
    source.sweep(incoming)
    report.phase(f"{model.name}: fetch", total)
    feed = source.feed(model, manifest, names)

    def count() -> None:
        report.update(done=min(total, tracker.verified_bytes(names) + sum(allocated(incoming))))

    def work(name: str) -> None:
        report.update(file=name)
        try:
            record = bring(context, model, name, manifest.files[name], incoming)
        except LeadsAway:
            raise
        except StagingError:
            if source.attempts > 1:
                raise
            feed.give_back(name)  # the source knows why, and when it is hopeless
            return
        tracker.found_right(name, record)
        source.accepted(model, name)

    began = time.monotonic()
    with tracker.saving(count):
        _, errors = for_each(feed, work, context.workers, context.tool)
    raise_first(errors)
    report.update(done=total)
    note_rate(context.store_root, source.rate, total, time.monotonic() - began)
    outcome.actions.append(f"fetched {len(names)} files ({human_bytes(total)}) from {source.origin(model)}")


def bring(context: Context, model: Model, name: str, content: Content, incoming: Path) -> Record:
    """Fetch one file, hash what came, and only then give it its name. A wrong one is fetched anew, whole."""
    source = context.source
    for attempt in range(1, source.attempts + 1):
        try:
            return receive(context, model, name, content, incoming)
        except LeadsAway:
            raise  # it leads there however often a file is fetched
        except StagingError as error:
            # A server that is short of something for the moment is waited for as it asks, within limits.
            wait = again.delay(attempt, str(error)) if again.momentary(str(error)) else RETRY_WAIT * attempt
            if attempt == source.attempts or wait is None or context.tool.cancel.wait(wait):
                raise
    raise AssertionError("a source is asked at least once")


def receive(context: Context, model: Model, name: str, content: Content, incoming: Path) -> Record:
    """One attempt. What came and is not the file that is meant is removed, so that nothing goes on from it."""
    source = context.source
    came = source.fetch(model, name, content, incoming)
    promised = source.promised(model, name)
    try:
        with Arrival(came) as arrival:
            found = f"{arrival.size:,} bytes"
            if arrival.size == content.size:
                record, sha1 = arrival.digest(content.by_git, context.arrival_pace, lambda _: context.report.alive())
                if content.matches(record.sha256, sha1) and record.sha256 == (promised or record.sha256):
                    parent, _, last = name.rpartition("/")
                    with Home(Path(model.path), make=True) as home, home.folder(parent, make=True) as folder:
                        return arrival.name(folder, last, record)
                found += f", sha256 {record.sha256[:16]}…"
    except LeadsAway:
        raise  # out of the model's folder here; whoever gave the file has nothing to do with it
    except StagingError as error:
        remove(came)
        source.refused(model, name, f"{name}: {error}")
        raise StagingError(f"{context.host}: {source.name}: {name}: {error}") from error
    remove(came)
    why = f"sent {name} with {found}; expected {content.size:,} bytes, {(content.sha256 or promised or content.git_sha1)[:16]}…"
    source.refused(model, name, why)
    raise StagingError(
        f"{context.host}: {source.name} {why}."
        " Its copy or the way here is bad: verify the source (model_weights_verify: full) and the network"
    )


def finish(context: Context, tracker: Tracker, outcome: Outcome) -> None:
    """The marker, if this is the model that was asked for."""
    model, store, records = tracker.model, tracker.store, tracker.records()
    context.report.phase(f"{model.name}: headers")
    if tracker.lacking():
        return
    # Each file that was found bad is now good.
    outcome.actions += [f"replaced a bad file. {check.found}; expected {check.expected}" for check in outcome.bad]
    outcome.checks = [check for check in outcome.checks if check.status != FAIL]
    if context.source.fetches:
        shutil.rmtree(incoming_of(model.path), ignore_errors=True)
    # What was learnt in a first look is what must be from now on.
    files = {name: Content(record.size, record.sha256) for name, record in records.items()}
    learnt = replace(tracker.manifest, files=files)
    store.save_manifest(learnt)
    store.save(learnt, records, complete=True)
    after = standing(model, context.host, store)
    outcome.checks += [check for check in after.checks if check.status == FAIL]
    if not after.staged:
        store.save(learnt, records, complete=False)


def raise_first(errors: Sequence[Exception]) -> None:
    """The first error that is one; workers that were cancelled only followed it."""
    for error in errors:
        if not isinstance(error, Cancelled):
            raise error
