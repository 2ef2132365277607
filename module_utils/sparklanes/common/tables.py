# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

BETWEEN = "  "
NARROWEST = 30  # of a last cell that is wrapped


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = (), least: Sequence[int] = (), width: int = 0) -> list[str]:
    """The rows as lines, their cells under each other. Rows may end early.

    right: places of columns that are flush right. least: widths that columns have at least. width: of a line; the last cell of a
    full row is wrapped within it, below itself (0: never).
    """
    count = max((len(row) for row in rows), default=0)
    sizes = [max([*least[place : place + 1], *(len(row[place]) for row in rows if place < len(row))]) for place in range(count)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(size) if place in right else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, sizes, strict=False))
        ]
        if width and len(row) == count:
            head = BETWEEN.join(cells[:-1])
            before = len(head) + len(BETWEEN) if count > 1 else 0
            first, *more = textwrap.wrap(row[-1], max(NARROWEST, width - before)) or [""]
            lines.append(BETWEEN.join([*cells[:-1], first]).rstrip())
            lines += [" " * before + line for line in more]
        else:
            lines.append(BETWEEN.join(cells).rstrip())
    return lines
