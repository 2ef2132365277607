# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a site, a host or `-e` gives whole in place of what the lane's file has: Ansible takes it without a word, and the rest is gone.

`-e lane_engine_args={…}` with one flag in it drops all the others, a drafter and a template among them. What changes one of them is a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, WARN, Check
from ansible.module_utils.sparklanes.lane.schema import Schema, layered, read_variables

SHOWN = 8


def replaced_checks(
    variables: Mapping[str, Any], written: Mapping[str, Any], host: str, options: Schema, meant: Iterable[str] = ()
) -> list[Check]:
    """variables: those of a host. written: those of the lane's file, as it stands on the disk. meant: `lane_replaces` of the host."""
    checks = []
    given, unread = read_variables(variables)
    for name in layered(options):
        if name in unread:
            continue  # LANE.TEMPLATES says so
        before, now = _keys(written.get(name)), _keys(given.get(name))
        lost = [key for key in before if key not in now]
        if not lost:
            continue
        shown = ", ".join(lost[:SHOWN]) + (f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else "")
        found = f"{name} stands somewhere in place of the lane's own, which loses {shown}"
        if name in meant:
            checks.append(Check("LANE.REPLACED", host, WARN, f"{found}; lane_replaces says that it is meant"))
            continue
        remedy = (
            f"To change parts of it write {name}_site in a file of the site, {name}_host of a host, or -e {name}_override='{{…}}'; "
            f"null removes one. Where the whole is meant: lane_replaces: [{name}]."
        )
        checks.append(Check("LANE.REPLACED", host, FAIL, found, "a layer over what the lane has", remedy))
    return checks


def _keys(value: Any) -> list[str]:
    """The keys of a mapping that say something, and the targets of a list of things with one."""
    if isinstance(value, Mapping):
        return [str(key) for key, item in value.items() if item is not None]
    if isinstance(value, list | tuple):
        return [str(item["target"]).rstrip("/") for item in value if isinstance(item, Mapping) and item.get("target")]
    return []
