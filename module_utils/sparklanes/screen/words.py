# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Words on a terminal: what a result says for itself, once, as a plain sentence, and nothing that a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import last_line, says_nothing
from ansible.module_utils.sparklanes.common.text import ESCAPES

Result = Mapping[str, Any]

# Single controls, C1 included. Line feeds and tabs stay. Last, what turns the direction of writing around and shows another order than
# there is.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What Ansible puts around the words of a filter of ours, which were written for people.
_AROUND = re.compile(r"^.*The filter plugin '[^']*' failed: ", re.DOTALL)
_TASK = re.compile(r"^(?:Task failed: )?(?:Module failed: |Action failed: )?")
_TEMPLATE = re.compile(r"^(?:Finalization of task args for|Error while (?:resolving|evaluating))")
PASSED = "All assertions passed"
FOLDED = re.compile(r"^PASS\b")


def clean(text: str) -> str:
    """The text without what a terminal obeys. `\\r\\n` is a line's end, a bare `\\r` (a progress bar) begins another line."""
    plain = ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROLS.sub("", plain)


def ended(text: str) -> str:
    """A sentence with its end, so that another one can follow it."""
    bare = text.rstrip()
    return bare if not bare or bare[-1] in ".!?:…\n" or "\n" in bare else f"{bare}."


def joined(sentences: Iterable[str]) -> str:
    return " ".join(ended(one) for one in sentences if one.strip())


def failure(result: Result) -> str:
    """What a failed result says: its message, or what there is of its output. Of a loop, each failed item once."""
    items = result.get("results")
    if isinstance(items, Sequence) and not isinstance(items, str):
        bad = [failure(item) for item in items if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable"))]
        if bad:
            return "\n".join(dict.fromkeys(bad))
    text = message(result.get("msg")).strip()
    if _AROUND.match(text):
        return clean(_AROUND.sub("", text, count=1)).strip()
    text = _TASK.sub("", text)
    more = last_line(result) if says_nothing(text) else ""
    return (
        clean(": ".join(part for part in (text.rstrip(":. " if more else ": "), more) if part)).strip() or "failed without a word"
    )


def message(value: Any) -> str:
    """A message as lines: a list is one line each."""
    if isinstance(value, list | tuple):
        return "\n".join(str(one) for one in value)
    return "" if value is None else str(value)


def folded(text: str, most: int = 3, of: str = "") -> str:
    """A table of checks without its passed rows, which are counted; one with few of them stays whole. of: what was checked."""
    lines = text.splitlines()
    kept, passes, inside = [], 0, False
    for line in lines:
        starts = bool(FOLDED.match(line))
        inside = starts or (inside and line.startswith(" ") and not line.lstrip().startswith("→"))
        passes += starts
        if not inside:
            kept.append(line)
    if passes <= most:
        return text
    # After the rows that ask for a look, before what to do about them.
    place = next((number for number, line in enumerate(kept) if line.startswith("→")), len(kept))
    return "\n".join([*kept[:place], f"PASS  {passes} checks{f' of {of}' if of else ''}", *kept[place:]])


def named(host: str, text: str) -> str:
    """A sentence that says of whom it is. A table does so by itself, and what fails on the controller is of the run."""
    if host in ("", "localhost") or "\n" in text:
        return text
    return text if re.search(rf"(?<![\w-]){re.escape(host)}(?![\w-])", text) else f"{host}: {text}"


def told(failures: Sequence[tuple[str, str]]) -> list[str]:
    """(host, words) as sentences, each once: what several hosts say alike is said with all of them."""
    hosts: dict[str, list[str]] = {}
    for host, text in failures:
        hosts.setdefault(text, [])
        if host not in hosts[text]:
            hosts[text].append(host)
    return [ended(named(who[0], text) if len(who) == 1 else f"{', '.join(sorted(who))}: {text}") for text, who in hosts.items()]


def box(title: str, lines: Sequence[str], width: int = 78) -> list[str]:
    """The last lines of a run, between two rules. Nothing stands beside them, so that each can be copied."""
    return [f"══ {title} ".ljust(width, "═"), *lines, "═" * width]
