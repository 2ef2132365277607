# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What was on a host before our first edit of it, so that it can be given back.

One JSON file below the state folder, and beside it a copy of each file of others that we replaced. What was there first is never
overwritten by a later edit. A ledger that can't be read ends the edit before it begins: it is no empty one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common import locks
from ansible.module_utils.sparklanes.common.files import STATE_ROOT, as_json
from ansible.module_utils.sparklanes.host.tree import Entry, Tree

FOLDER = f"{STATE_ROOT}/host-edits"
LEDGER = f"{FOLDER}/ledger.json"
COPIES = f"{FOLDER}/before"
SCHEMA = 1
# Ours, and far above what the roles do: some twenty files, some forty held packages.
MOST_RECORDS = 1000
LARGEST_COPY = 4 * 1024**2
LOCK_SECONDS = 30.0
# A reboot or the removal of our own folder takes these away; nobody has to give them back.
PASSING = ("/run/", "/proc/", "/sys/", "/tmp/", f"{STATE_ROOT}/")
KINDS = ("file", "sysctl", "state")
Value = str | dict[str, Any]


class LedgerError(ValueError):
    """The ledger can't be read, or can't take one more record. Nothing was changed."""


@dataclass(frozen=True)
class Record:
    """One thing that we changed. Of a file `before` and `after` are made by `told`, of all else they are texts.

    `foreign`: somebody else changed it between two edits of ours. `undo` says what takes back what is no file and no setting.
    """

    kind: str
    name: str
    before: Value
    after: Value
    by: str
    at: str
    foreign: bool = False
    undo: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"


def told(entry: Entry | None) -> dict[str, Any]:
    """A file as the ledger has it: by its hash."""
    if entry is None:
        return {"kind": "absent"}
    if entry.kind == "link":
        return {"kind": "link", "target": entry.target}
    known = {"kind": entry.kind, "mode": entry.mode, "uid": entry.uid, "gid": entry.gid}
    return known | ({"sha256": hashlib.sha256(entry.content).hexdigest()} if entry.kind == "file" else {})


def made(entry: Entry | None) -> dict[str, Any]:
    """A file as we write it. Who owns it follows from the folder, so that is no part of it."""
    return {name: value for name, value in told(entry).items() if name not in ("uid", "gid")}


def same(now: Value | None, value: Value) -> bool:
    """Whether what stands there now is what `value` says of it."""
    if isinstance(now, dict) and isinstance(value, dict):
        return all(now.get(name) == said for name, said in value.items())
    return now == value


def is_ours(path: str, entry: Entry) -> bool:
    """Whether a file is one that only we write. What an older version of us laid down was not there before us."""
    return any("sparklanes" in part for part in PurePosixPath(path).parts) or b"by sparklanes" in entry.content[:512]


def parse(text: str) -> dict[str, Record]:
    """The records by key. LedgerError for whatever this version didn't write so."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise LedgerError(f"is no JSON ({error})") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise LedgerError(f"is of schema {schema}, written by a newer sparklanes; this one knows {SCHEMA}. Use the newer one")
    if schema != SCHEMA or not isinstance(data.get("records"), list):
        raise LedgerError(f"has schema {schema!r} and no list of records; expected schema {SCHEMA}")
    found: dict[str, Record] = {}
    for item in data["records"]:
        try:
            record = Record(**item)
        except TypeError as error:
            raise LedgerError(f"has a record of another shape ({error})") from error
        wrong = _wrong(record)
        if wrong or record.key in found:
            raise LedgerError(f"record {str(record.name)[:80]!r}: {wrong or 'stands twice'}")
        found[record.key] = record
    return found


def _wrong(record: Record) -> str:
    texts = (record.kind, record.name, record.by, record.at, record.undo)
    if not all(isinstance(text, str) for text in texts) or not isinstance(record.foreign, bool) or record.kind not in KINDS:
        return f"kind {record.kind!r}, expected one of {', '.join(KINDS)}, and texts"
    for value, owner in ((record.before, ("uid", "gid")), (record.after, ())):
        if record.kind != "file":
            if not isinstance(value, str):
                return "its values are no texts"
            continue
        if not isinstance(value, dict) or value.get("kind") not in ("absent", "file", "link", "other"):
            return "it does not say what was there"
        if value["kind"] == "file" and not (
            re.fullmatch("[0-9a-f]{64}", str(value.get("sha256")))
            and re.fullmatch("[0-7]{4}", str(value.get("mode")))
            and all(type(value.get(name)) is int and value[name] >= 0 for name in owner)
        ):
            return "hash, mode or owner are missing"
        if value["kind"] == "link" and not (isinstance(value.get("target"), str) and value["target"]):
            return "its link has no target"
    return "" if record.kind != "file" or record.name.startswith("/") else "its path is not absolute"


class Ledger:
    """The ledger of one host, written in the name of the module `by`."""

    def __init__(self, tree: Tree, by: str) -> None:
        self.tree, self.by = tree, by
        self._written: dict[str, Record] = {}

    def load(self) -> dict[str, Record]:
        """LedgerError where it is there and can't be read."""
        try:
            content = self.tree.read(LEDGER)
            return {} if content is None else parse(content.decode("utf-8"))
        except (OSError, ValueError) as error:
            why = f"can't be opened ({error.strerror})" if isinstance(error, OSError) else str(error)
            raise LedgerError(
                f"The ledger of our edits, {LEDGER}, {why}. Nothing was changed, as it says what was on this Spark before sparklanes: "
                "mend it, or move it aside, after which nothing of that can be given back"
            ) from error

    @contextlib.contextmanager
    def open(self) -> Iterator[dict[str, Record]]:
        """The records, locked against other runs. What the dict holds when the block ends well is written."""
        with self.tree.folder(LEDGER, make=True) as (folder, _):
            os.fchmod(folder, 0o700)
            if not locks.got(folder, LOCK_SECONDS):
                raise LedgerError(
                    f"Another run holds {FOLDER} for more than {LOCK_SECONDS:g} s, so nothing was changed. Wait for it"
                )
            records = self.load()
            self._written = dict(records)
            yield records
            self._save(records)

    def _save(self, records: dict[str, Record]) -> None:
        if records == self._written:
            return
        if len(records) > MOST_RECORDS:
            raise LedgerError(
                f"The ledger of edits {LEDGER} has {MOST_RECORDS} records, which is all it takes; nothing was changed"
            )
        kept = {
            record.before["sha256"]
            for record in records.values()
            if isinstance(record.before, dict) and "sha256" in record.before
        }
        if records:
            data = {"schema": SCHEMA, "records": [_plain(records[key]) for key in sorted(records)]}
            self.tree.write(LEDGER, as_json(data).encode(), 0o600)
        elif self.tree.entry(LEDGER) is not None:
            self.tree.remove(LEDGER)
        self._written = dict(records)
        for copy in self.copies() - kept:
            self.tree.remove(f"{COPIES}/{copy}")

    def copies(self) -> set[str]:
        """The hashes of the files that are kept."""
        try:
            with self.tree.folder(f"{COPIES}/x") as (folder, _):
                return {entry.name for entry in os.scandir(folder) if re.fullmatch("[0-9a-f]{64}", entry.name)}
        except FileNotFoundError:
            return set()

    def file(self, path: str, after: Entry | None, act: Callable[[], object], ours: bool = False) -> None:
        """Do an edit of a file, noted before it is done. `after` is what will stand there, `ours` that we made what is there now."""
        if path.startswith(PASSING):
            act()
            return
        with self.open() as records:
            self._note_file(records, path, after, ours)
            self._save(records)
            record = records[f"file {path}"]
            try:
                act()
                # Another program may have done it in its own way: systemctl, whose link is relative on some releases.
                records[record.key] = replace(record, after=made(self.tree.entry(path)))
            finally:  # back at what was first, or not done at all: there is nothing to give back
                if told(self.tree.entry(path)) == record.before:
                    del records[record.key]
                self._save(records)

    def _note_file(self, records: dict[str, Record], path: str, after: Entry | None, ours: bool) -> None:
        there = self.tree.entry(path)
        now, known = told(there), records.get(f"file {path}")
        theirs = there is not None and not ours and not is_ours(path, there)
        if known is not None and not (theirs and known.before == {"kind": "absent"} and not same(now, known.after)):
            seen = same(now, known.after) or now == known.before
            foreign = not seen or (known.foreign and now != known.before)
            records[known.key] = replace(known, after=made(after), foreign=foreign)
            return
        # The first edit; or ours was gone altogether, and somebody put a file of their own in its place.
        if there is not None and theirs:
            self._copy(path, there)
        record = Record("file", path, now if theirs else {"kind": "absent"}, made(after), self.by, _now())
        records[record.key] = record

    def _copy(self, path: str, entry: Entry) -> None:
        if entry.kind == "other":
            raise LedgerError(f"{path} is neither a file nor a link, so it was not changed")
        if len(entry.content) > LARGEST_COPY:
            raise LedgerError(
                f"{path} is larger than {LARGEST_COPY // 1024**2} MiB, so no copy of it is kept, and it was not changed"
            )
        if entry.kind == "file":
            self.tree.write(f"{COPIES}/{told(entry)['sha256']}", entry.content, 0o600)

    def adopt(self, path: str, content: bytes, mode: int) -> None:
        """Note what a file said before us, where that is known from elsewhere and nothing is noted yet. It was root's, of this mode."""
        with self.open() as records:
            if f"file {path}" not in records:
                entry = Entry("file", f"{mode:04o}", os.geteuid(), os.getegid(), content)
                self._copy(path, entry)
                record = Record("file", path, told(entry), made(self.tree.entry(path)), self.by, _now())
                records[record.key] = record

    def change(self, kind: str, names: Iterable[str], before: str, after: str, undo: str = "") -> None:
        """Note what is no file, before it is changed. `forget` it once it is given back."""
        with self.open() as records:
            for name in names:
                known = records.get(f"{kind} {name}") or Record(kind, name, before, after, self.by, _now(), undo=undo)
                records[known.key] = replace(known, after=after)

    def before(self, kind: str, name: str) -> str | None:
        """What a thing that is no file was before us; None where we never changed it."""
        record = self.load().get(f"{kind} {name}")
        return str(record.before) if record else None

    def forget(self, kind: str, names: Iterable[str]) -> None:
        """These are no longer ours to give back. On a host that has no ledger none is begun."""
        gone = [f"{kind} {name}" for name in names]
        if self.load().keys() & set(gone):
            with self.open() as records:
                for key in gone:
                    records.pop(key, None)

    def names(self, kind: str, prefix: str = "") -> list[str]:
        return sorted(record.name for record in self.load().values() if record.kind == kind and record.name.startswith(prefix))


def _plain(record: Record) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name not in ("foreign", "undo") or value}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
