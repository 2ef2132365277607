# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the controller remembers of its own runs, so that a rerun after ctrl-C goes on instead of being locked out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.common.registered import HostVars, looks, results
from ansible.module_utils.sparklanes.release.transaction import STOPPED


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
        return False
    return not started or fields[19] == started


def transaction_id(
    folder: Path, pid: int, fresh: str, *, resume: bool = True, remember: bool = True, proc: Path = Path("/proc")
) -> str:
    """The transaction id of this run on the deployment whose receipts lie in `folder`.

    An earlier run of this controller that was interrupted (its note is there, its process gone) is gone on with under
    its own id: on the Sparks that is the same transaction, so its lock is no obstacle. While that process still
    runs, or where there is no note, the id is a new one. Without `remember` (check mode) nothing is written.
    """
    run, started = run_of(pid, proc)
    note = folder / "transaction.json"
    known = read_json(note) or {}
    mine = known.get("pid") == run and known.get("started") == started
    other_runs = bool(known) and not mine and alive(int(known.get("pid", 0)), str(known.get("started", "")), proc)
    if known.get("id") and (mine or (resume and not other_runs)):
        chosen = str(known["id"])
    else:
        chosen = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{fresh}"
    if remember and not other_runs:  # its note is what it needs after an interruption; this run will meet its lock
        write_json(note, {"id": chosen, "pid": run, "started": started})
    return chosen


def ended(folder: Path, pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The transaction that this controller noted in `folder` and works on no more: its process is gone. `pid`: of the one that asks."""
    known = read_json(folder / "transaction.json") or {}
    run, started = run_of(pid, proc)
    mine = known.get("pid") == run and known.get("started") == started
    gone = known.get("id") and not mine and not alive(int(known.get("pid") or 0), str(known.get("started") or ""), proc)
    return [str(known["id"])] if gone else []


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
    """Whether no host may hold the lock any more. `name`: of the variable in which closing it was registered; who never had it skips."""
    found = [result or {} for result in results(hostvars, hosts, name).values()]
    return all("deployment_state" in result or "skipped" in result for result in found)


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
