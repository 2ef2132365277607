# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Text of others on its way to a person's terminal: on one line, short, and without anything that moves a cursor or turns a direction."""

from __future__ import annotations

import re
import unicodedata

# Escape sequences of a terminal: colours and cursor (CSI), titles and the clipboard (OSC, with what they carry), two-character ones.
_ESCAPES = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|[\x1b][\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|\x1b[ -/]?[0-~]")
# Cc: controls, C1 too. Cf: what turns the direction or shows nothing. Zl, Zp: line breaks that no split by \n sees. Co, Cs: no characters.
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Co", "Cs"})


def said(text: object, width: int = 300) -> str:
    """A text of somebody else on one line of at most `width` characters, fit to be shown."""
    bare = _ESCAPES.sub("", str(text)[: 16 * width])
    flat = " ".join(
        "".join(
            " " if one.isspace() else one for one in bare if one.isspace() or unicodedata.category(one) not in _UNSEEN
        ).split()
    )
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
