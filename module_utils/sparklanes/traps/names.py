# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The names that a condition of `lane_traps` may ask for: flags, the engine's environment, variables of a lane, derived facts."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS, canonical_flag
from ansible.module_utils.sparklanes.lane.schema import Schema
from ansible.module_utils.sparklanes.lane.view import JSON_FLAGS, SHORTHANDS, View

# A name longer or deeper than this is a mistake.
LENGTH, PARTS = 200, 8
# What the type of a variable means for its conditions; "" is a value that nobody declared: a flag's, the environment's.
ANY, BOOL, NUMBER, SIZE, TEXT, VERSION = "", "true or false", "a number", "a size", "text", "a version"
_KINDS = {"int": NUMBER, "float": NUMBER, "size": SIZE, "bool": BOOL, "str": TEXT, "path": TEXT}
_VERSIONS = ("lane_image.vllm", "lane_image.pins.")

Values = Callable[[View], list[Any]]


@dataclass(frozen=True)
class Name:
    """What a condition asks for: how it is written, what it holds, and where it is found in a lane. Absent is no value.

    staged: it is found in what a Spark holds, so that a condition of it is judged before the stop and not by preflight.
    """

    text: str
    kind: str
    values: Values
    choices: tuple[str, ...] = ()
    staged: bool = False


def brief(raw: Any) -> str:
    """A value in a message: never the whole of something large or deep."""
    if isinstance(raw, Mapping | list | tuple):
        return f"{'a mapping' if isinstance(raw, Mapping) else 'a list'} of {len(raw)}"
    return "nothing" if raw is None else f"{raw!r:.60}"


@functools.cache
def glob(pattern: str) -> re.Pattern[str]:
    """A pattern of *, ? and [a-z], compiled."""
    return re.compile(fnmatch.translate(pattern))


def _drafts(view: View) -> Any:
    return "dflash" if view.dflash else view.method


def _image(view: View) -> Any:
    image = view.lane["lane_image"]
    return f"{image['repository']}:{image['tag']}" if image["tag"] else image["repository"]


def _build_dates(view: View) -> Any:
    found = re.findall(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)(?!\d)", view.image)
    return [int(year + month + day) for year, month, day in found]


def _overlays(view: View) -> Any:
    return [item["target"] for item in view.lane["lane_overlays"]]


def _overlay_markers(view: View) -> Any:
    return [f"{item['target']} {marker}" for item in view.lane["lane_overlays"] for marker in item["markers"] or []]


def _unknowns(view: View) -> Any:
    return [item["fill"].partition(":")[0].split(".")[0].strip() for item in view.lane["lane_unknowns"]]


# What a model's files say, by the first part of the name: of which model, and which part of its gist.
STAGED = {
    "config": ("model", "config", "a part of config.json of the weights, as `config.quantization_config.quant_method`"),
    "drafter_config": ("drafter", "config", "the same of the drafter, as `drafter_config.architectures`"),
    "tensors": ("model", "tensors", "the names of the tensors of the weights, each number in them a `*`"),
}

# Name → what it holds, how it is found, what it means.
DERIVED: dict[str, tuple[str, Callable[[View], Any], str]] = {
    "drafts": (TEXT, _drafts, "the method of speculative decoding; `dflash` where the drafter is one, absent without"),
    "image": (TEXT, _image, "`repository:tag` of the image"),
    "build_dates": (NUMBER, _build_dates, "dates in the tag and version of the image, as 20260822"),
    "cuda_graphs": (
        TEXT,
        lambda view: view.graph_mode,
        "the mode of CUDA graphs, `NONE` when eager; absent where the engine decides",
    ),
    "overlays": (TEXT, _overlays, "the files of the image over which a file is mounted"),
    "overlay_markers": (TEXT, _overlay_markers, "those files, a blank and a marker of the mounted one"),
    "unknowns": (TEXT, _unknowns, "the variables that the source of the lane does not tell, as `lane_unknowns` lists them"),
}


def name(text: Any, options: Schema) -> Name:
    """The name that is written so; ValueError says why there is none."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"{brief(text)} is no name")
    if len(text) > LENGTH or text.count(".") > PARTS:
        raise ValueError(f"{text[:40]}… is too long for a name: {LENGTH} characters, {PARTS} parts")
    if text in DERIVED:
        kind, find, _ = DERIVED[text]
        return Name(text, kind, lambda view: _listed(find(view)))
    if text.startswith("--"):
        return _flag(text)
    if text.startswith("env."):
        return _env(text)
    if text.split(".")[0] in STAGED:
        return _staged(text)
    if text.split(".")[0] in options:
        return _variable(text, options)
    known = [*DERIVED, *STAGED, *options, *engine_flags.names()]
    raise ValueError(f"{text} is no flag, variable or fact. {did_you_mean(text.split('.')[0], known)}".strip())


def _flag(text: str) -> Name:
    first, dot, path = text.partition(".")
    flag = canonical_flag(first)
    if flag in DERIVED_FLAGS:
        raise ValueError(f"{flag} is no flag of a lane: {DERIVED_FLAGS[flag]}")
    if flag in SHORTHANDS:
        raise ValueError(f"{flag} is read as --speculative-config.{SHORTHANDS[flag]}: write that")
    if not engine_flags.known(flag):
        raise ValueError(f"no engine that we know has {first}. {did_you_mean(flag, engine_flags.names())}".strip())
    if not dot:
        return Name(text, ANY, lambda view: _listed(view.args.get(flag)))
    if flag not in JSON_FLAGS:
        raise ValueError(f"{first} takes no JSON, so it has no part {path}")
    if "*" not in path:
        return Name(text, ANY, lambda view: _listed(_within(view.json(flag), path)))
    pattern = glob(path)
    return Name(
        text,
        ANY,
        lambda view: [one for key, value in _parts(view.json(flag)) if pattern.match(key) for one in _listed(value)],
    )


def _env(text: str) -> Name:
    variable = text.removeprefix("env.")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError(f"{text}: {variable!r} is no variable of an environment")
    return Name(text, ANY, lambda view: _listed(view.env.get(variable)))


def _staged(text: str) -> Name:
    first, dot, path = text.partition(".")
    model, part, _ = STAGED[first]
    if (part == "config") != bool(path) or (dot and not path):
        raise ValueError(
            f"{text}: " + ("tensors has no parts" if part == "tensors" else f"name a part of it, as {first}.model_type")
        )

    def find(view: View) -> list[Any]:
        told = ((view.staged or {}).get(model) or {}).get(part)
        if not path:
            return _listed(told)
        if "*" not in path:
            return _listed(_within(told, path))
        pattern = glob(path)
        return [one for key, value in _parts(told) if pattern.match(key) for one in _listed(value)]

    return Name(text, ANY, find, staged=True)


def _variable(text: str, options: Schema) -> Name:
    head, *rest = text.split(".")
    option, where = options[head], head
    if rest and head in ("lane_engine_args", "lane_engine_env"):
        one = ".".join(rest)
        raise ValueError(f"{text}: write {one if head == 'lane_engine_args' else f'env.{one}'}, which is what the engine reads")
    while rest and option.options and option.type == "dict":
        if rest[0] not in option.options:
            raise ValueError(f"{where} has no part {rest[0]}. {did_you_mean(rest[0], option.options)}".strip())
        option, where, rest = option.options[rest[0]], f"{where}.{rest[0]}", rest[1:]
    if rest and option.type != "dict":
        raise ValueError(f"{where} has no parts, so not {'.'.join(rest)} either")
    kind = ANY if rest else VERSION if where.startswith(_VERSIONS) and option.type == "str" else _KINDS.get(option.type, ANY)
    return Name(text, kind, lambda view: _listed(_within(view.lane, text)), option.choices)


def _listed(value: Any) -> list[Any]:
    """The values of one thing: none where it says nothing, several of a list."""
    if value is None or value == "" or value == [] or value == {}:
        return []
    return list(value) if isinstance(value, list) else [value]


def _within(value: Any, path: str) -> Any:
    """What stands at a dotted path; keys may hold dots themselves, as in `sha256.config.json`. None where nothing does."""
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    parts = path.split(".")
    heads = (".".join(parts[:count]) for count in range(1, len(parts)))
    found = (_within(value[head], path[len(head) + 1 :]) for head in heads if head in value)
    return next((one for one in found if one is not None), None)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Every part of a nested value with its dotted path; items of lists stand below their list."""
    waiting = [("", value)]
    while waiting:
        path, one = waiting.pop()
        if path:
            yield path, one
        if isinstance(one, Mapping):
            waiting += [(f"{path}.{key}" if path else str(key), item) for key, item in one.items()]
        elif isinstance(one, list):
            waiting += [(f"{path}.{index}", item) for index, item in enumerate(one)]
