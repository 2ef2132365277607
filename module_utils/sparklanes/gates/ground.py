# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a frozen release stands on before it starts again: registered results in, checks out.

Whatever made the launch fail may be there still: a cut fabric, bytes that changed on a disk, memory that does not come back. A restore
over it fails as well, after minutes, or serves what nobody judged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.common.checks import PASS, Check
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, check_rows, looks, results
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric.fact import fabrics_of
from ansible.module_utils.sparklanes.gates import readiness


def ground(hostvars: HostVars, hosts: Sequence[str], specs: Facts, full: bool) -> list[Check]:
    """Hosts, fabric, files and memory of a release that is about to start again, nothing else running.

    specs: host → its frozen spec. full: every byte of the weights was read (model_weights_full); else sizes and times were looked at.
    """
    found = looks(hostvars, hosts, "gates_ground", "readiness")
    plans = fabric_reach.plans(specs, fabrics_of(hostvars, hosts))
    quick, whole = (results(hostvars, hosts, name) for name in ("model_weights_result", "model_weights_full"))
    settled = results(hostvars, hosts, "gates_settled")
    head = found[hosts[0]].facts
    made = readiness.reachable(hosts, found)
    for host in hosts:
        known, spec = found[host].facts, specs[host]
        if known is None:
            continue
        deployment = str(spec["deployment"])
        made.append(readiness.docker(host, known))
        made.append(readiness.stopped(host, known, deployment))
        made += readiness.ports(host, known, readiness.wanted_ports(spec), deployment, stopped=True)
        made += fabric_reach.gate_checks(host, plans.get(host) or {}, known, head)
        weights = readiness.staged(host, "WEIGHTS.STAGED", quick[host])
        # What the quick look refuses is not read at all.
        made.append(readiness.staged(host, "WEIGHTS.STAGED", whole[host]) if full and weights.status == PASS else weights)
        made += check_rows(settled[host], "MEM.SETTLED", host, "memory settled", f"Look at /proc/meminfo of {host}.")
    return made
