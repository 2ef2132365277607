# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The nearest known name, for messages about mistyped ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None where none is near."""
    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean x?` or an empty text."""
    best = nearest(name, known)
    return f"Did you mean {best}?" if best else ""
