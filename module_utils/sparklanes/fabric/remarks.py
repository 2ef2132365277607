# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a person should know of a fabric that works: link, PCIe, MTU, addresses. Sources: docs/fabric.md."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.fabric.devices import Netdev, Network
from ansible.module_utils.sparklanes.fabric.ports import Path, Problem

LINK_SPEED = 200000  # Mb/s; both halves of a QSFP port report the full link
PCIE_SPEED, PCIE_WIDTH = "32.0 GT/s", 4
MTU = 9000


def hardware_warnings(paths: Sequence[Path], rules: Sequence[Network] = ()) -> list[Problem]:
    found = [problem for path in paths for problem in _link(path)]
    return found + _mtu(paths) + _addresses(paths) + _subnets(paths, rules) + _order(paths)


def _link(path: Path) -> list[Problem]:
    found = []
    if path.device.kind == "pf":
        speed = path.netdev.speed or int((path.port.rate_gbps or 0) * 1000)
        if speed < LINK_SPEED:
            text = f"{speed} Mb/s" if speed else "unknown speed"
            found.append(
                Problem(
                    "LINK_SPEED",
                    f"{path.netdev.name} runs at {text}, a Spark's link at {LINK_SPEED}",
                    "Check the cable (200G, seated at both ends) and the switch port's speed",
                )
            )
        if not (path.device.pcie_speed or "").startswith(PCIE_SPEED) or path.device.pcie_width != PCIE_WIDTH:
            text = f"{path.device.pcie_speed or 'unknown speed'} x{path.device.pcie_width or '?'}"
            found.append(
                Problem(
                    "PCIE_LINK",
                    f"{path.device.name} is attached with {text}, expected {PCIE_SPEED} PCIe x{PCIE_WIDTH}",
                    "Update the BIOS (before 2026-04 half B may be x2), then take AC power off for 60 s",
                )
            )
    if path.netdev.kind == "bond":
        message = f"{path.device.name} is the bond {path.netdev.name}: its two PCI halves can't be checked"
        found.append(Problem("BOND", message, "Prefer two rails without a bond: NCCL uses both halves itself"))
    elif path.upper:
        message = f"{path.device.name} carries the fabric on {path.netdev.name}, beside the untagged {path.port.netdev}"
        remedy = "Prefer untagged ports: another address on that port may take the VLAN's place"
        found.append(Problem("VLAN", message, remedy))
    return found


def _mtu(paths: Sequence[Path]) -> list[Problem]:
    found = []
    low = [path for path in paths if (path.netdev.mtu or 0) < MTU]
    if low:
        listed = ", ".join(f"{path.netdev.name} {path.netdev.mtu or 'unknown'}" for path in low)
        found.append(
            Problem(
                "MTU_LOW",
                f"MTU below {MTU}: {listed}; 1500 gives RDMA packets of 1024 bytes, {MTU} gives 4096",
                f"Set mtu: {MTU} in netplan on every node, and jumbo frames on the switch",
            )
        )
    if len({path.netdev.mtu for path in paths}) > 1:
        listed = ", ".join(f"{path.netdev.name} {path.netdev.mtu}" for path in paths)
        found.append(Problem("MTU_UNEQUAL", f"the rails have different MTUs: {listed}", "Set the same in netplan"))
    return found


def _addresses(paths: Sequence[Path]) -> list[Problem]:
    local = ", ".join(f"{path.netdev.name} {path.ip}" for path in paths if path.link_local)
    if not local:
        return []
    message = f"the fabric has addresses of 169.254.0.0/16, which may change at reboot: {local}"
    return [Problem("LINK_LOCAL", message, "Give every half a static address in netplan, and link-local: []")]


def _subnets(paths: Sequence[Path], rules: Sequence[Network]) -> list[Problem]:
    """Several rails in one IPv4 subnet work where each address stays on its own device: arp_ignore and arp_announce see to it,
    or rules by source together with arp_filter. Strict rp_filter drops what comes back on the second device, unless there are such rules."""
    found = []
    for network in dict.fromkeys(path.network for path in paths):
        same = [path for path in paths if path.network == network]
        if len(same) < 2 or network.version != 4:
            continue
        ruled = {path.netdev.name for path in same if any(path.ip in rule for rule in rules if rule.version == 4)}
        loose = [path for path in same if not _keeps(path.netdev, path.netdev.name in ruled)]
        strict = [path for path in same if path.netdev.rp_filter == 1 and path.netdev.name not in ruled]
        names = ", ".join(path.netdev.name for path in same)
        if loose:
            keys = ", ".join(path.netdev.name for path in loose)
            remedy = f"Give each half its own subnet; or set arp_ignore=1 and arp_announce=2 on {keys}"
            found.append(
                Problem(
                    "SAME_SUBNET", f"{names} are in one subnet, {network}, and the kernel may answer for one on the other", remedy
                )
            )
        if strict:
            keys = ", ".join(path.netdev.name for path in strict)
            remedy = f"Give each half its own subnet; or set rp_filter=2 on {keys}"
            message = f"{names} are in one subnet, {network}, and rp_filter=1 drops what comes in on all but one of them"
            found.append(Problem("RP_FILTER", message, remedy))
    return found


def _keeps(netdev: Netdev, ruled: bool) -> bool:
    if netdev.arp_announce == 2 and netdev.arp_ignore in (1, 2):
        return True
    return ruled and netdev.arp_filter == 1


def _order(paths: Sequence[Path]) -> list[Problem]:
    lost = [path.device.name for path in paths if path.device.pci_leaf is None]
    if len(paths) < 2 or not lost:
        return []
    message = f"{', '.join(lost)} have no PCI path, so NCCL's order of devices is not defined"
    return [Problem("NO_PCI_ORDER", message, "Use hardware devices; with software RDMA use one rail")]
