# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Names that a site may still use though they are gone: the version they went in, and what to write instead.

Ansible passes over a variable that nobody reads, so what a person set under an old name would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, Check

_DEPLOYMENT = ("0.2.0", "deployment")
_BREAK_LOCK = ("0.3.0", "break_lock")  # the id of the lock to break, which the refusal prints
# Variable → (version, its successor). A name stays here for good: sites come from any version.
REMOVED: dict[str, tuple[str, str]] = {
    "launch_break_lock": _BREAK_LOCK,
    "recover_break_lock": _BREAK_LOCK,
    "engine_image_deployment": _DEPLOYMENT,
    "fabric_bandwidth_deployment": _DEPLOYMENT,
    "gates_deployment": _DEPLOYMENT,
    "model_weights_deployment": _DEPLOYMENT,
    "model_weights_hub_version": ("0.3.0", "model_weights_hub_lock"),  # a lock of your own: script/lock FILE.in
    "rank_deployment": _DEPLOYMENT,
    "reboot_deployment": _DEPLOYMENT,
}


def removed_checks(hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[Check]:
    """One failed row for each removed name that hosts of this run still have, with those hosts."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        for name in REMOVED.keys() & set(hostvars[host]):
            found.setdefault(name, []).append(host)
    return [
        Check(
            "INVENTORY.REMOVED",
            ", ".join(users),
            FAIL,
            f"{name} has no effect since {REMOVED[name][0]}",
            REMOVED[name][1],
            f"Write {REMOVED[name][1]} instead, or take {name} out of the inventory and off the command line.",
        )
        for name, users in sorted(found.items())
    ]
