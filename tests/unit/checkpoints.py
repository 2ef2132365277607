# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints for the tests of staging."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.weights.model import Model

COMMIT = "c" * 40
A, B = "a" * 64, "b" * 64
SECOND = "model-00002-of-00003.safetensors"  # a shard in the middle of `checkpoint`


def model(path: Path | str = "/models/tiny", **more: Any) -> Model:
    """As a lane asks for it."""
    return Model.from_dict({"name": "model", "path": str(path), "repo": "acme/tiny", "revision": COMMIT, **more})


def shard(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of these tensors (type, shape, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def checkpoint(folder: Path, shards: int = 3, tensors: int = 4, size: int = 64, seed: int = 1) -> Path:
    """Shards of BF16 tensors with random content, their index and a config."""
    folder.mkdir(parents=True, exist_ok=True)
    content = random.Random(seed)
    mapped: dict[str, str] = {}
    total = 0
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        parts = {f"layers.{number}.{k}.weight": ("BF16", [size // 2], content.randbytes(size)) for k in range(tensors)}
        (folder / file).write_bytes(shard(parts))
        mapped |= dict.fromkeys(parts, file)
        total += tensors * size
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": mapped}))
    (folder / "config.json").write_text('{"architectures": ["Tiny"]}')
    return folder


def flip(path: Path, keep_mtime: bool, at: int = -1) -> None:
    """Flip one bit, as a program does that sets the mtime back, or one that does not. Either way the ctime is another."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    after = before.st_mtime_ns if keep_mtime else before.st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(before.st_atime_ns, after))


def rot(path: Path, records: Path, at: int = -1) -> None:
    """Flip one bit as a disk does, which no time of the file shows: the records below a folder know the ctime that it has then."""
    flip(path, keep_mtime=True, at=at)
    for kept in records.rglob("*.json"):
        data = json.loads(kept.read_text())
        for name, entry in data.get("files", {}).items():
            if "mtime_ns" in entry and Path(data.get("path", "/"), name) == path:
                entry["ctime_ns"] = path.stat().st_ctime_ns
                kept.write_text(json.dumps(data))


def hub_cache(root: Path, source: Path) -> Path:
    """The layout of the client's cache: a snapshot folder of links to blobs that are named by their hash."""
    blobs, snapshot = root / "blobs", root / "snapshots" / ("c" * 40)
    blobs.mkdir(parents=True)
    for file in sorted(source.rglob("*")):
        if not file.is_file():
            continue
        content = file.read_bytes()
        large = file.suffix == ".safetensors"
        name = hashlib.sha256(content).hexdigest() if large else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        (blobs / name).write_bytes(content)
        link = snapshot / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / name, link.parent))
    return snapshot
