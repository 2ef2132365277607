# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Sizes as people and Docker write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def size_bytes(text: str | int | None) -> int:
    """Docker's spelling of a size (`2g`, `64m`, `10gb`, 1024) in bytes; 0 for none."""
    if text is None or text == "":
        return 0
    match = _SIZE.fullmatch(str(text).strip())
    if not match or len(match["number"]) > 20:  # more digits than a size has
        raise ValueError(f"size {text!r}: expected a number with an optional unit k, m, g or t")
    return int(float(match["number"]) * _UNITS[match["unit"].lower()])
