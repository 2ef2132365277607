# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which weights a Spark should hold, which it holds, and how far that is proven.

Three things are told apart, each a small file in /var/lib/sparklanes/staged/<model>/, never beside the weights:

    manifest.json   what the files must be (size and hash of each), from the Hub, a peer or a first look
    PARTIAL.json    which files were read and found so, while staging is under way
    STAGED.json     the same for all files; written last, so that its presence means a complete model

A record holds size, mtime and sha256 of a file when it was read. A file whose size and mtime still agree is
trusted without reading it again; anything else is read. What disks do silently keeps both, and needs `full`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.common.sizes import human_bytes, human_time
from ansible.module_utils.sparklanes.host.mounts import Mount, where
from ansible.module_utils.sparklanes.weights.hub import COMMIT
from ansible.module_utils.sparklanes.weights.safetensors import SUFFIX, Account, scan
from ansible.module_utils.sparklanes.weights.scales import choose, judge
from ansible.module_utils.sparklanes.weights.scales import read as read_scale

STAGED = Path("/var/lib/sparklanes/staged")
SCHEMA = "sparklanes-weights/1"
SHA256 = re.compile(r"[0-9a-f]{64}")
SHA1 = re.compile(r"[0-9a-f]{40}")
BAD = re.compile(r"[0-9a-f]{8,64}")
BLOCK = 4 << 20
EXPECT = ("shards", "tensors", "bytes", "names", "family", "scale_samples")
# Tensors of scales that are looked at each time: some ms.
SCALE_SAMPLES = 64
LEAST_FOR_A_RATE = 64 << 20
CLIENT_FOLDERS = (".cache", ".git")


class StagingError(Exception):
    """A model that can't be as asked. The text is for a person."""


# --- what is asked, what must be, what was seen ----------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """One model as a lane asks for it. Zero and empty guards are not asked for."""

    name: str
    path: str
    repo: str = ""
    revision: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    shards: int = 0
    tensors: int = 0
    bytes: int = 0
    config_sha256: str = ""
    names: Mapping[str, int] = field(default_factory=dict)  # how many tensors match a pattern
    family: Mapping[str, str] = field(default_factory=dict)  # what config.json says it is
    scale_samples: int = SCALE_SAMPLES
    bad_sha256: Sequence[str] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """From module or job arguments; complains about what can't be meant."""
        expect = data.get("expect") or {}
        model = cls(
            name=data["name"],
            path=data["path"].rstrip("/"),
            repo=data.get("repo") or "",
            revision=data.get("revision") or "",
            sha256=dict(data.get("sha256") or {}),
            shards=int(expect.get("shards") or 0),
            tensors=int(expect.get("tensors") or 0),
            bytes=int(expect.get("bytes") or 0),
            config_sha256=data.get("config_sha256") or "",
            names={str(pattern): int(count) for pattern, count in (expect.get("names") or {}).items()},
            family={str(key): str(value) for key, value in (expect.get("family") or {}).items()},
            scale_samples=SCALE_SAMPLES if expect.get("scale_samples") is None else int(expect["scale_samples"]),
            bad_sha256=tuple(str(one) for one in data.get("bad_sha256") or ()),
        )
        if not model.name.isidentifier():
            raise StagingError(f"the model's name is {model.name!r}; it must be a word like model or drafter")
        parts = PurePosixPath(model.path).parts
        if not model.path.startswith("/") or ".." in parts or len(parts) < 3:
            raise StagingError(f"{model.name}: path {model.path!r} must be absolute, and no top-level folder")
        for file, digest in model.sha256.items():
            if not SHA256.fullmatch(digest):
                raise StagingError(f"{model.name}: sha256 of {file} is {digest!r}; it must be 64 hex digits")
        for prefix in model.bad_sha256:
            if not BAD.fullmatch(prefix):
                raise StagingError(f"{model.name}: bad_sha256 names {prefix!r}; it must be 8 to 64 hex digits")
        for pattern in model.names:
            try:
                re.compile(pattern)
            except re.error as error:
                raise StagingError(f"{model.name}: expect.names has {pattern!r}, which is no pattern: {error}") from error
        return model

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data["expect"] = {key: data.pop(key) for key in EXPECT}
        data["bad_sha256"] = list(self.bad_sha256)
        return data

    def needs_commit(self) -> None:
        if not COMMIT.fullmatch(self.revision):
            raise StagingError(
                f"{self.name}: revision {self.revision!r} of {self.repo or 'the repository'} is no commit. A branch"
                " may change between two nodes: set revision to the 40 hex digits from the model's history page"
            )


@dataclass(frozen=True)
class Content:
    """What a file must be. Small files of the Hub come with git's hash only."""

    size: int
    sha256: str = ""
    git_sha1: str = ""
    at: str = ""  # where a peer's export has it, when not under its own name

    def matches(self, sha256: str, git_sha1: str) -> bool:
        """Whether these digests are the ones wanted; without a wanted digest the first seen is right."""
        if self.sha256:
            return sha256 == self.sha256
        return not self.git_sha1 or git_sha1 == self.git_sha1


@dataclass(frozen=True)
class Record:
    """A file as it was when it was last read whole."""

    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All files of one revision of one model."""

    repo: str
    revision: str
    files: Mapping[str, Content]
    source: str = ""  # whose word this is: hub, peer, blob names, first look

    @property
    def bytes(self) -> int:
        return sum(content.size for content in self.files.values())

    @property
    def digest(self) -> str:
        """One hash of all contents: equal on two Sparks exactly where their files are equal. Empty while one is not known."""
        if not all(content.sha256 for content in self.files.values()):
            return ""
        lines = "".join(f"{content.sha256} {content.size} {name}\n" for name, content in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def of(self, model: Model) -> bool:
        return (self.repo, self.revision) == (model.repo, model.revision)

    def to_dict(self) -> dict[str, Any]:
        files = {
            name: {key: value for key, value in asdict(content).items() if value or key == "size"}
            for name, content in sorted(self.files.items())
        }
        return {"schema": SCHEMA, "repo": self.repo, "revision": self.revision, "source": self.source, "files": files}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """From JSON that another node or the Hub sent: nothing in it is believed to be a harmless path."""
        try:
            files = {safe_name(name): Content(**entry) for name, entry in data["files"].items()}
            for name, content in files.items():
                if type(content.size) is not int or content.size < 0:
                    raise ValueError(f"size {content.size!r} of {name}")
                if content.sha256 and not SHA256.fullmatch(content.sha256):
                    raise ValueError(f"sha256 {content.sha256!r} of {name}")
                if content.at:
                    safe_name(content.at)
            return cls(str(data["repo"]), str(data["revision"]), files, str(data.get("source", "")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StagingError(f"the manifest is unreadable ({type(error).__name__}: {error})") from error


def safe_name(name: str) -> str:
    """A relative path that stays below its folder, or an error."""
    path = PurePosixPath(name)
    bad = not path.parts or name != str(path) or path.is_absolute() or ".." in path.parts
    if bad or any(ord(letter) < 32 for letter in name) or path.parts[0] in CLIENT_FOLDERS:
        raise StagingError(f"{name!r} is no name for a file of a model")
    return name


def with_digests(model: Model, manifest: Manifest) -> Manifest:
    """The manifest with the lane's own sha256 values, which must not contradict it."""
    files = dict(manifest.files)
    for name, digest in model.sha256.items():
        known = files.get(name)
        if known is None:
            raise StagingError(
                f"{model.name}: the lane names {name}, which {manifest.source} does not list for {model.repo}"
                f"@{model.revision[:12]}. Correct lane_{model.name}.sha256"
            )
        if known.sha256 and known.sha256 != digest:
            raise StagingError(
                f"{model.name}: {name} is {known.sha256[:16]}… by {manifest.source}, {digest[:16]}… by the lane."
                " Find out which of the two is meant before staging"
            )
        files[name] = Content(known.size, digest, known.git_sha1, known.at)
    return Manifest(manifest.repo, manifest.revision, files, manifest.source)


# --- the folder on disk ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """One file as stat shows it."""

    size: int
    mtime_ns: int


def look(folder: Path) -> dict[str, Seen]:
    """The files below a folder by name, symlinks followed (a Hub cache is made of them), client caches left out."""
    found: dict[str, Seen] = {}
    if not folder.is_dir():
        return found
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in CLIENT_FOLDERS)
        for name in sorted(names):
            path = Path(here, name)
            try:
                stat = path.stat()
            except OSError:
                continue  # a dangling link is a missing file
            found[path.relative_to(folder).as_posix()] = Seen(stat.st_size, stat.st_mtime_ns)
    return found


def known_digests(folder: Path, revision: str) -> dict[str, Content]:
    """What a Hub client left about the files of a folder: its list of the commit, or blobs named by their hash."""
    tree = read_json(folder / ".cache" / "huggingface" / "trees" / f"{revision}.json") or {}
    found: dict[str, Content] = {}
    try:
        for name, entry in tree.get("files", {}).items():
            sha256 = str(entry.get("lfs_sha256") or "")
            git = "" if sha256 else str(entry.get("blob_id") or "")
            found[safe_name(name)] = Content(int(entry["size"]), sha256, git)
    except (KeyError, TypeError, ValueError, AttributeError, StagingError):
        found = {}
    for name, seen in look(folder).items():
        path = folder / name
        blob = path.resolve().name if path.is_symlink() else ""
        if SHA256.fullmatch(blob):
            found.setdefault(name, Content(seen.size, sha256=blob))
        elif SHA1.fullmatch(blob):
            found.setdefault(name, Content(seen.size, git_sha1=blob))
    return found


# Sources of a manifest that stand for files which somebody else put there.
IN_PLACE = ("client's list", "first look")


def in_place(model: Model, folder: Path, saved: Manifest | None) -> Manifest:
    """The manifest of files that are already there: what is known of them, else what a first look will show."""
    seen = look(folder)
    if not seen:
        raise StagingError(
            f"{model.name}: {folder} holds no files. Put the model there, or let it be fetched (model_weights_source: hub)"
        )
    if saved is not None and saved.of(model):
        return with_digests(model, saved)
    known = known_digests(folder, model.revision)
    files = {name: known.get(name, Content(stat.size)) for name, stat in seen.items()}
    files |= known  # a file that the client listed and that is not there is missing
    for name, digest in model.sha256.items():
        size = seen[name].size if name in seen else 0
        files[name] = Content(files[name].size if name in files else size, digest)
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
        elif record is not None and (record.size, record.mtime_ns) == (stat.size, stat.mtime_ns) and proves(record, content):
            result.verified.append(name)
        else:
            result.unread.append(name)
    return result


# --- our own files about a model -------------------------------------------------------------------------------


class Store:
    """manifest, partial and complete records of the model in one folder."""

    def __init__(self, root: Path, path: str) -> None:
        slug = re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(path).name)
        self.folder = root / f"{slug}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
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
        data = read_json(self.marker) or read_json(self.partial) or {}
        try:
            return {name: Record(**entry) for name, entry in data.get("files", {}).items()}
        except (TypeError, AttributeError):
            return {}

    def save(self, manifest: Manifest, records: Mapping[str, Record], complete: bool) -> None:
        """Complete: the marker, last of all. Else: the partial one, and no marker from then on."""
        data = {"schema": SCHEMA, "path": self.path, "repo": manifest.repo, "revision": manifest.revision}
        data["source"] = manifest.source
        files = {name: asdict(record) for name, record in sorted(records.items())}
        write_json(self.marker if complete else self.partial, {**data, "files": files}, 0o644)
        (self.partial if complete else self.marker).unlink(missing_ok=True)


# --- judgement: pure ---------------------------------------------------------------------------------------------

REFETCH = "Run site.yml again with model_weights_repair: true to fetch it anew"


def content_checks(model: Model, host: str, assessment: Assessment, manifest: Manifest, seen: Mapping[str, Seen]) -> list[Check]:
    """L1: each file is there in its size."""
    checks = [
        Check(
            "WEIGHTS.SIZE",
            host,
            FAIL,
            f"{model.path}/{name}: {seen[name].size:,} bytes",
            f"{manifest.files[name].size:,} bytes",
            REFETCH,
        )
        for name in assessment.wrong_size
    ]
    if assessment.missing:
        size = sum(manifest.files[name].size for name in assessment.missing)
        found = f"{model.path}: {len(assessment.missing)} of {len(manifest.files)} files missing ({human_bytes(size)}): "
        found += few(assessment.missing)
        checks.append(Check("WEIGHTS.MISSING", host, FAIL, found, "all files of the manifest", "Run site.yml to stage them"))
    if assessment.unread:
        size = sum(manifest.files[name].size for name in assessment.unread)
        found = f"{model.path}: {len(assessment.unread)} files ({human_bytes(size)}) not read since they changed: "
        found += few(assessment.unread)
        checks.append(Check("WEIGHTS.UNREAD", host, FAIL, found, "read and verified", "Run site.yml: it reads them"))
    shards = [name for name in assessment.extra if name.endswith(SUFFIX)]
    others = [name for name in assessment.extra if not name.endswith(SUFFIX)]
    if shards:
        found = f"{model.path}: {few(shards)}, in no manifest"
        remedy = "Move it elsewhere: an engine may load every shard it finds"
        checks.append(Check("WEIGHTS.EXTRA", host, FAIL, found, "no shards but the model's", remedy))
    if others:
        found = f"{model.path}: {few(others)}, in no manifest"
        remedy = "If the lane needs it, declare it as an extra (lane_extras); else remove it"
        checks.append(Check("WEIGHTS.EXTRA", host, WARN, found, "only the model's files", remedy))
    return checks


def account_checks(model: Model, host: str, account: Account) -> list[Check]:
    """L2: headers and index agree with each other and with the lane's numbers."""
    checks = [
        Check("WEIGHTS.HEADER", host, FAIL, f"{model.path}/{problem.file}: {problem.found}", problem.expected, REFETCH)
        for problem in account.problems
    ]
    for note in account.notes:
        checks.append(Check("WEIGHTS.INDEX", host, WARN, f"{model.path}/{note.file}: {note.found}", note.expected))
    guards = (
        ("shards", account.shards, model.shards),
        ("tensors", account.tensors, model.tensors),
        ("bytes", account.file_bytes, model.bytes),
    )
    for what, found, expected in guards:
        if expected and found != expected:
            remedy = f"Is this the lane's model? If so, correct lane_{model.name}.expect.{what}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, f"{model.path}: {found:,} {what}", f"{expected:,}", remedy))
    for pattern, expected in sorted(model.names.items()):
        matches = re.compile(pattern).search
        found = sum(1 for name in account.where if matches(name))
        if found != expected:
            remedy = f"Is this the lane's model? If so, correct lane_{model.name}.expect.names"
            what = f"{model.path}: {found:,} tensors like {pattern}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, what, f"{expected:,}", remedy))
    return checks


def family_checks(model: Model, host: str, config: Mapping[str, Any]) -> list[Check]:
    """What config.json says it is. A dotted key goes into it; of a list the first element counts."""
    checks = []
    for key, expected in sorted(model.family.items()):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        value = value[0] if isinstance(value, list) and value else value
        if str(value) != expected:
            found = f"{model.path}/config.json: {key} is {'not there' if value is None else value}"
            remedy = f"Is this the lane's checkpoint? If so, correct lane_{model.name}.expect.family"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, found, expected, remedy))
    return checks


def scale_checks(model: Model, host: str, account: Account) -> list[Check]:
    """A sample of quantization scales. Their bytes are read; see scales.py for what can't be."""
    checks = []
    for scale in choose(account.scales, model.scale_samples):
        wrong = judge(scale.dtype, read_scale(Path(model.path), scale))
        if wrong:
            found = f"{model.path}/{scale.file}: {scale.name}: {wrong}"
            remedy = (
                f"The quantizer went wrong: take another checkpoint. If it is meant so: lane_{model.name}.expect.scale_samples: 0"
            )
            checks.append(Check("WEIGHTS.SCALE", host, FAIL, found, "positive, finite, not all the same", remedy))
    return checks[:5]


def digest_checks(model: Model, host: str, records: Mapping[str, Record]) -> list[Check]:
    """The lane's own digests against what was read."""
    wanted = dict(model.sha256)
    if model.config_sha256:
        wanted["config.json"] = model.config_sha256
    checks = []
    for name, digest in sorted(wanted.items()):
        found = records[name].sha256 if name in records else "no such file"
        if found != digest:
            remedy = f"Is this the lane's model and revision? If so, correct the digest in lane_{model.name}"
            checks.append(
                Check("WEIGHTS.GUARD", host, FAIL, f"{model.path}/{name}: sha256 {found[:16]}", f"{digest[:16]}…", remedy)
            )
    for name, record in sorted(records.items()):
        if any(record.sha256.startswith(prefix) for prefix in model.bad_sha256):
            found = f"{model.path}/{name}: sha256 {record.sha256[:16]}…, which the lane knows as bad"
            remedy = f"Set lane_{model.name}.revision to one that has another {name}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, found, "another file", remedy))
    return checks


def rot(model: Model, host: str, name: str, found: str, expected: str, remedy: str = REFETCH) -> Check:
    """A file whose content is not what it must be."""
    return Check("WEIGHTS.CONTENT", host, FAIL, f"{model.path}/{name}: hash {found[:16]}…", f"{expected[:16]}…", remedy)


def few(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@dataclass
class Standing:
    """One model on one Spark, by a quick look."""

    model: Model
    staged: bool
    checks: list[Check]
    files: int = 0
    bytes: int = 0
    verified_bytes: int = 0
    unread_bytes: int = 0
    missing_bytes: int | None = None  # None: no manifest yet that could say
    manifest_sha256: str = ""
    account: Account | None = None
    lacking: list[str] = field(default_factory=list)
    mount: Mount | None = None

    @property
    def fixable(self) -> bool:
        """Whether reading or fetching files could help. Guards and stray files are for a person."""
        return not self.staged and not any(
            check.status == FAIL and check.id in ("WEIGHTS.GUARD", "WEIGHTS.EXTRA", "WEIGHTS.SCALE") for check in self.checks
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.model.name,
            "path": self.model.path,
            "repo": self.model.repo,
            "revision": self.model.revision,
            "staged": self.staged,
            "files": self.files,
            "bytes": self.bytes,
            "verified_bytes": self.verified_bytes,
            "unread_bytes": self.unread_bytes,
            "missing_bytes": self.missing_bytes,
            "manifest_sha256": self.manifest_sha256,
            "shards": self.account.shards if self.account else 0,
            "tensors": self.account.tensors if self.account else 0,
            "lacking": len(self.lacking),
            "lacks": few(self.lacking),
            "free_bytes": free_bytes(self.model.path),
            "filesystem": self.mount.kind if self.mount else "",
            "server": self.mount.server if self.mount else "",
        }


def standing(model: Model, host: str, store: Store, manifest: Manifest | None = None) -> Standing:
    """Look at a model without reading its data: marker, stat, headers. Seconds for 400 GB."""
    folder = Path(model.path)
    saved = manifest or store.manifest()
    if saved is None or not saved.of(model):
        found = f"{model.path}: nothing is known of it" if saved is None else f"{saved.repo}@{saved.revision[:12]}"
        want = f"{model.repo}@{model.revision[:12]}" if model.repo else "verified files"
        check = Check("WEIGHTS.REVISION", host, FAIL, found, want, "Run site.yml to stage it")
        return Standing(model, False, [check], mount=where(model.path))
    records, seen = store.records(), look(folder)
    assessment = assess(saved, records, seen)
    checks = content_checks(model, host, assessment, saved, seen)
    size = {name: content.size for name, content in saved.files.items()}
    result = Standing(
        model,
        False,
        checks,
        files=len(saved.files),
        bytes=saved.bytes,
        verified_bytes=sum(size[name] for name in assessment.verified),
        unread_bytes=sum(size[name] for name in assessment.unread),
        missing_bytes=sum(size[name] for name in assessment.to_fetch),
        manifest_sha256=saved.digest,
        lacking=assessment.to_fetch + assessment.unread,
        mount=where(model.path),
    )
    if assessment.complete:
        marker = store.staged()
        if marker is None or not marker.of(model):
            checks.append(Check("WEIGHTS.MARKER", host, FAIL, f"{model.path}: staging did not end", "a marker", "Run site.yml"))
        result.account = scan(folder, saved.files)
        checks += account_checks(model, host, result.account) + digest_checks(model, host, records)
        checks += family_checks(model, host, read_json(folder / "config.json") or {})
        checks += scale_checks(model, host, result.account)
        result.staged = not any(check.status == FAIL for check in checks)
        if result.staged:
            found = f"{len(saved.files)} files, {human_bytes(saved.bytes)}, {result.account.tensors:,} tensors"
            checks.append(Check("WEIGHTS.STAGED", host, PASS, f"{model.path}: {found}"))
    return result


@dataclass(frozen=True)
class Speed:
    """What a plan expects, in bytes a second: of the last job on this Spark, and a limit. Zero: not known, none."""

    read: float = 0.0
    fetch: float = 0.0
    limit: float = 0.0
    read_limit: float = 0.0  # where reading has one of its own

    def duration(self, to_read: int, to_fetch: int) -> str:
        """How long it will take, as far as that is known."""
        seconds, known, measured = 0.0, True, True
        for count, rate, limit in ((to_read, self.read, self.read_limit or self.limit), (to_fetch, self.fetch, self.limit)):
            if count:
                at = min(rate or limit, limit or rate)
                known, measured = known and at > 0, measured and rate > 0
                seconds += count / at if at else 0.0
        if not known:
            return "time not known yet: nothing was measured here"
        return (
            f"about {human_time(seconds)} at the rate of last time"
            if measured
            else f"{human_time(seconds)} or more, by the limit"
        )


def plan(standings: Sequence[Standing], source: str, free: Callable[[str], int], speed: Speed = Speed()) -> list[str]:
    """What staging would do, in sentences."""
    lines = []
    for one in standings:
        name = f"{one.model.name} ({one.model.path})"
        if one.staged:
            lines.append(f"{name}: complete, nothing to do")
            continue
        room = f"; {human_bytes(free(one.model.path))} free"
        if one.missing_bytes is None:
            lines.append(f"{name}: take {one.model.repo or 'it'} from {source}, size not known yet{room}")
            continue
        steps = []
        if one.unread_bytes:
            steps.append(f"read {human_bytes(one.unread_bytes)} that is there")
        if one.missing_bytes:
            steps.append(f"take {human_bytes(one.missing_bytes)} from {source}")
        there = f"; {human_bytes(one.verified_bytes)} of {human_bytes(one.bytes)} verified" if one.verified_bytes else ""
        last = f"; {speed.duration(one.unread_bytes, one.missing_bytes)}" if steps else ""
        lines.append(f"{name}: {' and '.join(steps) or 'finish'}{there}{room}{last}")
    return lines


RATES = "rates.json"


def note_rate(root: Path, what: str, count: int, seconds: float) -> None:
    """Remember how fast this Spark reads (`read`), fetches (`fetch`) or takes from the chain (`chain`), for the next plan."""
    if count >= LEAST_FOR_A_RATE and seconds > 0:
        with contextlib.suppress(OSError):
            write_json(root / RATES, {**(read_json(root / RATES) or {}), what: round(count / seconds)}, 0o644)


def speed_of(root: Path, source: str, limit: float, read_limit: float = 0.0) -> Speed:
    rates = read_json(root / RATES) or {}
    try:
        fetch = "chain" if source == "chain" else "fetch"
        return Speed(float(rates.get("read", 0)), float(rates.get(fetch, 0)), limit, read_limit)
    except (TypeError, ValueError):
        return Speed(limit=limit, read_limit=read_limit)


def free_bytes(path: str) -> int:
    """Free space where a path is or will be."""
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    stat = os.statvfs(folder)
    return int(stat.f_bavail * stat.f_frsize)


def device(path: str) -> int:
    """The file system where a path is or will be."""
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


def check_room(
    host: str,
    needs: Sequence[tuple[Model, int]],
    reserve: int,
    also: Sequence[Mapping[str, Any]] = (),
    free: Callable[[str], int] = free_bytes,
    disk: Callable[[str], int] = device,
) -> None:
    """Refuse before the first byte what can't end well. What goes to one disk shares what is free there.

    `also`: what else is to come, as the image: {what, path, bytes}.
    """
    wanted = [(model.name, model.path, needed) for model, needed in needs if needed]
    if not wanted:
        return
    wanted += [(str(one["what"]), str(one["path"]), int(one["bytes"])) for one in also if int(one["bytes"]) > 0]
    for number in {disk(path) for _, path, _ in wanted}:
        here = [one for one in wanted if disk(one[1]) == number]
        total, room = sum(needed for _, _, needed in here), free(here[0][1])
        if total + reserve > room:
            names = " and ".join(name for name, _, _ in here)
            raise StagingError(
                f"{host}: {names} {'needs' if len(here) == 1 else 'need'} {human_bytes(total)} more in"
                f" {' and '.join(path for _, path, _ in here)}, and {human_bytes(reserve)} are to stay free;"
                f" {human_bytes(room)} are free. Remove models that no lane uses, or stage elsewhere"
            )


def shard_order(manifest: Manifest, names: Sequence[str]) -> Iterator[str]:
    """Small files first (a wrong repository shows at once), then by name."""
    return iter(sorted(names, key=lambda name: (manifest.files[name].size > BLOCK, name)))
