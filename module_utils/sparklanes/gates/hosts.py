# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What gates, health and a reboot make of what the hosts themselves reported: registered results in, checks out.

A host that did not answer counts as one of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import SKIP, Check, judged
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.gates.launch import answered, reach
from ansible.module_utils.sparklanes.gpu import rules as gpu_rules
from ansible.module_utils.sparklanes.host import parity
from ansible.module_utils.sparklanes.host import rules as host_rules
from ansible.module_utils.sparklanes.lane.schema import LAYERS

Facts = Mapping[str, Any]
# What of a lane says how a host is to be kept.
LANE_SETTINGS = (
    "lane_swappiness", "lane_swap", "lane_swap_min_gib", "lane_engine_boots_warn", *(f"lane_container{layer}" for layer in LAYERS),
)  # fmt: skip


def hosts_kept(
    registered: Facts,
    lanes: Facts,
    received: float,
    fatal: Sequence[str] = parity.FATAL,
    swappiness: Facts | None = None,
    launch: bool = False,
) -> list[dict[str, str]]:
    """Whether each host is kept as wanted, and what they have in common.

    registered: host → result of host_info. lanes: host → the lane's settings. received: when the answers were there, by the
    controller's clock. fatal: properties (parity.NAMES) whose difference fails. swappiness: host → the value that is wanted now.
    launch: leave out what a launch puts right itself, after the stop.
    """
    wrong = parity.unknown_names(fatal)
    if wrong:
        raise ValueError(f"gates_parity_fatal: {', '.join(wrong)} is unknown; expected some of {', '.join(parity.NAMES)}")
    found = {host: (answered(result) or {}).get("host") for host, result in registered.items()}
    told = {host: facts for host, facts in found.items() if facts}
    made: list[Check] = [
        judged("HOST.FACTS", host, None, str((registered[host] or {}).get("msg") or "no answer"), "measured", f"Look at {host}.")
        for host in found
        if host not in told
    ]
    for host, facts in told.items():
        made += parity.known(host, facts)
        lane = lanes.get(host)
        made += (
            host_rules.before_launch(host, facts, lane)
            if launch
            else host_rules.judge(host, facts, lane, (swappiness or {}).get(host))
        )
    if len(found) > 1:
        made += parity.alike(told, tuple(fatal))
    made += parity.clock(told, received)
    return [check.to_dict() for check in made]


def before_reboot(registered: Facts, deployment: str, transaction: str, now: float) -> list[dict[str, str]]:
    """What a reboot would hurt that is not this deployment's own. `registered`: host → result of readiness_info."""
    facts = {host: (answered(result) or {}).get("readiness") for host, result in registered.items()}
    made = readiness.reachable(list(facts), facts)
    for host, known in facts.items():
        if known is not None:
            made.append(readiness.docker(host, known))
            made.append(readiness.lock(host, known, transaction, now))
            made.append(readiness.strangers(host, known, deployment))
    return [check.to_dict() for check in made]


def gpu_checks(host: str, facts: Facts, wanted: bool) -> list[Check]:
    """Driver and Xids, from `readiness_info`. Not `wanted`: a host without a GPU (a sandbox) needs none."""
    found = facts.get("gpu") or {}
    if not found.get("present") and not wanted:
        return [Check("GPU.DRIVER", host, SKIP, "no nvidia-smi here, and nothing that asks for a GPU")]
    made: list[Check] = gpu_rules.gate(host, found)
    return made


def after_reboot(host: str, before: Facts, after: Facts) -> list[dict[str, str]]:
    """One Spark after its reboot. `before`, `after`: host (host_info), readiness (readiness_info), memory (memory_info), fabric, swappiness."""
    old, new = (answered(look.get("host")) or {} for look in (before, after))
    was, now = (answered(look.get("readiness")) or {} for look in (before, after))
    made = host_rules.rebooted(
        host, old.get("host") or {}, new.get("host") or {}, dict(before.get("fabric") or {}), dict(after.get("fabric") or {})
    )
    facts = now.get("readiness") or {}
    made.append(readiness.docker(host, facts))
    made += gpu_checks(host, facts, bool(((was.get("readiness") or {}).get("gpu") or {}).get("present")))
    if new.get("host"):
        made += parity.known(host, new["host"])
        made += [
            host_rules.swappiness(host, new["host"], int(before["swappiness"]) if before.get("swappiness") else None),
            host_rules.semaphores(host, new["host"]),
            host_rules.page_cache(host, new["host"]),
        ]
    memory = answered(after.get("memory"))
    checks = [Check.from_dict(check) for check in (memory or {}).get("checks") or []]
    made += checks or [
        judged("MEM.FREE", host, None, str((memory or {}).get("msg") or "not measured"), "measured", f"Look at {host}.")
    ]
    return [check.to_dict() for check in made]


def rails_kept(before: Mapping[str, Facts], now: Mapping[str, Facts]) -> list[dict[str, str]]:
    """After the last reboot: the reboot of one Spark takes down the link of its neighbour, which was proven before. Host → roce_fabric."""
    return [host_rules.rails(host, dict(fabric or {}), dict(now.get(host) or {})).to_dict() for host, fabric in before.items()]


def health(looks: Mapping[str, Facts], received: float, fatal: Sequence[str] = parity.FATAL) -> list[dict[str, str]]:
    """The one table about a deployment. `looks`: host → what playbooks/health.yml registered: readiness, host, memory, roce, fabric
    (results and the fact roce_fabric), lane (the lane's variables, empty without one) and other_lane (that serves instead)."""
    made = [
        Check.from_dict(check)
        for check in reach(
            {host: look.get("roce") or {} for host, look in looks.items()},
            {host: look.get("fabric") or {} for host, look in looks.items()},
        )
    ]
    lanes = {host: look.get("lane") or {} for host, look in looks.items()}
    for host, look in looks.items():
        known = (answered(look.get("readiness")) or {}).get("readiness")
        if known is None:
            continue
        made.append(readiness.docker(host, known))
        made.append(readiness.deaths(host, known))
        container = [lanes[host].get(f"lane_container{layer}") or {} for layer in LAYERS]
        made += gpu_checks(host, known, any(layer.get("gpus") for layer in container))
        memory = answered(look.get("memory")) or {}
        checks = [Check.from_dict(check) for check in memory.get("checks") or []]
        made += checks or [
            judged("MEM.CMA", host, None, str(memory.get("msg") or "not measured"), "measured", f"Look at {host}.")
        ]
    # While another lane serves, its swappiness is live.
    wanted = {
        host: int(lane["lane_swappiness"])
        for host, lane in lanes.items()
        if lane.get("lane_swappiness") is not None and not looks[host].get("other_lane")
    }
    made_of_hosts = hosts_kept({host: look.get("host") or {} for host, look in looks.items()}, lanes, received, fatal, wanted)
    return [check.to_dict() for check in made] + made_of_hosts
