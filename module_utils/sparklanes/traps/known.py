# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps that are known of a model, a kit, a GPU or a site: rules as data, in the variable `lane_traps`, made into rules.

A rule stands under its id. `when` is a mapping of names to conditions that must all hold, or a list of such mappings, of which
one suffices; what is found is then said in one sentence. Docs: docs/traps.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Fault
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.schema import LAYERS, Schema
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.traps.conditions import Test, condition
from ansible.module_utils.sparklanes.traps.frame import ADVISE, NOTE, REFUSE, Rule
from ansible.module_utils.sparklanes.traps.names import SIZE, Name, brief, name

VARIABLE = "lane_traps"
FAULT = "LANE.TRAP_RULES"
SEVERITIES = {"refuse": REFUSE, "warn": ADVISE, "note": NOTE}
# The texts of a rule; `what` says the rule in one line, `found` what it found.
REQUIRED = ("severity", "why", "want", "remedy", "source")
FIELDS = ("severity", "what", "when", "found", "why", "want", "remedy", "source")
TEXT, RULES, NAMES, WAYS = 2000, 500, 32, 32

# {name}, {name:,} with thousands set apart, {name|text where it is absent}.
_SLOT = re.compile(r"\{([^{}|:]+)(:,)?(?:\|([^{}]*))?\}")

Say = Callable[[View], str]


def rules(
    traps: Mapping[str, Any], options: Schema, taken: Collection[str] = (), variables: Mapping[str, Any] | None = None
) -> tuple[list[Rule], list[Fault]]:
    """The rules of `lane_traps`, and what is wrong with those that can't be read.

    `taken`: the ids of rules that are no data. `variables`: those of the host, to say in which layers a trap stands.
    """
    if len(traps) > RULES:
        return [], [Fault(FAULT, f"{VARIABLE} has {len(traps)} traps", f"at most {RULES}", "Leave out what no lane needs.")]
    made: list[Rule] = []
    faults: list[Fault] = []
    for id_, raw in traps.items():
        try:
            made.append(_rule(str(id_), raw, options, taken))
        except ValueError as error:
            layers = _layers(str(id_), variables or {})
            remedy = f"Correct it in {', or in '.join(layers or [VARIABLE])}."
            faults.append(Fault(FAULT, f"{VARIABLE}.{id_!s:.60}{error}", "a trap as docs/traps.md describes it", remedy))
    return made, faults


def _layers(id_: str, variables: Mapping[str, Any]) -> list[str]:
    """The variables in which a trap stands, the one that has the last word first."""
    names = [VARIABLE + layer for layer in reversed(LAYERS)]
    return [name for name in names if isinstance(found := variables.get(name), Mapping) and id_ in found]


def _rule(id_: str, raw: Any, options: Schema, taken: Collection[str]) -> Rule:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]{1,60}", id_):
        raise ValueError(": an id is of capital letters, digits and _, without TRAP. before it")
    if f"TRAP.{id_}" in taken:
        raise ValueError(": this id is that of a rule for all lanes; choose another one")
    if not isinstance(raw, Mapping):
        raise ValueError(f" is {brief(raw)}; a mapping belongs there: {', '.join(FIELDS)}")
    for field in raw:
        if field not in FIELDS:
            raise ValueError(f".{field!s:.60} is no part of a trap. {did_you_mean(str(field)[:60], FIELDS)}".rstrip())
    texts = {field: _text(raw.get(field), field) for field in REQUIRED}
    if texts["severity"] not in SEVERITIES:
        hint = did_you_mean(texts["severity"], SEVERITIES)
        raise ValueError(f".severity is {texts['severity']!r:.60}: refuse, warn or note. {hint}".rstrip())
    what = _text(raw["what"], "what") if raw.get("what") is not None else ""
    severity = SEVERITIES[texts.pop("severity")]
    return Rule(f"TRAP.{id_}", severity, what, find=_finder(raw.get("when"), raw.get("found"), options), **texts)


def _text(raw: Any, field: str) -> str:
    if raw is None or raw == "":
        raise ValueError(f" has no {field}")
    if isinstance(raw, bool | Mapping | list) or len(str(raw)) > TEXT or not str(raw).strip():
        raise ValueError(f".{field} is {brief(raw)}; a text of at most {TEXT} characters belongs there")
    return " ".join(str(raw).split())


def _finder(when: Any, found: Any, options: Schema) -> Callable[[View], Iterator[str]]:
    ways = when if isinstance(when, list | tuple) else [when]
    if not ways or len(ways) > WAYS:
        raise ValueError(f".when lists {len(ways)} ways into the trap; 1 to {WAYS} belong there")
    many = isinstance(found, list | tuple)
    if many and len(found) != len(ways):
        raise ValueError(f".found has {len(found)} texts for {len(ways)} of when; write one, or one for each")
    made = [_way(way, found[index] if many else found, options) for index, way in enumerate(ways)]

    def find(view: View) -> Iterator[str]:
        """By the lane alone the ways that ask only it; with what a Spark holds those that ask that too."""
        asked = [way for way in made if any(one.staged for one, _ in way[0]) == (view.staged is not None)]
        said = dict.fromkeys(say(view) for tests, say in asked if all(test(one.values(view)) for one, test in tests))
        if said:
            yield "; ".join(said)

    return find


def _way(way: Any, found: Any, options: Schema) -> tuple[list[tuple[Name, Test]], Say]:
    """One mapping of `when`, and the sentence of what it found."""
    if not isinstance(way, Mapping) or not 0 < len(way) <= NAMES:
        raise ValueError(f".when is {brief(way)}; a mapping of 1 to {NAMES} names to conditions belongs there, or a list of such")
    tests = []
    for key, raw in way.items():
        try:
            one = name(key, options)
            tests.append((one, condition(raw, one)))
        except ValueError as error:
            at = "" if str(key)[:60] in str(error) else f".{key!s:.60}"
            raise ValueError(f".when{at}: {error}") from None
    if found is not None:
        return tests, _said(_text(found, "found"), options)
    names = [one for one, _ in tests]
    return tests, lambda view: ", ".join(f"{one.text} is {shown(one, view) or 'absent'}" for one in names)


def _said(text: str, options: Schema) -> Say:
    if re.search(r"[{}]", _SLOT.sub("", text)):
        raise ValueError(
            f".found is {text!r:.60}: braces belong around names only, as {{lane_max_model_len:,}} or {{--block-size|absent}}"
        )
    slots = {}
    for match in _SLOT.finditer(text):
        try:
            slots[match[1]] = name(match[1], options)
        except ValueError as error:
            raise ValueError(f".found: {error}") from None

    def fill(slot: re.Match[str], view: View) -> str:
        return shown(slots[slot[1]], view, bool(slot[2])) or ("absent" if slot[3] is None else slot[3])

    return lambda view: " ".join(_SLOT.sub(lambda slot: fill(slot, view), text).split())


def shown(one: Name, view: View, thousands: bool = False) -> str:
    """The values of a name for people; empty where there are none."""
    return ", ".join(_one_shown(value, one.kind, thousands) for value in one.values(view))


def _one_shown(value: Any, kind: str, thousands: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and kind == SIZE:
        return f"{value / GIB:.2f} GiB"
    return f"{value:,}" if thousands and isinstance(value, int | float) else " ".join(f"{value!s:.120}".split())
