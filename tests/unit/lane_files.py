"""The lanes that we ship, as Ansible would merge their files; without Ansible, for none of these files but the sandbox's has a template."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import yaml
from ansible.module_utils.sparklanes.lane import catalogue as lane_catalogue
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from conftest import ROOT

GROUP_VARS = ROOT / "group_vars"
ALL = lane_catalogue.known_lanes([GROUP_VARS])
# Lanes of real models; those of the sandbox have values that script/sandbox fills in.
SHIPPED = [lane for lane in ALL if not lane.startswith("sandbox_")]


@functools.cache
def options() -> lane_schema.Schema:
    return lane_schema.schema(yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8")))


@functools.cache
def _read(group: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((GROUP_VARS / f"{group}.yml").read_text(encoding="utf-8"))
    return made


def read(group: str) -> dict[str, Any]:
    return copy.deepcopy(_read(group))


def variables_of(lane: str) -> dict[str, Any]:
    """The variables as Ansible merges them: what is known of all Sparks, the family, the kit, the lane."""
    own = read(f"lane_{lane}")
    shared = [read(f"{kind}_{own[f'lane_{kind}']}") for kind in ("family", "kit") if own.get(f"lane_{kind}")]
    return {name: value for part in [read("sparks/traps"), *shared, own] for name, value in part.items()}


@functools.cache
def _resolved(lane: str, more: str) -> dict[str, Any]:
    made, checks = lane_schema.resolve({**variables_of(lane), **json.loads(more)}, options(), "s1")
    assert [check for check in checks if check.status != "pass"] == []
    assert [check for check in lane_rules.lane_checks(made, "s1") if check.status != "pass"] == []
    assert json.loads(json.dumps(made)) == made
    return made


def resolved(lane: str, **more: Any) -> dict[str, Any]:
    """The lane with `more` on top, as `-e` would put it; it must have no fault."""
    return copy.deepcopy(_resolved(lane, json.dumps(more, sort_keys=True)))
