# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Sizes as Docker, engines, nvidia-smi and people write them."""

from __future__ import annotations

import re
from typing import Any

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
NO_LIMIT = -1  # of Docker: swap without end

_DOCKER = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)i?b?", re.IGNORECASE)
_DOCKER_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}  # binary, whatever they are called
_EXACT_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": KIB, "mib": MIB, "gib": GIB}


def size_bytes(text: str | int | None) -> int:
    """Docker's spelling of a size (`2g`, `64m`, `10gb`, 1024) in bytes; 0 for none, `NO_LIMIT` for -1, ValueError for what Docker refuses."""
    if text is None or text == "":
        return 0
    if str(text).strip() == str(NO_LIMIT):
        return NO_LIMIT
    match = _DOCKER.fullmatch(str(text).strip())
    if not match or len(match["number"]) > 20:  # more digits than a size has
        raise ValueError(f"size {text!r}: expected a number with an optional unit k, m, g or t")
    return int(float(match["number"]) * _DOCKER_UNITS[match["unit"].lower()])


def size_or_none(text: Any) -> int | None:
    """`size_bytes` for who only reads: None where it is no size, which somebody else's check says."""
    try:
        return size_bytes(text)
    except ValueError:
        return None


def exact_bytes(text: str) -> int:
    """Bytes from `8GiB`, `7 GB` or a plain number. One letter is refused: the engine and Docker read it differently."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2].lower() if match else ""
    if not match or unit not in _EXACT_UNITS:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with KiB, MiB, GiB, kB, MB or GB")
    size = float(match[1]) * _EXACT_UNITS[unit] if "." in match[1] else int(match[1]) * _EXACT_UNITS[unit]
    if isinstance(size, float) and not size.is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


_NVIDIA = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z%]*)")


def nvidia_bytes(text: str | None) -> int | None:
    """`69564 MiB` → bytes; None where no number is told. nvidia-smi leaves the unit out with `nounits`, and then means MiB."""
    match = _NVIDIA.match(text or "")
    return round(float(match[1]) * {"b": 1, "kib": KIB, "gib": GIB}.get(match[2].lower(), MIB)) if match else None


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_time(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
