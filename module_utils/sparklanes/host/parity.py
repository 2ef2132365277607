# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is alike on all ranks and what is not, and which kernels and drivers are known to be bad.

Ranks on different kernels, drivers or firmware often work, so most differences are warnings: reports name them as
suspects (token salad on one node with the same image: blazux/qwen3.8-Flash-DGX issue 1), not as causes. A site that
wants more makes a property fatal by name.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """One version that reports call bad. `unless_kho` is the value of the kernel parameter that helps against it."""

    kind: str
    pattern: str
    status: str
    why: str
    remedy: str
    source: str
    unless_kho: str = ""


_REGISTRATION = "RDMA registration fails (ibv_reg_mr: ENOMEM) and up to 26 GiB of memory are given away at boot"
_OTHER_KERNEL = (
    "Boot 6.17.0-1032-nvidia and hold it (spark_survival_hold: present). Where `cat /sys/kernel/kexec_crash_size` is 0, "
    "kho=off on the kernel command line gives the memory back"
)
# What reports name, each with its source. The first that matches counts.
KNOWN = (
    Known(
        "kernel", "7.0.0-1019-nvidia*", FAIL, _REGISTRATION, _OTHER_KERNEL,
        "DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259; DeepSeek-v4.1-Flash-DGX-Sparks issue 14; spark-vllm-docker issue 389", "off",
    ),
    Known(
        "kernel", "7.0.0-31-*", FAIL, _REGISTRATION, _OTHER_KERNEL,
        "DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259", "off",
    ),
    Known(
        "kernel", "7.0.0-*", WARN, "two kernels of this series fail RDMA registration; nobody reported this one as good", _OTHER_KERNEL,
        "techno-tim.github.io pull 371 (blocks 7.x on GB10)", "off",
    ),
    Known(
        "driver", "* proprietary", WARN, "580.173.02 with proprietary modules never initialises a GB10 (Xid 169, RmInitAdapter failed)",
        "Install the open kernel modules (nvidia-driver-580-open), which DGX OS ships",
        "start-technologies pull 3693",
    ),
)  # fmt: skip


def _docker(name: str) -> Callable[[Facts], str]:
    return lambda facts: str((facts.get("docker") or {}).get(name) or "")


def _kernel(name: str) -> Callable[[Facts], str]:
    return lambda facts: str((facts.get("kernel") or {}).get(name) or "")


def _driver(facts: Facts) -> str:
    driver = facts.get("driver") or {}
    return " ".join(str(driver[name]) for name in ("version", "flavour") if driver.get(name))


def _firmware(facts: Facts) -> str:
    firmware = facts.get("firmware") or {}
    return " ".join(str(firmware[name]) for name in ("bios_version", "ec_firmware_release") if firmware.get(name))


def _nics(facts: Facts) -> str:
    """Firmware of the cards; the names of the devices may differ with the cabling."""
    return ", ".join(
        sorted({f"{nic.get('firmware')} ({nic.get('board')})" for nic in facts.get("nics") or [] if nic.get("firmware")})
    )


def _least_free(facts: Facts) -> str:
    return str(((facts.get("settings") or {}).get("vm.min_free_kbytes") or {}).get("live") or "")


def _toolkit(facts: Facts) -> str:
    told = (facts.get("docker") or {}).get("toolkit") or {}
    version = told.get("version") or ("without a version" if told.get("hook") else "")
    return f"{version}, mode {told.get('mode') or '?'}" if version else ""


def _model(facts: Facts) -> str:
    firmware = facts.get("firmware") or {}
    return " ".join(str(firmware[name]) for name in ("sys_vendor", "product_name") if firmware.get(name))


@dataclass(frozen=True)
class Property:
    """One thing that ranks should have in common. `needed`: every host has it, so not to know it is a failure."""

    name: str
    id: str
    what: str
    read: Callable[[Facts], str]
    needed: bool
    remedy: str


PROPERTIES = (
    Property("machine", "PARITY.MACHINE", "machine", _kernel("machine"), True, "One image serves all ranks, so they need one kind of machine"),
    Property("kernel", "PARITY.KERNEL", "kernel", _kernel("release"), True, "Boot the same kernel everywhere: uname -r, apt list --installed 'linux-image*'"),
    Property("page_size", "PARITY.PAGE_SIZE", "page size", _kernel("page_size"), True, "Boot kernels of the same page size (4k or 64k)"),
    Property("driver", "PARITY.DRIVER", "NVIDIA driver", _driver, False, "Install the same driver and flavour everywhere: cat /proc/driver/nvidia/version"),
    Property("model", "PARITY.MODEL", "model", _model, False, "Ranks wait for the slowest"),
    Property("firmware", "PARITY.FIRMWARE", "BIOS and EC", _firmware, False, "Bring firmware to one version: fwupdmgr get-devices; an older BIOS gave its network cards half the lanes"),
    Property("nic_firmware", "PARITY.NIC_FIRMWARE", "network card firmware", _nics, False, "Bring the ConnectX-7 cards to one firmware: cat /sys/class/infiniband/*/fw_ver"),
    Property("docker", "PARITY.DOCKER", "Docker", _docker("version"), True, "Install the same Docker everywhere"),
    Property("storage_driver", "PARITY.STORAGE_DRIVER", "Docker's storage driver", _docker("storage_driver"), True,
             "Image IDs differ between overlay2 and the containerd store, digests don't; what compares IDs by hand sees other images"),
    Property("runc", "PARITY.RUNC", "runc", _docker("runc"), False, "Install the same containerd and runc everywhere"),
    Property("toolkit", "PARITY.TOOLKIT", "NVIDIA Container Toolkit", _toolkit, False,
             "Install the same version everywhere; the mode stands in /etc/nvidia-container-runtime/config.toml (nvidia-container-toolkit issue 1910)"),
    Property("runtime", "PARITY.RUNTIME", "Docker's default runtime", _docker("default_runtime"), False,
             "Give every daemon the same default: docker info, /etc/docker/daemon.json"),
    Property("min_free", "PARITY.MIN_FREE", "vm.min_free_kbytes", _least_free, True,
             "The rank with more in reserve has less for the GPU. Set it alike: spark_kernel_settings"),
)  # fmt: skip
NAMES = tuple(one.name for one in PROPERTIES)
# A rank of another architecture can't run the image at all; for the rest no source shows a failure.
FATAL = ("machine",)

# Clocks further apart than this make the order of lines in the ranks' logs meaningless. Ours; no source gives a number.
CLOCK_SECONDS = 2.0


def known(host: str, facts: Facts) -> list[Check]:
    """HOST.KERNEL and HOST.DRIVER: against what reports call bad."""
    versions = {"kernel": ("HOST.KERNEL", _kernel("release")(facts)), "driver": ("HOST.DRIVER", _driver(facts))}
    kho = _kernel("kho")(facts)
    made = []
    for kind, (id_, version) in versions.items():
        expected = f"no {kind} that reports call bad"
        if not version:
            # Whether a driver has to be there is judged where the GPU is asked.
            if kind == "kernel":
                made.append(
                    judged(id_, host, None, "not measured", expected, "/proc/sys/kernel/osrelease can't be read; look at it")
                )
            continue
        bad = next((entry for entry in KNOWN if entry.kind == kind and fnmatch.fnmatchcase(version, entry.pattern)), None)
        if bad is None:
            made.append(Check(id_, host, PASS, version, expected))
            continue
        helped = bool(bad.unless_kho) and kho == bad.unless_kho
        found = f"{version}{f' with kho={kho}' if helped else ''}: {bad.why} ({bad.source})"
        made.append(Check(id_, host, WARN if helped else bad.status, found, expected, bad.remedy))
    return made


def alike(hosts: Mapping[str, Facts], fatal: Sequence[str] = FATAL) -> list[Check]:
    """One row a host and property. What most ranks have is what is expected; rank 0 decides a tie."""
    made = []
    for one in PROPERTIES:
        values = {host: one.read(facts) for host, facts in hosts.items()}
        told = [value for value in values.values() if value]
        if not told and not one.needed:
            continue
        common = Counter(told).most_common(1)[0][0] if told else ""
        id_, bad = one.id, FAIL if one.name in fatal else WARN
        for host, value in values.items():
            if not value:
                # Where others told it, a host that can't is unlike them; where nobody did, it was not measured.
                made.append(
                    Check(id_, host, bad if told else FAIL, f"{one.what}: not measured", common or "measured", one.remedy)
                )
            elif value != common:
                others = ", ".join(host for host, other in values.items() if other == common)
                made.append(Check(id_, host, bad, f"{one.what} {value}", f"{common}, as {others}", one.remedy))
            else:
                made.append(Check(id_, host, PASS, f"{one.what} {value}", "alike on all ranks"))
    return made


def clock(hosts: Mapping[str, Facts], received: float) -> list[Check]:
    """Each clock against the controller's, as far as the time of the question and of the answer bound it.

    A Spark that read its clock between `sent` and `received` (by the controller's clock) is ahead by at least
    `read - received` and at most `read - sent`. Only what is certain counts.
    """
    made = []
    for host, facts in hosts.items():
        told = facts.get("clock") or {}
        synchronised, sent, read = told.get("synchronised"), told.get("sent"), told.get("read")
        remedy = f"On {host}: timedatectl; is systemd-timesyncd or chrony active, and does it reach a server?"
        says = {True: "synchronised", False: "not synchronised", None: "nobody says whether it is synchronised"}[synchronised]
        if sent is None or read is None:
            made.append(Check("PARITY.CLOCK", host, WARN, f"{says}; the clock was not read", "synchronised", remedy))
            continue
        least, most = read - received, read - sent
        off = least if least > 0 else most if most < 0 else 0.0
        found = f"{says}, {f'{abs(off):.1f} s ' + ('ahead of' if off > 0 else 'behind') if off else 'with'} the controller"
        ok = synchronised is True and abs(off) <= CLOCK_SECONDS
        made.append(
            Check(
                "PARITY.CLOCK",
                host,
                PASS if ok else WARN,
                found,
                f"synchronised, within {CLOCK_SECONDS:g} s",
                "" if ok else remedy,
            )
        )
    return made


def unknown_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in NAMES]
