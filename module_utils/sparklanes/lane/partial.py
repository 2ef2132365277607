# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A resolved lane of which some values are wrong: a rule that reads none of these judges it, any other has nothing to say.

So one run of preflight names every mistake that stands for itself, and none that only follows from another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class NotKnown(Exception):
    """A rule asked for a value that is wrong. No KeyError and no ValueError: nobody may take it for absent."""


class Partial(Mapping[str, Any]):
    """`values`, of which those named in `wrong` can't be read."""

    def __init__(self, values: Mapping[str, Any], wrong: Collection[str]) -> None:
        self._values, self.wrong = values, frozenset(wrong)

    def __getitem__(self, name: str) -> Any:
        if name in self.wrong:
            raise NotKnown(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def apart(rules: Iterable[Callable[..., Iterable[T]]], *of: Any) -> list[T]:
    """What these rules find, each by itself: up to where one asks for what is wrong."""
    found: list[T] = []
    for rule in rules:
        try:
            found.extend(rule(*of))
        except NotKnown:
            continue
    return found
