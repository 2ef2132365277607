# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What lines of the kernel and of the journal say of a rank that failed meanwhile. What a kernel's line means stands in `host.kernel_log` and `gpu.xid`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.gpu import xid
from ansible.module_utils.sparklanes.host import kernel_log

LONGEST = 2048  # of a line; a kernel's are cut at 1 KiB by itself
FINDINGS, OF_A_KIND = 20, 3


@dataclass(frozen=True)
class Finding:
    """`hardware_or_memory`: a person looks before anything starts again. Else it is a remark beside another cause."""

    id: str
    message: str
    remedy: str
    hardware_or_memory: bool
    line: str


_KILLER = (
    "It kills before the kernel does, by a threshold of its own (HOST.MEMORY_KILLER): raise that, or give the lane less memory."
)
# id, pattern, meaning, remedy, hardware_or_memory; the first that matches.
_JOURNAL: tuple[tuple[str, re.Pattern[str], str, str, bool], ...] = tuple(
    (id, re.compile(pattern), message, remedy, grave)
    for id, pattern, message, remedy, grave in (
        (
            "memory_killer",
            r"(?P<who>earlyoom|nohang)\S{0,12}: .{0,80}?[Ss]ending (?P<signal>SIG\w{3,5}) to (?:process )?(?P<what>[^\n]{1,80})",
            "{who} sent {signal} to {what}, because memory was short",
            _KILLER,
            True,
        ),
        (
            "memory_killer",
            r"(?P<who>systemd-oomd)\S{0,12}: (?P<what>Killed [^\n]{1,200}? due to (?:memory|swap)[^\n]{0,80})",
            "{who} says: {what}",
            _KILLER,
            True,
        ),
        (
            "docker_restarted",
            r"systemd\S{0,12}: (?:Stopping|Stopped|Starting|Started) docker\.service|docker\.service: (?:Main process exited|"
            r"Failed with result|Scheduled restart job)|dockerd\S{0,12}: .{0,120}?(?:Processing signal|Daemon shutdown complete)",
            "Docker was restarted or ended while the rank ran",
            "journalctl -u docker says by what: an update, a person, a crash. Docker's live-restore keeps containers.",
            False,
        ),
    )
)


def kernel_findings(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What lines of a kernel say that began after its boot: the first three of a kind, at most twenty."""
    found: list[Finding] = []
    rest: list[str] = []
    for line in (raw[:LONGEST] for raw in lines):
        if told := xid.finding(line):
            found.append(Finding(*told, said(line)))
        else:
            rest.append(line)
    for event in kernel_log.parse("\n".join(rest), since_boot=False):
        kind = kernel_log.BY_NAME[event.kind]
        line = said(event.text, 160)
        found.append(Finding(kind.cause or kind.name, f"{kind.what} ({line})", f"{kind.remedy}.", kind.grave, line))
    return _once(found)


def journal_findings(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What the journal of Docker's unit and of memory killers in userspace says."""
    found = []
    for raw in lines:
        line = raw[:LONGEST]
        for id, pattern, message, remedy, grave in _JOURNAL:
            if match := pattern.search(line):
                words = {name: said(value or "", 100) for name, value in match.groupdict().items()}
                found.append(Finding(id, message.format(**words), remedy, grave, said(line)))
                break
    return _once(found)


def _once(found: Iterable[Finding]) -> list[dict[str, Any]]:
    made: list[Finding] = []
    for one in found:
        if one not in made and sum(other.id == one.id for other in made) < OF_A_KIND:
            made.append(one)
    return [asdict(one) for one in made[:FINDINGS]]
