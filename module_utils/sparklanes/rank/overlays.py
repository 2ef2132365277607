# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files that a lane mounts over the image's own or beside the weights, by content.

A file lies on a Spark under its hash and is never changed: a release of last month still
finds its own. A hash is compared on the controller before anything is sent, on the Spark
before a file gets its final name, and on the Spark again at each run.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.files import hash_file, replacing
from ansible.module_utils.sparklanes.rank.spec import OVERLAY_ROOT, overlay_path

_SHA256 = re.compile(r"[0-9a-f]{64}")
CHUNK = 1024**2


@dataclass(frozen=True)
class OverlayFile:
    """One file: where it comes from, what it must be, and where the container sees it."""

    source: str
    sha256: str
    target: str
    replaces_sha256: str = ""
    markers: tuple[str, ...] = field(default_factory=tuple)
    # On the controller; empty where it is not known or not there.
    path: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any], path: str = "") -> OverlayFile:
        markers = data.get("markers") or []
        return cls(
            source=str(data.get("source") or ""),
            sha256=str(data.get("sha256") or ""),
            target=str(data.get("target") or ""),
            replaces_sha256=str(data.get("replaces_sha256") or ""),
            markers=tuple(str(marker) for marker in (markers if isinstance(markers, list | tuple) else [markers])),
            path=path or str(data.get("path") or ""),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "markers": list(self.markers)}

    def staged(self, root: str = OVERLAY_ROOT) -> str:
        """Where it lies on a Spark; the rendering of a rank has the same rule."""
        path: str = overlay_path(self.source, self.sha256)
        return path.replace(OVERLAY_ROOT, root, 1)

    def mount(self, root: str = OVERLAY_ROOT) -> dict[str, Any]:
        return {"source": self.staged(root), "target": self.target, "read_only": True}


def faults(files: Sequence[OverlayFile], protected: Iterable[str] = ()) -> list[str]:
    """What no Spark could stage, as sentences. `protected` are the directories of weights in the container."""
    found = []
    seen: dict[str, str] = {}
    for file in files:
        name = file.source or "(no source)"
        if not file.source:
            found.append(
                f"an entry for {file.target or 'no target'} has no source; expected a path below the overlay directory or the project"
            )
        if not file.sha256:
            found.append(
                f"{name}: sha256 is unknown; expected 64 hex digits. Get the file from its author, look at it, and write what "
                f"`sha256sum {PurePosixPath(name).name}` prints into the lane"
            )
        for what, value in (("sha256", file.sha256), ("replaces_sha256", file.replaces_sha256)):
            if value and not _SHA256.fullmatch(value):
                found.append(f"{name}: {what} is {value!r}; expected 64 hex digits in lower case")
        target = PurePosixPath(file.target)
        if (
            not target.is_absolute()
            or ".." in target.parts
            or str(target) != file.target
            or file.target == "/"
            or set(file.target) & set(",: \t\n")
        ):
            found.append(
                f"{name}: target is {file.target!r}; expected the full path of a file in the container, without blanks, commas and colons"
            )
        elif file.target in seen:
            found.append(f"{name}: target {file.target} is also that of {seen[file.target]}; expected one file a target")
        for folder in protected:
            if folder and target.is_relative_to(folder):
                found.append(
                    f"{name}: target {file.target} lies in {folder}, where the weights are mounted; Docker would have to make a file among them. "
                    "Choose a target beside it, such as /extras/, and point the engine's flag there"
                )
        seen.setdefault(file.target, name)
    return found


def content_faults(file: OverlayFile, where: str, found_sha256: str, text: bytes) -> list[str]:
    """Whether a file that was read is the one that the lane names."""
    if found_sha256 != file.sha256:
        return [f"{where}: found sha256 {found_sha256}, expected {file.sha256}"]
    return [
        f"{where}: the text {marker!r} is not in it, which the lane asks for"
        for marker in file.markers
        if marker.encode() not in text
    ]


def read_faults(file: OverlayFile, path: Path) -> list[str]:
    """`content_faults` of a file on this machine."""
    return content_faults(file, str(path), hash_file(path), path.read_bytes() if file.markers else b"")


# On the controller


def plan(
    overlays: Sequence[Mapping[str, Any]], extras: Sequence[Mapping[str, Any]], overlay_dir: str, project_dir: str
) -> tuple[list[OverlayFile], list[str]]:
    """The files of a lane with their place on the controller, and what is wrong with them there.

    A file that is not on this controller is no fault yet: each Spark may have it already.
    """
    files, wrong = [], []
    for items, base in ((overlays, overlay_dir), (extras, project_dir)):
        for item in items:
            file = OverlayFile.of(item)
            if ".." in PurePosixPath(file.source).parts or (items is overlays and PurePosixPath(file.source).is_absolute()):
                wrong.append(f"{file.source}: expected a path below {base}, without `..`")
                continue
            path = Path(base, file.source)
            if path.is_file():
                file = OverlayFile.of(item, str(path))
                if file.sha256:
                    wrong += [
                        f"{text}. Somebody changed the file, or the lane means another one: compare with its source, then correct the lane's sha256"
                        for text in read_faults(file, path)
                    ]
            files.append(file)
    return files, wrong


def pack(files: Sequence[OverlayFile], dest: Path) -> bool:
    """One archive of these files, each named by its hash; False where it is there already.

    The name of the archive is made from the hashes, so an existing one holds the same.
    """
    if dest.is_file():
        return False
    with replacing(dest) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in {file.sha256: file for file in files}.values():
            member = tarfile.TarInfo(file.sha256)
            member.size = Path(file.path).stat().st_size
            with Path(file.path).open("rb") as content:
                archive.addfile(member, content)
    return True


def archive_name(files: Iterable[OverlayFile]) -> str:
    """The same name for the same files, whoever asks."""
    hashes = "".join(sorted({file.sha256 for file in files}))
    return f"overlays-{hashlib.sha256(hashes.encode()).hexdigest()[:16]}.tar"


# On the Spark


def unpack(archive: Path, sha256: str, dest: Path) -> None:
    """Put one member of the archive in its place: written aside, hashed on the way, then renamed. ValueError where it is another file."""
    with tarfile.open(archive) as packed:
        try:
            member: io.BufferedIOBase | Any = packed.extractfile(sha256)
        except KeyError:
            member = None
        if member is None:
            raise ValueError(f"{archive} does not hold {sha256}")
        made = hashlib.sha256()
        with replacing(dest, 0o444) as stream:
            while chunk := member.read(CHUNK):
                made.update(chunk)
                stream.write(chunk)
            if made.hexdigest() != sha256:
                raise ValueError(
                    f"{dest}: what arrived has sha256 {made.hexdigest()}, expected {sha256}; nothing was kept. Run this again"
                )
    dest.parent.chmod(0o755)


def link_faults(path: Path, root: str = OVERLAY_ROOT) -> list[str]:
    """Whether a file below the root lies there itself. Who owns what a link leads to can change it after it was compared."""
    real = path.resolve()
    if real == Path(root).resolve() / path.relative_to(root):
        return []
    return [f"{path}: found a link that leads to {real}, expected the file itself"]


def replaced_faults(files: Sequence[OverlayFile], found: Mapping[str, str | None], image: str) -> list[str]:
    """Whether each overlay lands on the file that it was made for. `found`: target → sha256 in the image, None where it has no such file."""
    return [
        f"{file.target} in {image}: found {'sha256 ' + str(found[file.target]) if found.get(file.target) else 'no such file'}, expected sha256 "
        f"{file.replaces_sha256}. {file.source} was made for another build of the engine: take the overlay that belongs to this image, or the image that belongs to it"
        for file in files
        if file.replaces_sha256 and found.get(file.target) != file.replaces_sha256
    ]
