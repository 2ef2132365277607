# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Every trap of a lane, as rules over it: those that hold for any engine, and those that its `lane_traps` hold as data.

docs/traps.md is made from them.

A lane may walk into a trap knowingly: `lane_accept: {TRAP.ID: reason}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, SKIP, WARN, Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.partial import apart
from ansible.module_utils.sparklanes.lane.schema import Schema
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.traps import cache as traps_cache
from ansible.module_utils.sparklanes.traps import engine as traps_engine
from ansible.module_utils.sparklanes.traps import known
from ansible.module_utils.sparklanes.traps import node as traps_node
from ansible.module_utils.sparklanes.traps import speculation as traps_speculation
from ansible.module_utils.sparklanes.traps.frame import NOTE, Rule

GROUPS: dict[str, list[Rule]] = {
    "Speculative decoding": traps_speculation.RULES,
    "KV cache": traps_cache.RULES,
    "Flags and kernels": traps_engine.RULES,
    "Node and container": traps_node.RULES,
}
RULES: list[Rule] = [rule for rules in GROUPS.values() for rule in rules]
BY_ID = {rule.id: rule for rule in RULES}


def rules_of(
    lane: Mapping[str, Any], options: Schema, variables: Mapping[str, Any] | None = None
) -> tuple[list[Rule], list[Fault]]:
    """The rules that a resolved lane is held against, and what is wrong with those of its `lane_traps`."""
    own, faults = known.rules(lane["lane_traps"], options, BY_ID, variables)
    return [*RULES, *own], faults


def trap_checks(lane: Mapping[str, Any], host: str, options: Schema, variables: Mapping[str, Any] | None = None) -> list[Check]:
    """The traps that a resolved lane walks into; a single pass where there are none.

    `variables`: those of the host, for messages that say in which layer a trap stands.
    """
    rules, faults = rules_of(lane, options, variables)
    by_id = {rule.id: rule for rule in rules}
    accepted = {str(id_): " ".join(str(reason or "").split()) for id_, reason in lane["lane_accept"].items()}
    checks = as_checks(faults, host, {})
    checks += [_unjustified(id_, reason, host, by_id) for id_, reason in accepted.items() if id_ not in by_id or not reason]
    view = View(lane)
    for rule in rules:
        if rule.severity != NOTE:
            checks += [_check(rule, found, host, accepted.get(rule.id, "")) for found in apart([rule.find], view)]
    return checks or [Check("LANE.TRAPS", host, PASS, f"none of {len(rules)} traps")]


def measured_checks(
    lane: Mapping[str, Any],
    host: str,
    options: Schema,
    staged: Mapping[str, Mapping[str, Any]] | None,
    pins: Mapping[str, str],
) -> list[Check]:
    """The traps that show only in what a Spark holds: in the files of its models, and in the versions that its image really has.

    staged: as in `View`, None where nothing is known. pins: library → version, of those that the lane does not state itself.
    """
    rules, _ = rules_of(lane, options)  # preflight refused those that can't be read
    accepted = {str(id_): " ".join(str(reason or "").split()) for id_, reason in lane["lane_accept"].items()}
    image = lane["lane_image"]
    stated = {name: version for name, version in (image["pins"] or {}).items() if version is not None}
    full = {**lane, "lane_image": {**image, "pins": {**image["pins"], **pins, **stated}}}
    views = [View(full), *([] if staged is None else [View(full, staged)])]
    checks = []
    for rule in rules:
        known = set(rule.find(View(lane)))
        if rule.severity != NOTE:
            found = dict.fromkeys(text for view in views for text in rule.find(view) if text not in known)
            # A rule in code asks the lane alone, whichever view it gets.
            checks += [_check(rule, text, host, accepted.get(rule.id, "")) for text in found]
    return checks


def _check(rule: Rule, found: str, host: str, reason: str) -> Check:
    if reason:
        # An accepted refusal stays in sight; an accepted warning was read already.
        return Check(rule.id, host, WARN if rule.severity == FAIL else SKIP, f"{found}. Accepted: {reason}", rule.want)
    return Check(rule.id, host, rule.severity, found, rule.want, f"{rule.remedy} Why: {rule.why} ({rule.source})")


def _unjustified(id_: str, reason: str, host: str, by_id: Mapping[str, Rule]) -> Check:
    if id_ in by_id:
        return Check(
            "LANE.ACCEPT", host, FAIL, f"lane_accept gives no reason for {id_}", "a sentence", "Say why it is right here."
        )
    hint = did_you_mean(id_, by_id) or "docs/traps.md has every id that we ship; one of a site has TRAP. before it."
    found = f"lane_accept names {id_}, which is no trap of this lane"
    return Check("LANE.ACCEPT", host, FAIL, found, "an id of docs/traps.md or of lane_traps", hint)


def notes(lane: Mapping[str, Any], options: Schema) -> list[str]:
    """What is good to know of a lane that is not wrong. Preflight refuses traps that can't be read, so they are passed over here."""
    view = View(lane)
    rules, _ = rules_of(lane, options)
    return [f"{found} ({rule.id})" for rule in rules if rule.severity == NOTE for found in rule.find(view)]
