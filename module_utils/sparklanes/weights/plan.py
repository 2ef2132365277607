# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What staging would do, and how long it will take at the speed of last time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.common.sizes import human_bytes, human_time
from ansible.module_utils.sparklanes.weights.standing import Standing

LEAST_FOR_A_RATE = 64 << 20
RATES = "rates.json"


@dataclass(frozen=True)
class Speed:
    """What a plan expects, in bytes a second: of the last job on this Spark, and a limit. Zero: not known, none."""

    read: float = 0.0
    fetch: float = 0.0
    limit: float = 0.0
    read_limit: float = 0.0  # where reading has one of its own

    def duration(self, to_read: int, to_fetch: int) -> str:
        """How long it will take, as far as that is known."""
        seconds, known, measured = 0.0, True, True
        for count, rate, limit in ((to_read, self.read, self.read_limit or self.limit), (to_fetch, self.fetch, self.limit)):
            if count:
                at = min(rate or limit, limit or rate)
                known, measured = known and at > 0, measured and rate > 0
                seconds += count / at if at else 0.0
        if not known:
            return "time not known yet: nothing was measured here"
        return (
            f"about {human_time(seconds)} at the rate of last time"
            if measured
            else f"{human_time(seconds)} or more, by the limit"
        )


def plan(standings: Sequence[Standing], source: str, free: Callable[[str], int], speed: Speed = Speed()) -> list[str]:
    """What staging would do, in sentences."""
    lines = []
    for one in standings:
        origin = "its folder" if one.model.in_place else source
        name = f"{one.model.name} ({one.model.path})"
        if one.staged:
            lines.append(f"{name}: complete, nothing to do")
            continue
        room = f"; {human_bytes(free(one.model.path))} free"
        if one.missing_bytes is None:
            lines.append(f"{name}: take {one.model.repo or 'it'} from {origin}, size not known yet{room}")
            continue
        steps = []
        if one.unread_bytes:
            steps.append(f"read {human_bytes(one.unread_bytes)} that is there")
        if one.missing_bytes:
            steps.append(f"take {human_bytes(one.missing_bytes)} from {origin}")
        there = f"; {human_bytes(one.verified_bytes)} of {human_bytes(one.bytes)} verified" if one.verified_bytes else ""
        last = f"; {speed.duration(one.unread_bytes, one.missing_bytes)}" if steps else ""
        lines.append(f"{name}: {' and '.join(steps) or 'finish'}{there}{room}{last}")
    return lines


def note_rate(root: Path, what: str, count: int, seconds: float) -> None:
    """Remember how fast this Spark reads (`read`), fetches (`fetch`) or takes from the chain (`chain`), for the next plan."""
    if count >= LEAST_FOR_A_RATE and seconds > 0:
        with contextlib.suppress(OSError):
            write_json(root / RATES, {**(read_json(root / RATES) or {}), what: round(count / seconds)}, 0o644)


def speed_of(root: Path, source: str, limit: float, read_limit: float = 0.0) -> Speed:
    rates = read_json(root / RATES) or {}
    try:
        fetch = "chain" if source == "chain" else "fetch"
        return Speed(float(rates.get("read", 0)), float(rates.get(fetch, 0)), limit, read_limit)
    except (TypeError, ValueError):
        return Speed(limit=limit, read_limit=read_limit)
