# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What each look at an engine's answers needs: which model to ask for, how to say where it stands, and its record as a file."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Protocol

from ansible.module_utils.sparklanes.common.files import write_atomically
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.engine.api import Model
from ansible.module_utils.sparklanes.jobs.state import JobError

# Bytes of a bank or record, unpacked. Those of 27,661 tokens are 2 MB; one of a million stays below.
MOST = 256 * 2**20


class Progress(Protocol):
    """What it says of itself while it runs (jobs.Reporter has it)."""

    def phase(self, name: str, total: int = 0, done: int = 0, unit: str = "bytes") -> None: ...

    def update(self, done: int | None = None, add: int = 0, file: str | None = None) -> None: ...


class Silent:
    """For who doesn't want to know."""

    def phase(self, name: str, total: int = 0, done: int = 0, unit: str = "bytes") -> None:
        pass

    def update(self, done: int | None = None, add: int = 0, file: str | None = None) -> None:
        pass


def dump(path: str | Path, data: Any) -> int:
    """Write JSON, gzipped where the name ends so, atomically; its size in bytes."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    # Without a time in its header the same data makes the same file.
    content = gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text
    write_atomically(path, content, 0o644)
    return len(content)


def load(path: str | Path, most: int = MOST) -> Any:
    """Read JSON that may be gzipped, whole; ValueError or OSError says what is wrong with the file. `most`: bytes, unpacked."""
    with Path(path).open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(most + 1)
        except EOFError as error:
            raise ValueError("it is cut off") from error
        except zlib.error as error:
            raise ValueError(f"it is damaged: {error}") from error
    if len(data) > most:
        raise ValueError(f"it holds more than {human_bytes(most)}")
    if not data:
        raise ValueError("it is empty")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error


def pick_model(models: list[Model], wanted: str | None, where: str) -> Model:
    """The model to ask for: the one named, or the first that the engine serves."""
    names = [model.id for model in models]
    if not models:
        raise JobError(f"{where} serves no model. Wait until its boot has ended")
    if wanted and wanted not in names:
        raise JobError(f"{where} serves {', '.join(names)}, not {wanted!r}. Compare lane_served_model_name")
    return models[names.index(wanted)] if wanted else models[0]
