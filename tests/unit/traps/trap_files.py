"""The files of group_vars/ that hold traps as data, and the rules that are made from them."""

from __future__ import annotations

import functools
from typing import Any

import yaml
from ansible.module_utils.sparklanes.lane.schema import LAYERS
from ansible.module_utils.sparklanes.traps import known
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.traps.frame import Rule
from conftest import ROOT
from lane_files import GROUP_VARS, options


@functools.cache
def data_files() -> dict[str, list[Rule]]:
    """File → its rules; those for all lanes first."""
    found = {}
    for path in sorted(GROUP_VARS.rglob("*.yml"), key=lambda path: (path.parent == GROUP_VARS, path)):
        variables: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        for layer in LAYERS:
            if traps := variables.get(known.VARIABLE + layer):
                made, faults = known.rules(traps, options(), traps_rules.BY_ID)
                assert not faults, f"{path.relative_to(ROOT)}: {faults[0].found}"
                found[str(path.relative_to(ROOT))] = made
    return found


ALL: list[Rule] = [rule for rules in [*data_files().values(), traps_rules.RULES] for rule in rules]
