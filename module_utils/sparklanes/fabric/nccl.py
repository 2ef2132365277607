# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What NCCL itself would do with a node's devices under a given environment.

Our own statement of the rules of NCCL 2.30.7: name lists (misc/utils.cc), the choice and order of
devices (transport/net_ib/init.cc), the GID (transport/net_ib/connect.cc), the bootstrap interface
(misc/socket.cc, os/linux.cc), numbers in the environment (misc/param.cc). NCCL never says when a
device or a GID isn't the one that was meant; this simulation is how we find out before it runs.
Not modelled: Data Direct devices (ConnectX-8) and external network plugins.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.fabric.devices import ACTIVE, Device, Gid, Netdev, Node, Port
from ansible.module_utils.sparklanes.fabric.sysfs import gid_text, pci_key

MAX_DEVICES = 32  # MAX_IB_DEVS: devices, and entries of NCCL_IB_HCA
MAX_NAME = 63  # a name buffer of 64 bytes
DYNAMIC_GID = (2, 21)  # the first version that looks for a GID; before, the default index is 0
_V4_MAPPED = 0xFFFF << 32
_V4_MAPPED_MULTICAST = (0xFF0E << 112) | _V4_MAPPED
_LINK_LOCAL_PREFIX = 0xFE80 << 48


def parse_version(text: str) -> tuple[int, ...]:
    """`2.30.7` or `2.30.7-1` as numbers. ValueError for anything else."""
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:[-+].*)?", text.strip(), re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not an NCCL version like 2.30.7")
    return tuple(int(part) for part in match.groups() if part is not None)


def atoi(text: str, base: int = 10) -> int:
    """C's strtol: leading blanks, a sign, as many digits as there are; 0 where there is none. Base 0 knows 0x and 0."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    if not match:
        return 0
    digits = match.group(2)
    if base == 0 and digits[:2] in ("0x", "0X"):
        value = int(digits, 16)
    elif base == 0 and digits.startswith("0"):
        octal = re.match(r"[0-7]+", digits)
        value = int(octal.group(0), 8) if octal else 0
    else:
        decimal = re.match(r"[0-9]+", digits)
        value = int(decimal.group(0)[:19]) if decimal else 0
    return -value if match.group(1) == "-" else value


@dataclass(frozen=True)
class NameList:
    """`[^][=]name[:port],…`: `^` excludes what is listed, `=` wants whole names, otherwise names are prefixes."""

    exclude: bool
    exact: bool
    entries: tuple[tuple[str, int], ...]

    def takes(self, name: str, port: int = -1) -> bool:
        return self._listed(name, port) != self.exclude

    def _listed(self, name: str, port: int) -> bool:
        if not self.entries:
            return True  # so that a lone "^" excludes everything
        for entry, wanted in self.entries:
            same = name == entry if self.exact else name.startswith(entry)
            if same and (wanted == -1 or port in (-1, wanted)):
                return True
        return False


def parse_list(text: str | None) -> NameList:
    """Blanks are part of a name, empty entries vanish, at most 32 are kept."""
    rest = text or ""
    exclude = rest.startswith("^")
    rest = rest[1:] if exclude else rest
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries = []
    for part in rest.split(","):
        name, *numbers = part.split(":")
        if name:
            entries.append((name[:MAX_NAME], atoi(numbers[0]) if numbers and numbers[0] else -1))
    return NameList(exclude, exact, tuple(entries[:MAX_DEVICES]))


@dataclass(frozen=True)
class Settings:
    """The part of the environment that decides devices, GIDs and the bootstrap."""

    env: Mapping[str, str]
    version: tuple[int, ...] | None = None

    def integer(self, name: str, default: int) -> int:
        text = self.env.get(name, "")
        return atoi(text, 0) if text else default  # text that is no number is 0, not the default

    @property
    def gid_index(self) -> int:
        dynamic = self.version is None or self.version[:2] >= DYNAMIC_GID
        return self.integer("NCCL_IB_GID_INDEX", -1 if dynamic else 0)

    @property
    def family(self) -> int:
        return 6 if self.env.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else 4

    @property
    def address_range(self) -> tuple[int, int] | None:
        """(base, prefix length); None where nothing, or nothing usable, is set: then every address is in range."""
        base, slash, bits = self.env.get("NCCL_IB_ADDR_RANGE", "").partition("/")
        if not slash:
            return None
        try:
            address = ipaddress.IPv4Address(base) if self.family == 4 else ipaddress.IPv6Address(base)
        except ValueError:
            return None
        length = atoi(bits)
        return None if length > address.max_prefixlen else (int(address), length)


def _family(address: int) -> int:
    return 4 if address >> 32 << 32 in (_V4_MAPPED, _V4_MAPPED_MULTICAST) else 6


def _valid(address: int) -> bool:
    """Set, and not IPv6 link-local. 169.254/16 counts as valid."""
    return address != 0 and address >> 64 != _LINK_LOCAL_PREFIX


def _in_range(address: int, wanted: tuple[int, int] | None, family: int) -> bool:
    if wanted is None:
        return True
    base, length = wanted
    if length <= 0:
        return length == 0
    width = 32 if family == 4 else 128
    return (address ^ base) & (((1 << length) - 1) << (width - length)) == 0


def choose_gid(port: Port, settings: Settings) -> int:
    """The GID index NCCL uses on this port. Where nothing fits that is 0, and NCCL doesn't say so."""
    if port.link_layer == "InfiniBand":
        routable = settings.integer("NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1)
        gid = port.gids.get(routable)
        return routable if gid and (int(gid.address) >> 80) & 0xFFFF else 0
    if settings.gid_index >= 0:
        return settings.gid_index
    family, wanted, span = settings.family, settings.integer("NCCL_IB_ROCE_VERSION_NUM", 2), settings.address_range

    def value(index: int) -> int:
        gid = port.gids.get(index)
        return int(gid.address) if gid else 0

    def version(index: int) -> int | None:
        gid = port.gids.get(index)
        return gid.version if gid else None

    current = 0
    for index in port.slots:
        if index < 1 or not _in_range(value(index), span, family) or _family(value(index)) != family:
            continue
        if _family(value(current)) != family:
            current = index  # the first address of the family is taken whatever its RoCE version is
        elif _valid(value(index)) and version(index) == wanted:
            now = version(current)
            if now is None or now != wanted or not _valid(value(current)):
                current = index
    return current


def choose_devices(devices: Iterable[Device], settings: Settings) -> list[tuple[Device, Port]]:
    """The ports NCCL would use, in its order: ACTIVE, listed, the first 32, by PCI address.

    Devices without a PCI path go last, in an order NCCL doesn't define; here by name.
    """
    listed = parse_list(settings.env.get("NCCL_IB_HCA"))
    taken = [
        (device, port)
        for device in devices
        for port in device.ports
        if port.state == ACTIVE and port.link_layer in ("Ethernet", "InfiniBand") and listed.takes(device.name, port.number)
    ][:MAX_DEVICES]
    if settings.integer("NCCL_IB_DEVICE_PCI_ORDER", 1):
        taken.sort(key=lambda item: pci_order(item[0], item[1]))
    return taken


def pci_order(device: Device, port: Port) -> tuple[bool, int, str, int]:
    key = pci_key(device.pci_leaf)
    return (key is None, key or 0, device.name if key is None else "", port.number)


def choose_interface(netdevs: Iterable[Netdev], settings: Settings) -> tuple[str, str] | None:
    """The bootstrap's interface and address: the first that is running and listed, IPv4 of all devices first."""
    wanted = {"AF_INET": 4, "AF_INET6": 6}.get(settings.env.get("NCCL_SOCKET_FAMILY", ""))
    order = sorted(netdevs, key=lambda netdev: netdev.ifindex)
    found = [
        (netdev.name, address.ip)
        for version in (4, 6)
        for netdev in order
        for address in netdev.addresses
        if netdev.running and address.version == version and wanted in (None, version)
        if not (version == 6 and address.ip.is_loopback)
    ]
    chosen = settings.env.get("NCCL_SOCKET_IFNAME", "")
    lists = [chosen] if len(chosen) > 1 else ["ib", "^docker,lo,virbr", "docker", "lo", "virbr"]
    for text in lists:
        names = parse_list(text)
        for name, ip in found:
            if names.takes(name):
                return name, str(ip)
    return None


def _row(index: int, device: Device, port: Port, gid_index: int) -> dict[str, Any]:
    gid: Gid | None = port.gids.get(gid_index)
    return {
        "index": index,
        "hca": device.name,
        "port": port.number,
        "gid_index": gid_index,
        "gid": gid_text(gid.address) if gid else None,
        "ipv4": str(gid.ipv4) if gid and gid.ipv4 else None,
        "roce_version": gid.version if gid else None,
        "netdev": gid.netdev if gid else None,
        "link_local": bool(gid and not gid.ipv4 and not _valid(int(gid.address))),
    }


def simulate(node: Node, env: Mapping[str, str], version: tuple[int, ...] | None = None) -> dict[str, Any]:
    """What NCCL would use on this node: `net` is IB, Socket or none (NCCL stops with `error`)."""
    settings = Settings(env, version)
    interface = choose_interface(node.netdevs.values(), settings)
    bootstrap = {"ifname": interface[0], "address": interface[1]} if interface else None
    wanted = env.get("NCCL_NET", "").lower()
    devices: list[dict[str, Any]] = []
    if interface and not settings.integer("NCCL_IB_DISABLE", 0) and wanted in ("", "ib"):
        chosen = choose_devices(node.devices, settings)
        devices = [_row(index, device, port, choose_gid(port, settings)) for index, (device, port) in enumerate(chosen)]
    if interface is None:
        return {"net": "none", "error": "no socket interface found", "devices": [], "bootstrap": None}
    if devices:
        return {"net": "IB", "error": None, "devices": devices, "bootstrap": bootstrap}
    if wanted == "ib":
        error = "NCCL_NET=IB and no RDMA device is left"
        return {"net": "none", "error": error, "devices": [], "bootstrap": bootstrap}
    return {"net": "Socket", "error": None, "devices": [], "bootstrap": bootstrap}
