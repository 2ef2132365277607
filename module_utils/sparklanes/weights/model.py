# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a model must be: as a lane asks for it, and as a manifest lists its files."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.files import below
from ansible.module_utils.sparklanes.weights.hub import COMMIT
from ansible.module_utils.sparklanes.weights.hub_cache import snapshot

SCHEMA = "sparklanes-weights/1"
SHA256 = re.compile(r"[0-9a-f]{64}")
BAD = re.compile(r"[0-9a-f]{8,64}")
BLOCK = 4 << 20
EXPECT = ("shards", "tensors", "bytes", "names", "family", "scale_samples")
# Tensors of scales that are looked at each time: some ms.
SCALE_SAMPLES = 64
CLIENT_FOLDERS = (".cache", ".git")
# No list of a model comes near these: the largest public ones have some 2,000 files below 3 folders, and shards of 50 GB.
FILES_LIMIT, DEPTH_LIMIT, NAME_BYTES, SIZE_LIMIT = 100_000, 16, 1024, 1 << 50


class StagingError(Exception):
    """A model that can't be as asked. The text is for a person."""


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
    mounts: Sequence[Mapping[str, str]] = ()  # all that its rank mounts, source and target; empty where that is not known

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
            mounts=tuple({key: str(one[key]) for key in ("source", "target")} for one in data.get("mounts") or ()),
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
        data["bad_sha256"], data["mounts"] = list(self.bad_sha256), list(self.mounts)
        return data

    @property
    def in_place(self) -> bool:
        """Whether it lies in a Hub cache: somebody else's, into which nothing is ever written."""
        return snapshot(self.path) is not None

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

    def checked(self, name: str) -> Content:
        """Itself, from somebody else's word; ValueError for what no file can be."""
        if type(self.size) is not int or not 0 <= self.size <= SIZE_LIMIT:
            raise ValueError(f"size {self.size!r} of {name}")
        for what, digest, pattern in (("sha256", self.sha256, SHA256), ("git_sha1", self.git_sha1, COMMIT)):
            if not isinstance(digest, str) or (digest and not pattern.fullmatch(digest)):
                raise ValueError(f"{what} {digest!r:.80} of {name}")
        if self.at:
            safe_name(self.at)
        return self

    @property
    def by_git(self) -> bool:
        """Whether git's hash is all that says what it must be."""
        return bool(self.git_sha1) and not self.sha256

    def matches(self, sha256: str, git_sha1: str) -> bool:
        """Whether these digests are the ones wanted; without a wanted digest the first seen is right."""
        if self.sha256:
            return sha256 == self.sha256
        return not self.git_sha1 or git_sha1 == self.git_sha1


@dataclass(frozen=True)
class Record:
    """A file as it was when it was last read whole.

    ctime_ns: when its inode last changed, which no program can set back; 0 where an earlier version of ours recorded none. Such a record
    holds for an inode that has not changed since `noted_ns`, when that record was written (0: not written yet).
    """

    size: int
    mtime_ns: int
    sha256: str
    ctime_ns: int = 0
    noted_ns: int = 0


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
            if len(data["files"]) > FILES_LIMIT:
                raise ValueError(f"more than {FILES_LIMIT:,} files")
            files = {name: Content(**entry).checked(name) for name, entry in data["files"].items() if of_model(safe_name(name))}
            return cls(str(data["repo"]), str(data["revision"]), files, str(data.get("source", "")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StagingError(f"the manifest is unreadable ({type(error).__name__}: {error})") from error


def safe_name(name: str) -> str:
    """A name in somebody's list of files: a relative path that stays below its folder, and is for programs and screens what it is. StagingError for any other."""
    try:
        if isinstance(name, str) and len(name.encode()) <= NAME_BYTES:
            parts = below(name).split("/")
            # Which a program would read as an option, or a screen shows as something else than it is.
            option = any(part.startswith("-") for part in parts)
            unseen = any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in name)
            if not (option or unseen) and len(parts) <= DEPTH_LIMIT:
                return name
    except ValueError:
        pass
    raise StagingError(f"{name!r:.200} is no name for a file of a model")


def of_model(name: str) -> bool:
    """Whether a file belongs to a model. What lies below a folder with a dot (.git, .github, .cache) is a client's or the repository's own: left alone."""
    *folders, last = name.split("/")
    return last not in CLIENT_FOLDERS and not any(folder.startswith(".") for folder in folders)


def proven(model: Model, manifest: Manifest) -> Manifest:
    """A list of what is fetched: of each file it says a hash. Without one any bytes would be right."""
    bare = sorted(name for name, content in manifest.files.items() if not (content.sha256 or content.git_sha1))
    if bare:
        more = f" and {len(bare) - 1:,} more" if len(bare) > 1 else ""
        raise StagingError(
            f"{model.name}: {manifest.source} says no hash of {bare[0]}{more}, so any bytes would pass for it. Give its sha256 in"
            f" lane_{model.name}.sha256, or take the model from where hashes are known"
        )
    return manifest


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


def shard_order(manifest: Manifest, names: Sequence[str]) -> Iterator[str]:
    """Small files first (a wrong repository shows at once), then by name."""
    return iter(sorted(names, key=lambda name: (manifest.files[name].size > BLOCK, name)))
