# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of a reboot, and whether a Spark came back as it was: from what role reboot saw before and after.

Role reboot keeps its looks in the fact `reboot_seen`: before and after, each with host (host_info), readiness (readiness_info),
memory (memory_info), fabric and swappiness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import SKIP, Check, judged
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, check_rows, look, look_again
from ansible.module_utils.sparklanes.fabric.fact import fabrics_of
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.host import parity
from ansible.module_utils.sparklanes.host import rules as host_rules


def _seen(hostvars: HostVars, host: str, when: str, what: str) -> Any:
    return ((hostvars[host].get("reboot_seen") or {}).get(when) or {}).get(what)


def before_reboot(hostvars: HostVars, hosts: Sequence[str], deployment: str, transaction: str) -> list[Check]:
    """What a reboot would hurt that is not this deployment's own."""
    looks = {host: look(_seen(hostvars, host, "before", "readiness"), "readiness") for host in hosts}
    made = readiness.reachable(hosts, looks)
    for host, seen in looks.items():
        if (known := seen.facts) is not None:
            made.append(readiness.docker(host, known))
            made.append(readiness.lock(host, known, transaction))
            made.append(readiness.strangers(host, known, deployment))
    return made


def gpu_free(hostvars: HostVars, hosts: Sequence[str]) -> list[Check]:
    """Whether nothing works on any GPU any more, by what was registered after the stop."""
    made = []
    for host in hosts:
        seen = look(hostvars[host].get("reboot_stopped"), "readiness")
        made += readiness.reachable([host], {host: seen})
        found = (seen.facts or {}).get("gpu") or {}
        if found.get("present") is False and not found.get("processes"):
            made.append(Check("GPU.IDLE", host, SKIP, "no nvidia-smi here"))
        elif seen.facts is not None:
            made.append(readiness.gpu_idle(host, seen.facts))
    return made


def after_reboot(host: str, before: Facts, after: Facts) -> list[Check]:
    """One Spark after its reboot. `before`, `after`: what was seen of it."""
    old, new = (look(seen.get("host"), "host") for seen in (before, after))
    was, now = (look(seen.get("readiness"), "readiness") for seen in (before, after))
    kept = new.facts or {}
    made = host_rules.rebooted(host, old.facts or {}, kept, dict(before.get("fabric") or {}), dict(after.get("fabric") or {}))
    if not kept:
        made.append(judged("HOST.FACTS", host, None, new.problem or "the module told nothing", "measured", look_again(host)))
    made += readiness.reachable([host], {host: now})
    facts = now.facts or {}
    made.append(readiness.docker(host, facts))
    made += gates_hosts.gpu_checks(host, facts, bool(((was.facts or {}).get("gpu") or {}).get("present")))
    if kept:
        made += parity.known(host, kept)
        made += [
            host_rules.swappiness(host, kept, int(before["swappiness"]) if before.get("swappiness") else None),
            host_rules.semaphores(host, kept),
            host_rules.page_cache(host, kept),
        ]
    return made + check_rows(after.get("memory"), "MEM.FREE", host, "measured", look_again(host))


def rails_kept(hostvars: HostVars, hosts: Sequence[str]) -> list[Check]:
    """After the last reboot: the reboot of one Spark takes down the link of its neighbour, which was proven before."""
    fabrics = fabrics_of(hostvars, hosts)
    return [host_rules.rails(host, dict(_seen(hostvars, host, "before", "fabric") or {}), fabrics[host]) for host in hosts]
