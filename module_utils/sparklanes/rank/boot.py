# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How long a boot may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars


def boot_seconds(settings: Mapping[str, Any], cold: bool) -> int:
    """The longest time of a boot. cold: kernels are compiled in it. Releases from before that setting have none."""
    usual = int(settings["lane_boot_timeout_seconds"])
    return int(settings.get("lane_first_boot_timeout_seconds") or usual) if cold else usual


def cold(hostvars: HostVars, hosts: Sequence[str]) -> bool:
    """Whether a rank that was started has no compiled kernels: it compiles them in this boot, and all wait for it."""
    names = ("__rank_started", "__rank_head_started")
    return any((hostvars[host].get(name) or {}).get("cold") for host in hosts for name in names)
