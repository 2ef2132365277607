# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What gates, health and a reboot make of what the hosts themselves reported: registered results in, checks out.

A host that did not answer, and one whose look failed, count as hosts of which nothing is known (`common.registered`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import SKIP, Check, judged
from ansible.module_utils.sparklanes.common.registered import check_rows, look
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.gates.launch import reach
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
    found = {host: look(result, "host") for host, result in registered.items()}
    told = {host: seen.facts for host, seen in found.items() if seen.facts}
    made: list[Check] = [
        judged("HOST.FACTS", host, None, seen.problem or "the module told nothing", "measured", f"Look at {host}.")
        for host, seen in found.items()
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
    looks = {host: look(result, "readiness") for host, result in registered.items()}
    made = readiness.reachable(list(looks), looks)
    for host, seen in looks.items():
        if (known := seen.facts) is not None:
            made.append(readiness.docker(host, known))
            made.append(readiness.lock(host, known, transaction, now))
            made.append(readiness.strangers(host, known, deployment))
    return [check.to_dict() for check in made]


def gpu_free(hostvars: Facts, hosts: Sequence[str], register: str = "reboot_stopped") -> list[dict[str, str]]:
    """Whether nothing works on any GPU any more, before a reboot. `register`: the name of the results of readiness_info."""
    made = []
    for host in hosts:
        seen = look(hostvars[host].get(register), "readiness")
        made += readiness.reachable([host], {host: seen})
        found = (seen.facts or {}).get("gpu") or {}
        if found.get("present") is False and not found.get("processes"):
            made.append(Check("GPU.IDLE", host, SKIP, "no nvidia-smi here"))
        elif seen.facts is not None:
            made.append(readiness.gpu_idle(host, seen.facts))
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
    old, new = (look(seen.get("host"), "host") for seen in (before, after))
    was, now = (look(seen.get("readiness"), "readiness") for seen in (before, after))
    kept = new.facts or {}
    made = host_rules.rebooted(host, old.facts or {}, kept, dict(before.get("fabric") or {}), dict(after.get("fabric") or {}))
    if not kept:
        made.append(judged("HOST.FACTS", host, None, new.problem or "the module told nothing", "measured", f"Look at {host}."))
    made += readiness.reachable([host], {host: now})
    facts = now.facts or {}
    made.append(readiness.docker(host, facts))
    made += gpu_checks(host, facts, bool(((was.facts or {}).get("gpu") or {}).get("present")))
    if kept:
        made += parity.known(host, kept)
        made += [
            host_rules.swappiness(host, kept, int(before["swappiness"]) if before.get("swappiness") else None),
            host_rules.semaphores(host, kept),
            host_rules.page_cache(host, kept),
        ]
    made += check_rows(after.get("memory"), "MEM.FREE", host, "measured", f"Look at {host}.")
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
            {host: one.get("roce") for host, one in looks.items()}, {host: one.get("fabric") or {} for host, one in looks.items()}
        )
    ]
    lanes = {host: one.get("lane") or {} for host, one in looks.items()}
    for host, one in looks.items():
        seen = look(one.get("readiness"), "readiness")
        if seen.facts is not None or seen.broke:
            made += check_rows(one.get("memory"), "MEM.CMA", host, "measured", f"Look at {host}.")
        if (known := seen.facts) is None:
            made += [check for check in readiness.reachable([host], {host: seen}) if check not in made]
            continue
        made.append(readiness.docker(host, known))
        made.append(readiness.deaths(host, known))
        container = [lanes[host].get(f"lane_container{layer}") or {} for layer in LAYERS]
        made += gpu_checks(host, known, any(layer.get("gpus") for layer in container))
    # While another lane serves, its swappiness is live.
    wanted = {
        host: int(lane["lane_swappiness"])
        for host, lane in lanes.items()
        if lane.get("lane_swappiness") is not None and not looks[host].get("other_lane")
    }
    made_of_hosts = hosts_kept({host: one.get("host") for host, one in looks.items()}, lanes, received, fatal, wanted)
    return [check.to_dict() for check in made] + made_of_hosts
