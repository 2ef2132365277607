# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is known of a lane as it stands: that somebody measured it, that its source runs another one by now, that it is kept as a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check

NEGATIVE, SUPERSEDED = "negative", "superseded"


def state(lane: Mapping[str, Any]) -> str:
    """In a word, the worst of what its file says: negative, superseded, or what `lane_state` has."""
    if lane["lane_negative"]:
        return NEGATIVE
    return SUPERSEDED if lane["lane_superseded"] else str(lane["lane_state"]).replace("_", " ")


def why(lane: Mapping[str, Any]) -> str:
    """The sentence behind that word; empty where it stands for itself."""
    return str(lane["lane_negative"] or lane["lane_superseded"])


def state_check(lane: Mapping[str, Any], host: str) -> Check:
    """A superseded lane still launches: what its source runs instead is often not published, or not here."""
    if state(lane) != SUPERSEDED:
        return Check("LANE.STATE", host, PASS, state(lane))
    found = f"lane {lane['lane_id']} is superseded: {why(lane)}"
    return Check("LANE.STATE", host, WARN, found, "a lane that its source still runs", "playbooks/lanes.yml lists the others.")


def negative_check(lane: Mapping[str, Any], host: str) -> Check:
    """A lane that is kept to show what does not work launches only where a person says so."""
    reason = lane["lane_negative"]
    if not reason:
        return Check("LANE.NEGATIVE", host, PASS, "the lane is meant to be run")
    if lane["lane_accept_negative"]:
        return Check("LANE.NEGATIVE", host, WARN, f"a negative example, launched all the same: {reason}")
    remedy = "Choose another lane (docs/lanes.md), or launch it all the same: -e lane_accept_negative=true"
    return Check(
        "LANE.NEGATIVE", host, FAIL, f"lane {lane['lane_id']} is a negative example: {reason}", "a lane to serve", remedy
    )
