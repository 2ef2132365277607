# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How hosts are kept, as gate A and playbooks/health.yml judge it: registered results in, checks out.

A host that did not answer, and one whose look failed, count as hosts of which nothing is known (`common.registered`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.common.checks import SKIP, Check, judged
from ansible.module_utils.sparklanes.common.registered import Facts, look, look_again
from ansible.module_utils.sparklanes.gpu import rules as gpu_rules
from ansible.module_utils.sparklanes.host import killers, parity
from ansible.module_utils.sparklanes.host import rules as host_rules
from ansible.module_utils.sparklanes.lane import budget
from ansible.module_utils.sparklanes.lane.schema import LAYERS

FATAL = parity.FATAL
# What of a lane says how a host is to be kept.
LANE_SETTINGS = (
    "lane_swappiness", "lane_swap", "lane_swap_min_gib", "lane_engine_boots_warn", *(f"lane_container{layer}" for layer in LAYERS),
)  # fmt: skip


def hosts_kept(
    registered: Facts,
    lanes: Facts,
    received: float,
    fatal: Sequence[str] = FATAL,
    swappiness: Facts | None = None,
    launch: bool = False,
) -> list[Check]:
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
        judged("HOST.FACTS", host, None, seen.problem or "the module told nothing", "measured", look_again(host))
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
        made.append(killers.check(host, facts.get("memory_killers"), *budget.left_when_serving(lane or {})))
    if len(found) > 1:
        made += parity.alike(told, tuple(fatal))
    made += parity.clock(told, received)
    return made


def gpu_checks(host: str, facts: Facts, wanted: bool) -> list[Check]:
    """Driver and Xids, from `readiness_info`. Not `wanted`: a host without a GPU (a sandbox) needs none."""
    found = facts.get("gpu") or {}
    if not found.get("present") and not wanted:
        return [Check("GPU.DRIVER", host, SKIP, "no nvidia-smi here, and nothing that asks for a GPU")]
    return gpu_rules.gate(host, found)
