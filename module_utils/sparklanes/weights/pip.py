# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Arguments of pip that hold a password go by its environment: the words of a command can be read by anybody on the Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ansible.module_utils.sparklanes.common.secrets import secret_value

# Options whose value may be an address, and what pip calls them for short.
SHORT = {"-i": "--index-url", "-f": "--find-links", "-c": "--constraint", "-r": "--requirement"}
ADDRESSES = frozenset({*SHORT.values(), "--extra-index-url", "--proxy"})
VARIABLE = re.compile(r"PIP_[A-Z][A-Z_]*")


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments that anybody may read, and the others as variables that pip reads (`--index-url` is PIP_INDEX_URL).

    All values of one option go the same way, as pip puts those of its environment beside those of its command. ValueError where a
    password stands in no option for an address.
    """
    pairs = list(_options([str(word) for word in arguments]))
    secret = {option for option, value in pairs if secret_value(value)}
    if "" in secret:
        raise ValueError("a password stands in no option for an address: write it as --index-url=…, for example")
    plain: list[str] = []
    environment: dict[str, str] = {}
    for option, value in pairs:
        if option in secret:
            name = f"PIP_{option.lstrip('-').replace('-', '_').upper()}"
            environment[name] = f"{environment[name]} {value}" if name in environment else value
        else:
            plain.append(f"{option}={value}" if option else value)
    return plain, environment


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option for an address with its value, `--index-url X` and `-iX` as `--index-url=X`; any other word under an empty name."""
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name[:2] in SHORT:
            name, value, equals = SHORT[name[:2]], word[2:].removeprefix("="), word[2:]
        if name not in ADDRESSES:
            yield "", word
        elif equals or not left:
            yield name, value
        else:
            yield name, left.pop(0)
