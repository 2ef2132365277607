# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The file that somebody else wrote: read within limits, told apart, and parsed without a meaning read into it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# The largest public recipe has 9 KiB, the record of a container 20.
LARGEST = 512 * 1024
DEEPEST = 40
RECIPE, COMMAND, CONTAINER = "recipe", "command", "container"


class Refused(ValueError):
    """Why a file can't become a lane, in a sentence with what to do."""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Source:
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read(path: str) -> Source:
    """The text of a file. Nothing of more than LARGEST bytes, nothing binary, no pipe that never ends."""
    name = Path(path).name
    try:
        handle = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Refused(f"{path} is no file: name the recipe, the file with the command, or the record of docker inspect")
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > LARGEST:
        raise Refused(
            f"{path} has more than {LARGEST // 1024} KiB, and no recipe has: name the file with the one recipe or command"
        )
    if b"\0" in content:
        raise Refused(f"{path} is binary: expected YAML, JSON or the text of a command")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    if not text.strip():
        raise Refused(f"{path} is empty")
    odd = re.search(r"[\x01-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise Refused(f"{path}, line {line}: the character U+{ord(odd[0]):04X}, which shows nothing, has no place in a command")
    return Source(name, text)


def kind_and_data(source: Source) -> tuple[str, Any]:
    """What a file is, and its content: of a recipe a mapping, of a container the records, of a command its text."""
    text = source.text.lstrip()
    if text[0] in "[{":
        data = strict_json(source.text, source.name)
        records = data if isinstance(data, list) else [data]
        if records and all(isinstance(one, dict) for one in records) and any("Config" in one for one in records):
            return CONTAINER, records
        raise Refused(
            f"{source.name} is JSON, but no record of docker inspect: expected a list of objects with Config and HostConfig"
        )
    # The key of a recipe at the beginning of a line: a command has none.
    if re.search(
        r"^(?:recipe_version|sparkrun_version|model|runtime|container|command|defaults):(?:\s|$)", source.text, re.MULTILINE
    ):
        data = strict_yaml(source.text, source.name)
        if not isinstance(data, dict):
            raise Refused(f"{source.name} is YAML, but no mapping: expected model, container and command of a recipe")
        return RECIPE, data
    return COMMAND, source.text


def strict_json(text: str, name: str) -> Any:
    """JSON in which every key stands once and every number is one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = _twice(key for key, _ in pairs)
        if twice:
            raise Refused(f"{name}: {twice!r} stands twice in one object")
        return dict(pairs)

    def no_number(word: str) -> Any:
        raise Refused(f"{name}: {word} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except Refused:
        raise
    except RecursionError as error:
        raise Refused(f"{name} is no JSON: nested too deeply") from error
    except ValueError as error:
        raise Refused(f"{name} is no JSON: {error}") from error


def _twice(keys: Iterable[Any]) -> Any:
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


class _Strict(yaml.SafeLoader):
    """Plain YAML: every key once, nothing that refers to something else, no depth without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise Refused(
                f"line {event.start_mark.line + 1}: *{event.anchor} repeats another part. A few of these can make a text of gigabytes, so "
                "they are refused: write the part itself"
            )
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > DEEPEST:
            deep: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise Refused(f"line {deep.start_mark.line + 1}: nested deeper than {DEEPEST}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key.value, str) else False:
                raise Refused(f"line {key.start_mark.line + 1}: {key.value!r} stands twice, and only one of them can be meant")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def strict_yaml(text: str, name: str) -> Any:
    loader = _Strict(text)
    try:
        return loader.get_single_data()
    except Refused as error:
        raise Refused(f"{name}, {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise Refused(f"{name} is no YAML: {' '.join(str(error).split())[:300]}") from error
    finally:
        loader.dispose()
