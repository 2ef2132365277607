"""Hand-made Sparks and recorded trees for the tests of the fabric, and for benchmarks/fabric.

A Spark here is a directory with the sysfs files that the module reads, shaped as facts of real Sparks say:
two QSFP ports, each shown as two PCI functions, ConnectX GID tables (v1 and v2 of each address in turn).
"""

from __future__ import annotations

import ipaddress
import json
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.fabric.sysfs import gid_text

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "fabric" / "roce"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
# (device, netdev, PCI function, physical port) of a Spark, in NCCL's order
SPARK = (
    ("rocep1s0f0", "enp1s0f0np0", "0000:01:00.0", "p0"),
    ("rocep1s0f1", "enp1s0f1np1", "0000:01:00.1", "p1"),
    ("roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0", "p0"),
    ("roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1", "p1"),
)
A0, A1, B0, B1 = (item[0] for item in SPARK)
Slot = tuple[str, str | None, str | None]  # GID or address, type, netdev


def gid(address: str) -> str:
    ip = ipaddress.ip_address(address)
    text = f"::ffff:{address}" if ip.version == 4 else address
    return gid_text(ipaddress.IPv6Address(text))


@dataclass
class Net:
    name: str
    addresses: list[str] = field(default_factory=list)
    mtu: int = 9000
    speed: int | None = 200000
    phys_port: str | None = None
    kind: str | None = None  # info_kind
    link: str | None = None
    master: str | None = None
    up: bool = True
    carrier: bool = True
    dev_port: int | None = 0
    ifindex: int = 0


@dataclass
class Hca:
    name: str
    net: str
    pci: str | None = None  # None: software RDMA
    guid: str = "a088:c203:00f0:0001"
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    link_layer: str = "Ethernet"
    rate: str = "200 Gb/sec (4X HDR)"
    node_type: str = "1: CA"
    slots: dict[int, Slot] | None = None  # None: made of the addresses of `net` and the VLANs on it
    v1: bool = True
    v2: bool = True
    table: int = 16
    more_nets: tuple[str, ...] = ()  # further netdevs in device/net
    virtual_of: str | None = None  # PCI function of the parent: a VF
    leaf: str | None = None  # a sub-function: the last component below the PCI function
    pcie: tuple[str, str] = ("32.0 GT/s PCIe", "4")


@dataclass
class Spark:
    """The parts of one node; `write` makes a tree of them."""

    hcas: list[Hca] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    files: dict[str, str | bytes] = field(default_factory=dict)
    pci: list[str] = field(default_factory=list)

    def hca(self, name: str) -> Hca:
        return next(item for item in self.hcas if item.name == name)

    def net(self, name: str) -> Net:
        return next(item for item in self.nets if item.name == name)

    def down(self, *devices: str) -> Spark:
        for name in devices:
            hca = self.hca(name)
            hca.state, hca.phys_state, hca.rate = "1: DOWN", "3: Disabled", "40 Gb/sec (4X QDR)"
            self.net(hca.net).carrier = False
        return self

    def table(self, hca: Hca) -> dict[int, Slot]:
        """A ConnectX table: v1 and v2 of the default fe80 address, then of each address, VLANs last."""
        if hca.slots is not None:
            return hca.slots
        types = [kind for kind, there in (("IB/RoCE v1", hca.v1), ("RoCE v2", hca.v2)) if there]
        tail = sum(ord(char) for char in hca.name) & 0xFFFF
        entries = [(f"fe80::5054:ff:fe00:{tail:x}", hca.net)]
        for net in self.nets:
            if hca.net in (net.name, net.link):
                entries += [(item.split("/")[0], net.name) for item in net.addresses]
        pairs = [(gid(address), kind, name) for address, name in dict.fromkeys(entries) for kind in types]
        return dict(enumerate(pairs))

    def write(self, root: Path) -> Path:
        put = _Writer(root)
        put("sys/class/net/.keep", "")
        if self.hcas:
            put("sys/class/infiniband/.keep", "")
        functions = {hca.pci for hca in self.hcas if hca.pci} | set(self.pci)
        for function in sorted(functions):
            base = _pci(function)
            put(f"{base}/vendor", "0x15b3\n")
            put.link(f"sys/bus/pci/devices/{function}", base)
        for index, net in enumerate(self.nets, 2):
            net.ifindex = index
            self._net(put, net)
        for hca in self.hcas:
            self._hca(put, hca)
        for path, content in self.files.items():
            put(path, content)
        put("ip_j_addr.json", json.dumps([LOOPBACK] + [_ip(net) for net in self.nets]))
        put("ip_dj_link.json", json.dumps([_link(net) for net in self.nets]))
        for keep in ("sys/class/net/.keep", "sys/class/infiniband/.keep"):
            (root / keep).unlink(missing_ok=True)
        return root

    def _net(self, put: _Writer, net: Net) -> None:
        owner = next((hca for hca in self.hcas if net.name in (hca.net, *hca.more_nets) and hca.pci), None)
        base = (
            f"{_pci(owner.pci)}/net/{net.name}" if owner and owner.pci and not net.kind else f"sys/devices/virtual/net/{net.name}"
        )
        put(f"{base}/mtu", f"{net.mtu}\n")
        put(f"{base}/operstate", "up\n" if net.up and net.carrier else "down\n")
        put(f"{base}/address", f"02:00:00:00:00:{net.ifindex:02x}\n")
        put(f"{base}/ifindex", f"{net.ifindex}\n")
        if net.speed is not None:
            put(f"{base}/speed", f"{net.speed}\n")
        if net.dev_port is not None:
            put(f"{base}/dev_port", f"{net.dev_port}\n")
        if net.phys_port:
            put(f"{base}/phys_port_name", f"{net.phys_port}\n")
        if net.kind == "bond":
            put(f"{base}/bonding/mode", "802.3ad 4\n")
        if base.startswith("sys/devices/pci"):
            put.link(f"{base}/device", base.rsplit("/net/", 1)[0])
        put.link(f"sys/class/net/{net.name}", base)

    def _hca(self, put: _Writer, hca: Hca) -> None:
        function = _pci(hca.pci) if hca.pci else "sys/devices/virtual"
        if hca.leaf:
            function = f"{function}/{hca.leaf}"
        base = f"{function}/infiniband/{hca.name}"
        put.link(f"sys/class/infiniband/{hca.name}", base)
        texts = {"node_type": hca.node_type, "sys_image_guid": hca.guid, "node_guid": hca.guid, "fw_ver": "28.45.4028"}
        if hca.pci:
            put.link(f"{base}/device", function)
            texts |= {"hca_type": "MT4129", "board_id": "NVD0000000001"}
            put(f"{function}/current_link_speed", f"{hca.pcie[0]}\n")
            put(f"{function}/current_link_width", f"{hca.pcie[1]}\n")
            if hca.virtual_of:
                put.link(f"{function}/physfn", _pci(hca.virtual_of))
            for name in (hca.net, *hca.more_nets):
                put(f"{function}/net/{name}/dev_port", f"{next((n.dev_port for n in self.nets if n.name == name), 0)}\n")
        else:
            texts["parent"] = hca.net
        for name, text in texts.items():
            put(f"{base}/{name}", f"{text}\n")
        port = f"{base}/ports/1"
        for name, text in {
            "state": hca.state,
            "phys_state": hca.phys_state,
            "link_layer": hca.link_layer,
            "rate": hca.rate,
        }.items():
            put(f"{port}/{name}", f"{text}\n")
        table = self.table(hca)
        put(f"{port}/gid_attrs/types/.keep", "")
        for index in range(max(hca.table, max(table, default=0) + 1)):
            address, kind, netdev = table.get(index, (EMPTY, None, None))
            put(f"{port}/gids/{index}", f"{address}\n")
            if kind is not None:  # an empty slot's type can't be read: EINVAL
                put(f"{port}/gid_attrs/types/{index}", f"{kind}\n")
            if netdev is not None:
                put(f"{port}/gid_attrs/ndevs/{index}", f"{netdev}\n")


class _Writer:
    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, path: str, content: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, path: str, target: str) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        if not where.is_symlink():
            where.symlink_to(os.path.relpath(self.root / target, where.parent))


def _pci(function: str) -> str:
    return f"sys/devices/pci{function[:7]}/{function[:7]}:00.9/{function}"


LOOPBACK: dict[str, Any] = {
    "ifindex": 1,
    "ifname": "lo",
    "flags": ["LOOPBACK", "UP", "LOWER_UP"],
    "mtu": 65536,
    "operstate": "UNKNOWN",
    "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8, "scope": "host"}],
}


def _link(net: Net) -> dict[str, Any]:
    state = ["UP"] * net.up + (["LOWER_UP"] if net.carrier else ["NO-CARRIER"] * net.up)
    item: dict[str, Any] = {
        "ifindex": net.ifindex,
        "ifname": net.name,
        "flags": ["BROADCAST", "MULTICAST", *state],
        "mtu": net.mtu,
        "operstate": "UP" if net.up and net.carrier else "DOWN",
        "link_type": "ether",
    }
    item |= {key: value for key, value in (("link", net.link), ("master", net.master)) if value}
    if net.kind:
        item["linkinfo"] = {"info_kind": net.kind}
    return item


def _ip(net: Net) -> dict[str, Any]:
    entries = []
    for text in net.addresses:
        interface = ipaddress.ip_interface(text)
        family = "inet" if interface.version == 4 else "inet6"
        entries.append({"family": family, "local": str(interface.ip), "prefixlen": interface.network.prefixlen})
    return {**_link(net), "addr_info": entries}


def spark(host: int = 10, ports: str = "0", networks: tuple[str, ...] = ("192.168.100", "192.168.101")) -> Spark:
    """A Spark with cables on the given QSFP ports; half A of a port is in its first network, half B in the second.

    Two cabled ports take two networks each: the first two for p0, the next two for p1.
    """
    nets, hcas = [Net("enP7s7", [f"10.0.0.{host}/24"], mtu=1500, speed=10000, dev_port=None)], []
    for device, name, pci, physical in SPARK:
        cabled = physical[1] in ports
        place = ports.index(physical[1]) * 2 + (pci[3] == "2") if cabled else 0
        addresses = [f"{networks[place]}.{host}/24"] if cabled else []
        nets.append(Net(name, addresses, phys_port=physical))
        hcas.append(Hca(device, name, pci))
    nets.append(Net("docker0", ["172.17.0.1/16"], mtu=1500, speed=None, kind="bridge", dev_port=None))
    made = Spark(hcas, nets)
    return made.down(*(device for device, _net, _pci, physical in SPARK if physical[1] not in ports))


def unpack(name: str, target: Path) -> Path:
    """A recorded tree (soft RoCE on a real kernel), without the parts that nothing reads."""
    keep = ("sys/class/infiniband", "sys/class/net", "sys/devices", "proc", "etc", "ip_j_addr", "ip_dj_link", "errors")
    dull = ("/queues/", "/statistics/", "/hw_counters/", "/counters/", "/cm_", "/pkeys/", "/power/")
    with tarfile.open(RECORDED / f"{name}.tar.gz") as archive:
        members = [
            member
            for member in archive.getmembers()
            if member.name.removeprefix("./").startswith(keep) and not any(part in f"/{member.name}/" for part in dull)
        ]
        archive.extractall(target, members, filter="tar")
    return target
