# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that puts all that a lane needs into one place, with hashes: published images and files have vanished.

    DIRECTORY/LANE/
        image.tar            what `docker save` wrote
        overlays/ extras/    the files that the lane mounts, under the names that it gives them
        models/NAME/         the drafter, and the weights where they are asked for
        manifests/NAME.json  every file of each model with its size and sha256
        lane.json            the lane as it was resolved
        SHA256SUMS           of all of it, as sha256sum writes it
        archive.json         what was archived, and from where

A file that is there with the right hash is left alone, so a second run only adds. Nothing half-written has its final name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.sparklanes.common import disk, ours, sums
from ansible.module_utils.sparklanes.common.files import ASIDE, read_json, replacing, write_json
from ansible.module_utils.sparklanes.common.sums import plain
from ansible.module_utils.sparklanes.docker.archive import ArchiveError, save, settle
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Model

JOB = "archive"
CHUNK = 4 * 1024**2
PURPOSE = "archive of a lane"
# As 0.1 named what it had not finished of an image, which has gigabytes.
_ASIDE_BEFORE = re.compile(r"\.image\.tar\.[a-z0-9_]{8}")


def safe(name: str) -> str:
    """A relative name that stays below. ArchiveError where it does not."""
    try:
        return str(plain(name))
    except ValueError as error:
        raise ArchiveError(str(error)) from None


def copy(source: Path, target: Path, expected: str, report: Reporter | None = None) -> str:
    """Copy a file and hash it on the way; its sha256. What does not match `expected` is not kept."""
    made = hashlib.sha256()
    with source.open("rb", buffering=0) as stream, replacing(target, 0o644) as sink:
        done = 0
        while chunk := stream.read(CHUNK):
            made.update(chunk)
            sink.write(chunk)
            done += len(chunk)
            if report:
                report.update(add=len(chunk))
            if done % (16 * CHUNK) == 0:
                _let_go(stream, sink)
        _let_go(stream, sink)
        found = made.hexdigest()
        if expected and found != expected:
            raise ArchiveError(
                f"{source} has sha256 {found}, expected {expected}: it was changed since it was staged. Run site.yml"
            )
    return found


def _let_go(read: IO[bytes], written: IO[bytes]) -> None:
    settle(written)
    os.posix_fadvise(read.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Archive:
    """One lane's archive."""

    def __init__(self, folder: Path, report: Reporter) -> None:
        self.folder = folder
        self.report = report
        self.known: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):  # a list that can't be read tells nothing: all is hashed anew
            self.known = sums.read((folder / sums.SUMS).read_text(encoding="utf-8"))
        self.sums: dict[str, str] = {}
        self.actions: list[str] = []

    def has(self, name: str, sha256: str) -> bool:
        """Whether an earlier run left this file; `full` verification is sha256sum's, at any time."""
        return bool(sha256) and self.known.get(name) == sha256 and (self.folder / name).is_file()

    def forget(self, name: str) -> None:
        """A file that is about to change is known no more, also where this run is killed before its end."""
        if self.known.pop(name, None):
            self.write_sums(self.known)

    def write_sums(self, made: Mapping[str, str]) -> None:
        with replacing(self.folder / sums.SUMS, 0o644) as stream:
            stream.write(sums.write(made).encode())

    def add(self, name: str, source: Path, sha256: str) -> None:
        name = safe(name)
        self.report.update(file=name)
        if self.has(name, sha256):
            self.sums[name] = sha256
            return
        self.forget(name)
        self.sums[name] = copy(source, self.folder / name, sha256, self.report)
        self.actions.append(f"Archive {name}")

    def image_there(self, image_id: str) -> str:
        """The sha256 of the image's archive where an earlier run left it, else an empty text."""
        before = (read_json(self.folder / "archive.json") or {}).get("image") or {}
        sha256 = str(before.get("sha256", ""))
        return sha256 if before.get("id") == image_id and self.has("image.tar", sha256) else ""

    def image(self, name: str, image_id: str) -> None:
        if there := self.image_there(image_id):
            self.sums["image.tar"] = there
            return
        self.report.update(file="image.tar")
        self.forget("image.tar")
        self.sums["image.tar"] = save(name, self.folder / "image.tar", told=lambda more: self.report.update(add=more))
        self.actions.append("Archive image.tar")

    def model(self, model: Model, staged_dir: Path, whole: bool) -> None:
        """The manifest of a model, and its files where they are wanted."""
        store = ModelStore(staged_dir, model.path)
        marker = store.staged()
        if marker is None or not marker.of(model):
            raise ArchiveError(f"{model.name}: {model.path} is not complete here. Run site.yml, then archive")
        records = store.records()
        listed = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(records.items())}
        self.text(f"manifests/{model.name}.json", {"repo": model.repo, "revision": model.revision, "files": listed})
        for name, record in sorted(records.items()) if whole else ():
            self.add(f"models/{model.name}/{name}", Path(model.path, name), record.sha256)

    def text(self, name: str, data: Mapping[str, Any]) -> None:
        if write_json(self.folder / name, data, 0o644):
            self.actions.append(f"Archive {name}")
        self.sums[name] = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def close(self, facts: Mapping[str, Any]) -> None:
        self.text("archive.json", facts)
        # What an earlier run archived (weights, say) stays listed.
        kept = {name: digest for name, digest in self.known.items() if (self.folder / name).is_file()}
        self.write_sums({**kept, **self.sums})


def archive_lane(args: dict[str, Any], _secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Archive a lane. The function that `jobs` runs."""
    folder = Path(args["directory"], safe(args["lane_id"]))
    models = [Model.from_dict(data) for data in args["models"]]
    try:
        claim(folder, args["lane_id"])
        sweep(folder, time.time())
        made = Archive(folder, report)
        needed = needed_bytes(made, args, models)
        refuse_without_room(folder, needed, int(args["reserve"]))
        report.phase("archive", needed)
        for entry in args["files"]:
            made.add(entry["name"], Path(entry["path"]), entry["sha256"])
        for model in models:
            made.model(model, Path(args["staged_dir"]), model.name in args["whole"])
        made.text("lane.json", args["lane"])
        made.image(args["image"]["name"], args["image"]["id"])
        image = {**args["image"], "sha256": made.sums["image.tar"]}
        made.close({"lane": args["lane_id"], "host": args["host"], "image": image, "whole": sorted(args["whole"])})
    except (ArchiveError, ours.NotOurs) as error:
        raise JobError(f"{args['host']}: {error}") from error
    except OSError as error:
        raise JobError(f"{args['host']}: {error.filename or folder}: {error.strerror}. Nothing half-written was kept") from error
    return {
        "changed": bool(made.actions),
        "actions": made.actions,
        "folder": str(folder),
        "image": args["image"],
        "image_sha256": made.sums["image.tar"],
    }


def sweep(folder: Path, now: float) -> None:
    """Half-written files of jobs that were killed. One that somebody still writes into is younger than an hour."""
    for here, _, names in os.walk(folder):
        for name in names:
            path = Path(here, name)
            if (name.startswith(ASIDE) or _ASIDE_BEFORE.fullmatch(name)) and now - path.lstat().st_mtime > 3600:
                path.unlink()


def claim(folder: Path, lane: str) -> None:
    """Have the folder of a lane's archive. NotOurs where somebody else has something there."""
    # One of 0.1 carries no mark.
    if (read_json(folder / "archive.json") or {}).get("lane") == lane and not (folder / ours.MARK).exists():
        (folder / ours.MARK).write_text(f"{PURPOSE}\n", encoding="ascii")
    ours.claim(folder, PURPOSE, 0o755)


def needed_bytes(made: Archive, args: Mapping[str, Any], models: list[Model]) -> int:
    """Bytes that will be written. What an earlier run left whole isn't; what is replaced stays until its successor is whole."""
    total = 0 if made.image_there(args["image"]["id"]) else int(args["image"]["size_bytes"])
    total += sum(
        Path(entry["path"]).stat().st_size for entry in args["files"] if not made.has(safe(entry["name"]), entry["sha256"])
    )
    for model in models:
        if model.name in args["whole"]:
            records = ModelStore(Path(args["staged_dir"]), model.path).records()
            total += sum(one.size for name, one in records.items() if not made.has(f"models/{model.name}/{name}", one.sha256))
    return total


def refuse_without_room(folder: Path, needed: int, reserve: int) -> None:
    """ArchiveError where what is to be written does not fit beside what is there: an old file goes only once its successor is whole."""
    if problem := disk.lacking(folder, needed, reserve):
        raise ArchiveError(f"{problem}. Nothing was written")


def restore_lines(folder: str, image: Mapping[str, Any], image_sha256: str) -> str:
    """What a site writes into its file of the lane to use the archive. JSON, which is YAML."""
    value = {"archive": {"path": f"{folder}/image.tar", "sha256": image_sha256}, "ids": [image["id"]]}
    return (
        f"lane_image_site: {json.dumps(value)}\n"
        f"kernel_overlays_source: {folder}/overlays  # as this controller sees it\n"
        f"kernel_overlays_project: {folder}/extras  # likewise\n"
    )
