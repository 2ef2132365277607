# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A root path to read from, and the texts of sysfs as data.

A recorded tree can stand in for a node. What can't be read (EINVAL on an empty GID slot, EOPNOTSUPP
on a name the driver doesn't have) is absent, never an error.
"""
# os, not pathlib: a GID table has up to 1024 slots with three files each.
# ruff: noqa: PTH110, PTH118, PTH208

from __future__ import annotations

import ipaddress
import os
import re

IPv6Address = ipaddress.IPv6Address
_MAX_FILE = 65536
_GID = re.compile(r"([0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}")


def clean(text: str) -> str:
    """The text without surrogates, so that any name found on a node can stand in JSON."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number(value: object) -> int | None:
    """The integer at the start of a sysfs text (`4: ACTIVE` is 4), or None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 10**12 else None
    match = re.match(r"\s*(-?[0-9]{1,12})(?![0-9])", value) if isinstance(value, str) else None
    return int(match.group(1)) if match else None


class Tree:
    """A root path, read only. Every question has an answer: what can't be read is None or empty."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *(part.lstrip("/") for part in parts))

    def text(self, *parts: str, limit: int = _MAX_FILE) -> str | None:
        try:
            handle = os.open(self.path(*parts), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            data = os.read(handle, limit)
        except OSError:
            return None
        finally:
            os.close(handle)
        return data.decode("utf-8", "replace").strip(" \t\r\n")

    def names(self, *parts: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(*parts)))
        except (OSError, ValueError):
            return []

    def exists(self, *parts: str) -> bool:
        try:
            return os.path.exists(self.path(*parts))
        except ValueError:
            return False

    def real(self, *parts: str) -> str | None:
        """Where a link leads, relative to the root; None where it leads nowhere or out of it."""
        try:
            path = os.path.realpath(self.path(*parts), strict=True)
        except (OSError, ValueError):
            return None
        base = self.root.rstrip("/") + "/"
        return path[len(base) :] if path.startswith(base) else None


def parse_gid(text: str | None) -> IPv6Address | None:
    """A used GID, or None for an empty (all-zero) or unreadable slot."""
    if text is None or not _GID.fullmatch(text):
        return None
    value = int(text.replace(":", ""), 16)
    return IPv6Address(value) if value else None


def gid_text(address: IPv6Address) -> str:
    """A GID as the kernel writes it, eight groups of four digits. (Python 3.13 spells mapped addresses with an IPv4 tail.)"""
    digits = f"{int(address):032x}"
    return ":".join(digits[start : start + 4] for start in range(0, 32, 4))


def parse_gid_type(text: str | None) -> int | None:
    if text is None:
        return None
    if text.startswith(("IB/RoCE v1", "RoCE v1")):
        return 1
    return 2 if text.startswith("RoCE v2") else None


def parse_rate(text: str | None) -> float | None:
    """`200 Gb/sec (4X HDR)` is 200.0; lane and generation vary with the cable and say nothing."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", text or "")
    return float(match.group(1)) if match else None


def parse_conf(text: str | None) -> dict[str, str]:
    """nccl.conf as NCCL reads it: `NAME=value` lines, `#` only at a line's start, the first of a name wins."""
    settings: dict[str, str] = {}
    for line in (text or "").split("\n"):
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            settings.setdefault(clean(name), clean(value))
    return settings


def pci_key(leaf: str | None) -> int | None:
    """The number NCCL sorts a device by: the hex digits at the start of its path's last component."""
    digits = ""
    for char in leaf or "":
        if char in ".:":
            continue
        if char not in "0123456789abcdefABCDEF" or len(digits) == 16:
            break
        digits += char
    return int(digits, 16) if digits else (0 if leaf else None)
