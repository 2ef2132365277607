# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The conditions of `lane_traps`: a small closed language over the values of one name.

    64, fp8, true               equal: a number however it is spelled, text as it stands
    "*nvfp4*"                   a pattern of *, ? and [a-z], without regard to case
    "> 4", "<= 0.8"             numbers, sizes (32GiB) and versions
    present, absent             given, or left to the engine
    [absent, "> 512"]           one of these
    {not: …}, {all: [..., ...]} not; all of these, of one value
    {multiple_of: 64}           a whole number of times this number

A name with several values (a list) meets a condition if one of them does. A name without a value meets `absent` and `not`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import exact_bytes
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.view import number
from ansible.module_utils.sparklanes.traps.names import ANY, BOOL, NUMBER, SIZE, TEXT, VERSION, Name, brief, glob

# More is a mistake, or somebody's joke.
DEPTH, ITEMS, LENGTH, STARS = 4, 64, 300, 8

Test = Callable[[Sequence[Any]], bool]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def condition(raw: Any, name: Name, depth: int = 0) -> Test:
    """The condition as a test of the values of a name; ValueError says what is wrong with it."""
    if depth > DEPTH:
        raise ValueError(f"conditions lie more than {DEPTH} deep in each other")
    if isinstance(raw, Mapping):
        return _operator(raw, name, depth)
    if isinstance(raw, list | tuple):
        tests = _several(raw, name, depth)
        return lambda values: any(test(values) for test in tests)
    if isinstance(raw, bool):
        return _equal_bool(raw, name)
    if isinstance(raw, int | float):
        return _equal_number(raw, name)
    if isinstance(raw, str) and raw.strip():
        return _text(raw.strip(), name)
    raise ValueError(f"{brief(raw)} is no condition")


def version(text: Any) -> tuple[int, ...]:
    """The leading numbers of a version without trailing zeros; empty where there are none."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,8})", str(text))
    parts = [int(part) for part in found[1].split(".")] if found else []
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _several(raw: Any, name: Name, depth: int) -> list[Test]:
    if not isinstance(raw, list | tuple) or not 0 < len(raw) <= ITEMS:
        raise ValueError(f"a list of 1 to {ITEMS} conditions belongs here")
    return [condition(one, name, depth + 1) for one in raw]


def _operator(raw: Mapping[Any, Any], name: Name, depth: int) -> Test:
    known = ("not", "all", "multiple_of")
    for key in raw:
        if key not in known:
            raise ValueError(
                f"{brief(key)} is no operator: not, all and multiple_of are. {did_you_mean(str(key)[:40], known)}".strip()
            )
    if len(raw) != 1:
        raise ValueError("a mapping holds one operator: not, all or multiple_of")
    if "multiple_of" in raw:
        return _multiple(raw["multiple_of"], name)
    if "not" in raw:
        inner = condition(raw["not"], name, depth + 1)
        return lambda values: not inner(values)
    tests = _several(raw["all"], name, depth)
    # Of one value: dates of a build between two others, not one date before and another one after.
    return lambda values: any(all(test(one) for test in tests) for one in ([[value] for value in values] or [[]]))


def _multiple(raw: Any, name: Name) -> Test:
    """A whole number of times `raw`; 0 is none, as it stands for what the engine decides."""
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 2:
        raise ValueError(f"multiple_of is {brief(raw)}; a whole number from 2 on belongs there")
    if name.kind not in (NUMBER, SIZE, ANY):
        raise ValueError(f"multiple_of is of numbers, and {name.text} is {name.kind}")
    return lambda values: any(value and math.isfinite(value) and value % raw == 0 for value in map(number, values))


def _text(raw: str, name: Name) -> Test:
    if raw == "absent":
        return lambda values: not values
    if raw == "present":
        return bool
    if len(raw) > LENGTH or raw.count("*") > STARS:
        raise ValueError(f"{raw[:40]}… is too long: {LENGTH} characters, {STARS} times *")
    if raw[0] in "<>":
        return _comparison(raw, name)
    if re.search(r"[*?\[]", raw):
        return _pattern(raw, name)
    if name.kind == BOOL:
        raise ValueError(f"{raw!r} is neither true nor false")
    if name.kind in (NUMBER, SIZE):
        return _equal_number(_operand(raw, name), name)
    _one_of(raw, name)
    as_number = number(raw)
    return lambda values: any(
        not isinstance(value, bool) and (str(value) == raw or (as_number is not None and number(value) == as_number))
        for value in values
    )


def _one_of(raw: str, name: Name) -> None:
    if name.choices and raw not in name.choices:
        raise ValueError(f"{raw!r} is none of {', '.join(name.choices)}. {did_you_mean(raw, name.choices)}".strip())


def _pattern(raw: str, name: Name) -> Test:
    if name.kind in (BOOL, NUMBER, SIZE):
        raise ValueError(f"{raw!r} is a pattern of text, and {name.text} is {name.kind}")
    matches = glob(raw.lower()).match
    return lambda values: any(isinstance(value, str) and matches(value.lower()) is not None for value in values)


def _comparison(raw: str, name: Name) -> Test:
    found = re.fullmatch(r"(>=|<=|>|<)\s*(\S.*)", raw)
    if not found:
        raise ValueError(f"{raw!r} compares with nothing")
    if name.kind in (BOOL, TEXT):
        raise ValueError(f"{raw!r} compares numbers, and {name.text} is {name.kind}")
    compare, limit = _COMPARISONS[found[1]], _operand(found[2], name)
    measure: Callable[[Any], Any] = version if name.kind == VERSION else number
    # A value that can't be read satisfies no comparison; `not` around one catches it.
    return lambda values: any(value not in (None, ()) and compare(value, limit) for value in map(measure, values))


def _operand(raw: str, name: Name) -> Any:
    if name.kind == VERSION:
        if not re.fullmatch(r"v?\d+(\.\d+)*", raw):
            raise ValueError(f"{raw!r} is no version")
        return version(raw)
    if name.kind == SIZE:
        return exact_bytes(raw)
    limit = number(raw)
    if limit is None or not math.isfinite(limit):
        raise ValueError(f"{raw!r} is no number")
    return limit


def _equal_bool(raw: bool, name: Name) -> Test:
    if name.kind == TEXT:  # YAML reads two words as booleans, which variables of text mean as words
        return _text("on" if raw else "off", name)
    if name.kind in (NUMBER, SIZE, VERSION):
        raise ValueError(f"{str(raw).lower()} is neither true nor false here: {name.text} is {name.kind}")
    return lambda values: any(value is raw for value in values)


def _equal_number(raw: float, name: Name) -> Test:
    if name.kind == BOOL:
        raise ValueError(f"{raw} is neither true nor false")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise ValueError(f"{raw} is no finite number")
    if name.kind == VERSION:
        raise ValueError(f"write versions in quotes, and as a comparison or a pattern: {raw} may have lost a zero")
    if name.kind == TEXT:
        _one_of(str(raw), name)
        return lambda values: any(str(value) == str(raw) for value in values)
    return lambda values: any(number(value) == raw for value in values)
