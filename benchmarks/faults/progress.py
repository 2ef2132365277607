# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What was measured of one state of the tree: a run that ended early goes on with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tree(root: Path) -> str:
    """The commit, and a hash of what is not committed, where anything is."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout

    commit = git("rev-parse", "--short=12", "HEAD").decode().strip()
    changes = git("diff", "HEAD")
    for name in filter(None, git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")):
        path = root / os.fsdecode(name)
        changes += name + (path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return f"{commit}-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit


class Progress:
    """Results by name, in a folder of the tree's state; each is on the disk before the next fault."""

    def __init__(self, place: Path, name: str, again: bool = False) -> None:
        self.name = name
        self.folder = place / name
        if again:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "results.json"
        self.results: dict[str, dict[str, Any]] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def has(self, key: str) -> bool:
        return key in self.results

    def keep(self, key: str, result: Mapping[str, Any]) -> None:
        self.results[key] = dict(result)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1))
        part.rename(self.file)

    def output(self, key: str, text: str) -> Path:
        """Keep what was printed."""
        path = self.folder / f"{key.replace('/', '-')}.txt"
        path.write_text(text)
        return path
