# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What one node's RDMA devices and network devices look like: reading only, no opinion.

Everything is read below a root path, so that a recorded tree can stand in for a node. A file
that can't be read (EINVAL on an empty GID slot, EOPNOTSUPP on a name the driver doesn't have) is
absent, never an error. No name is ever tested against a pattern, none is derived from another.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ansible.module_utils.sparklanes.fabric.sysfs import (
    Tree,
    clean,
    gid_text,
    number,
    parse_conf,
    parse_gid,
    parse_gid_type,
    parse_rate,
)

IPv4Address = ipaddress.IPv4Address
IPv6Address = ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ACTIVE = 4  # enum ib_port_state
LINK_DOWN = ("down", "lowerlayerdown", "notpresent")
MELLANOX = "0x15b3"
_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)


@dataclass(frozen=True)
class Gid:
    """One used slot of a port's GID table. `version` is None where the type can't be read."""

    index: int
    address: IPv6Address
    version: int | None
    netdev: str | None

    @cached_property
    def ipv4(self) -> IPv4Address | None:
        return self.address.ipv4_mapped

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "gid": gid_text(self.address),
            "ipv4": str(self.ipv4) if self.ipv4 else None,
            "type": {1: "RoCE v1", 2: "RoCE v2"}.get(self.version or 0),
            "netdev": self.netdev,
        }


@dataclass
class Netdev:
    name: str
    ifindex: int = 0
    kind: str = "physical"
    up: bool | None = None
    running: bool | None = None
    operstate: str | None = None
    mtu: int | None = None
    speed: int | None = None
    mac: str | None = None
    master: str | None = None
    lower: str | None = None
    dev_port: int | None = None
    phys_port_name: str | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    arp_filter: int | None = None
    rp_filter: int | None = None
    addresses: list[Interface] = field(default_factory=list)

    def interface(self, address: IPv4Address | IPv6Address) -> Interface | None:
        """The address with its real prefix length, if this device has it now."""
        return next((item for item in self.addresses if item.ip == address), None)


@dataclass
class Port:
    device: str
    number: int
    state: int | None
    state_text: str
    phys_state: str
    link_layer: str
    rate_gbps: float | None
    slots: list[int]
    gids: dict[int, Gid]
    netdev: str | None = None
    base: str | None = None  # the physical netdev under it: device/net, where the device has one


@dataclass
class Device:
    """One RDMA device. `kind` is pf, vf, sf, soft (no hardware: rxe, siw) or other."""

    name: str
    kind: str
    node_type: int | None
    sys_image_guid: str
    firmware: str
    hca_type: str
    pci: str | None
    pci_leaf: str | None  # last component of the device's real path: what NCCL sorts by
    pcie_speed: str | None
    pcie_width: int | None
    ports: list[Port] = field(default_factory=list)


@dataclass
class Node:
    devices: list[Device]
    netdevs: dict[str, Netdev]
    addresses_known: bool
    pci_functions: list[str]
    ib_driver: bool
    conf: list[tuple[str, dict[str, str]]]
    rules: list[Network] = field(default_factory=list)  # sources that `ip rule` sends to a routing table of their own

    def ports(self) -> Iterator[tuple[Device, Port]]:
        for device in self.devices:
            for port in device.ports:
                yield device, port


def parse_ip(*texts: str | None) -> list[Netdev] | None:
    """Network devices from the JSON of `ip -d -j addr` (and `ip -d -j link`), in the kernel's order.

    None where no text is what `ip` prints. Several texts add up, the first one leads.
    """
    found: dict[str, Netdev] = {}
    understood = False
    for text in texts:
        try:
            items = json.loads(text) if text else None
        except (ValueError, RecursionError):
            items = None
        if not isinstance(items, list):
            continue
        understood = True
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("ifname"), str):
                name = clean(item["ifname"])
                _fill(found.setdefault(name, Netdev(name)), item)
    return sorted(found.values(), key=lambda netdev: netdev.ifindex) if understood else None


def _fill(netdev: Netdev, item: dict[str, Any]) -> None:
    def string(value: object) -> str | None:
        return clean(value) if isinstance(value, str) else None

    netdev.ifindex = number(item.get("ifindex")) or netdev.ifindex
    netdev.mtu = number(item.get("mtu")) or netdev.mtu
    netdev.mac = string(item.get("address")) or netdev.mac
    netdev.master = string(item.get("master")) or netdev.master
    netdev.lower = string(item.get("link")) or netdev.lower
    netdev.operstate = (string(item.get("operstate")) or netdev.operstate or "unknown").lower()
    if isinstance(item.get("flags"), list):
        flags = [flag for flag in item["flags"] if isinstance(flag, str)]
        netdev.up = "UP" in flags
        # ip hides RUNNING and prints NO-CARRIER for a device that is up without it
        netdev.running = netdev.up and "NO-CARRIER" not in flags
        if "LOOPBACK" in flags:
            netdev.kind = "loopback"
    info = item.get("linkinfo")
    if isinstance(info, dict) and isinstance(info.get("info_kind"), str):
        netdev.kind = clean(info["info_kind"])
    for entry in item.get("addr_info") or [] if isinstance(item.get("addr_info"), list) else []:
        if not isinstance(entry, dict) or entry.get("tentative") or entry.get("dadfailed"):
            continue
        try:
            address = ipaddress.ip_interface(f"{entry.get('local')}/{number(entry.get('prefixlen'))}")
        except ValueError:
            continue
        if address not in netdev.addresses:
            netdev.addresses.append(address)


def _netdevs(tree: Tree, listed: list[Netdev] | None) -> dict[str, Netdev]:
    """Every netdev of sysfs or of `ip`; what sysfs knows fills what `ip` left open."""
    found = {netdev.name: netdev for netdev in listed or []}
    for raw in tree.names("sys/class/net"):
        name = clean(raw)
        netdev = found.setdefault(name, Netdev(name))
        where = f"sys/class/net/{raw}"
        if netdev.operstate in (None, "unknown"):
            netdev.operstate = (tree.text(where, "operstate") or "unknown").lower()
        netdev.mtu = netdev.mtu or number(tree.text(where, "mtu"))
        netdev.mac = netdev.mac or tree.text(where, "address")
        netdev.dev_port = number(tree.text(where, "dev_port"))
        netdev.phys_port_name = tree.text(where, "phys_port_name") or None
        speed = number(tree.text(where, "speed"))
        netdev.speed = speed if speed and speed > 0 else None
        netdev.ifindex = netdev.ifindex or number(tree.text(where, "ifindex")) or 0
        if netdev.master is None and (master := tree.real(where, "master")):
            netdev.master = clean(master.rpartition("/")[2])
        if netdev.kind == "physical":
            for mark, kind in (("bonding", "bond"), ("bridge", "bridge")):
                if tree.exists(where, mark):
                    netdev.kind = kind
            if tree.exists("proc/net/vlan", raw):
                netdev.kind = "vlan"
            elif netdev.kind == "physical" and not tree.exists(where, "device"):
                netdev.kind = "virtual"
    return found


def _gids(tree: Tree, port: str) -> tuple[list[int], dict[int, Gid]]:
    # listdir sorts 10 before 2, and a table may have 256 or 1024 slots: number them, stop at nothing
    slots = sorted(int(name) for name in tree.names(port, "gids") if re.fullmatch(r"[0-9]{1,6}", name))
    gids: dict[int, Gid] = {}
    for index in slots:
        address = parse_gid(tree.text(f"{port}/gids/{index}"))
        if address is not None:
            version = parse_gid_type(tree.text(f"{port}/gid_attrs/types/{index}"))
            netdev = tree.text(f"{port}/gid_attrs/ndevs/{index}") or None
            gids[index] = Gid(index, address, version, clean(netdev) if netdev else None)
    return slots, gids


def _base(tree: Tree, device: str, port: int, netdevs: dict[str, Netdev]) -> str | None:
    """The netdev of this port among those of the PCI function: by dev_port, representors left out."""
    names = [clean(name) for name in tree.names(device, "device/net")]
    if len(names) == 1:
        return str(names[0])
    for name in names:
        netdev = netdevs.get(name)
        representor = netdev and netdev.phys_port_name and not re.fullmatch(r"p[0-9]+", netdev.phys_port_name)
        if netdev and not representor and netdev.dev_port == port - 1:
            return str(name)
    return None


def _port(tree: Tree, device: str, name: str, raw: str, netdevs: dict[str, Netdev]) -> Port:
    where = f"{device}/ports/{raw}"
    state = tree.text(where, "state")
    slots, gids = _gids(tree, where)
    port = Port(
        device=name,
        number=int(raw),
        state=number(state),
        state_text=(state or "unknown").partition(": ")[2] or state or "unknown",
        phys_state=(tree.text(where, "phys_state") or "unknown").partition(": ")[2] or "unknown",
        link_layer=tree.text(where, "link_layer") or "unknown",
        rate_gbps=parse_rate(tree.text(where, "rate")),
        slots=slots,
        gids=gids,
        base=_base(tree, device, int(raw), netdevs),
    )
    # In this order: the GID table (slot 0 is the untagged device), the PCI function, rxe's own word.
    named = [gid.netdev for gid in gids.values() if gid.netdev]
    untagged = [item for item in named if item in netdevs and netdevs[item].kind != "vlan"]
    first = gids[0].netdev if 0 in gids else None
    parent = tree.text(device, "parent")
    port.netdev = first or next(iter(untagged), None) or port.base or (clean(parent) if parent else None)
    port.netdev = port.netdev or next(iter(named), None)
    return port


def _device(tree: Tree, raw: str, netdevs: dict[str, Netdev]) -> Device:
    where = f"sys/class/infiniband/{raw}"
    real = tree.real(where) or ""
    function = tree.real(where, "device")
    leaf = function.rpartition("/")[2] if function else None
    match = _PCI.fullmatch(leaf or "")
    parents = [part for part in (function or "").split("/") if _PCI.fullmatch(part)]
    if "/virtual/" in f"/{real}" or (function is None and tree.exists(where, "parent")):
        kind = "soft"
    elif tree.exists(where, "device/physfn"):
        kind = "vf"
    elif leaf and ".sf." in leaf:
        kind = "sf"
    else:
        kind = "pf" if match else "other"
    name = clean(raw)
    device = Device(
        name=name,
        kind=kind,
        node_type=number(tree.text(where, "node_type")),
        sys_image_guid=tree.text(where, "sys_image_guid") or "",
        firmware=tree.text(where, "fw_ver") or "",
        hca_type=tree.text(where, "hca_type") or "",
        pci=match.group(0) if match else (parents[-1] if parents else None),
        pci_leaf=clean(leaf) if leaf else None,
        pcie_speed=tree.text(where, "device/current_link_speed") or None,
        pcie_width=number(tree.text(where, "device/current_link_width")),
    )
    ports = [item for item in tree.names(where, "ports") if re.fullmatch(r"[0-9]{1,3}", item)]
    device.ports = [_port(tree, where, name, item, netdevs) for item in sorted(ports, key=int)]
    return device


def parse_rules(text: str | None) -> list[Network]:
    """Sources with a routing table of their own, from `ip -j rule`; rules that also ask for something else don't count."""
    try:
        items = json.loads(text) if text else []
    except (ValueError, RecursionError):
        items = []
    found: list[Network] = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict) or set(item) - {"priority", "src", "srclen", "table", "protocol"}:
            continue
        if str(item.get("table")) in ("None", "local", "main", "default", "255", "254", "253"):
            continue
        try:
            length = item.get("srclen")
            found.append(ipaddress.ip_network(f"{item.get('src')}{'' if length is None else f'/{length}'}", strict=False))
        except ValueError:  # `all`
            continue
    return found


IPV4_SETTINGS = ("arp_ignore", "arp_announce", "arp_filter", "rp_filter")


def _arp(tree: Tree, netdev: Netdev) -> None:
    """The effective settings: the kernel takes the larger of `all` and the device's own."""
    for setting in IPV4_SETTINGS:
        values = [number(tree.text("proc/sys/net/ipv4/conf", name, setting)) for name in ("all", netdev.name) if "/" not in name]
        known = [value for value in values if value is not None]
        setattr(netdev, setting, max(known) if known else None)


def read_node(root: str, *ip_json: str | None, rules: str | None = None) -> Node:
    """Everything the rules need of one node: sysfs below `root`, addresses as `ip -d -j addr` printed them, `ip -j rule`."""
    tree = Tree(root)
    listed = parse_ip(*ip_json)
    netdevs = _netdevs(tree, listed)
    devices = [_device(tree, name, netdevs) for name in tree.names("sys/class/infiniband")]
    for device in devices:
        for port in device.ports:
            for name in {gid.netdev for gid in port.gids.values()} | {port.netdev}:
                if name in netdevs:
                    _arp(tree, netdevs[name])
    functions = tree.names("sys/bus/pci/devices")
    conf = []
    for path in ("root/.nccl.conf", "etc/nccl.conf"):  # NCCL reads them in this order, the first word wins
        if tree.exists(path):
            conf.append((f"/{path}", parse_conf(tree.text(path))))
    return Node(
        devices=devices,
        netdevs=netdevs,
        addresses_known=listed is not None,
        pci_functions=[clean(name) for name in functions if tree.text("sys/bus/pci/devices", name, "vendor") == MELLANOX],
        ib_driver=tree.exists("sys/module/mlx5_ib"),
        conf=conf,
        rules=parse_rules(rules),
    )
