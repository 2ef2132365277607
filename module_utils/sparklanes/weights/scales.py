# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Quantization scales that can't be: zero, not finite, negative, or all the same.

Hashes prove that a file is what its publisher made. A quantizer that went wrong publishes zero or collapsed scales under
right hashes, and the engine then speaks nonsense. A seeded sample of scale tensors is read, a few KiB of each.

The values are judged by their bits: sign, exponent and "the same", for which no float is needed.
"""

from __future__ import annotations

import os
import random
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.sparklanes.weights.home import Home

# Of weights. Those of activations (input_scale, k_scale) are 1 where nothing was calibrated, but 0 is never one.
NAME = re.compile(r"(?:^|[._])(?:weight_scale(?:_inv|_2)?|weight_scales|scales|qscale)$")
INPUT = re.compile(r"(?:^|[._])input(?:_global)?_scale$")
# Element width and, where the type has them, masks: of the sign, of the magnitude, of what is not finite.
# F8_E4M3 has no infinity, and one code of not-a-number. F8_E8M0 is an exponent: never zero, 0xff is not-a-number.
BITS = {
    "F32": ("I", 0x80000000, 0x7FFFFFFF, 0x7F800000),
    "F16": ("H", 0x8000, 0x7FFF, 0x7C00),
    "BF16": ("H", 0x8000, 0x7FFF, 0x7F80),
    "F8_E4M3": ("B", 0x80, 0x7F, 0x7F),
    "F8_E5M2": ("B", 0x80, 0x7F, 0x7C),
    "F8_E8M0": ("B", 0, 0, 0xFF),
}
READ = 4096
# So many groups with the very same largest weight do not happen by chance: BF16 keeps 8 bits of it, E4M3 4 bits.
SAME = 64


@dataclass(frozen=True)
class Scale:
    """Where one scale tensor lies in its file."""

    file: str
    name: str
    dtype: str
    begin: int  # in the file
    end: int


def choose(scales: Sequence[Scale], count: int, seed: int = 0) -> list[Scale]:
    """A sample, the same at each run and on each Spark."""
    return random.Random(seed).sample(list(scales), count) if len(scales) > count else list(scales)


def judge(dtype: str, data: bytes, alike: bool = True) -> str:
    """What is wrong with these values, or nothing. alike: many that are all the same are wrong too."""
    code, sign, magnitude, infinite = BITS[dtype]
    values = array(code)
    values.frombytes(data[: len(data) - len(data) % values.itemsize])
    if not values:
        return ""
    kinds = set(values)
    if magnitude and any(value & magnitude == 0 for value in kinds):
        zeros = sum(1 for value in values if value & magnitude == 0)
        return f"{zeros} of {len(values)} values are zero"
    if any(value & infinite == infinite for value in kinds):
        return "not a finite number"
    if sign and any(value & sign for value in kinds):
        return "a negative value"
    if alike and len(kinds) == 1 and len(values) >= SAME:
        return f"{len(values)} values that are all the same"
    return ""


def read(folder: Path, scale: Scale, seed: int = 0) -> bytes:
    """A piece of the tensor, from a place that depends on its name only."""
    width = array(BITS[scale.dtype][0]).itemsize
    size = scale.end - scale.begin
    room = max(0, size - READ) // width
    at = scale.begin + width * random.Random(f"{seed} {scale.name}").randint(0, room)
    with Home(folder) as home:
        descriptor = home.open(scale.file)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        data = os.pread(descriptor, min(size, READ), at)
        os.posix_fadvise(descriptor, at, READ, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return data
