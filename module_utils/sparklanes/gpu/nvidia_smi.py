# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi prints, as data: values, reasons of clocks, processes, the XML report, CSV.

A GB10 leaves much open: memory, power limit and memory clock are `[N/A]`, a process is listed once as C and once as G.
What is not told is None here and never an error, whatever the driver's release calls it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import nvidia_bytes

_NUMBER = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z%]*)")
_UNTOLD = re.compile(
    r"[\[<(]?\s*(?:n/?a|not supported|not available|not found|unknown(?: error)?|insufficient permissions?|err!|requested functionality has been deprecated|)\s*[\])>]?",
    re.IGNORECASE,
)
# nvml.h: nvmlClocksEventReasons (before driver 535: nvmlClocksThrottleReasons), the same bits.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
# Somebody's wish, or rest. The others hold back a GPU that has work.
WISHED = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting"}
_REASON_TAG = re.compile(r"clocks_(?:event|throttle)_reason_(\w+)")
_OLD_REASONS = {"user_defined_clocks": "applications_clocks_setting", "display_clock_setting": "display_clocks_setting"}


def told(text: str | None) -> str | None:
    """The text without its edges; None for `[N/A]`, `[Not Supported]`, `Insufficient Permissions` and the like."""
    return None if text is None or _UNTOLD.fullmatch(text.strip()) else text.strip()


def number(text: str | None) -> float | None:
    """`45.20 W`, `2405 MHz`, `96 %` → the number."""
    match = _NUMBER.match(text or "")
    return float(match[1]) if match else None


def integer(text: str | None) -> int | None:
    value = number(text)
    return None if value is None else round(value)


def reasons(mask: str | None) -> list[str] | None:
    """The names in `0x0000000000000004` of `clocks_event_reasons.active`; bits without a name keep their number."""
    match = re.fullmatch(r"\s*0[xX]([0-9a-fA-F]{1,16})\s*", mask or "")
    if not match:
        return None
    bits = int(match[1], 16)
    names = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return [*names, hex(rest)] if rest else names


@dataclass(frozen=True)
class Process:
    """A process on the GPU. `types` is C (compute), G (graphics) or C+G; None where it isn't told."""

    pid: int | None
    name: str
    types: str | None
    memory_bytes: int | None

    @property
    def computes(self) -> bool:
        """One of unknown type counts: it may well be a rank."""
        return self.types is None or "C" in self.types.split("+")


def once(processes: Sequence[Process]) -> list[Process]:
    """Each process once: the same pid comes as C and as G, and with several GPUs from each."""
    merged: dict[object, Process] = {}
    for index, process in enumerate(processes):
        key = ("unknown", index) if process.pid is None else process.pid
        seen = merged.get(key)
        if seen is None:
            merged[key] = process
            continue
        types = None if None in (seen.types, process.types) else {*str(seen.types).split("+"), *str(process.types).split("+")}
        known = [one.memory_bytes for one in (seen, process) if one.memory_bytes is not None]
        merged[key] = Process(
            process.pid, seen.name or process.name, None if types is None else "+".join(sorted(types)), max(known, default=None)
        )
    return list(merged.values())


@dataclass(frozen=True)
class Gpu:
    """One GPU. None is untold."""

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    vbios: str | None = None
    performance_state: str | None = None
    persistence_mode: bool | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    memory_mhz: int | None = None
    application_mhz: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    throttle_reasons: list[str] | None = None
    recovery_action: str | None = None
    processes: list[Process] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """What one call of `nvidia-smi -q -x` told; `error` says why it told nothing."""

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[Gpu] = field(default_factory=list)
    error: str = ""

    @property
    def processes(self) -> list[Process] | None:
        """Of all GPUs, each once. None where one of them does not tell: then nothing is known to be idle."""
        lists = [gpu.processes for gpu in self.gpus]
        if not lists or any(one is None for one in lists):
            return None
        return once([process for one in lists for process in one or []])


def _text(node: ET.Element, *paths: str) -> str | None:
    """The first of these elements that tells something; releases moved and renamed them."""
    for path in paths:
        found = told(node.findtext(path))
        if found is not None:
            return found
    return None


def _reasons(node: ET.Element) -> list[str] | None:
    found: list[str] = []
    any_told = False
    for parent in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for child in node.find(parent) if node.find(parent) is not None else ():  # type: ignore[union-attr]
            match = _REASON_TAG.fullmatch(child.tag)
            state = told(child.text)
            if match and state is not None:
                any_told = True
                if state.lower() == "active":
                    found.append(_OLD_REASONS.get(match[1], match[1]))
    return found if any_told else None


def _processes(node: ET.Element) -> list[Process] | None:
    parent = node.find("processes")
    if parent is None or (len(parent) == 0 and (parent.text or "").strip()):
        return None  # left out, or `N/A`: not the same as an empty list
    return once(
        [
            Process(
                integer(told(entry.findtext("pid"))),
                entry.findtext("process_name", "").strip(),
                told(entry.findtext("type")),
                nvidia_bytes(told(entry.findtext("used_memory"))),
            )
            for entry in parent.iter("process_info")
        ]
    )


def _gpu(index: int, node: ET.Element) -> Gpu:
    persistence = _text(node, "persistence_mode")
    return Gpu(
        index=index,
        name=_text(node, "product_name"),
        uuid=_text(node, "uuid"),
        bus_id=told(node.get("id")),
        vbios=_text(node, "vbios_version"),
        performance_state=_text(node, "performance_state", "gpu_power_readings/power_state", "power_readings/power_state"),
        persistence_mode=None if persistence is None else persistence.lower() == "enabled",
        power_w=number(
            _text(
                node,
                "gpu_power_readings/instant_power_draw",
                "gpu_power_readings/power_draw",
                "gpu_power_readings/average_power_draw",
                "power_readings/power_draw",
            )
        ),
        power_limit_w=number(
            _text(node, "gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit", "power_readings/power_limit")
        ),
        default_power_limit_w=number(_text(node, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
        sm_mhz=integer(_text(node, "clocks/sm_clock", "clocks/graphics_clock")),
        max_sm_mhz=integer(_text(node, "max_clocks/sm_clock", "max_clocks/graphics_clock")),
        memory_mhz=integer(_text(node, "clocks/mem_clock")),
        application_mhz=integer(_text(node, "applications_clocks/graphics_clock")),
        utilization_percent=integer(_text(node, "utilization/gpu_util")),
        temperature_c=integer(_text(node, "temperature/gpu_temp")),
        memory_total_bytes=nvidia_bytes(_text(node, "fb_memory_usage/total")),
        memory_used_bytes=nvidia_bytes(_text(node, "fb_memory_usage/used")),
        throttle_reasons=_reasons(node),
        recovery_action=_text(node, "gpu_recovery_action"),
        processes=_processes(node),
    )


def parse_xml(text: str) -> Report:
    """The output of `nvidia-smi -q -x`."""
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        return Report(error=f"nvidia-smi -q -x printed no XML ({error}): {' '.join(text.split())[:120] or 'nothing'}")
    gpus = [_gpu(index, node) for index, node in enumerate(root.iter("gpu"))]
    return Report(
        driver_version=_text(root, "driver_version"),
        cuda_version=_text(root, "cuda_version"),
        gpus=gpus,
        error="" if gpus else "nvidia-smi lists no GPU",
    )


def parse_csv(text: str, fields: Sequence[str] = ()) -> list[dict[str, str | None]]:
    """Rows by field. Without `fields` the first line names them (`power.draw [W]`, unit dropped).

    nvidia-smi quotes nothing: a line with more cells than fields keeps the surplus in `process_name`, or else in the last one.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    names = list(fields)
    if not names and rows:
        names = [re.sub(r"\s*\[[^\]]*\]\s*$", "", cell) for cell in rows.pop(0)]
    made = []
    for cells in rows:
        surplus = len(cells) - len(names)
        if surplus < 0 or not names:
            continue  # a message, not a row
        wide = names.index("process_name") if "process_name" in names else len(names) - 1
        cells = [*cells[:wide], ", ".join(cells[wide : wide + surplus + 1]), *cells[wide + surplus + 1 :]]
        made.append({name: told(cell) for name, cell in zip(names, cells, strict=True)})
    return made


COMPUTE_APPS = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")


def parse_compute_apps(text: str) -> list[Process]:
    """What `COMPUTE_APPS` prints, also with nounits."""
    return once(
        [
            Process(integer(row["pid"]), row["process_name"] or "", "C", nvidia_bytes(row["used_memory"]))
            for row in parse_csv(text, ("pid", "process_name", "used_memory"))
        ]
    )
