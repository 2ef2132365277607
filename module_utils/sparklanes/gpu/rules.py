# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What gate A asks of a GPU: a driver that answers, no Xid that needs a reboot, a cap that holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.gpu.cap import CAP_SLACK_MHZ, CAP_UNIT


def clock_checks(host: str, found: Mapping[str, Any]) -> list[Check]:
    """The lock that our unit declares, against the clock that the GPU shows now; nothing where none is declared.

    A driver may accept a lock and ignore it. Above the lock is proof of that at any load; below it, only a burn tells.
    """
    made = []
    for cap in found.get("caps") or []:
        if cap["unit"] != CAP_UNIT:
            continue
        top, clocks = int(cap["max_mhz"]), [gpu.get("sm_mhz") for gpu in found.get("gpus") or []]
        known = bool(clocks) and None not in clocks
        made.append(
            judged(
                "GPU.CLOCK_CAP",
                host,
                max(clocks) <= top + CAP_SLACK_MHZ if known else None,
                f"{max(clocks)} MHz now" if known else "clock not told",
                f"at most {top} MHz, as {CAP_UNIT} locks it",
                f"On {host}: sudo systemctl restart {CAP_UNIT}. If the clock stays above, the driver ignores the lock: reboot",
            )
        )
    return made


def gate(host: str, found: Mapping[str, Any]) -> list[Check]:
    """What can be known of a GPU without loading it; `found` is of `facts`."""
    driver, gpus, log = found.get("driver") or {}, found.get("gpus") or [], found.get("kernel_log") or {}
    problem = found.get("error") or ("" if gpus and driver.get("version") else "not measured")
    names = ", ".join(str(gpu.get("name") or "GPU") for gpu in gpus)
    told_as = f"{names}, driver {driver.get('version')} ({driver.get('flavour') or 'flavour unknown'}), CUDA {driver.get('cuda_version') or '?'}"
    made = [
        judged(
            "GPU.DRIVER",
            host,
            not problem,
            problem or told_as,
            "nvidia-smi answers and lists a GPU",
            f"On {host}: nvidia-smi; journalctl -k | grep NVRM. A driver that was updated or hangs needs a reboot",
        )
    ]
    if not found.get("present"):
        return made
    fatal = list(log.get("fatal") or [])
    fatal += [
        f"the driver asks for: {gpu['recovery_action']}" for gpu in gpus if str(gpu.get("recovery_action") or "None") != "None"
    ]
    counts = ", ".join(f"Xid {code} ×{count}" for code, count in (log.get("xid_counts") or {}).items())
    unread = log.get("error") or ("" if log else "the kernel log was not read")
    # One that ended a program and not the GPU is no obstacle, but it is a finding, whether or not a catalog lists it.
    status = FAIL if fatal or unread else WARN if counts else PASS
    look = f"On {host}: journalctl -k -b | grep Xid"
    made.append(
        Check(
            "GPU.XID",
            host,
            status,
            ", ".join(fatal) or unread or counts or "no Xid since boot",
            "no Xid since boot" if status == WARN else "no Xid since boot that only a reset or reboot mends",
            f"{look}, then reboot it" if fatal else "" if status == PASS else look,
        )
    )
    return [*made, *clock_checks(host, found)]
