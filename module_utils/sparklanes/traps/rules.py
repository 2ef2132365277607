# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Every trap that the sources name, as rules over a resolved lane. docs/traps.md is made from them.

A lane may walk into a trap knowingly: `lane_accept: {TRAP.ID: reason}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, SKIP, WARN, Check
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.traps import cache as traps_cache
from ansible.module_utils.sparklanes.traps import chat as traps_chat
from ansible.module_utils.sparklanes.traps import engine as traps_engine
from ansible.module_utils.sparklanes.traps import image as traps_image
from ansible.module_utils.sparklanes.traps import node as traps_node
from ansible.module_utils.sparklanes.traps import speculation as traps_speculation
from ansible.module_utils.sparklanes.traps.frame import NOTE, Rule

GROUPS: dict[str, list[Rule]] = {
    "Speculative decoding": traps_speculation.RULES,
    "KV cache, context, concurrency": traps_cache.RULES,
    "Flags, kernels, graphs": traps_engine.RULES,
    "Images and weights": traps_image.RULES,
    "Node and container": traps_node.RULES,
    "Chat": traps_chat.RULES,
}
RULES: list[Rule] = [rule for rules in GROUPS.values() for rule in rules]
BY_ID = {rule.id: rule for rule in RULES}


def trap_checks(lane: Mapping[str, Any], host: str) -> list[Check]:
    """The traps that a resolved lane walks into; a single pass where there are none."""
    accepted = {str(id_): " ".join(str(reason or "").split()) for id_, reason in lane["lane_accept"].items()}
    checks = [_unjustified(id_, reason, host) for id_, reason in accepted.items() if id_ not in BY_ID or not reason]
    view = View(lane)
    for rule in RULES:
        if rule.severity != NOTE:
            checks += [_check(rule, found, host, accepted.get(rule.id, "")) for found in rule.find(view)]
    return checks or [Check("LANE.TRAPS", host, PASS, f"none of {len(RULES)} traps")]


def _check(rule: Rule, found: str, host: str, reason: str) -> Check:
    if reason:
        # An accepted refusal stays in sight; an accepted warning was read already.
        return Check(rule.id, host, WARN if rule.severity == FAIL else SKIP, f"{found}. Accepted: {reason}", rule.want)
    return Check(rule.id, host, rule.severity, found, rule.want, f"{rule.remedy} Why: {rule.why} ({rule.source})")


def _unjustified(id_: str, reason: str, host: str) -> Check:
    if id_ in BY_ID:
        return Check(
            "LANE.ACCEPT", host, FAIL, f"lane_accept gives no reason for {id_}", "a sentence", "Say why it is right here."
        )
    hint = did_you_mean(id_, BY_ID) or "docs/traps.md has every id."
    return Check("LANE.ACCEPT", host, FAIL, f"lane_accept names {id_}, which is no trap", "an id of docs/traps.md", hint)


def notes(lane: Mapping[str, Any]) -> list[str]:
    """What is good to know of a lane that is not wrong."""
    view = View(lane)
    return [f"{found} ({rule.id})" for rule in RULES if rule.severity == NOTE for found in rule.find(view)]
