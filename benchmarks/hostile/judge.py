# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who says of a hostile case what was wrong. It shares nothing with the product: hashlib, stat, and the texts that were printed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a terminal obeys or hides; line feeds and tabs are of any text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
TRACEBACK = re.compile(r"^Traceback \(most recent call last\)|MODULE FAILURE", re.MULTILINE)
# No case needs more of a Spark than this; what has no end is over it soon.
MOST_DISK, MOST_MEMORY = 96 << 20, 700 << 20


@dataclass(frozen=True)
class Said:
    """One run of something of the product: its exit status (None: it did not end in time), what it printed, its result where it had one."""

    what: str
    code: int | None
    out: str
    err: str
    result: Mapping[str, Any] = field(default_factory=dict)
    memory: int = 0

    @property
    def failed(self) -> bool:
        return self.code != 0 or bool(self.result.get("failed") or self.result.get("job_failed"))


@dataclass
class Outcome:
    """What was wrong in one case, by kind. All empty: nothing."""

    wrong_bits: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    without_end: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def red(self) -> list[str]:
        return [f"{kind}: {one}" for kind, found in vars(self).items() for one in found]

    def add(self, other: Outcome) -> None:
        for kind, found in vars(other).items():
            getattr(self, kind).extend(found)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def seen(path: Path) -> tuple[Any, ...]:
    """All that shows that somebody wrote to a file, moved it, lent it or made another one of it."""
    one = path.lstat()
    content = str(path.readlink()) if stat.S_ISLNK(one.st_mode) else sha256(path) if stat.S_ISREG(one.st_mode) else ""
    return one.st_ino, one.st_mode, one.st_uid, one.st_gid, one.st_nlink, one.st_size, one.st_mtime_ns, one.st_ctime_ns, content


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {str(path.relative_to(folder)): seen(path) for path in [folder, *sorted(folder.rglob("*"))]}


class Outside:
    """Files of somebody else beside the Spark's own: what they are before and after, and a secret that only root reads."""

    def __init__(self, folder: Path, secret: str) -> None:
        self.folder, self.secret = folder, secret
        for name, content in {
            "shadow": f"root:{secret}:\n",
            "passwd": "root:x:0:0::/root:/bin/sh\n",
            "cron.d/daily": "# nothing\n",
            "victim": "important\n",
            "other-model/config.json": "{}",
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        (folder / "shadow").chmod(0o600)
        self.before = snapshot(folder)

    def touched(self) -> list[str]:
        after = snapshot(self.folder)
        return [
            f"{name} was {'removed' if name not in after else 'made' if name not in self.before else 'changed'}"
            for name in sorted({*self.before, *after})
            if self.before.get(name) != after.get(name)
        ]

    def given_away(self, texts: Mapping[str, bytes]) -> list[str]:
        return [f"the secret of shadow is in {name}" for name, text in texts.items() if self.secret.encode() in text]


def kept(folder: Path, truth: Mapping[str, str]) -> list[str]:
    """What lies in a model's folder under a final name and is not what it must be."""
    wrong = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = str(path.relative_to(folder))
        if path.is_symlink() or (path.is_file() and truth.get(name) != sha256(path)):
            wrong.append(
                f"{name} is {'a link' if path.is_symlink() else sha256(path)[:12]}, not {truth.get(name, 'listed')[:12]}"
            )
    return wrong


def recorded(staged: Path, truth: Mapping[str, str]) -> list[str]:
    """What the records of a Spark say was read and found right, and is not the truth."""
    wrong = []
    for path in sorted(staged.rglob("*.json")):
        if path.name not in ("STAGED.json", "PARTIAL.json") or not path.is_file():
            continue
        try:
            files = json.loads(path.read_bytes()).get("files", {})
            wrong += [
                f"{path.name} has {name} as {one['sha256'][:12]}"
                for name, one in files.items()
                if truth.get(name) != one["sha256"]
            ]
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            continue
    return wrong


def printed(says: Iterable[Said], logs: Mapping[str, str] = {}) -> Outcome:
    """What is wrong with any run, whatever it was about."""
    outcome = Outcome()
    for said in says:
        text = f"{said.out}\n{said.err}"
        if TRACEBACK.search(text):
            outcome.tracebacks.append(f"{said.what}: {last(text)}")
        if said.code is None:
            outcome.without_end.append(f"{said.what} did not end")
        elif said.code < 0:
            outcome.without_end.append(f"{said.what} was ended by signal {-said.code}")
        if said.memory > MOST_MEMORY:
            outcome.without_end.append(f"{said.what} took {said.memory >> 20} MiB of memory")
    outcome.tracebacks += [f"{name}: {last(text)}" for name, text in logs.items() if TRACEBACK.search(text)]
    return outcome


def last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:200]


def controls(text: str) -> list[str]:
    """What a terminal would obey in a text that is shown."""
    return [f"{found!r} is shown" for found in dict.fromkeys(CONTROLS.findall(text))]


def disk(folder: Path) -> int:
    """Bytes that a folder takes. What goes while it is looked at takes none."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(here, name)).st_blocks * 512
    return total
