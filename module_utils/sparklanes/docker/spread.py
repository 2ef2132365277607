# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which Sparks have the image and compiled kernels, and so give them to the others: from what role engine_image registered."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.common.registered import HostVars, looks
from ansible.module_utils.sparklanes.fabric import fact


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


def lending_address(hostvars: HostVars, hosts: Sequence[str], lender: str) -> str:
    """The one fabric address at which all others reach a Spark that lends its image; empty where there is none, or no one for all.

    Without a switch each neighbour knows another address of it, and some know none: then each takes the image from its source.
    """
    fabrics = fact.fabrics_of(hostvars, hosts)
    found = {fact.address_for(fabrics[lender], fabrics[taker]) for taker in hosts if taker != lender}
    return found.pop() if len(found) == 1 else ""


def spreads(hostvars: HostVars, hosts: Sequence[str]) -> bool:
    """Whether an image can go from any of these Sparks to all others over the fabric."""
    return len(hosts) > 1 and all(lending_address(hostvars, hosts, host) for host in hosts)
