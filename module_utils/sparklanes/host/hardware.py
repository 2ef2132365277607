# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Quantities of a Spark that nobody reads until a rank is slow: the limit of the processors' clock, errors that the links counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import PASS, WARN, Check

# Of a link, since the boot: each is a frame or symbol that came damaged, so any is one too many. Timeouts and repetitions are left
# out: a rank that was killed leaves them on a healthy cable.
NET_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "tx_carrier_errors")
PORT_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def clocks(root: Path) -> list[dict[str, Any]]:
    """Per group of processors its highest clock and the limit that is set, in kHz (sysfs of cpufreq); empty where there is no scaling."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    return [
        {"name": one.name, "max_khz": _number(one / "cpuinfo_max_freq"), "limit_khz": _number(one / "scaling_max_freq")}
        for one in sorted(folder.glob("policy*"))
    ]


def link_errors(root: Path) -> dict[str, dict[str, int]]:
    """Errors of RDMA devices and of their network devices, those that are not zero: {device: {counter: number}}."""
    found: dict[str, dict[str, int]] = {}
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        for port in sorted(device.glob("ports/*")):
            _keep(found, device.name, port / "counters", PORT_COUNTERS)
        for net in sorted(device.glob("device/net/*")):
            _keep(found, net.name, root / "sys/class/net" / net.name / "statistics", NET_COUNTERS)
    return found


def _keep(found: dict[str, dict[str, int]], name: str, folder: Path, counters: Sequence[str]) -> None:
    told = {counter: number for counter in counters if (number := _number(folder / counter))}
    if told:
        found[name] = {**found.get(name, {}), **told}


def clock_check(host: str, told: Sequence[Mapping[str, Any]] | None) -> Check | None:
    """HOST.CPU_CLOCK: no limit below what the processors can do. None where the kernel does not scale their clock."""
    if not told:
        return None
    remedy = (
        f"On {host}: cpupower frequency-info; who set scaling_max_freq (a power profile, tuned, thermald, a script)? "
        "A rank that schedules at half the clock slows all."
    )
    unknown = [one["name"] for one in told if not one.get("max_khz") or not one.get("limit_khz")]
    low = [one for one in told if one["name"] not in unknown and one["limit_khz"] < one["max_khz"]]
    if not low and not unknown:
        return Check("HOST.CPU_CLOCK", host, PASS, f"up to {max(one['max_khz'] for one in told) / 1e6:.2f} GHz")
    found = [f"{one['name']}: {one['limit_khz'] / 1e6:.2f} of {one['max_khz'] / 1e6:.2f} GHz" for one in low]
    found += [f"{', '.join(unknown)}: not told"] if unknown else []
    return Check("HOST.CPU_CLOCK", host, WARN, "; ".join(found), "no limit below the highest clock", remedy)


def link_check(host: str, told: Mapping[str, Mapping[str, int]] | None) -> Check | None:
    """HOST.LINK_ERRORS: no damaged frames since the boot. None where there is no RDMA device."""
    if told is None:
        return None
    found = "; ".join(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in one.items()) for name, one in told.items())
    if not found:
        return Check("HOST.LINK_ERRORS", host, PASS, "the links counted no errors")
    remedy = f"On {host}: ethtool -S NAME. If they grow under load (playbooks/fabric_test.yml), reseat or replace the cable."
    return Check("HOST.LINK_ERRORS", host, WARN, found, "none", remedy)
