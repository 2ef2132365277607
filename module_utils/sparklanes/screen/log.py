# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The log of a run on the controller. A disk that is full or a folder that can't be written never hinders the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TextIO

KEPT = 50


class Log:
    """A file that grows. `problem`: why there is none any more, empty while all is well."""

    def __init__(self, folder: Path, verb: str) -> None:
        self.problem = ""
        self._stream: TextIO | None = None
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{verb}-{os.getpid()}.log"
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._stream = self._open(self.path)
            for old in sorted(folder.glob("*.log"))[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            self._lost(error)

    @staticmethod
    def _open(path: Path) -> TextIO:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        return os.fdopen(handle, "a", encoding="utf-8", errors="replace", buffering=1)

    def _lost(self, error: OSError) -> None:
        self.problem = str(error)
        with contextlib.suppress(OSError):
            if self._stream:
                self._stream.close()
        self._stream = None

    def write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text if text.endswith("\n") else f"{text}\n")
        except OSError as error:
            self._lost(error)

    def move(self, target: Path) -> None:
        """Go on in `target`, behind what an earlier run of the same attempt wrote there."""
        if self._stream is None:
            return
        try:
            stream = self._open(target)
            self._stream.flush()
            with self.path.open(encoding="utf-8", errors="replace") as before:
                shutil.copyfileobj(before, stream)
            self._stream.close()
            self.path.unlink(missing_ok=True)
            self._stream, self.path = stream, target
        except OSError as error:
            self._lost(error)
