# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the kernel log tells of a Spark's hardware and memory, beside the Xids (`gpu.xid`): what each line means.

`parse` takes the text of `common.journal.kernel`, of any time. What a kind means, how bad it is and what to do stands in KINDS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import journal
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, SKIP, WARN, Check
from ansible.module_utils.sparklanes.common.commands import Run

_TEXT_BYTES = 300  # of a line that is kept
_LINE_BYTES = 2048  # of a line that is read: more is nobody's message


@dataclass(frozen=True)
class Kind:
    """One kind of line. `status`: how a launch takes it where it was written since the boot.

    cause: the id of a rank's end that it explains. grave: where it was written while a rank ran that failed, a person looks before
    anything starts again (hardware or memory).
    """

    name: str
    pattern: str
    status: str
    what: str
    remedy: str
    cause: str = ""
    grave: bool = True


_LOOK = "journalctl --dmesg --boot"
KINDS = (
    Kind("gpu_init", r"NVRM:.*RmInitAdapter failed", FAIL, "the driver could not initialise the GPU",
         "Reboot the Spark. If it comes back: the open kernel modules of this driver, power off for a minute, then NVIDIA's support"),
    Kind("gpu_lost", r"NVRM:.*(?:GPU has fallen off the bus|GPU (?:is )?lost|GPU at PCI:\S+ is lost)", FAIL, "the GPU was lost",
         "Power the Spark off for a minute; a warm reboot may not bring it back"),
    Kind("driver_mismatch", r"NVRM:.*API mismatch", WARN, "a program with the libraries of another driver version asked for the GPU",
         "Where nvidia-smi fails too, the driver was updated without a reboot: reboot. Else it was a container with libraries of its own",
         grave=False),
    Kind("pcie_fatal", r"(?:AER:|PCIe Bus Error:).*Uncorrect(?:ed|able) \(Fatal\)", FAIL, "an uncorrectable fatal PCIe error",
         "Which device is in the line. Reseat or power off for a minute; if it comes back, the device is broken", "pcie_error"),
    Kind("pcie", r"(?:AER:|PCIe Bus Error:).*Uncorrect(?:ed|able)(?! \(Fatal\))", WARN, "an uncorrectable PCIe error",
         "Which device is in the line. One that comes back under load is the first suspect of a rank that dies", "pcie_error"),
    Kind("hardware", r"\[Hardware Error\]: event severity: (?:fatal|recoverable)|EDAC .*\bUE\b|Uncorrected hardware memory error|"
         r"Memory failure: 0x", FAIL, "the firmware reported a hardware error",
         "Memory or processor of this Spark: run the vendor's diagnostics before a lane does", "hardware_error"),
    Kind("nic_recovery", r"mlx5_core.*(?:[Hh]ealth issue|health compromised|[Ff]atal error|recovery (?:flow|failed|succeeded)|"
         r"health recovery|firmware over temp|enter(?:ing)? error state|device is in error state|wait_func.*timeout|"
         r"NIC interface was lost)", WARN, "the network card was in trouble or recovered",
         "fw_ver of its card, its temperature, and its cable. Power off for a minute where it comes back", "nic_error"),
    Kind("nic_link_down", r"mlx5_core \S+ \S+: Link down", WARN, "a link of the network card went down after it was up",
         "Reseat the cable at both ends. A netplan apply or a reboot of the other Spark does this too: then it is nothing", "link_down"),
    Kind("nic_cable", r"mlx5_core \S+: Port module event(?:\[error\])?: module \d+, Cable (?:unplugged|error)", WARN,
         "a port of the network card lost its cable", "Reseat the cable at both ends", "link_down"),
    Kind("lockup", r"(?:soft lockup|hard LOCKUP|self-detected stall|blocked for more than \d+ seconds)", WARN,
         "a processor or a task stood still", "Memory that ran short does this (MEM.DISTRESS), and a driver that hangs: reboot when it suits"),
    Kind("oom", r"(?:[Oo]ut of memory: Killed process|oom-kill:constraint=|oom_reaper: reaped)", WARN,
         "the kernel killed a process for memory", "What a rank leaves free is too little, or something else runs here: BUDGET.FIT, docker ps",
         "oom_killed"),
    Kind("disk", r"(?:blk_update_request: |[Bb]uffer )?I/O error.*\bdev (?:nvme|sd)|nvme\d?.*(?:I/O \d+ QID.*timeout|controller is down)|"
         r"(?:EXT4|XFS|BTRFS).*(?:error|corrupt)|Remounting filesystem read-only", WARN, "the disk failed to read or write",
         "smartctl -a, nvme smart-log. What was staged is proven anew by model_weights_verify: full", "disk_error"),
    Kind("heat", r"critical temperature reached", WARN, "this Spark became too hot", "Look at its airflow and dust; nvidia-smi -q -d TEMPERATURE"),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}
_FOUND = [(kind.name, re.compile(kind.pattern)) for kind in KINDS]
_LINK = re.compile(r"mlx5_core (?P<device>\S+ \S+): Link (?P<state>up|down)")
# What `journalctl --grep` is asked for: a superset of the lines that count, cheap for it.
GREP = (
    "NVRM:.*(RmInitAdapter|API mismatch|off the bus|lost)|AER:|PCIe Bus Error|Hardware Error|EDAC|hardware memory error|Memory failure|"
    "mlx5_core|lockup|LOCKUP|self-detected stall|blocked for more than|ut of memory|oom-kill|oom_reaper|I/O error|nvme|EXT4-fs|XFS|BTRFS|"
    "Remounting filesystem|critical temperature"
)
_HEAD = re.compile(r"^(?P<when>\[\s*[0-9.]+\]|\S+T\S+|\w{3}\s+\d+ [0-9:]+)?\s*(?:\S+ kernel:\s*)?(?P<text>.*)$")


@dataclass(frozen=True)
class Event:
    """One line that counts: its kind, when it was written as the line itself says, and its text."""

    kind: str
    when: str
    text: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def parse(text: str, since_boot: bool = True) -> list[Event]:
    """The lines that count, in their order. A link that goes down counts once it was up: one without a cable never was.

    since_boot: the text begins with the boot. In one that begins later a link that goes down was up before.
    """
    made: list[Event] = []
    up: set[str] = set()
    for line in text.splitlines():
        line = line[:_LINE_BYTES]
        link = _LINK.search(line)
        if link:
            was = link["device"] in up
            (up.add if link["state"] == "up" else up.discard)(link["device"])
            if link["state"] == "up" or (since_boot and not was):
                continue
        name = next((name for name, pattern in _FOUND if pattern.search(line)), None)
        if name:
            head = _HEAD.match(line)
            when, said = (head["when"] or "", head["text"]) if head else ("", line)
            made.append(Event(name, when.strip("[] "), said.strip()[:_TEXT_BYTES]))
    return made


def read(run: Run, root: Path = Path("/")) -> dict[str, Any]:
    """The events of this boot: `counts` by kind, the last of each, or `error`: why the log could not be read.

    A host that is a container (of systemd, as in a sandbox) has no kernel of its own: `container` is true then.
    """
    if (root / "run/systemd/container").exists():
        return {"error": "", "container": True, "counts": {}, "events": []}
    text, why = journal.kernel(run, *journal.BOOT, grep=GREP)
    return {"error": why, **told(parse(text))}


def told(events: Iterable[Event]) -> dict[str, Any]:
    """As facts: how often each kind, and the last one of each."""
    every = list(events)
    last = {event.kind: event for event in every}.values()
    return {
        "counts": dict(sorted(Counter(event.kind for event in every).items())),
        "events": [one.to_dict() for one in last],
    }


def checks(host: str, facts: Mapping[str, Any] | None) -> list[Check]:
    """HOST.KERNEL_LOG: a row for each kind that was seen since the boot, or one that passes. A log that was not read fails."""
    expected = "none since the boot"
    if not facts or facts.get("error") or "counts" not in facts:
        found = f"the kernel log was not read: {(facts or {}).get('error') or 'it was not asked for'}"
        return [Check("HOST.KERNEL_LOG", host, FAIL, found, expected, f"On {host}: sudo {_LOOK}")]
    if facts.get("container"):
        return [Check("HOST.KERNEL_LOG", host, SKIP, "this host is a container: the kernel's log is that of its machine")]
    last = {str(event.get("kind")): event for event in facts.get("events") or []}
    made = []
    for name, count in facts["counts"].items():
        kind, event = BY_NAME.get(name), last.get(name) or {}
        if kind is None:
            continue
        said = f"{kind.what} ×{count}, last {event.get('when') or '?'}: {event.get('text') or '?'}"
        made.append(Check("HOST.KERNEL_LOG", host, kind.status, said, expected, f"{kind.remedy} ({host}: {_LOOK})"))
    made.sort(key=lambda check: check.status != FAIL)
    return made or [Check("HOST.KERNEL_LOG", host, PASS, "no error of hardware, driver, link or memory since the boot")]
