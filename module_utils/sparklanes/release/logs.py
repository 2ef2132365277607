# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The logs of the ranks that were stopped: which were saved on a Spark, which are on the controller, and why one is not.

Nothing is said of a log but what a module or a fetch proved of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars, look, words

Facts = Mapping[str, Any]
# What module `rank` was registered as, on rank 0 and on the others: when stopped, and when started, where it clears away what had ended.
STOPPED = ("rank_stopped_head", "rank_stopped_worker")
LOGGED = "rank_logged"
_RESULTS = (*STOPPED, LOGGED, "__rank_started", "__rank_head_started")


def to_fetch(hostvars: HostVars, host: str, receipts: str) -> list[dict[str, Any]]:
    """Logs of this host that nobody has looked after yet: what module `rank` said of each, and `dest`, its place on the controller.

    A module that failed may have saved a log before it did.
    """
    known = hostvars[host]
    done = list(known.get("rank_logs") or [])
    paths, places = {one.get("path") for one in done if one.get("path")}, {one.get("dest") for one in done}
    made: list[dict[str, Any]] = []
    for result in (known.get(name) for name in _RESULTS):
        for saved in (result.get("saved") or []) if isinstance(result, Mapping) else []:
            if not saved.get("path"):
                # Tried again without a container it is no longer said: what is known of it stays.
                entry = {**saved, "dest": ""}
                if entry not in [{name: one.get(name) for name in entry} for one in done + made]:
                    made.append(entry)
                continue
            if saved["path"] in paths:
                continue
            name = PurePosixPath(str(saved["path"]))
            names = [f"{host}-{name.name}", *(f"{host}-{name.stem}-{again}{name.suffix}" for again in range(2, 100))]
            dest = next(place for place in (f"{receipts}/{one}" for one in names) if place not in places)
            paths.add(saved["path"])
            places.add(dest)
            made.append({**saved, "dest": dest})
    return made


def fetched(saved: Facts, result: Any) -> dict[str, Any]:
    """The log `saved` (of `to_fetch`) once it was fetched, or was not: `here`, its place on the controller, or `why` it is not there."""
    if not saved.get("path"):
        return {**saved, "here": "", "why": ""}
    seen = look(result)
    # Ansible names the file's own checksum only once it has written the copy.
    came = seen.facts is not None and bool(seen.facts.get("checksum")) and bool(seen.facts.get("dest"))
    why = "" if came else seen.problem or words(seen.facts or {}) or "the fetch said nothing"
    return {**saved, "here": str(saved["dest"]) if came else "", "why": why}


def sentence(hostvars: HostVars, hosts: Sequence[str], receipts: str) -> str:
    """Where the log of each rank is, in rank order, and of which rank there is none and why."""
    here: list[str] = []
    more: list[str] = []
    for rank, host in enumerate(hosts):
        known = hostvars[host]
        kept = list(known.get("rank_logs") or [])
        for one in kept:
            if one.get("here"):
                here.append(PurePosixPath(str(one["here"])).name)
            elif one.get("path"):
                more.append(f"The log of {host} is on it as {one['path']} and could not be brought here: {_end(one.get('why'))}.")
            else:
                more.append(f"The log of {host} is lost: {_end(one.get('problem'))}.")
            if one.get("path") and one.get("problem"):
                more.append(f"Not all of the log of {host} was kept: {_end(one['problem'])}.")
        if not kept:
            more.append(f"Of {host} there is no log: {_end(_without(known, STOPPED[0 if rank == 0 else 1]))}.")
    said = f"Logs in {receipts}: {', '.join(here)}." if here else ""
    return " ".join([*([said] if said else []), *more])


def _without(known: Facts, name: str) -> str:
    asked = known.get(name) if known.get(name) is not None else known.get(LOGGED)
    if asked is None:
        return "it was not asked for one"
    seen = look(asked)
    return seen.problem if seen.facts is None else "no container of this deployment was there"


def _end(text: Any) -> str:
    return str(text or "no reason was given").rstrip(". ")
