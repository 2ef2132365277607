# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Write an OCI image and push it to a registry, with neither a container engine nor its build privileges.

Layers are plain tar archives: the registry is on this machine, and packing and unpacking 1 GB on two cores
takes longer than carrying it over a bridge. Equal content gives an equal digest.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sandbox.layout import EPOCH
from sandbox.shell import SandboxError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
BLOCK = 1 << 22


@dataclass(frozen=True)
class Blob:
    """Something a registry holds: bytes in a file, known by their digest."""

    path: Path
    digest: str
    size: int


class _Hashing(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self.file.write(data)


def hash_file(path: Path) -> Blob:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(BLOCK):
            digest.update(block)
    return Blob(path, f"sha256:{digest.hexdigest()}", path.stat().st_size)


def write_layer(out: Path, trees: Mapping[str, Path], files: Mapping[str, tuple[bytes, int]]) -> Blob:
    """A layer of folders (place in the image → folder here) and single files (place → content, mode)."""
    with out.open("wb") as raw:
        sink = _Hashing(raw)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK) as tar:
            for place in sorted(files):
                content, mode = files[place]
                entry = _normal(tarfile.TarInfo(place))
                entry.size, entry.mode = len(content), mode
                tar.addfile(entry, io.BytesIO(content))
            for place in sorted(trees):
                for path in sorted(_walk(trees[place])):
                    tar.add(path, f"{place}/{path.relative_to(trees[place])}", recursive=False, filter=_normal)
    return Blob(out, f"sha256:{sink.sha256.hexdigest()}", sink.size)


def _walk(top: Path) -> Iterable[Path]:
    return (path for path in top.rglob("*"))


def _normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = EPOCH
    return entry


class Registry:
    """The few calls of the distribution API that a push needs."""

    def __init__(self, address: str, port: int) -> None:
        self.address, self.port = address, port

    def _call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=300)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers
        finally:
            connection.close()

    def has_manifest(self, repository: str, digest: str) -> bool:
        return self._call("HEAD", f"/v2/{repository}/manifests/{digest}", headers={"Accept": MANIFEST})[0] == 200

    def push_blob(self, repository: str, blob: Blob) -> None:
        if self._call("HEAD", f"/v2/{repository}/blobs/{blob.digest}")[0] == 200:
            return
        status, headers = self._call("POST", f"/v2/{repository}/blobs/uploads/", headers={"Content-Length": "0"})
        if status != 202:
            raise SandboxError(f"The registry refused to start an upload ({status}): look into .sandbox/log/registry.log")
        place = headers["Location"].split(f":{self.port}", 1)[-1]
        place += ("&" if "?" in place else "?") + f"digest={blob.digest}"
        with blob.path.open("rb") as source:
            size = {"Content-Length": str(blob.size), "Content-Type": "application/octet-stream"}
            status, _ = self._call("PUT", place, source, size)
        if status != 201:
            raise SandboxError(f"The registry did not take {blob.path.name} ({status}): is the disk full? `df -h .sandbox`")

    def push(self, repository: str, tag: str, layers: Iterable[Blob], config: dict[str, Any], work: Path) -> str:
        """Push an image; its digest comes back."""
        layers = list(layers)
        full = {
            "os": "linux",
            **config,
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
        config_path = work / "config.json"
        config_path.write_text(json.dumps(full, sort_keys=True))
        config_blob = hash_file(config_path)
        for blob in (*layers, config_blob):
            self.push_blob(repository, blob)
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "digest": config_blob.digest, "size": config_blob.size},
                "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers],
            },
            sort_keys=True,
        ).encode()
        status, _ = self._call("PUT", f"/v2/{repository}/manifests/{tag}", manifest, {"Content-Type": MANIFEST})
        if status != 201:
            raise SandboxError(f"The registry did not take the manifest ({status}): look into .sandbox/log/registry.log")
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"
