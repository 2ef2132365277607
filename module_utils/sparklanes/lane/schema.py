# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""From the `lane_*` variables of a host to one lane: names, layers, types and defaults.

The definition of a lane is `roles/lane/meta/argument_specs.yml`; its parsed content comes in as data.
Values come from YAML files, but also from `-e name=value`, where each of them is a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.sizes import exact_bytes
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.engine import flags as engine_flags

PREFIX = "lane_"
# In the order in which they are merged; what all Sparks share, the family and the kit lie below the lane's own, the others above.
LAYERS = ("_sparks", "_family", "_kit", "", "_site", "_host", "_override")
SITE_FILE = "inventory/fleet/group_vars/lane_{lane}.yml"

# Names of other projects, of flags, and of habit: what a lane calls it. Nearness of spelling would answer some of them wrongly.
HABITS = {
    "lane_api_port": "lane_port",
    "lane_args": "lane_engine_args_site",
    "lane_context": "lane_max_model_len",
    "lane_context_length": "lane_max_model_len",
    "lane_env": "lane_engine_env_site",
    "lane_flags": "lane_engine_args_site",
    "lane_kv_cache": "lane_kv_cache_memory_bytes",
    "lane_max_context": "lane_max_model_len",
    "lane_model_name": "lane_served_model_name",
    "lane_nnodes": "lane_nodes",
    "lane_tp": "lane_tensor_parallel_size",
    "lane_pp": "lane_pipeline_parallel_size",
}

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """One name of the definition. `type` is that of an argument spec, or `size` for a name in `_bytes`."""

    name: str
    type: str = "str"
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    elements: str = ""
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def by_target(self) -> bool:
        """A list of things with a place in the container each, which layers merge by that place."""
        return self.type == "list" and "target" in self.options


Schema = dict[str, Option]


def schema(argument_specs: Mapping[str, Any]) -> Schema:
    """The content of an argument_specs.yml as options by name."""
    return _options(argument_specs["argument_specs"]["main"]["options"])


def _options(raw: Mapping[str, Any]) -> Schema:
    found: Schema = {}
    for name, spec in raw.items():
        kind = str(spec.get("type", "str"))
        if kind == "str" and name.endswith("_bytes"):
            kind = "size"
        found[name] = Option(
            name=name,
            type=kind,
            required=bool(spec.get("required", False)),
            default=spec.get("default"),
            choices=tuple(str(choice) for choice in spec.get("choices") or ()),
            elements=str(spec.get("elements") or ""),
            options=_options(spec.get("options") or {}),
        )
    return found


def layered(options: Schema) -> list[str]:
    """The names that have layers: every dict of a lane, and its lists of things with a target."""
    return [name for name, option in options.items() if option.type == "dict" or option.by_target]


def known_names(options: Schema) -> list[str]:
    """Every name that a variable file or `-e` may use."""
    return [*options, *(name + layer for name in layered(options) for layer in LAYERS if layer)]


def plain(value: Any) -> Any:
    """Ansible's lazy and tagged containers as ordinary ones."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def merge(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """`layer` over `base`: mappings by key, null removes, all else is replaced. Known keys keep their place."""
    merged = dict(base)
    for key, value in layer.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def convert(option: Option, value: Any) -> Any:
    """`value` in the type of the option; None where it says nothing. ValueError says what is wrong with it."""
    kind = option.type
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str) and kind not in ("str", "path", "raw") and value.strip().lower() in ("null", "none"):
        return None
    result = _CONVERTERS[kind](value)
    if option.choices and result not in option.choices:
        raise ValueError(
            f"{result!r} is none of {', '.join(option.choices)}. {did_you_mean(str(result), option.choices)}".strip()
        )
    return result


def _int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d[\d_]*", str(value).strip()):
        raise ValueError(f"{value!r} is no whole number")
    return _fitting(int(str(value).strip()))


def _fitting(number: int) -> int:
    """A number that other programs can hold too."""
    if abs(number) >= 2**63:
        raise ValueError("a number of more than 63 bits means nothing here")
    return number


def _float(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is no number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE


def _str(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"  # YAML reads these two words as booleans; choices mean the words
    if isinstance(value, Mapping | list):
        raise ValueError(f"{value!r} is no text")
    return str(value)


def _path(value: Any) -> str:
    text = _str(value)
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no absolute path")
    if re.search(r"[,:\s]", text):
        raise ValueError(f"{text!r} holds a comma, colon or blank, which Docker's mount options cannot carry")
    return text.rstrip("/") or "/"


def _size(value: Any) -> int:
    return _fitting(exact_bytes(str(value)) if not isinstance(value, int) or isinstance(value, bool) else value)


def _list(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            return list(_json(value))
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, Mapping):
        raise ValueError("a mapping stands where a list belongs")
    return [value]


def _dict(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _json(value)
    if not isinstance(value, Mapping):
        raise ValueError(f'{value!r} is no mapping; on the command line write -e \'{{"name": {{"key": "value"}}}}\'')
    return dict(value)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:60]!r} is no JSON: {error}") from None


_CONVERTERS: dict[str, Any] = {
    "str": _str,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "path": _path,
    "size": _size,
    "list": _list,
    "dict": _dict,
    "raw": lambda value: value,
}


def resolve(variables: Mapping[str, Any], options: Schema, host: str) -> tuple[dict[str, Any], list[Check]]:
    """The lane of one host, layers merged and defaults filled in, and what is wrong with its variables.

    `variables` may hold anything; only `lane_*` is looked at. The lane is usable only if no check failed.
    """
    lane, checks, _ = resolve_apart(variables, options, host)
    return lane, checks


def resolve_apart(variables: Mapping[str, Any], options: Schema, host: str) -> tuple[dict[str, Any], list[Check], frozenset[str]]:
    """As `resolve`, and the names whose value is wrong. A part that nobody knows changes nothing of the others and makes none wrong."""
    given, unread = read_variables(variables)
    faults = [*unread.values(), *_unknown_names(given, options)]
    lane: dict[str, Any] = {}
    wrong: set[str] = set()
    for name, option in options.items():
        lane[name], found = _value(option, given)
        faults += found
        if any(fault.id != "LANE.NAMES" for fault in found) or any(name + layer in unread for layer in LAYERS):
            wrong.add(name)
    return lane, as_checks(faults, host, {"LANE.NAMES": "all known", "LANE.TYPES": "all as defined"}), frozenset(wrong)


def read_variables(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Fault]]:
    """The values of `lane_*`, and name → what is wrong with its template. By name, not by items(): reading one fills in its templates."""
    given: dict[str, Any] = {}
    faults: dict[str, Fault] = {}
    for name in variables:
        if name.startswith(PREFIX):
            try:
                given[name] = plain(variables[name])
                json.dumps(given[name], default=str)  # an undefined variable inside raises only when its text is wanted
            except Exception as error:  # whatever Ansible has to say of a template is said with the variable's name
                given[name] = None
                text = f"{name} has a template that can't be filled in: {error}"
                faults[name] = Fault("LANE.TEMPLATES", text, "defined variables", "Define what it names, or correct it.")
    return given, faults


def _unknown_names(given: Mapping[str, Any], options: Schema) -> Iterator[Fault]:
    known = known_names(options)
    for name in given:
        if name not in known:
            yield Fault(
                "LANE.NAMES",
                f"{name} is no variable of a lane",
                "a name of roles/lane/meta/argument_specs.yml",
                _meant(name, options, known) or "See roles/lane/README.md for the names.",
            )


def _meant(name: str, options: Schema, known: list[str]) -> str:
    """What to write instead of an unknown name: a habit from elsewhere, a part of another variable, a flag, or the nearest name."""
    if name in HABITS:
        return f"Write {HABITS[name]}."
    for option in options.values():
        part = name.removeprefix(f"{option.name}_")
        if part != name and part in option.options and option.type == "dict":
            return f"It is a part of {option.name}: write {option.name}_site: {{{part}: …}}."
    near = did_you_mean(name, known)
    holders = [
        option.name for option in options.values() if option.type == "dict" and name.removeprefix(PREFIX) in option.options
    ]
    if not near and len(holders) == 1:
        return f"It is a part of {holders[0]}: write {holders[0]}_site: {{{name.removeprefix(PREFIX)}: …}}."
    flag = f"--{name.removeprefix(PREFIX).replace('_', '-')}"
    if near or not engine_flags.known(flag):
        return near
    variable = {**engine_flags.FLAT_FLAGS, **engine_flags.HEAD_FLAGS}.get(flag)
    return f"Write {variable}." if variable else f"It is a flag of the engine: write lane_engine_args_site: {{{flag}: …}}."


def _value(option: Option, given: Mapping[str, Any]) -> tuple[Any, list[Fault]]:
    name = option.name
    if option.type != "dict" and not option.by_target:
        return _checked(option, given.get(name), name)
    merged: Any = {}
    for layer in LAYERS:
        try:
            value = _layer(option, given.get(name + layer))
        except ValueError as error:
            return [] if option.by_target else {}, [Fault("LANE.TYPES", f"{name}{layer}: {error}", option.type)]
        if isinstance(value, Mapping) and isinstance(merged, Mapping):
            merged = merge(merged, value)
        elif value and isinstance(merged, Mapping):
            merged = value  # a list that could not be read by its targets: what is wrong with it is said below
    # A lane without a drafter has no drafter, rather than a drafter of defaults.
    return _checked(option, merged or (None if option.required or option.by_target else {}), name)


def _layer(option: Option, raw: Any) -> Any:
    """One layer of a name, ready to be merged."""
    if option.by_target and isinstance(raw, str) and raw.lstrip().startswith("{"):
        raw = _json(raw)
    if not (option.by_target and isinstance(raw, Mapping)):
        raw = convert(option, raw) or {}
    return _keyed(option, raw)


def _keyed(option: Option, value: Any) -> Any:
    """Lists of things with a target as mappings by it, at any depth; a list that two things share a target in stays one."""
    if option.type == "dict" and isinstance(value, Mapping):
        return {key: _keyed(option.options[key], item) if key in option.options else item for key, item in value.items()}
    if not option.by_target:
        return value
    if isinstance(value, Mapping):
        return {_place(key): item for key, item in value.items()}
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) and item.get("target") for item in value):
        return value
    keyed = {_place(item["target"]): item for item in value}
    return keyed if len(keyed) == len(value) else value


def _place(target: Any) -> str:
    return str(target).rstrip("/") or "/"


def _checked(option: Option, raw: Any, where: str) -> tuple[Any, list[Fault]]:
    try:
        if option.by_target and isinstance(raw, Mapping):
            raw = [{**_dict(item), "target": target} for target, item in raw.items() if item is not None]
        value = convert(option, raw)
    except ValueError as error:
        expected = f"one of {', '.join(option.choices)}" if option.choices else option.type
        return option.default, [Fault("LANE.TYPES", f"{where}: {error}", expected)]
    if value is None:
        if option.required:
            return None, [Fault("LANE.TYPES", f"{where} is missing", option.type, f"Set {where} in the lane's file.")]
        return plain(option.default), []
    if option.type == "dict" and option.options and (value or _wants_defaults(option)):
        return _members(option, value, where)
    if option.type == "list":
        return _items(option, value, where)
    return value, []


def _wants_defaults(option: Option) -> bool:
    """An empty dict is filled with the defaults of its members unless one of them must be given."""
    return not any(member.required for member in option.options.values())


def _members(option: Option, value: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Fault]]:
    faults = [
        Fault(
            "LANE.NAMES",
            f"{where}.{key} is no part of {where}",
            ", ".join(option.options),
            did_you_mean(key, option.options),
        )
        for key in value
        if key not in option.options
    ]
    members: dict[str, Any] = {}
    for key, member in option.options.items():
        members[key], wrong = _checked(member, value.get(key), f"{where}.{key}")
        faults += wrong
    return members, faults


def _items(option: Option, value: list[Any], where: str) -> tuple[list[Any], list[Fault]]:
    item_option = Option(name=option.name, type=option.elements or "raw", options=option.options)
    items: list[Any] = []
    faults: list[Fault] = []
    for index, raw in enumerate(value):
        item, wrong = _checked(item_option, raw, f"{where}.{index}")
        if item == {} and option.options:
            item, wrong = _members(item_option, item, f"{where}.{index}")  # says what it lacks
        if item is None:
            faults.append(Fault("LANE.TYPES", f"{where}.{index} is empty", option.elements or "a value"))
        items.append(item)
        faults += wrong
    return items, faults
