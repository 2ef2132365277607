# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What stands now where we edited a host, and the way back to what was there before: see host/ledger."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.host.ledger import COPIES, Ledger, Record, Value, same, told
from ansible.module_utils.sparklanes.host.sysctl import normal_key, normal_value
from ansible.module_utils.sparklanes.host.tree import Tree


def standing(record: Record, now: Value | None) -> str:
    """`ours`, `as_before`, `changed` by somebody else since; `unknown` where nobody looked."""
    if now is None:
        return "unknown"
    if now == record.before:
        return "as_before"
    lost = record.foreign and record.before != {"kind": "absent"}  # giving back would undo their edit too
    return "ours" if same(now, record.after) and not lost else "changed"


def now_of(tree: Tree, record: Record) -> Value | None:
    """What stands there now; None for what only the role that changed it can see."""
    if record.kind == "file":
        return told(tree.entry(record.name))
    if record.kind == "sysctl":
        content = tree.read(_sysctl_path(record.name))
        return "no such setting" if content is None else normal_value(content.decode("utf-8", "replace"))
    return None


def _sysctl_path(name: str) -> str:
    return f"/proc/sys/{normal_key(name)}"


def report(ledger: Ledger) -> list[dict[str, Any]]:
    """All that we changed and not given back yet, with what stands there now."""
    found = []
    for record in ledger.load().values():
        now = now_of(ledger.tree, record)
        found.append({**asdict(record), "now": now, "standing": standing(record, now)})
    return found


@dataclass(frozen=True)
class Restored:
    """What came of giving one thing back."""

    done: bool
    sentence: str


def restore(ledger: Ledger, kind: str, name: str) -> Restored:
    """Give back what was there before us, unless somebody else has changed it since. Without a record nothing is done."""
    tree = ledger.tree
    with ledger.open() as records:
        record = records.get(f"{kind} {name}")
        if record is None:
            return Restored(False, f"{name} is not in the ledger: sparklanes never changed it, or has given it back")
        if kind == "state":
            return Restored(False, f"{name} is given back by the role that changed it: {record.undo}")
        state = standing(record, now_of(tree, record))
        if state == "as_before":
            del records[record.key]
            return Restored(False, f"{name} is as it was before sparklanes")
        if state != "ours":
            return Restored(
                False, f"{name} was changed by somebody else after {record.by} did, so it stays as it is. {_kept(record)}"
            )
        problem = _give_back_file(tree, record) if kind == "file" else _give_back_setting(tree, record)
        if problem:
            return Restored(False, problem)
        del records[record.key]
        return Restored(True, f"{name} is again as it was before sparklanes")


def _kept(record: Record) -> str:
    if record.kind != "file" or not isinstance(record.before, dict):
        return f"Before sparklanes it was {record.before}"
    if record.before["kind"] == "file":
        return f"What it said before sparklanes is in {COPIES}/{record.before['sha256']}"
    return (
        "Before sparklanes it was not there" if record.before["kind"] == "absent" else f"Before sparklanes it was {record.before}"
    )


def _give_back_file(tree: Tree, record: Record) -> str:
    before = record.before
    assert isinstance(before, dict)
    if before["kind"] == "file":
        content = tree.read(f"{COPIES}/{before['sha256']}")
        if content is None or hashlib.sha256(content).hexdigest() != before["sha256"]:
            return f"{record.name} can't be given back: its copy {COPIES}/{before['sha256']} is gone or was changed"
        tree.write(record.name, content, int(before["mode"], 8), (before["uid"], before["gid"]))
    elif before["kind"] == "other":
        return f"{record.name} was no file before sparklanes, so it can't be given back"
    else:
        with contextlib.suppress(FileNotFoundError):
            tree.remove(record.name)
        if before["kind"] == "link":
            tree.link(record.name, before["target"])
    return ""


def _give_back_setting(tree: Tree, record: Record) -> str:
    with tree.at(_sysctl_path(record.name)).open("w", encoding="ascii") as stream:
        stream.write(f"{record.before}\n")
    now = now_of(tree, record)
    return "" if now == record.before else f"{record.name}: set to {record.before}, the kernel still says {now}"
