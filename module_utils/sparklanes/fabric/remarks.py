# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a person should know of a fabric that works: link, PCIe, MTU, addresses. Sources: docs/fabric.md."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.sparklanes.fabric.devices import Netdev, Network
from ansible.module_utils.sparklanes.fabric.ports import Problem, Rail

LINK_SPEED = 200000  # Mb/s; both halves of a QSFP port report the full link
PCIE_SPEED, PCIE_WIDTH = "32.0 GT/s", 4
MTU = 9000


def hardware_warnings(rails: Sequence[Rail], rules: Sequence[Network] = ()) -> list[Problem]:
    found = [problem for rail in rails for problem in _link(rail)]
    return found + _mtu(rails) + _addresses(rails) + _subnets(rails, rules) + _order(rails)


def _link(rail: Rail) -> list[Problem]:
    found = []
    if rail.device.kind == "pf":
        speed = rail.netdev.speed or int((rail.port.rate_gbps or 0) * 1000)
        if speed < LINK_SPEED:
            text = f"{speed} Mb/s" if speed else "unknown speed"
            found.append(
                Problem(
                    "LINK_SPEED",
                    f"{rail.netdev.name} runs at {text}, a Spark's link at {LINK_SPEED}",
                    "Check the cable (200G, seated at both ends) and the switch port's speed",
                )
            )
        if not (rail.device.pcie_speed or "").startswith(PCIE_SPEED) or rail.device.pcie_width != PCIE_WIDTH:
            text = f"{rail.device.pcie_speed or 'unknown speed'} x{rail.device.pcie_width or '?'}"
            found.append(
                Problem(
                    "PCIE_LINK",
                    f"{rail.device.name} is attached with {text}, expected {PCIE_SPEED} PCIe x{PCIE_WIDTH}",
                    "Update the BIOS (before 2026-04 half B may be x2), then take AC power off for 60 s",
                )
            )
    if rail.netdev.kind == "bond":
        message = f"{rail.device.name} is the bond {rail.netdev.name}: its two PCI halves can't be checked"
        found.append(Problem("BOND", message, "Prefer two rails without a bond: NCCL uses both halves itself"))
    elif rail.upper:
        message = f"{rail.device.name} carries the fabric on {rail.netdev.name}, beside the untagged {rail.port.netdev}"
        remedy = "Prefer untagged ports: another address on that port may take the VLAN's place"
        found.append(Problem("VLAN", message, remedy))
    return found


def _mtu(rails: Sequence[Rail]) -> list[Problem]:
    found = []
    low = [rail for rail in rails if (rail.netdev.mtu or 0) < MTU]
    if low:
        listed = ", ".join(f"{rail.netdev.name} {rail.netdev.mtu or 'unknown'}" for rail in low)
        found.append(
            Problem(
                "MTU_LOW",
                f"MTU below {MTU}: {listed}; 1500 gives RDMA packets of 1024 bytes, {MTU} gives 4096",
                f"Set mtu: {MTU} in netplan on every node, and jumbo frames on the switch",
            )
        )
    if len({rail.netdev.mtu for rail in rails}) > 1:
        listed = ", ".join(f"{rail.netdev.name} {rail.netdev.mtu}" for rail in rails)
        found.append(Problem("MTU_UNEQUAL", f"the rails have different MTUs: {listed}", "Set the same in netplan"))
    return found


def _addresses(rails: Sequence[Rail]) -> list[Problem]:
    local = ", ".join(f"{rail.netdev.name} {rail.ip}" for rail in rails if rail.link_local)
    if not local:
        return []
    message = f"the fabric has addresses of 169.254.0.0/16, which may change at reboot: {local}"
    return [Problem("LINK_LOCAL", message, "Give every half a static address in netplan, and link-local: []")]


def _subnets(rails: Sequence[Rail], rules: Sequence[Network]) -> list[Problem]:
    """Several rails in one IPv4 subnet work where each address stays on its own device: arp_ignore and arp_announce see to it,
    or rules by source together with arp_filter. Strict rp_filter drops what comes back on the second device, unless there are such rules."""
    found = []
    for network in dict.fromkeys(rail.network for rail in rails):
        same = [rail for rail in rails if rail.network == network]
        if len(same) < 2 or network.version != 4:
            continue
        ruled = {rail.netdev.name for rail in same if any(rail.ip in rule for rule in rules if rule.version == 4)}
        loose = [rail for rail in same if not _keeps(rail.netdev, rail.netdev.name in ruled)]
        strict = [rail for rail in same if rail.netdev.rp_filter == 1 and rail.netdev.name not in ruled]
        names = ", ".join(rail.netdev.name for rail in same)
        if loose:
            keys = ", ".join(rail.netdev.name for rail in loose)
            remedy = f"Give each half its own subnet; or set arp_ignore=1 and arp_announce=2 on {keys}"
            found.append(
                Problem(
                    "SAME_SUBNET", f"{names} are in one subnet, {network}, and the kernel may answer for one on the other", remedy
                )
            )
        if strict:
            keys = ", ".join(rail.netdev.name for rail in strict)
            remedy = f"Give each half its own subnet; or set rp_filter=2 on {keys}"
            message = f"{names} are in one subnet, {network}, and rp_filter=1 drops what comes in on all but one of them"
            found.append(Problem("RP_FILTER", message, remedy))
    return found


def _keeps(netdev: Netdev, ruled: bool) -> bool:
    if netdev.arp_announce == 2 and netdev.arp_ignore in (1, 2):
        return True
    return ruled and netdev.arp_filter == 1


def _order(rails: Sequence[Rail]) -> list[Problem]:
    lost = [rail.device.name for rail in rails if rail.device.pci_leaf is None]
    if len(rails) < 2 or not lost:
        return []
    message = f"{', '.join(lost)} have no PCI path, so NCCL's order of devices is not defined"
    return [Problem("NO_PCI_ORDER", message, "Use hardware devices; with software RDMA use one rail")]
