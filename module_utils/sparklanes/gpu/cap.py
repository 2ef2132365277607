# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A cap of the GPU's clock that somebody set: ours, or of another unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible.module_utils.sparklanes.gpu.nvidia_smi import Gpu, integer

CAP_UNIT = "sparklanes-gpu-clock.service"
CAP_SETTINGS = "etc/sparklanes/gpu-clock.env"
# A clock that is sampled overshoots its lock by a few MHz at most: 2080 to 2086 were seen under 2100, 2184 to 2190 under 2200.
CAP_SLACK_MHZ = 30
_LOCK = re.compile(r"nvidia-smi\b[^\n]*?(?:-lgc|--lock-gpu-clocks)[=\s]+\"?(?P<low>\$?[\w{}]+)(?:,(?P<high>\$?[\w{}]+))?")


@dataclass(frozen=True)
class Cap:
    """A range of clocks that a unit locks the GPU to at boot. There is no way to ask the driver for it."""

    unit: str
    min_mhz: int
    max_mhz: int


def parse_settings(text: str) -> dict[str, str]:
    """KEY=value lines."""
    return {key.strip(): value.strip() for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def parse_cap(unit: str, text: str, settings: Mapping[str, str]) -> Cap | None:
    """The `nvidia-smi -lgc` in a unit file; a lone number locks to exactly it."""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")):
            continue
        match = _LOCK.search(line)
        if match:
            ends = [
                integer(settings.get(re.sub(r"\W", "", word), word) if word.startswith("$") else word)
                for word in (match["low"], match["high"] or match["low"])
            ]
            if ends[0] is not None and ends[1] is not None:
                return Cap(unit, ends[0], ends[1])
    return None


def cap_problems(min_mhz: int, max_mhz: int, power_w: float | None, gpus: Sequence[Gpu]) -> list[str]:
    """What makes this cap unusable on these GPUs, as sentences."""
    wrong = []
    top = max((gpu.max_sm_mhz or 0 for gpu in gpus), default=0) or 4000
    if not 300 <= max_mhz <= top:
        wrong.append(f"max_mhz: found {max_mhz}, expected 300 to {top}, the highest clock of this GPU")
    if not 0 <= min_mhz <= max_mhz:
        wrong.append(f"min_mhz: found {min_mhz}, expected 0 to max_mhz ({max_mhz})")
    if power_w is not None:
        limits = [gpu.default_power_limit_w for gpu in gpus]
        without = [gpu.name or "GPU" for gpu in gpus if gpu.default_power_limit_w is None]
        if without or not limits:
            wrong.append(
                f"power_limit_w: {', '.join(without) or 'this GPU'} has no power limit that could be set. Cap the clock alone"
            )
        elif not 1 <= power_w <= min(limit or 0 for limit in limits):
            wrong.append(
                f"power_limit_w: found {power_w:g}, expected 1 to {min(limit or 0 for limit in limits):g}, the default of this GPU"
            )
    return wrong


def cap_settings(min_mhz: int, max_mhz: int, power_w: float | None, default_w: str) -> str:
    """The environment file of our unit."""
    power = "" if power_w is None else f"{power_w:g}"
    return f"MIN_MHZ={min_mhz}\nMAX_MHZ={max_mhz}\nPOWER_W={power}\nDEFAULT_POWER_W={default_w if power else ''}\n"


def cap_contradiction(max_mhz: int, power_w: float | None, gpus: Sequence[Gpu]) -> str:
    """What these GPUs show that the cap forbids; empty where nothing does, which is no proof while they idle."""
    for gpu in gpus:
        if gpu.sm_mhz is None:
            return "the clock is not told"
        if gpu.sm_mhz > max_mhz + CAP_SLACK_MHZ:
            return f"the clock is {gpu.sm_mhz} MHz, above {max_mhz}"
        if power_w is not None and (gpu.power_limit_w is None or abs(gpu.power_limit_w - power_w) > 1):
            return f"the power limit reads {'nothing' if gpu.power_limit_w is None else f'{gpu.power_limit_w:g} W'}, not {power_w:g} W"
    return ""
