# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A file of state against its schema: the fields of a dataclass, each of its type. What a newer version added is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

MORE = "more"  # the field of a dataclass for what it does not know
_LARGEST = 1e18  # no time and no size of ours


def text(value: Any) -> bool:
    """A text that a file of UTF-8 can hold: JSON can spell others."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST  # not NaN either


def whole(value: Any) -> bool:
    return number(value) and value == int(value)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(text(one) for one in value)


# Annotations of a dataclass are texts here; each with what it asks of JSON.
_TYPES = {
    "bool": (flag, "true or false"),
    "int": (whole, "a whole number"),
    "str": (text, "a text"),
    "float": (number, "a number"),
    "tuple[str, ...]": (texts, "a list of texts"),
}


def known(schema: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` as arguments of the dataclass `schema`. ValueError names the first field that is missing or of another type."""
    made: dict[str, Any] = {}
    names = set()
    for one in fields(schema):
        if one.name == MORE:
            continue
        names.add(one.name)
        if one.name not in data:
            if one.default is MISSING and one.default_factory is MISSING:
                raise ValueError(f"it has no {one.name}")
            continue
        fits, kind = _TYPES[str(one.type)]
        value = data[one.name]
        if not fits(value):
            raise ValueError(f"its {one.name} is not {kind} that we write ({type(value).__name__})")
        made[one.name] = tuple(value) if isinstance(value, list) else value
    return {**made, MORE: {name: value for name, value in data.items() if name not in names}}
