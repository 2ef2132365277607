# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One figure of a benchmark: a line of JSON on standard output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A measured number and the most it may be; no aim: it is only told. No value: it could not be measured, which is not ok."""

    figure: str
    value: float | None
    unit: str
    aim: float | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.value is not None and (self.aim is None or self.value <= self.aim)

    def line(self) -> str:
        data: dict[str, Any] = {"figure": self.figure, "value": self.value, "unit": self.unit, "aim": self.aim, "ok": self.ok}
        return json.dumps(data | ({"note": self.note} if self.note else {}))


def emit(figure: Figure) -> bool:
    """Print it at once; whether it is ok."""
    print(figure.line(), flush=True)
    return figure.ok
