# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a Spark is and how it is kept: versions, firmware, clock, swap, settings, units.

Files come from below `root`, so that a recorded tree can stand in; commands are asked only on the living system.
What nobody told is None or an empty text, never a guess.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.commands import Run, ask
from ansible.module_utils.sparklanes.common.files import STATE_ROOT, read_json
from ansible.module_utils.sparklanes.common.systemd import parse_show
from ansible.module_utils.sparklanes.docker import container_stack
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.host import boots as host_boots
from ansible.module_utils.sparklanes.host import conf_files, hardware, kernel_log, killers, swap, sysctl
from ansible.module_utils.sparklanes.host.logind import remove_ipc
from ansible.module_utils.sparklanes.memory import page_cache

DMI = (
    "sys_vendor",
    "product_name",
    "product_version",
    "board_name",
    "bios_vendor",
    "bios_version",
    "bios_date",
    "ec_firmware_release",
)
SETTINGS = ("vm.swappiness", "vm.min_free_kbytes")
PAGE_CACHE_UNIT = "sparklanes-page-cache.service"
BOOT_SETTINGS = "/etc/sparklanes/boot.json"
BOOT_REPORT = "/run/sparklanes/boot.json"


def word(path: Path) -> str:
    """The text of a small file, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().strip("\0")
    except OSError:
        return ""


def driver(root: Path) -> dict[str, str]:
    """The loaded NVIDIA module: version and flavour, empty where there is none."""
    told = gpu_facts.parse_driver_version(word(root / "proc/driver/nvidia/version"))
    return {"version": str(told["module_version"]), "flavour": str(told["flavour"])} if told["module_version"] else {}


def nics(root: Path) -> list[dict[str, str]]:
    """The RDMA devices with their firmware."""
    folder = root / "sys/class/infiniband"
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        {
            "hca": device.name,
            "firmware": word(device / "fw_ver"),
            "board": word(device / "board_id"),
            "type": word(device / "hca_type"),
        }
        for device in devices
    ]


def settings(root: Path) -> dict[str, dict[str, str]]:
    """Per kernel setting its live value, the value after a boot and the file that decides it."""
    files = conf_files.collect(root, sysctl.SYSCTL_DIRS, sysctl.SYSCTL_CONF)
    found = {}
    for key in SETTINGS:
        made = sysctl.winners(files, key)[sysctl.AT_BOOT]
        live = sysctl.normal_value(word(root / "proc/sys" / sysctl.normal_key(key)))
        found[key] = {"live": live, "boot": made.value if made else "", "file": made.path if made else ""}
    return found


def reboot_required(root: Path) -> list[str] | None:
    """Packages that ask for a reboot, None where none does."""
    flag = root / "run/reboot-required"
    if not flag.exists():
        return None
    return sorted(set(word(root / "run/reboot-required.pkgs").split()))


def from_files(root: Path, page_size: int | None, state_root: str = STATE_ROOT) -> dict[str, Any]:
    proc = root / "proc"
    uptime = word(proc / "uptime").split()
    crash = word(root / "sys/kernel/kexec_crash_size")
    return {
        "kernel": {
            "release": word(proc / "sys/kernel/osrelease"),
            "machine": word(proc / "sys/kernel/arch"),
            # One parameter by name: a command line may hold what is nobody's business.
            "kho": next((part[4:] for part in word(proc / "cmdline").split() if part.startswith("kho=")), ""),
            "boot_id": boot_id(root),
            "uptime_seconds": float(uptime[0]) if uptime and re.fullmatch(r"\d+(\.\d+)?", uptime[0]) else None,
            "kexec_crash_size": int(crash) if crash.isascii() and crash.isdigit() else None,
            "page_size": page_size,
        },
        "driver": driver(root),
        "firmware": {name: word(root / "sys/class/dmi/id" / name) for name in DMI},
        "nics": nics(root),
        "swap": [{"path": one.path, "size": one.size, "used": one.used} for one in swap.parse_swaps(word(proc / "swaps"))],
        "settings": settings(root),
        "reboot_required": reboot_required(root),
        "engine_boots": host_boots.read(state_root, root),
        "cpu_clocks": hardware.clocks(root),
        "link_errors": hardware.link_errors(root) if (root / "sys/class/infiniband").is_dir() else None,
        "page_cache": {
            "settings": read_json(root / "etc/sparklanes/page-cache.json") or {},
            "state": read_json(root / page_cache.STATE_FILE.lstrip("/")) or {},
            "active": None,
        },
        "after_boot": {
            "settings": read_json(root / BOOT_SETTINGS.lstrip("/")) or {},
            "report": read_json(root / BOOT_REPORT.lstrip("/")) or {},
        },
    }


def from_commands(run: Run) -> dict[str, Any]:
    says, error = remove_ipc(run)
    found: dict[str, Any] = {"remove_ipc": {"says": says, "error": error}}
    try:
        found["docker"] = {**Docker(run).info(), "toolkit": container_stack.toolkit(run)}
    except (DockerError, ValueError, OSError) as problem:
        found["docker"] = {"error": str(problem)}
    found["kernel_log"] = kernel_log.read(run)
    found["memory_killers"] = killers.facts(Path("/"), run)
    rc, out, _ = ask(run, ["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    found["synchronised"] = {"yes": True, "no": False}.get(out.strip()) if rc == 0 else None
    rc, out, _ = ask(run, ["systemctl", "show", PAGE_CACHE_UNIT, "--property=ActiveState"])
    found["active"] = parse_show(out).get("ActiveState") == "active" if rc == 0 else None
    return found


def facts(
    root: Path, run: Run | None, sent: float | None, page_size: int | None = None, state_root: str = STATE_ROOT
) -> dict[str, Any]:
    """Everything about one host. `sent` is when the controller asked, by its own clock."""
    alive = root == Path("/")
    made = from_files(root, page_size or (os.sysconf("SC_PAGE_SIZE") if alive else None), state_root)
    if alive and not made["kernel"]["machine"]:
        made["kernel"]["machine"] = os.uname().machine
    asked = from_commands(run) if alive and run is not None else {}
    made["page_cache"]["active"] = asked.pop("active", None)
    made["clock"] = {"sent": sent, "read": time.time(), "synchronised": asked.pop("synchronised", None)}
    return {**made, "remove_ipc": {"says": "", "error": ""}, "docker": {}, **asked}
