# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a new network of the fabric may stay: every Spark took it, still answers, and reaches its peers over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible.module_utils.sparklanes.common.checks import Check, failures, judged
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, looks, results
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.gates import readiness


def network_proof(hostvars: HostVars, hosts: Sequence[str], rails: Mapping[str, Sequence[Facts]], mtu: int) -> list[Check]:
    """From what role fabric_network registered. `rails`: of network_plan; none where the file was taken away."""
    made = []
    probes = fabric_addresses.network_probes(rails, mtu)
    answered = looks(hostvars, hosts, "fabric_network_pinged")
    was_asked = results(hostvars, hosts, "fabric_network_pinged")
    for host, seen in looks(hostvars, hosts, "fabric_network_tried").items():
        remedy = "" if seen.broke else "Its timer takes the network back by itself."
        made.append(judged("NETPLAN.APPLIED", host, seen.facts is not None, seen.problem or "applied", "applied", remedy))
        if was_asked[host] and probes.get(host):
            made += failures(readiness.reachable([host], {host: answered[host]}))
        made += fabric_reach.peer_checks(host, probes.get(host) or [], (answered[host].facts or {}).get("probes"))
    return made
