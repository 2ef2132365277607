# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A small model as it is, as it must not be, and the lists of it that a mirror, the Hub and a neighbour show."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPO, COMMIT = "acme/tiny", "c" * 40
SHARD, CONFIG, CODE = "model.safetensors", "config.json", "modeling_tiny.py"
# Whatever kind of file a case is about: three sizes, one of them code that an engine may run.
TENSOR = 160_000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def shard(data: bytes) -> bytes:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def good(seed: int = 1) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {
        CONFIG: b'{"architectures": ["Tiny"]}',
        CODE: b"# harmless\n" * 40,
        SHARD: shard(chance.randbytes(TENSOR)),
    }


def evil(content: bytes) -> bytes:
    """As long, a valid file of its kind, right in its second half and wrong in its first."""
    half = len(content) // 2
    if content[8:9] == b"{":  # the tensors of a shard, not its header
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        return content[:begin] + bytes(255 - one for one in content[begin:half]) + content[half:]
    return (b'import os; os.system("id")\n' * (half // 27 + 1))[:half] + content[half:]


def sums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{sha256(content)}  {name}\n" for name, content in files.items()).encode(errors="surrogatepass")


def entries(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    return {name: {"size": len(content), "sha256": sha256(content)} for name, content in files.items()}


def manifest(files: Mapping[str, bytes], source: str = "hub") -> dict[str, Any]:
    return {"schema": "sparklanes-weights/1", "repo": REPO, "revision": COMMIT, "source": source, "files": entries(files)}


def tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """As the Hub lists a commit: large ones with their sha256, small ones with git's hash alone."""
    made = []
    for name, content in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_sha1(content)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        made.append(entry)
    return made


def user_of(secret: str) -> str:
    return "stage-" + sha256(secret.encode())[:12]


@dataclass
class Offer:
    """What a neighbour shows, with the seal of whoever knows a secret."""

    manifest: dict[str, Any] | None
    verified: Mapping[str, Any]
    work: Mapping[str, Any] = field(
        default_factory=lambda: {"running": True, "failed": False, "error": "", "phase": "", "done": 0}
    )

    def text(self) -> bytes:
        return json.dumps({"name": "model", "manifest": self.manifest, "verified": self.verified, "work": self.work}).encode()


def sealed(text: bytes, secret: str) -> bytes:
    seal = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    return f"sparklanes-offer/2 {user_of(secret)}:{seal}\n".encode() + text
