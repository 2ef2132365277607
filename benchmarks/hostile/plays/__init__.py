# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is done in a hostile case, by kind: each play lays out its arena, lets the product work beside its adversary, and judges."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.hostile.cases import Play
from benchmarks.hostile.plays import archives, links, logs, names, neighbours, states, webs

PLAYS: Mapping[str, Play] = {
    name: play for module in (webs, neighbours, logs, names, archives, links, states) for name, play in module.PLAYS.items()
}
