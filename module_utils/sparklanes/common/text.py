# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Text of others on its way to a person's terminal: on one line, short, and without anything that moves a cursor or turns a direction."""

from __future__ import annotations

import re

# ECMA-48: control sequences (colours, cursor; also with the one-character introducer), strings up to their end (titles, links, the
# clipboard) or that of their line, other escapes.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[ -/]{0,8}[0-~]?"
)


def said(text: object, width: int = 300) -> str:
    r"""A text of somebody else on one line of at most `width` characters, fit to be shown.

    What is not printable goes: controls, what turns the direction of a line or shows nothing, breaks of lines that no split by \n sees.
    """
    flat = " ".join(ESCAPES.sub("", str(text)[: 16 * width]).split())
    if not flat.isprintable():
        flat = "".join(one for one in flat if one.isprintable())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
