# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The words of a command as values of a lane, and back to what they were when it is rendered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import secret_value
from ansible.module_utils.sparklanes.engine.command import whole_number
from ansible.module_utils.sparklanes.lane.importers.source import DEEPEST, Refused, strict_json

# What Ansible would fill in when it reads the lane: a recipe could run anything on the controller by it.
_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
UNFILLED = re.compile(r"\$(?:[A-Za-z_]|\{)|<[A-Za-z][\w .-]*>|\{[A-Za-z_]\w*\}")
COUNTS = ("lane_max_model_len", "lane_max_num_seqs", "lane_max_num_batched_tokens", "lane_kv_cache_memory_bytes")


def no_template(data: Any, where: str = "it") -> None:
    """Refuses what has a template of Ansible anywhere in it."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            no_template(key, str(key))
            no_template(value, str(key))
    elif isinstance(data, list):
        for value in data:
            no_template(value, where)
    elif isinstance(data, str) and _TEMPLATE.search(data):
        raise Refused(f"{where:.80} holds {_TEMPLATE.search(data)[0]!r}, which Ansible would fill in: write the value itself")  # type: ignore[index]


def no_secret(data: Any, where: str = "it") -> None:
    """The last look: refuses what looks like a key and came here by a way that nobody thought of."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            no_secret(key, where)
            no_secret(value, str(key) if where == "it" else where)
    elif isinstance(data, list):
        for value in data:
            no_secret(value, where)
    elif isinstance(data, str) and secret_value(data):
        raise Refused(f"{where:.80} would hold what looks like a key: take it out of the source, a lane is read by many")


def of_flag(values: Sequence[str]) -> Any:
    """The value of lane_engine_args: true for none, a mapping for an object of JSON, a list for several, whole numbers as numbers."""
    if not values:
        return True
    if len(values) > 1:
        return [_plain(value) for value in values]
    if values[0].lstrip().startswith("{"):
        try:
            data = strict_json(values[0], "it")
        except Refused:
            return values[0]  # what the engine makes of it is the engine's
        return data if data and _holds(data) else values[0]
    return _plain(values[0])


def _plain(text: str) -> Any:
    return int(text) if re.fullmatch(r"0|[1-9]\d{0,17}", text) else text


def _holds(data: Any, depth: int = 0) -> bool:
    """Whether all of it comes back as it was: null would remove a key of a lane, and infinity is no number of JSON."""
    if isinstance(data, Mapping | list):
        below = data.values() if isinstance(data, Mapping) else data
        return depth < DEEPEST and all(_holds(value, depth + 1) for value in below)
    return data is not None and not (isinstance(data, float) and abs(data) == float("inf"))


def counted(name: str, given: Sequence[str]) -> list[str]:
    """The words of a number with its unit worked out, so that 128K and 131072 are one."""
    try:
        return [str(of_variable(name, given))]
    except ValueError:
        return list(given)


def of_variable(name: str, values: Sequence[str]) -> Any:
    """The value of a variable of its own. ValueError where the text is none."""
    if name == "lane_served_model_name":
        return list(values)
    if len(values) != 1 or UNFILLED.search(values[0]):
        raise ValueError(" ".join(values) or "no value")
    text = values[0]
    if name in COUNTS:
        number = whole_number(text)
        if number < 1:
            raise ValueError(text)
        return number
    if name == "lane_gpu_memory_utilization":
        return float(text)
    return text if name in ("lane_kv_cache_dtype", "lane_api_host") else int(text)
