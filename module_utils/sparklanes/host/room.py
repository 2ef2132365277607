# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on the disks that a launch writes to, asked while the old lane still serves.

A full /var/log once ended a launch after its stop: the log of the old rank could not be saved, and nothing was started again. So each
folder that a launch writes to is measured before: where it is, not where it usually is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common import disk
from ansible.module_utils.sparklanes.common.checks import Check, judged
from ansible.module_utils.sparklanes.common.files import LOG_ROOT, STATE_ROOT
from ansible.module_utils.sparklanes.common.sizes import GIB, MIB, human_bytes

# What a launch may write, each: ours, a log of 3,000 lines of an engine is under a MiB, and a saved log is the whole one. Images and
# models are asked for by what brings them.
LEAST = {
    "logs": 256 * MIB,
    "state": 64 * MIB,
    "Docker": GIB,
    "images": 256 * MIB,
    "temporary files": 64 * MIB,
    "receipts": 256 * MIB,
}
LEAST_INODES = 1000


def folders(docker: Mapping[str, Any], state_root: str = STATE_ROOT, log_root: str = LOG_ROOT) -> dict[str, str]:
    """What is written → where. `docker`: of `docker.daemon.parse_info`; without Docker its folders are nowhere, and that is told."""
    wanted = {
        "logs": log_root,
        "state": state_root,
        "Docker": str(docker.get("root") or ""),
        "temporary files": tempfile.gettempdir(),
    }
    images = str(docker.get("image_root") or "")
    return {**wanted, "images": images} if images != wanted["Docker"] else wanted


def measure(wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"what": what, **disk.measured(path)} for what, path in wanted.items()]


def check(host: str, rooms: Iterable[Mapping[str, Any]] | None) -> Check:
    """DISK.ROOM: each disk takes what all that lies on it may need. What could not be measured fails."""
    told = list(rooms or [])
    bad, least = [], []
    by_disk: dict[Any, list[Mapping[str, Any]]] = {}
    for one in told:
        if one.get("error") or one.get("free_bytes") is None:
            bad.append(f"{one.get('what')} ({one.get('path') or '?'}): {one.get('error') or 'not measured'}")
        else:
            by_disk.setdefault(one.get("device"), []).append(one)
    for group in by_disk.values():
        needed, free, inodes = (
            sum(LEAST[str(one["what"])] for one in group),
            int(group[0]["free_bytes"]),
            group[0].get("free_inodes"),
        )
        where = " and ".join(f"{one['what']} ({one['path']})" for one in group)
        least.append(free)
        if group[0].get("read_only"):
            bad.append(f"{where}: mounted read-only")
        if free < needed:
            bad.append(f"{where}: {human_bytes(free)} free, {human_bytes(needed)} needed")
        if inodes is not None and inodes < LEAST_INODES:
            bad.append(f"{where}: {inodes} inodes free, {LEAST_INODES} needed")
    found = "; ".join(bad) if told else "not measured"
    return judged(
        "DISK.ROOM",
        host,
        bool(told) and not bad,
        found or f"at least {human_bytes(min(least))} free on each disk that a launch writes to",
        "room for logs, state, containers and temporary files",
        f"On {host}: df -h, df -i; docker system df. playbooks/prune.yml shows what of ours may go. Nothing was stopped or changed.",
    )
