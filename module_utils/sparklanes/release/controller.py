# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the controller remembers of its own runs, so that a rerun after ctrl-C goes on instead of being locked out."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.common.record import MORE, known
from ansible.module_utils.sparklanes.common.registered import HostVars, looks, results
from ansible.module_utils.sparklanes.release.transaction import STOPPED

# As they are made below: a note that somebody else wrote names no file and no option by its id.
_ID = re.compile(r"[0-9TZ]{16}-[0-9a-z]+")
# Where role rank registers what taking the lock brought, on rank 0 and on the others.
LOCKS = ("rank_lock_head", "rank_lock_worker")


def run_of(pid: int, proc: Path = Path("/proc")) -> tuple[int, str]:
    """The ansible-playbook process that `pid` belongs to: its pid and start time (clock ticks since boot).

    Tasks are templated in forked workers; of the chain of parents, the last that is still Ansible is the run.
    Where there is no /proc (a controller that isn't Linux) the pid itself has to do.
    """
    found = (pid, "")
    while pid > 1:
        try:
            command = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
            # The name of the process may hold blanks and brackets; the fields are counted after its last bracket.
            fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            break
        # By the name of the program: a folder on the way to a shell or an interpreter may be called ansible as well.
        if not any(part.rpartition(b"/")[2].startswith(b"ansible") for part in command[:2]):
            break
        found = (pid, fields[19])
        pid = int(fields[1])
    return found


def alive(pid: int, started: str, proc: Path = Path("/proc")) -> bool:
    """Whether that very process still runs (a reused pid has another start time)."""
    try:
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return not proc.is_dir() and pid > 1 and answers(pid)
    return not started or fields[19] == started


def answers(pid: int) -> bool:
    """Whether there is a process of this pid, on a controller that has no /proc."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def machine(root: Path = Path("/"), name: str | None = None) -> str:
    """Where pids mean what they mean here: the machine, its name (a cloned one has another), and the namespace of its pids (a container's)."""
    try:
        id_ = (root / "etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        id_ = ""
    try:
        pids = str((root / "proc/self/ns/pid").readlink())
    except OSError:
        pids = ""
    return hashlib.sha256("\n".join((id_, name or os.uname().nodename, pids)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Note:
    """What a controller remembers of a run: its transaction, and the process that it is. Of a machine and a boot, as a pid is of those alone."""

    id: str
    machine: str
    boot: str
    pid: float
    started: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def of_living(self, proc: Path = Path("/proc")) -> bool:
        """Whether that run is still at work; asked on its machine, in the boot of its own."""
        return alive(int(self.pid), self.started, proc)


def note_path(folder: Path, where: str) -> Path:
    """Each machine has a note of its own: two that share the folder of receipts never go on with each other's transaction."""
    return folder / f"transaction-{where}.json"


def noted(folder: Path, where: str) -> Note | None:
    """The note of this machine; None where there is none or it can't be read: then its transaction is met as another one's."""
    data = read_json(note_path(folder, where))
    try:
        note = Note(**known(Note, data)) if data else None
    except ValueError:
        return None
    return note if note and _ID.fullmatch(note.id) and note.machine == where else None


def transaction_id(
    folder: Path, pid: int, fresh: str, *, resume: bool = True, remember: bool = True, proc: Path = Path("/proc"), where: str = ""
) -> str:
    """The transaction id of this run on the deployment whose receipts lie in `folder`.

    An earlier run of this controller that was interrupted (its note is there, its process gone) is gone on with under
    its own id: on the Sparks that is the same transaction, so its lock is no obstacle. While that process still
    runs, or where this machine has no note, the id is a new one. Without `remember` (check mode) nothing is written.
    """
    run, started = run_of(pid, proc)
    where = where or machine(proc.parent)
    mine = Note("", where, boot_id(proc.parent), run, started)
    before = noted(folder, where)
    same = before is not None and replace(before, id="", more={}) == mine
    # After a reboot of the controller nothing of before it runs.
    other_runs = before is not None and not same and before.boot == mine.boot and before.of_living(proc)
    if before is not None and (same or (resume and not other_runs)):
        chosen = before.id
    else:
        chosen = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{fresh}"
    if remember and not other_runs:  # its note is what it needs after an interruption; this run will meet its lock
        note = asdict(replace(mine, id=chosen))
        del note[MORE]
        write_json(note_path(folder, where), note)
    return chosen


def forgettable(folder: Path, id_: str, where: str = "") -> str:
    """The path of this machine's note of a transaction that has ended; empty where the note is of another one, which may need it."""
    where = where or machine()
    before = noted(folder, where)
    return str(note_path(folder, where)) if before is not None and before.id == id_ else ""


def ended(folder: Path, pid: int, proc: Path = Path("/proc"), where: str = "") -> list[str]:
    """The transaction that this controller noted in `folder` and works on no more: its process is gone. `pid`: of the one that asks."""
    where = where or machine(proc.parent)
    before = noted(folder, where)
    if before is None:
        return []
    run, started = run_of(pid, proc)
    boot = boot_id(proc.parent)
    same = replace(before, id="", more={}) == Note("", where, boot, run, started)
    gone = not same and (before.boot != boot or not before.of_living(proc))
    return [before.id] if gone else []


def interrupted(hostvars: HostVars, hosts: Sequence[str], name: str) -> bool:
    """Whether no living transaction is open on any host. `name`: of the variable in which readiness_info was registered."""
    found = [seen.facts for seen in looks(hostvars, hosts, name, "readiness").values()]
    return all(facts is not None and (not facts.get("transaction") or facts["transaction"].get("expired")) for facts in found)


def at_rest(hostvars: HostVars, hosts: Sequence[str], name: str) -> bool:
    """Whether every host says that the deployment was stopped on purpose (or never ran), that no transaction is open and that no rank runs.

    name: of the variable in which readiness_info was registered. A host that says less is not at rest.
    """
    found = [seen.facts for seen in looks(hostvars, hosts, name, "readiness").values()]
    return bool(found) and all(
        facts is not None
        and not facts.get("transaction")
        and (facts.get("deployment_state") or {}).get("status") == STOPPED
        and "error" not in (facts.get("docker") or {"error": "it was not asked"})
        and not any(
            box.get("running") and box.get("deployment") == hostvars[host].get("deployment")
            for box in facts.get("containers") or []
        )
        for host, facts in zip(hosts, found, strict=True)
    )


def lock_is_back(hostvars: HostVars, hosts: Sequence[str], name: str) -> bool:
    """Whether no host may hold the lock any more. `name`: of the variable in which closing it was registered; who never had it skips.

    Who went on with a transaction that was open before (LOCKS) skips it too, and holds it.
    """

    def back(host: str, result: Mapping[str, Any]) -> bool:
        taken = [hostvars[host].get(lock) or {} for lock in LOCKS]
        return "deployment_state" in result or ("skipped" in result and all(lock.get("opened_now", True) for lock in taken))

    return all(back(host, result or {}) for host, result in results(hostvars, hosts, name).items())


def lost(hostvars: HostVars, hosts: Sequence[str], name: str) -> str:
    """How this controller lost its lock, as a sentence without its end; empty where it holds it on every rank that answers, and one does.

    name: of the variable in which module transaction (state=held) was registered. A rank out of reach proves nothing either way: what it
    is asked for later, it compares itself.
    """
    found = looks(hostvars, hosts, name)
    for host, seen in found.items():
        if seen.facts is not None and seen.facts.get("held") is not True:
            return f"{host}: {seen.facts.get('lost') or 'whose lock it is was not told'}"
        if seen.broke:
            return f"{host}: whose lock it is could not be asked ({seen.problem.rstrip('. ')})"
    if all(seen.facts is None for seen in found.values()):
        return "Whose lock it is is not known: no rank answers"
    return ""
