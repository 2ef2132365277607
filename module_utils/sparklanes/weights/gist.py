# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a model is, in a page: its config.json and the names of its tensors, without their thousands of repetitions.

A list of a quantizer names each module of each layer. With every number in a name a `*`, some dozen names are left, which say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# A config is somebody else's file: no more of it than a person would read.
DEPTH, KEYS, ITEMS, LONG = 6, 300, 32, 300
NAMES = 400


def gist(config: Any, quantizer: Any, tensors: Iterable[str]) -> dict[str, Any]:
    """config: that of config.json. quantizer: that of hf_quant_config.json, which counts where config.json says nothing of quantization."""
    told = dict(config) if isinstance(config, Mapping) else {}
    other = quantizer.get("quantization") if isinstance(quantizer, Mapping) else None
    if "quantization_config" not in told and isinstance(other, Mapping):
        told["quantization_config"] = {"quant_method": "modelopt", **other}
    return {"config": _short(told, DEPTH), "tensors": shapes(tensors)[:NAMES]}


def shapes(names: Iterable[str]) -> list[str]:
    """The names with each whole number in them a `*`, each once."""
    return sorted({re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", "*", name)[:LONG] for name in names})


def _short(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(key)[:LONG]: _short(item, depth - 1) for key, item in list(value.items())[:KEYS]} if depth else {}
    if isinstance(value, list):
        if len(value) > ITEMS and all(isinstance(item, str) for item in value):
            return shapes(value)[:NAMES]
        return [_short(item, depth - 1) for item in value[:ITEMS]] if depth else []
    return (
        value[:LONG]
        if isinstance(value, str)
        else value
        if isinstance(value, bool | int | float) or value is None
        else str(value)[:LONG]
    )
