# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which RDMA ports of a node could carry the fabric, over which address, and why the others can't."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.fabric.devices import ACTIVE, LINK_DOWN, Device, Gid, Interface, Netdev, Node, Port
from ansible.module_utils.sparklanes.fabric.nccl import pci_order
from ansible.module_utils.sparklanes.fabric.options import Address, Network, Options

# Every code the module can return, and what it says. docs/fabric.md explains each; a test compares.
CODES = {
    "ADDRESS_UNKNOWN": "the addresses of the node could not be read",
    "AMBIGUOUS_PORTS": "several QSFP ports could be the fabric",
    "BOND": "the fabric runs over a bond",
    "BOND_SLAVE": "the device is a slave of a bond",
    "CIDR_MISSING": "nothing says which network is the fabric",
    "CIDR_NONE": "no usable address is in fabric_cidr",
    "CIDR_UNUSED": "one of the networks in fabric_cidr has no address here",
    "CONTROL_IFNAME": "control_ifname can't carry the control connections",
    "GID_INDEX_WRONG": "gid_index is not the right GID on every chosen device",
    "GID_PINNED": "the GID index is pinned",
    "GID_STALE": "a GID's address is not on its network device",
    "GID_UNREADABLE": "type or network device of a GID can't be read",
    "HALF_ABSENT": "the second PCI half of a QSFP port does not exist",
    "HALF_MISSING": "one PCI half of a QSFP port can't be used",
    "HCA_MISSING": "a device in hcas does not exist",
    "IB_MODE": "the port is in InfiniBand mode",
    "IPV6_ONLY": "the port has IPv6 addresses only",
    "IWARP": "the device is no channel adapter",
    "LINK_LAYER": "the port's link layer can't be read",
    "LINK_LOCAL": "the fabric has 169.254 addresses",
    "LINK_LOCAL_MIXED": "the port has only a 169.254 address where others have a routable one",
    "LINK_SPEED": "the link does not run at 200 Gb/s",
    "MTU_LOW": "the MTU is below 9000",
    "MTU_UNEQUAL": "the rails of the node have different MTUs",
    "NAME_UNSAFE": "a name can't stand in a variable",
    "NCCL_CHOICE": "NCCL would use something else than what was chosen",
    "NCCL_CONF": "an nccl.conf on the node sets variables",
    "NETDEV_DOWN": "the network device of the address is down",
    "NOT_IN_CIDR": "the port's addresses are outside fabric_cidr",
    "NOT_LISTED": "the device is not in hcas",
    "NO_COMMON_GID_INDEX": "no GID index is right on every chosen device",
    "NO_IPV4": "the port is active without an IPv4 address",
    "NO_PCI_ORDER": "the order of the chosen devices is not defined",
    "NO_RDMA_DEVICE": "the network card is there, its RDMA devices are not",
    "NO_RDMA_PCI": "there is no RDMA network card on the PCI bus",
    "NO_USABLE_PORT": "no RDMA port can carry the fabric",
    "PCIE_LINK": "a PCI half does not run at 32 GT/s x4",
    "PEERS_UNREACHED": "no QSFP port's networks hold all peers",
    "PORTS_WANTED": "another number of QSFP ports was wanted",
    "PORT_DOWN": "the port is not ACTIVE",
    "RING_CONTROL": "a ring needs control_ifname",
    "RING_PORTS": "a ring needs two QSFP ports",
    "RING_PREFIX": "the networks of a ring have different prefix lengths",
    "SAME_SUBNET": "two rails are in one subnet",
    "RP_FILTER": "two rails are in one subnet, and what comes in on the second is dropped",
    "SECOND_CABLE": "more than one QSFP port was chosen",
    "SEVERAL_NETWORKS": "one port has addresses in several networks",
    "SOCKET_ADDRESS": "NCCL's bootstrap would use another address",
    "SOCKET_AMBIGUOUS": "several network devices are in fabric_cidr",
    "SOCKET_DOWN": "the network device of the fabric is not running",
    "SOCKET_NONE": "no network device is in fabric_cidr",
    "SOFT_DEVICE": "the device is software RDMA",
    "TOO_MANY_HCAS": "more devices than NCCL can list",
    "V1_ONLY": "the port has RoCE v1 GIDs only",
    "VIRTUAL_FUNCTION": "the device is a virtual or sub-function",
    "VLAN": "the fabric runs over a VLAN",
}
# A second reading may differ: an address is being added or taken away at this moment.
TRANSIENT = ("GID_STALE", "GID_UNREADABLE")
# No use for the fabric and nothing a person should mend: not reported on a node that has a fabric.
QUIET = ("PORT_DOWN", "SOFT_DEVICE", "VIRTUAL_FUNCTION", "NOT_LISTED", "NOT_IN_CIDR", "BOND_SLAVE", "IWARP")


@dataclass(frozen=True)
class Problem:
    """An error or a warning: a stable code, one sentence, the next step."""

    code: str
    message: str
    remedy: str

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"unknown code {self.code}")

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True, eq=False)
class Rail:
    """One way over one port: a RoCE v2 GID whose address is on its network device now."""

    device: Device
    port: Port
    gid: Gid
    netdev: Netdev
    interface: Interface

    @property
    def name(self) -> str:
        return self.device.name if self.port.number == 1 else f"{self.device.name}:{self.port.number}"

    @property
    def ip(self) -> Address:
        address: Address = self.interface.ip
        return address

    @property
    def network(self) -> Network:
        network: Network = self.interface.network
        return network

    @property
    def link_local(self) -> bool:
        return bool(self.ip.is_link_local)

    @property
    def upper(self) -> bool:
        """The address is on a VLAN (or another device stacked on the port's own)."""
        return bool(self.netdev.name not in (self.port.netdev, self.port.base))


@dataclass(eq=False)
class Candidate:
    """A port, judged: its rails, or the code and the words why it has none."""

    device: Device
    port: Port
    qsfp: tuple[str, str] = ("", "")
    rails: list[Rail] = field(default_factory=list)
    code: str = ""
    why: str = ""
    stale: list[Gid] = field(default_factory=list)
    unreadable: list[Gid] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.device.name if self.port.number == 1 else f"{self.device.name}:{self.port.number}"

    @property
    def label(self) -> str:
        return f"{self.name} ({self.port.netdev or 'no network device'})"

    def refuse(self, code: str, why: str) -> Candidate:
        self.code, self.why, self.rails = code, why, []
        return self


def _reject(candidate: Candidate, node: Node, options: Options) -> bool:
    """Refuse a port for what it is, before any address is looked at."""
    device, port = candidate.device, candidate.port
    listed = device.name in options.hcas
    if options.hcas and not listed:
        candidate.refuse("NOT_LISTED", "not in hcas")
    elif device.node_type not in (None, 1):
        candidate.refuse("IWARP", f"node_type {device.node_type} is no RoCE channel adapter")
    elif port.link_layer == "InfiniBand":
        candidate.refuse("IB_MODE", "link_layer InfiniBand")
    elif port.link_layer != "Ethernet":
        candidate.refuse("LINK_LAYER", f"link_layer {port.link_layer!r}")
    elif device.kind == "soft" and not options.allow_soft:
        candidate.refuse("SOFT_DEVICE", "software RDMA, and allow_soft is false")
    elif device.kind in ("vf", "sf") and not listed:
        candidate.refuse("VIRTUAL_FUNCTION", f"a {device.kind.upper()}, used only when hcas names it")
    elif bond := _bond_over(port, node):
        candidate.refuse("BOND_SLAVE", f"slave of {bond}")
    elif port.state != ACTIVE:
        candidate.refuse("PORT_DOWN", f"port {port.state_text}, link {port.phys_state}")
    return bool(candidate.code)


def _bond_over(port: Port, node: Node) -> str | None:
    netdev = node.netdevs.get(port.netdev or "")
    master = node.netdevs.get(netdev.master or "") if netdev else None
    return master.name if master and master.kind == "bond" else None


def _paths(candidate: Candidate, node: Node, options: Options) -> None:
    """Every RoCE v2 GID with an address that is really there; what was in the way otherwise."""
    v1_only = ipv6 = down = False
    for gid in candidate.port.gids.values():
        address: Address = gid.ipv4 or gid.address
        if address.is_loopback or address.is_multicast or (address.version == 6 and address.is_link_local):
            continue
        if gid.version is None or gid.netdev is None:
            candidate.unreadable.append(gid)
            continue
        netdev = node.netdevs.get(gid.netdev)
        interface = netdev.interface(address) if netdev else None
        if netdev is None or interface is None:
            candidate.stale.append(gid)
        elif netdev.up is False or netdev.operstate in LINK_DOWN:
            down = True
        elif address.version == 6 and not options.allow_ipv6:
            ipv6 = True
        elif gid.version == 1:
            v1_only = True
        else:
            candidate.rails.append(Rail(candidate.device, candidate.port, gid, netdev, interface))
    if candidate.rails:
        return
    if candidate.unreadable:
        listed = ", ".join(str(gid.index) for gid in candidate.unreadable)
        candidate.refuse("GID_UNREADABLE", f"type or network device of GID {listed} can't be read")
    elif candidate.stale:
        listed = ", ".join(f"{gid.index} ({gid.ipv4 or gid.address} on {gid.netdev})" for gid in candidate.stale)
        candidate.refuse("GID_STALE", f"GID {listed}: that network device doesn't have the address")
    elif down:
        candidate.refuse("NETDEV_DOWN", "the network device of its address is down")
    elif v1_only:
        candidate.refuse("V1_ONLY", "no RoCE v2 GID, only v1")
    elif ipv6:
        candidate.refuse("IPV6_ONLY", "IPv6 addresses only, and allow_ipv6 is false")
    else:
        candidate.refuse("NO_IPV4", "link up, no IPv4 address")


def _group(candidates: Sequence[Candidate], node: Node) -> None:
    """Name each candidate's QSFP port: (sys_image_guid, physical port). Never a PCI slot, never a device name.

    The physical port is phys_port_name where every device of the card has one, else the PCI function.
    """
    cards: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        cards.setdefault(candidate.device.sys_image_guid, []).append(candidate)
    for guid, members in cards.items():
        ports = [_physical(candidate, node) for candidate in members]
        named = all(port for candidate, port in zip(members, ports, strict=True) if candidate.device.kind == "pf")
        for candidate, port in zip(members, ports, strict=True):
            function = (candidate.device.pci or "").rpartition(".")[2]
            place = port if named else (function or None)
            if candidate.device.kind == "soft" or not guid.strip("0: ") or place is None:
                candidate.qsfp = (candidate.device.name, str(candidate.port.number))  # nothing is known about siblings
            else:
                # two ports of one function (not on a Spark) are two QSFP ports
                candidate.qsfp = (guid, str(place) if candidate.port.number == 1 else f"{place}:{candidate.port.number}")


def _physical(candidate: Candidate, node: Node) -> str | None:
    netdev = node.netdevs.get(candidate.port.base or candidate.port.netdev or "")
    match = re.fullmatch(r"p([0-9]{1,3})", netdev.phys_port_name) if netdev and netdev.phys_port_name else None
    return match.group(1) if match else None


def judge_ports(node: Node, options: Options) -> list[Candidate]:
    order = sorted(node.ports(), key=lambda item: pci_order(*item))
    candidates = [Candidate(device, port) for device, port in order]
    _group(candidates, node)
    for candidate in candidates:
        if not _reject(candidate, node, options):
            _paths(candidate, node, options)
    return candidates


def to_candidate(candidate: Candidate, node: Node, chosen: bool) -> dict[str, Any]:
    """A judged port as plain data: every port of the node is in the result, used or not."""
    device, port = candidate.device, candidate.port
    netdev = node.netdevs.get(port.netdev or "")
    return {
        "dev": device.name,
        "port": port.number,
        "kind": device.kind,
        "state": port.state_text,
        "phys_state": port.phys_state,
        "link_layer": port.link_layer,
        "rate_gbps": port.rate_gbps if port.state == ACTIVE else None,  # a DOWN port keeps some rate
        "netdev": port.netdev,
        "netdev_kind": netdev.kind if netdev else None,
        "mtu": netdev.mtu if netdev else None,
        "speed": netdev.speed if netdev else None,
        "mac": netdev.mac if netdev else None,
        "pci": device.pci,
        "pcie_speed": device.pcie_speed,
        "pcie_width": device.pcie_width,
        "phys_port": candidate.qsfp[1] if device.kind != "soft" else None,
        "sys_image_guid": device.sys_image_guid,
        "firmware": device.firmware,
        "hca_type": device.hca_type,
        "gids": [gid.to_dict() for gid in port.gids.values()],
        "addresses": [str(rail.interface) for rail in candidate.rails],
        "chosen": chosen,
        "code": candidate.code or None,
        "why": candidate.why or None,
    }
