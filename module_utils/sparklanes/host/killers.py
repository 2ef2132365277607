# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Programs that end others when memory runs short: earlyoom, systemd-oomd, nohang. They know nothing of a lane that lives near the edge.

A rank that one of them ended exits with 143 and says nothing; only the journal does. So a launch warns where one is active, with the
limit from which it acts against what the lane is designed to leave free.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.commands import Run, ask
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.common.systemd import parse_shows

UNITS = ("earlyoom.service", "systemd-oomd.service", "nohang.service", "nohang-desktop.service")
EARLYOOM_DEFAULTS = "etc/default/earlyoom"
ACTIVE = ("active", "activating", "reloading")  # a unit that is not there is inactive
# earlyoom(1): it acts once both MemAvailable and free swap are at or below their percentage.
EARLYOOM_PERCENT = 10.0


def earlyoom_limits(text: str) -> dict[str, float | None]:
    """From /etc/default/earlyoom: memory percent or KiB below which it acts."""
    found: dict[str, float | None] = {"percent": EARLYOOM_PERCENT, "kib": None}
    for line in text.splitlines():
        if not line.strip().startswith("EARLYOOM_ARGS"):
            continue
        try:
            words = shlex.split(line.partition("=")[2])
            words = shlex.split(words[0]) if len(words) == 1 else words
        except ValueError:
            continue
        for name, key in (("-m", "percent"), ("-M", "kib")):
            for index, word in enumerate(words):
                value = words[index + 1] if word == name and index + 1 < len(words) else word[2:] if word.startswith(name) else ""
                if match := re.match(r"[0-9]+(?:\.[0-9]+)?", value):
                    found[key] = float(match[0])
    return found


def facts(root: Path, run: Run) -> dict[str, Any]:
    rc, out, err = ask(run, ["systemctl", "show", *UNITS, "--property=Id,ActiveState"])
    if rc != 0:
        return {"active": None, "error": (err or out).strip()[:200] or f"systemctl: exit {rc}"}
    try:
        text = (root / EARLYOOM_DEFAULTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    active = sorted(name for name, unit in parse_shows(out).items() if unit.get("ActiveState") in ACTIVE)
    return {"active": active, "error": "", "earlyoom": earlyoom_limits(text)}


def limit_gib(told: Mapping[str, Any], total_gib: float | None) -> float | None:
    """GiB of available memory from which earlyoom acts, None where it is not active or nobody knows."""
    if "earlyoom.service" not in (told.get("active") or []):
        return None
    limits = told.get("earlyoom") or {}
    if limits.get("kib") is not None:
        return float(limits["kib"]) * 1024 / GIB
    return total_gib * float(limits.get("percent") or EARLYOOM_PERCENT) / 100 if total_gib else None


def check(host: str, told: Mapping[str, Any] | None, left_gib: float | None = None, total_gib: float | None = None) -> Check:
    """HOST.MEMORY_KILLER. `left_gib`: what the lane leaves of `total_gib` once it serves, None where nobody measured it."""
    expected = "none is active"
    remedy = f"On {host}: sudo systemctl disable --now NAME, or exclude the ranks (earlyoom --avoid). A rank that it ends exits with 143."
    if not told or told.get("active") is None:
        said = (told or {}).get("error") or "it was not asked for"
        return Check(
            "HOST.MEMORY_KILLER",
            host,
            FAIL,
            f"not measured: {said}",
            expected,
            f"On {host}: systemctl status earlyoom systemd-oomd",
        )
    active = list(told["active"])
    if not active:
        return Check("HOST.MEMORY_KILLER", host, PASS, "no userspace memory killer is active")
    found = ", ".join(name.removesuffix(".service") for name in active)
    limit = limit_gib(told, total_gib)
    if limit is not None:
        found += f"; earlyoom acts below {limit:.1f} GiB of available memory with swap nearly full"
        if left_gib is not None:
            found += f", the lane is designed to leave {left_gib:.1f} GiB"
    return Check("HOST.MEMORY_KILLER", host, WARN, found, expected, remedy.replace("NAME", active[0]))
