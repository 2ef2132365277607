# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""SHA256SUMS, as `sha256sum` writes and checks it: what one machine writes, another reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ansible.module_utils.sparklanes.common.files import below

SUMS = "SHA256SUMS"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def write(sums: Mapping[str, str]) -> str:
    """The text of a list: hash, two blanks, name. ValueError for a name or a hash that no reader would take."""
    for name, digest in sums.items():
        if not _SHA256.fullmatch(digest):
            raise ValueError(f"{name}: {digest!r:.80} is no sha256")
        plain(name)
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def read(text: str) -> dict[str, str]:
    """Name → sha256. The marks of text and binary are alike, comments are passed over. ValueError for any other line.

    `sha256sum` writes a name with a backslash or a line break in it escaped; such names are refused.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        digest, mark, name = line[:64].lower(), line[64:66], line[66:]
        if not _SHA256.fullmatch(digest) or mark not in ("  ", " *"):
            raise ValueError(f"{SUMS} holds a line that is none: {line[:80]!r}")
        found[plain(name.removeprefix("./"))] = digest
    return found


def plain(name: str) -> str:
    """A name that can stand in a list: it stays below its folder, and sha256sum takes it as it is. ValueError for any other."""
    if "\\" in name or name == "-":  # which is escaped, or its own input
        raise ValueError(f"{name!r} is a name that sha256sum reads otherwise")
    return below(name)
