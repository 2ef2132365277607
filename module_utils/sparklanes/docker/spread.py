# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which Sparks have the image and compiled kernels, and so give them to the others: from what role engine_image registered."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.common.registered import HostVars, looks


def with_image(hostvars: HostVars, hosts: Sequence[str]) -> list[str]:
    """The hosts on which the image is."""
    return [host for host, seen in looks(hostvars, hosts, "engine_image_result").items() if (seen.facts or {}).get("here")]


def kernels(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, list[str]]:
    """{compiled: the hosts that have kernels, empty: those that have none}. Of whom nothing is known stands in neither."""
    known = {host: seen.facts or {} for host, seen in looks(hostvars, hosts, "engine_image_jit").items()}
    asked = [host for host, facts in known.items() if "files" in facts]
    return {
        "compiled": [host for host in asked if known[host]["files"]],
        "empty": [host for host in asked if not known[host]["files"]],
    }
