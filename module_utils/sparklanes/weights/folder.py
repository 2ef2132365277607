# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What lies in a model's folder, what is known of each file, and our records of it.

Three things are told apart, each a small file in /var/lib/sparklanes/staged/<model>/, never beside the weights:

    manifest.json   what the files must be (size and hash of each), from the Hub, a peer or a first look
    PARTIAL.json    which files were read and found so, while staging is under way
    STAGED.json     the same for all files; written last, so that its presence means a complete model

A record holds size, mtime, ctime and sha256 of a file when it was read. A file whose size and times still agree is trusted without
reading it again; anything else is read. Whoever changes a file can set its mtime back, its ctime not. What disks do silently keeps all
of them, and needs `full`. Versions 0.1 and 0.2 recorded no ctime: their records are trusted where the file's inode has not changed since
the record was written, and get the ctime the next time that records are written; else the file is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.host.mounts import where
from ansible.module_utils.sparklanes.weights.home import Home, way
from ansible.module_utils.sparklanes.weights.hub import COMMIT
from ansible.module_utils.sparklanes.weights.hub_cache import needed
from ansible.module_utils.sparklanes.weights.model import (
    SCHEMA,
    SHA256,
    Content,
    Manifest,
    Model,
    Record,
    StagingError,
    of_model,
    safe_name,
    with_digests,
)

# Sources of a manifest that stand for files which somebody else put there.
IN_PLACE = ("client's list", "first look")


@dataclass(frozen=True)
class Seen:
    """One file as stat shows it."""

    size: int
    mtime_ns: int
    ctime_ns: int = 0


def look(folder: Path) -> dict[str, Seen]:
    """The files of the model below a folder by name, links followed where they may be. LeadsAway for any other, and for what is no file."""
    return listing(folder)[0]


def listing(folder: Path) -> tuple[dict[str, Seen], list[str]]:
    """(its files as `look` has them, names of links to nothing, which are files of the model too: missing ones)."""
    found: dict[str, Seen] = {}
    dangling: list[str] = []
    try:
        home = Home(folder)
    except (FileNotFoundError, NotADirectoryError):
        return found, dangling
    with home:
        for here, folders, names, at in os.fwalk(".", dir_fd=home.top):
            links = [name for name in folders if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)]
            folders[:] = sorted(name for name in folders if of_model(f"{name}/") and name not in links)
            for name in sorted(filter(of_model, [*names, *links])):
                path = PurePosixPath(here, name).as_posix()
                try:
                    one = home.stat(path)
                    found[path] = Seen(one.st_size, one.st_mtime_ns, one.st_ctime_ns)
                except OSError:  # not there, or its words are no path
                    dangling.append(path)
    return found, dangling


def known_digests(folder: Path, revision: str, seen: Mapping[str, Seen]) -> dict[str, Content]:
    """What a Hub client left about the files of a folder: its list of the commit, or blobs named by their hash."""
    with Home(folder) as home:
        found = listed(home, revision)
        for name, stat in seen.items():
            place = home.place(name)
            blob = place.name if place != home.real / name else ""
            if SHA256.fullmatch(blob):
                found.setdefault(name, Content(stat.size, sha256=blob))
            elif COMMIT.fullmatch(blob):
                found.setdefault(name, Content(stat.size, git_sha1=blob))
    return found


def listed(home: Home, revision: str) -> dict[str, Content]:
    """The files of a commit by a Hub client's own list of it; nothing where it left none."""
    found: dict[str, Content] = {}
    if not COMMIT.fullmatch(revision):
        return found
    name, whole = f"trees/{revision}.json", home.bound / "snapshots" / revision
    try:
        tree = home.note(name) if home.real == whole else home.json(f".cache/huggingface/{name}")
        for name, entry in (tree or {}).get("files", {}).items():
            sha256 = str(entry.get("lfs_sha256") or "")
            git = "" if sha256 else str(entry.get("blob_id") or "")
            if of_model(safe_name(name)):
                found[name] = Content(int(entry["size"]), sha256, git).checked(name)
    except (KeyError, TypeError, ValueError, AttributeError, StagingError):
        return {}
    return found


def in_place(model: Model, folder: Path, saved: Manifest | None) -> Manifest:
    """The manifest of files that are already there: what is known of them, else what a first look will show."""
    seen, dead = listing(folder)
    if not (seen or dead):
        raise StagingError(
            f"{model.name}: {folder} holds no files. Put the model there, or let it be fetched (model_weights_source: hub)"
        )
    for name in (*seen, *dead):
        safe_name(name)
    if saved is not None and saved.of(model):
        return with_digests(model, saved)
    known = known_digests(folder, model.revision, seen)
    files = {name: known.get(name, Content(stat.size)) for name, stat in seen.items()}
    # A file that the client listed and that is not there is missing, unless no engine reads it.
    files |= {name: content for name, content in known.items() if name in seen or needed(name)}
    # Nobody told the size of these, so no list can hold them yet.
    if lost := [name for name in dict.fromkeys([*dead, *sorted(model.sha256)]) if name not in files]:
        links = f" (links that lead nowhere: {', '.join(dead)})" if dead else ""
        raise StagingError(
            f"{model.name}: {folder} lacks {', '.join(lost)}{links}, and is to be used as it is. Complete it by hand (`hf download` does,"
            " in a Hub cache), or let it be fetched (model_weights_source: hub)"
        )
    for name, digest in model.sha256.items():
        files[name] = Content(files[name].size, digest)
    return Manifest(model.repo, model.revision, files, IN_PLACE[0 if known else 1])


@dataclass
class Assessment:
    """The files of a manifest, sorted by what is known of each."""

    verified: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # right size, not read since it changed
    wrong_size: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)  # there, but in no manifest

    @property
    def complete(self) -> bool:
        return not (self.unread or self.wrong_size or self.missing)

    @property
    def to_fetch(self) -> list[str]:
        return self.wrong_size + self.missing


def proves(record: Record, content: Content) -> bool:
    """Whether a record shows that the file is the wanted one. It has no git hash: where only that is known, the file is
    read (it is small). Where nothing is known, what was seen first is right."""
    return record.sha256 == content.sha256 if content.sha256 else not content.git_sha1


def untouched(record: Record, stat: Seen) -> bool:
    """Whether a file is still the one that was read, as far as its inode tells."""
    if (record.size, record.mtime_ns) != (stat.size, stat.mtime_ns):
        return False
    if record.ctime_ns:
        return record.ctime_ns == stat.ctime_ns
    return not record.noted_ns or stat.ctime_ns <= record.noted_ns


def with_ctime(record: Record, stat: Seen) -> Record:
    """The record of a file that is untouched, with its ctime."""
    return replace(record, ctime_ns=record.ctime_ns or stat.ctime_ns, noted_ns=0)


def assess(manifest: Manifest, records: Mapping[str, Record], seen: Mapping[str, Seen]) -> Assessment:
    """Sort the files. Pure."""
    result = Assessment(extra=sorted(set(seen) - set(manifest.files)))
    for name, content in sorted(manifest.files.items()):
        stat = seen.get(name)
        record = records.get(name)
        if stat is None:
            result.missing.append(name)
        elif stat.size != content.size:
            result.wrong_size.append(name)
        elif record is not None and untouched(record, stat) and proves(record, content):
            result.verified.append(name)
        else:
            result.unread.append(name)
    return result


class ModelStore:
    """manifest, partial and complete records of the model in one folder."""

    def __init__(self, root: Path, path: str) -> None:
        self.folder = root / named(path)
        self.marker = self.folder / "STAGED.json"
        self.partial = self.folder / "PARTIAL.json"
        self.path = path

    def manifest(self) -> Manifest | None:
        data = read_json(self.folder / "manifest.json")
        try:
            return Manifest.from_dict(data) if data else None
        except StagingError:
            return None

    def save_manifest(self, manifest: Manifest) -> None:
        write_json(self.folder / "manifest.json", manifest.to_dict(), 0o644)

    def staged(self) -> Manifest | None:
        """The revision that stands complete here, or None."""
        data = read_json(self.marker)
        return Manifest.from_dict({**data, "files": {}}) if data and data.get("path") == self.path else None

    def records(self) -> dict[str, Record]:
        """What is known of each file, complete or not."""
        for path in (self.marker, self.partial):
            if data := read_json(path):
                try:
                    noted = path.stat().st_mtime_ns
                    return {name: Record(**{**entry, "noted_ns": noted}) for name, entry in data.get("files", {}).items()}
                except (TypeError, AttributeError, OSError):
                    return {}
        return {}

    def save(self, manifest: Manifest, records: Mapping[str, Record], complete: bool) -> None:
        """Complete: the marker, last of all. Else: the partial one, and no marker from then on."""
        data = {"schema": SCHEMA, "path": self.path, "repo": manifest.repo, "revision": manifest.revision}
        data["source"] = manifest.source
        files = {name: saved(record) for name, record in sorted(records.items())}
        write_json(self.marker if complete else self.partial, {**data, "files": files}, 0o644)
        (self.partial if complete else self.marker).unlink(missing_ok=True)


def saved(record: Record) -> dict[str, int | str]:
    """A record as it is written. Without a ctime it has none, so that an earlier version reads it too."""
    entry: dict[str, int | str] = {"size": record.size, "mtime_ns": record.mtime_ns, "sha256": record.sha256}
    return {**entry, "ctime_ns": record.ctime_ns} if record.ctime_ns else entry


def incoming_of(path: str) -> Path:
    """Where a model's files arrive: on its disk, where nobody else can put anything. Beside its folder, else in the nearest such folder above."""
    with way(Path(path)) as found:
        real, disk = found.real, os.fstat(found.descriptor).st_dev
    if found.reader is None or found.safe == real.parent:
        return real.parent / f".{real.name}.incoming"
    there = next(folder for folder in (real, *real.parents) if folder.exists())
    if found.safe.stat().st_dev != disk or where(str(found.safe)) != where(str(there)):
        raise StagingError(
            f"{real.parent} belongs to others than root, up to where its disk is mounted: whoever they are could lead root elsewhere."
            f" Let the folder of that mount belong to root alone, or stage to another path"
        )
    return found.safe / f".sparklanes-{named(str(real))}.incoming"


def named(path: str) -> str:
    """A name for what belongs to the model in a folder."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(path).name)
    return f"{slug}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def allocated(folder: Path) -> Iterator[int]:
    """Bytes on the disk of each file below a folder."""
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                stat = Path(here, name).stat()
                yield min(stat.st_size, stat.st_blocks * 512)
