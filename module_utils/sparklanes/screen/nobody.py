# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Why a run has no Spark to work on, in words: Ansible ends such a run as if all were well."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.suggest import did_you_mean

FLEET = "sparks"
# Made by inventory/lanes for each lane: nobody limits a run to them.
MADE = ("lane_", "family_", "kit_")
ITS_OWN = ("all", "ungrouped")
DONE = "Nothing was done."


def groups_of(inventory: Any) -> dict[str, list[str]]:
    """Group → its hosts, of an inventory as Ansible holds it."""
    return {name: [host.name for host in group.get_hosts()] for name, group in inventory.groups.items()}


def patterns(limit: str) -> list[str]:
    """The parts of a -l that name somebody: no exclusions, no files, no expressions."""
    parts = [part.strip() for part in limit.replace(":", ",").split(",")] if "[" not in limit else []
    return [part for part in parts if part and part[0] not in "!&@~"]


def unknown(limit: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The parts of a -l that match no host and no group."""
    known = {*groups, *(host for hosts in groups.values() for host in hosts), "localhost"}
    return [part for part in patterns(limit) if not any(fnmatch.fnmatchcase(name, part) for name in known)]


def why(limit: str, groups: Mapping[str, Sequence[str]], sources: Sequence[str]) -> str:
    """One sentence or more. groups: name → hosts, with `all`. sources: of the inventory, as typed."""
    hosts = list(groups.get("all") or [])
    named = [name for name in groups if name not in ITS_OWN and not name.startswith(MADE)]
    there = f"Hosts: {', '.join(hosts)}. Groups: {', '.join(named)}."
    wrong = unknown(limit, groups)
    if not hosts:
        return (
            f"There is no Spark: the inventory ({', '.join(sources)}) has no host. {DONE} Write your Sparks into it "
            "(script/init 192.168.1.11 192.168.1.12), or name another one with -i."
        )
    if wrong:
        meant = " ".join(did_you_mean(part, [*hosts, *named]) for part in wrong).strip()
        return " ".join(
            f"-l names {', '.join(wrong)}, and the inventory has no such host or group. {meant} {there} {DONE}".split()
        )
    if not groups.get(FLEET):
        return f"The group {FLEET} has no host, and every verb is for its hosts. {there} {DONE}"
    return f"-l {limit} leaves no host of the group {FLEET} ({', '.join(groups[FLEET])}). {there} {DONE}"
