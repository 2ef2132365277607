# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The accounting of a safetensors checkpoint: what its headers and its index promise, against the files' sizes.

No tensor data is read. A shard is an 8-byte little-endian length, that many bytes of JSON, then the data. Every
byte of the data must belong to exactly one tensor: byte ranges that tile the rest of the file show a truncated or
padded file, a hole and two names for the same bytes, with nothing but the header read.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.weights.home import Home
from ansible.module_utils.sparklanes.weights.scales import BITS as SCALE_BITS
from ansible.module_utils.sparklanes.weights.scales import INPUT as INPUT_NAME
from ansible.module_utils.sparklanes.weights.scales import NAME as SCALE_NAME
from ansible.module_utils.sparklanes.weights.scales import Scale, choose

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
# The format's own limit: a longer header is refused by its reader too.
MAX_HEADER = 100_000_000
# How many scale tensors of a shard may come into the sample.
SCALES_A_SHARD = 64
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class Problem:
    """Something about one file that is not as promised."""

    file: str
    found: str
    expected: str


@dataclass
class Shard:
    """What one header says. `names` is empty where the header could not be read."""

    file: str
    size: int
    names: list[str] = field(default_factory=list)
    tensor_bytes: int = 0
    dtypes: set[str] = field(default_factory=set)
    scales: list[Scale] = field(default_factory=list)  # a sample of those of its weights
    input_scales: list[Scale] = field(default_factory=list)  # and of those of activations
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Account:
    """A whole checkpoint."""

    shards: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    file_bytes: int = 0
    dtypes: list[str] = field(default_factory=list)
    # Each tensor and its file.
    where: dict[str, str] = field(default_factory=dict)
    scales: list[Scale] = field(default_factory=list)
    input_scales: list[Scale] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    # What publishers get wrong and no engine reads.
    notes: list[Problem] = field(default_factory=list)


def header_length(first: bytes, size: int) -> int | None:
    """The length of the JSON header from a file's first 8 bytes, or None where it cannot be one."""
    if len(first) < 8:
        return None
    length = int(struct.unpack("<Q", first[:8])[0])
    return length if 0 < length <= MAX_HEADER and 8 + length <= size else None


def parse_shard(file: str, size: int, header: bytes) -> Shard:
    """Account for one shard of `size` bytes from its JSON header."""
    shard = Shard(file, size)
    try:
        entries = json.loads(header)
        if not isinstance(entries, dict):
            raise ValueError("not an object")
        entries.pop("__metadata__", None)
        spans = []
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            spans.append((int(begin), int(end), name, str(entry["dtype"]), int(math.prod(entry["shape"]))))
        spans.sort()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        shard.problems.append(Problem(file, f"an unreadable header ({type(error).__name__}: {error})", "a safetensors header"))
        return shard
    # A JSON reader keeps the last of two equal keys. Only the count of entries shows that there were two.
    written = header.count(b'"data_offsets"')
    if written > len(entries):
        shard.problems.append(Problem(file, f"{written - len(entries)} names twice", "each name once"))
    at = 0
    for begin, end, name, dtype, elements in spans:
        bits = BITS.get(dtype)
        if bits is None:
            shard.problems.append(Problem(file, f"tensor {name} of unknown type {dtype}", "a known type"))
        elif (end - begin) * 8 != elements * bits:
            shard.problems.append(Problem(file, f"{end - begin} bytes for tensor {name}", f"{-(-elements * bits // 8)} bytes"))
        if begin != at:
            kind = "a hole" if begin > at else "an overlap"
            shard.problems.append(Problem(file, f"{kind} before tensor {name} at byte {begin}", f"byte {at}"))
        at = max(at, end)
        shard.dtypes.add(dtype)
    promised = 8 + len(header) + at
    if promised != size:
        shard.problems.append(Problem(file, f"{size:,} bytes", f"{promised:,} bytes by its own header"))
    shard.names = list(entries)
    shard.tensor_bytes = at
    if not shard.problems:
        data = 8 + len(header)
        found = [
            Scale(file, name, dtype, data + begin, data + end)
            for begin, end, name, dtype, _ in spans
            if "scale" in name and end > begin and dtype in SCALE_BITS and (SCALE_NAME.search(name) or INPUT_NAME.search(name))
        ]
        shard.scales = choose([scale for scale in found if not INPUT_NAME.search(scale.name)], SCALES_A_SHARD)
        shard.input_scales = choose([scale for scale in found if INPUT_NAME.search(scale.name)], SCALES_A_SHARD)
    return shard


def parse_index(text: bytes) -> tuple[dict[str, str], int | None, list[Problem]]:
    """(tensor → file, declared bytes of all tensors or None, problems) of an index file."""
    try:
        index: Any = json.loads(text)
        weight_map = index["weight_map"]
        if not weight_map or not all(isinstance(file, str) for file in weight_map.values()):
            raise ValueError("weight_map maps nothing")
        total = (index.get("metadata") or {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, None, [Problem(INDEX, f"an unreadable index ({type(error).__name__}: {error})", "a weight_map")]
    return weight_map, int(total) if isinstance(total, int | float) else None, []


def account(shards: Iterable[Shard], index: bytes | None, known: Iterable[str] = ()) -> Account:
    """Compare all shards with the index.

    `known` are files that a manifest lists: a shard that the index does not use is a second copy of tensors
    which an engine might load, unless whoever published the checkpoint put it there.
    """
    result = Account()
    listed: Mapping[str, str] = {}
    declared: int | None = None
    if index is not None:
        listed, declared, result.problems = parse_index(index)
    used = set(listed.values())
    expected_extra = set(known)
    where: dict[str, str] = {}
    seen: set[str] = set()
    readable: set[str] = set()
    dtypes: set[str] = set()
    for shard in shards:
        result.shards += 1
        result.file_bytes += shard.size
        result.problems += shard.problems
        seen.add(shard.file)
        if shard.names:
            readable.add(shard.file)
        dtypes |= shard.dtypes
        result.scales += shard.scales
        result.input_scales += shard.input_scales
        if used and shard.file not in used:
            if shard.file not in expected_extra:
                result.problems.append(Problem(shard.file, "a shard that the index does not name", f"only {INDEX}'s"))
            continue
        result.tensors += len(shard.names)
        result.tensor_bytes += shard.tensor_bytes
        for name in shard.names:
            other = where.setdefault(name, shard.file)
            if other != shard.file:
                result.problems.append(Problem(shard.file, f"tensor {name}, also in {other}", "each tensor once"))
            elif used and listed.get(name) != shard.file:
                told = listed.get(name, "no shard")
                result.problems.append(Problem(shard.file, f"tensor {name}", f"it in {told} by {INDEX}"))
    result.dtypes = sorted(dtypes)
    result.where = where
    for file in sorted(used - seen):
        result.problems.append(Problem(file, "no such file", f"a shard named by {INDEX}"))
    absent = [name for name, file in listed.items() if name not in where and file in readable]
    for name in absent[:5]:
        result.problems.append(Problem(listed[name], f"no tensor {name}", f"it here by {INDEX}"))
    if len(absent) > 5:
        result.problems.append(Problem(INDEX, f"{len(absent)} tensors in no shard", "each in its shard"))
    if declared is not None and not result.problems and declared != result.tensor_bytes:
        found = f"total_size {declared:,}"
        result.notes.append(Problem(INDEX, found, f"{result.tensor_bytes:,}, the sum of all tensors"))
    return result


def read_header(home: Home, file: str) -> Shard:
    """Read one shard's header, leaving as little as possible in the page cache."""
    descriptor = home.open(file)
    try:
        size = os.fstat(descriptor).st_size
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        length = header_length(os.pread(descriptor, 8, 0), size)
        if length is None:
            bad = Problem(file, f"no safetensors header in {size:,} bytes", "a safetensors file")
            return Shard(file, size, problems=[bad])
        header = b""
        while len(header) < length and (block := os.pread(descriptor, length - len(header), 8 + len(header))):
            header += block
        return parse_shard(file, size, header)
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def scan(folder: Path, known: Iterable[str] = ()) -> Account:
    """Account for the checkpoint in a folder."""
    with Home(folder) as home:
        with os.scandir(home.top) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX) and home.has(entry.name))
        text = home.read(INDEX) if home.has(INDEX) else None
        result = account((read_header(home, name) for name in files), text, known)
    if not files:
        result.problems.append(Problem(f"*{SUFFIX}", "no shard", "at least one"))
    return result
