# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Edits of a host: each noted as a sentence, as a difference and in the ledger, and none of them done in check mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host.ledger import Ledger, LedgerError
from ansible.module_utils.sparklanes.host.tree import Entry, Tree

# A unit that starts or stops has 90 s of systemd, a swap file of gigabytes takes minutes.
DEED_SECONDS = 900.0


class HostEdits:
    """What one module run changes below `root`. `by` is the name of the module, for the ledger."""

    by = ""

    def __init__(self, module: Any, root: str | Path = "/") -> None:
        self.tree = Tree(root)
        self.root = self.tree.root
        self.ledger = Ledger(self.tree, self.by)
        self.module = module
        self.actions: list[str] = []
        self.waiting: list[str] = []
        self.changed = False
        self._before: list[str] = []
        self._after: list[str] = []

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=problem, actions=self.actions, waiting=self.waiting)
        raise SystemExit(1)

    def at(self, path: str) -> Path:
        return self.tree.at(path)

    def text(self, path: str) -> str | None:
        """The text of a file; None where there is none."""
        content = self.tree.read(path)
        return None if content is None else content.decode("utf-8", "replace")

    def note(self, action: str, before: str = "", after: str = "") -> bool:
        """Record a change; true where it is to be done."""
        self.changed = True
        self.actions.append(action)
        self._before.append(before)
        self._after.append(after)
        return not self.module.check_mode

    def write(self, path: str, content: str | bytes, mode: int = 0o644, shown: bool = True) -> bool:
        """Give a file this content; whether that was a change. What says nothing to a reader of a diff is shown by name."""
        wanted = content.encode() if isinstance(content, str) else content
        old = self.tree.entry(path)
        if old is not None and old.kind == "file" and old.content == wanted:
            return False
        known = self.text(path) if shown else None
        before = f"{path}:\n{known}" if known is not None else ""
        if self.note(f"Write {path}", before, f"{path}:\n{wanted.decode('utf-8', 'replace')}" if shown else f"{path}\n"):
            self.lay(path, wanted, mode)
        return True

    def drop(self, path: str, why: str = "asked for", shown: bool = True) -> bool:
        """Remove a file; whether there was one."""
        if not self.tree.there(path):
            return False
        if self.note(f"Remove {path}: {why}", f"{path}:\n{self.text(path) or ''}" if shown else f"{path}\n"):
            self.lift(path)
        return True

    def lay(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file now. Who calls this has noted the change, and asked whether it is to be done."""
        data = content.encode() if isinstance(content, str) else content
        self.ledger.file(path, Entry("file", f"{mode:04o}", content=data), lambda: self.tree.write(path, data, mode))

    def lift(self, path: str) -> None:
        """Remove a file now, if it is there. Who calls this has noted the change, and asked whether it is to be done."""
        if self.tree.there(path):
            self.ledger.file(path, None, lambda: self.tree.remove(path))

    def doing(self, what: str, names: Iterable[str], before: str, after: str, undo: str) -> None:
        """Note what is no file before it is done, so that a run that is cut off in the middle can be undone. `what` is a word."""
        if not self.module.check_mode:
            self.ledger.change("state", [f"{what} {name}" for name in names], before, after, undo)

    def did(self, what: str) -> list[str]:
        """The names of one word that are ours to undo."""
        return [name.partition(" ")[2] for name in self.ledger.names("state", f"{what} ")]

    def undone(self, what: str) -> None:
        if not self.module.check_mode:
            self.ledger.forget("state", [f"{what} {name}" for name in self.did(what)])

    def ask(self, *argv: str) -> tuple[int, str, str]:
        return commands.run(list(argv), seconds=DEED_SECONDS)

    def must(self, *argv: str, hint: str = "", data: str = "") -> str:
        """The output of a command that has to work."""
        rc, out, err = commands.run(list(argv), seconds=DEED_SECONDS, data=data)
        if rc != 0:
            said = (err or out).strip() or f"exit {rc}"
            self.fail(f"{' '.join(argv)} failed: {said}" + (f". {hint}" if hint else ""))
        return out

    def finish(self, work: Callable[[], dict[str, Any]]) -> NoReturn:
        """Do the work and end the module with what was done, what waits, and what the work returned besides."""
        try:
            self.ledger.load()  # also in check mode: a real run would refuse too
            more = work()
        except LedgerError as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        for sentence in self.waiting:
            self.module.warn(sentence)
        self.module.exit_json(
            **{"changed": self.changed, "actions": self.actions, "waiting": self.waiting, "diff": self.diff, **more}
        )
        raise SystemExit(0)

    @property
    def diff(self) -> dict[str, str]:
        return {"before": "".join(self._before), "after": "".join(self._after)}
