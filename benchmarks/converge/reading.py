# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/converge reads: recaps of Ansible, CPU time of a node, starts of Python on a node. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PLAYBOOK = re.compile(r"^\$ ansible-playbook -i inventory/sandbox (\S+)", re.M)
RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Recap:
    """How one playbook ended on one host."""

    playbook: str
    host: str
    changed: int
    broken: int  # unreachable or failed


def recaps(output: str, playbook: str = "") -> list[Recap]:
    """Every recap line; script/demo says before each run which playbook it is."""
    found = []
    pieces = PLAYBOOK.split(COLOUR.sub("", output))
    # What stands before the first announcement belongs to the playbook that the caller ran.
    for name, text in [(playbook, pieces[0]), *zip(pieces[1::2], pieces[2::2], strict=True)]:
        for host, changed, unreachable, failed in RECAP.findall(text):
            found.append(Recap(name, host, int(changed), int(unreachable) + int(failed)))
    return found


def changed(found: Sequence[Recap], playbook: str) -> int | None:
    """Changes of a playbook over all hosts and runs; None where it has no recap, so was never finished."""
    mine = [recap.changed for recap in found if recap.playbook == playbook]
    return sum(mine) if mine else None


def node_cpu(stat: str) -> float:
    """CPU seconds from a cgroup's cpu.stat."""
    match = re.search(r"^usage_usec (\d+)$", stat, re.M)
    if not match:
        raise ValueError(f"no usage_usec in cpu.stat: {stat[:200]!r}")
    return int(match.group(1)) / 1e6


def counting_python(log: str, python: str = "/usr/bin/python3") -> str:
    """A stand-in for a node's Python that writes one line a start; short appends to one file never mix."""
    return f'#!/bin/sh\necho start >> {shlex.quote(log)}\nexec {shlex.quote(python)} "$@"\n'


def inventory(python: str, addresses: Mapping[str, str], pairs: bool) -> str:
    """An inventory source beside the sandbox's own: the counting Python and, for many nodes, deployments of two."""
    sparks: dict[str, Any] = {"vars": {"ansible_python_interpreter": python}}
    if pairs:
        names = list(addresses)
        sparks["children"] = {
            f"pair_{at // 2 + 1}": {
                "hosts": dict.fromkeys(names[at : at + 2]),
                "vars": {"deployment": f"pair_{at // 2 + 1}", "sandbox_api_host": addresses[names[at]]},
            }
            for at in range(0, len(names), 2)
        }
    return json.dumps({"all": {"children": {"sparks": sparks}}}, indent=2)
