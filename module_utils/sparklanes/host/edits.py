# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Edits of a host: each noted as a sentence and as a difference, and none of them done in check mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.sparklanes.common.files import write_atomically


class HostEdits:
    """What one module run changes below `root`."""

    def __init__(self, module: Any, root: str | Path = "/") -> None:
        self.module = module
        self.root = Path(root)
        self.actions: list[str] = []
        self.waiting: list[str] = []
        self.changed = False
        self._before: list[str] = []
        self._after: list[str] = []

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=problem, actions=self.actions, waiting=self.waiting)
        raise SystemExit(1)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def note(self, action: str, before: str = "", after: str = "") -> bool:
        """Record a change; true where it is to be done."""
        self.changed = True
        self.actions.append(action)
        self._before.append(before)
        self._after.append(after)
        return not self.module.check_mode

    def write(self, path: str, text: str, mode: int = 0o644, shown: bool = True) -> bool:
        """Give a file this text; whether that was a change. What says nothing to a reader of a diff is shown by name."""
        old = self.text(path)
        if old == text and not self.at(path).is_symlink():
            return False
        before = f"{path}:\n{old}" if old is not None and shown else ""
        if self.note(f"Write {path}", before, f"{path}:\n{text}" if shown else f"{path}\n"):
            write_atomically(self.at(path), text, mode)
        return True

    def drop(self, path: str, why: str = "asked for") -> bool:
        """Remove a file; whether there was one."""
        old = self.text(path)
        if old is None:
            return False
        if self.note(f"Remove {path}: {why}", f"{path}:\n{old}"):
            self.at(path).unlink()
        return True

    def ask(self, *argv: str) -> tuple[int, str, str]:
        answer: tuple[int, str, str] = self.module.run_command(list(argv), errors="replace", expand_user_and_vars=False)
        return answer

    def must(self, *argv: str, hint: str = "", data: str | None = None) -> str:
        """The output of a command that has to work."""
        rc, out, err = self.module.run_command(list(argv), errors="replace", expand_user_and_vars=False, data=data)
        if rc != 0:
            said = (err or out).strip() or f"exit {rc}"
            self.fail(f"{' '.join(argv)} failed: {said}" + (f". {hint}" if hint else ""))
        return str(out)

    @property
    def diff(self) -> dict[str, str]:
        return {"before": "".join(self._before), "after": "".join(self._after)}
