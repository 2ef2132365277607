# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The one table of playbooks/health.yml: how the Sparks of a deployment are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, check_rows, look_again, looks, results
from ansible.module_utils.sparklanes.docker import gpu_access
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gates import launch, readiness
from ansible.module_utils.sparklanes.lane.schema import LAYERS


def health(hostvars: HostVars, hosts: Sequence[str], received: float, fatal: Sequence[str] = gates_hosts.FATAL) -> list[Check]:
    """From what that playbook registered: health_readiness, health_host, health_memory, and the look of role roce."""
    made = launch.reach(hostvars, hosts)
    lanes = {host: _lane_of(hostvars[host]) for host in hosts}
    memory = results(hostvars, hosts, "health_memory")
    wanted = {}
    for host, seen in looks(hostvars, hosts, "health_readiness", "readiness").items():
        if seen.facts is not None or seen.broke:
            made += check_rows(memory[host], "MEM.CMA", host, "measured", look_again(host))
        if (known := seen.facts) is None:
            made += [check for check in readiness.reachable([host], {host: seen}) if check not in made]
        else:
            made.append(readiness.docker(host, known))
            made += readiness.deaths({host: known}, host)
            container = [lanes[host].get(f"lane_container{layer}") or {} for layer in LAYERS]
            made += gates_hosts.gpu_checks(host, known, any(map(gpu_access.of_options, container)))
        # While another lane serves, its swappiness is live.
        swappiness = lanes[host].get("lane_swappiness")
        if swappiness is not None and not launch.other_lane(
            hostvars[host].get("health_readiness"), str(hostvars[host].get("lane") or "")
        ):
            wanted[host] = int(swappiness)
    return made + gates_hosts.hosts_kept(results(hostvars, hosts, "health_host"), lanes, received, fatal, wanted)


def _lane_of(variables: Mapping[str, Any]) -> Facts:
    """What of a host's lane says how the host is to be kept, nothing without a lane."""
    return {name: variables[name] for name in gates_hosts.LANE_SETTINGS if name in variables} if variables.get("lane") else {}
