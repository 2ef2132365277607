"""Every case the detection knows, each as a tree and the answer that is right for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric.devices import parse_rules, read_node
from ansible.module_utils.sparklanes.fabric.names import FABRIC_ONLY, FABRIC_WINS
from ansible.module_utils.sparklanes.fabric.node import detect
from ansible.module_utils.sparklanes.fabric.options import read_options
from ansible.module_utils.sparklanes.fabric.ports import CODES
from conftest import ROOT
from roce_trees import A0, A1, B0, B1, SPARK, Hca, Net, Spark, gid, spark, unpack
from roce_trees import RECORDED as RECORDED_AT

V1, V2 = "IB/RoCE v1", "RoCE v2"
HALVES = ("192.168.100.10", "192.168.100.110")  # of _one_subnet
FOUR = ("192.168.11", "192.168.12", "192.168.21", "192.168.22")
ENV = {
    "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
    "NCCL_IB_ADDR_FAMILY": "AF_INET",
    "NCCL_IB_ROCE_VERSION_NUM": "2",
    "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
    "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
    "TP_SOCKET_IFNAME": "enp1s0f0np0",
    "UCX_NET_DEVICES": "enp1s0f0np0",
    "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
}


def look(root: Path, **options: Any) -> dict[str, Any]:
    texts = [path.read_text() for name in ("ip_j_addr.json", "ip_dj_link.json") if (path := root / name).exists()]
    rules = root / "ip_j_rule.json"
    node = read_node(str(root), *texts, rules=rules.read_text() if rules.exists() else None)
    result: dict[str, Any] = detect(node, read_options(options))
    for kind in ("errors", "warnings"):
        for item in result[kind]:
            assert item["code"] in CODES
            assert len(item["message"]) > 10
            assert len(item["remedy"]) > 10
    assert set(result["env"]) <= {*FABRIC_ONLY, *FABRIC_WINS}
    assert not (result["errors"] and result["env"]), "an environment that isn't proven is never handed out"
    for name, value in result["env"].items():
        assert value, name
        assert not set(value) & set(" \t\n"), name
    return result


@pytest.mark.parametrize("name", [*FABRIC_ONLY, *FABRIC_WINS])
def test_the_fabric_sets_what_it_keeps_lanes_from(name: str) -> None:
    package = ROOT / "module_utils" / "sparklanes" / "fabric"
    assert any(f'"{name}"' in (package / file).read_text(encoding="utf-8") for file in ("node.py", "environment.py"))


def codes(result: dict[str, Any], kind: str) -> list[str]:
    return sorted({item["code"] for item in result[kind]})


def rails(result: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(rail["hca"], rail["netdev"], rail["gid_index"]) for rail in result["chosen"]]


@dataclass
class Case:
    """`make` gives the node; the rest is the answer that is right."""

    id: str
    make: Callable[[], Spark]
    options: dict[str, Any] = field(default_factory=dict)
    rails: list[tuple[str, str, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)  # None: must not be set


PAIR = [(A0, "enp1s0f0np0", 3), (B0, "enP2p1s0f0np0", 3)]
PORT1 = [(A1, "enp1s0f1np1", 3), (B1, "enP2p1s0f1np1", 3)]
HOLE = dict(
    enumerate([(gid("fe80::4"), V1, SPARK[2][1]), (gid("fe80::4"), V2, SPARK[2][1]), (gid("192.168.101.10"), V1, SPARK[2][1])])
)


def changed(change: Callable[[Spark], object], **arguments: Any) -> Callable[[], Spark]:
    def make() -> Spark:
        made = spark(**arguments)
        change(made)
        return made

    return make


def renamed(made: Spark) -> None:
    for number, (hca, net) in enumerate(zip(made.hcas, made.nets[1:], strict=False)):
        hca.name, net.name = f"mlx5_{number}", f"fabric{number}"
        hca.net = net.name


def drifted(made: Spark) -> None:
    made.hca(B0).slots = HOLE | {4: (gid("192.168.101.10"), V2, "enP2p1s0f0np0")}


def two_addresses(made: Spark, *more: str) -> None:
    made.net("enp1s0f0np0").addresses[:0] = more


def vlans(made: Spark) -> None:
    """A VLAN on each half; the halves' own addresses come first in the GID tables."""
    for name, address in (("enp1s0f0np0", "192.168.77.10/24"), ("enP2p1s0f0np0", "192.168.78.10/24")):
        made.nets.append(Net(f"{name}.77", [address], kind="vlan", link=name))


def vlans_only(made: Spark) -> None:
    vlans(made)
    made.net("enp1s0f0np0").addresses = made.net("enP2p1s0f0np0").addresses = []


def bond(made: Spark) -> None:
    """RoCE LAG over both ports of half A: one device, its netdev is the bond, device/net still lists the slaves."""
    made.nets.append(Net("bond0", ["192.168.100.10/24"], kind="bond", speed=400000))
    made.net("enp1s0f0np0").addresses = []
    made.net("enP2p1s0f0np0").addresses = []
    for name in ("enp1s0f0np0", "enp1s0f1np1"):
        made.net(name).master = "bond0"
    lag = made.hca(A0)
    lag.name = "mlx5_bond_0"
    kinds = enumerate([("fe80::1", V1), ("fe80::1", V2), ("192.168.100.10", V1), ("192.168.100.10", V2)])
    lag.slots = {index: (gid(address), kind, "bond0") for index, (address, kind) in kinds}


def bond_slave(made: Spark) -> None:
    """Without LAG the bond's address stands in the slaves' tables."""
    bond(made)
    made.hca("mlx5_bond_0").slots = {0: (gid("fe80::1"), V2, "enp1s0f0np0"), 1: (gid("192.168.100.10"), V2, "bond0")}


def arp(made: Spark, ignore: int, announce: int) -> None:
    for name in ("enp1s0f0np0", "enP2p1s0f0np0"):
        made.files[f"proc/sys/net/ipv4/conf/{name}/arp_ignore"] = f"{ignore}\n"
        made.files[f"proc/sys/net/ipv4/conf/{name}/arp_announce"] = f"{announce}\n"


def setting(name: str, value: int, netdev: str = "all") -> Callable[[Spark], None]:
    return lambda made: made.files.update({f"proc/sys/net/ipv4/conf/{netdev}/{name}": f"{value}\n"})


def rules(*sources: str) -> Callable[[Spark], None]:
    """`ip -j rule`: a table of its own for each source, between the kernel's usual rules."""
    found: list[dict[str, Any]] = [{"priority": 0, "src": "all", "table": "local"}]
    found += [{"priority": 100 + index, "src": source, "table": str(100 + index)} for index, source in enumerate(sources)]
    found += [{"priority": 32766, "src": "all", "table": "main"}]
    return lambda made: made.files.update({"ip_j_rule.json": json.dumps(found)})


def several(*changes: Callable[[Spark], object]) -> Callable[[Spark], None]:
    return lambda made: [change(made) for change in changes] and None


def bystanders(made: Spark) -> None:
    """What else runs and has an address on such a machine, none with an RDMA device."""
    for number, name in enumerate(("br-1f2e", "veth12ab", "podman0", "tailscale0", "wlP9s9", "enx0250b6"), 1):
        made.nets.insert(
            0, Net(name, [f"172.30.{number}.1/24"], mtu=1500, kind=None if name[0] in "we" else "bridge", dev_port=None)
        )


def stale(made: Spark) -> None:
    made.hca(A0).slots = made.table(made.hca(A0))
    made.net("enp1s0f0np0").addresses = ["192.168.200.10/24"]


def v6(made: Spark) -> None:
    made.net("enp1s0f0np0").addresses = ["fd00:100::10/64"]
    made.net("enP2p1s0f0np0").addresses = ["fd00:101::10/64"]


def virtual_function(made: Spark) -> None:
    made.hcas.append(Hca("mlx5_vf", "enp1s0f0v0", "0000:01:00.2", virtual_of="0000:01:00.0"))
    made.nets.append(Net("enp1s0f0v0", ["192.168.100.99/24"]))


def odd_virtual_function(made: Spark) -> None:
    """Its function number is that of p0."""
    made.hcas.append(Hca("mlx5_vf", "enp1s0f0v0", "0000:01:01.0", virtual_of="0000:01:00.0"))
    made.nets.append(Net("enp1s0f0v0", ["192.168.100.99/24"]))


def sub_function(made: Spark) -> None:
    made.hcas.append(Hca("mlx5_sf", "enp1s0f0s1", "0000:01:00.0", leaf="mlx5_core.sf.4"))
    made.nets.append(Net("enp1s0f0s1", ["192.168.100.99/24"], phys_port="pf0sf1"))


def representors(made: Spark) -> None:
    """device/net of one function lists its own netdev and the representor of a sub-function."""
    made.hca(A0).more_nets = ("enp1s0f0r1",)
    made.nets.insert(1, Net("enp1s0f0r1", phys_port="pf0sf1", dev_port=0))
    made.hca(A0).slots = {3: (gid("192.168.100.10"), V2, "enp1s0f0np0")}


def many(made: Spark) -> None:
    for number in range(20):
        for half in (0, 1):
            name = f"net{number}h{half}"
            pci = f"{half * 2:04x}:{number + 2:02x}:00.0"
            made.hcas.append(Hca(f"hca{number}h{half}", name, pci, guid=f"0000:0000:00f0:{number + 1:04x}"))
            made.nets.append(Net(name, [f"10.{number}.{half}.1/24"], phys_port="p0"))


def no_halves(made: Spark) -> None:
    made.hcas = [hca for hca in made.hcas if hca.name in (A0, A1)]


def infiniband(made: Spark) -> None:
    """The ports are ACTIVE, their Ethernet devices are down."""
    for hca in made.hcas:
        hca.link_layer, made.net(hca.net).carrier = "InfiniBand", False


def unreadable(made: Spark) -> None:
    made.hca(A0).slots = {0: (gid("fe80::1"), V2, "enp1s0f0np0"), 1: (gid("192.168.100.10"), None, None)}


def set_addresses(**addresses: list[str]) -> Callable[[Spark], None]:
    def change(made: Spark) -> None:
        for name, texts in addresses.items():
            made.net(name).addresses = texts

    return change


def field_set(thing_name: str, /, **values: Any) -> Callable[[Spark], None]:
    """Set fields of the HCA, or of the network device, of that name."""

    def change(made: Spark) -> None:
        thing: Any = next((item for item in made.hcas if item.name == thing_name), None) or made.net(thing_name)
        for key, value in values.items():
            setattr(thing, key, value)

    return change


def nothing(pci: list[str], driver: bool = False) -> Callable[[], Spark]:
    files: dict[str, str | bytes] = {"sys/module/mlx5_ib/refcnt": "0\n"} if driver else {}
    return lambda: Spark([], [Net("enP7s7", ["10.0.0.10/24"])], files, pci)


CASES = [
    Case("two halves, two subnets", spark, rails=PAIR, env={**ENV, "NCCL_IB_GID_INDEX": None, "NCCL_IB_ADDR_RANGE": None}),
    Case("cable in the other port", lambda: spark(ports="1"), rails=PORT1, env={"NCCL_IB_HCA": f"={A1},{B1}", "GLOO_SOCKET_IFNAME": "enp1s0f1np1"}),
    Case("no device, no PCI function", nothing([]), errors=["NO_RDMA_PCI"]),
    Case("no device, PCI function there", nothing(["0000:01:00.0"]), errors=["NO_RDMA_DEVICE"]),
    Case("no device, driver loaded", nothing(["0000:01:00.0"], driver=True), errors=["NO_RDMA_DEVICE"]),
    Case("all ports down", changed(lambda s: s.down(A0, B0)), errors=["NO_USABLE_PORT"]),
    Case("port INIT", changed(field_set(A0, state="2: INIT")), errors=["HALF_MISSING"], rails=PAIR[1:]),
    Case("port ARMED, no half wanted", changed(field_set(B0, state="3: ARMED")), {"want_both_halves": False}, PAIR[:1], warnings=["HALF_MISSING"]),
    Case("twin down keeps its GID", changed(lambda s: s.down(B0)), rails=PAIR[:1], errors=["HALF_MISSING"]),
    Case("twin without IPv4", changed(set_addresses(enP2p1s0f0np0=[])), rails=PAIR[:1], errors=["HALF_MISSING"]),
    Case("twin without IPv4, accepted", changed(set_addresses(enP2p1s0f0np0=[])), {"want_both_halves": False}, PAIR[:1],
         warnings=["HALF_MISSING"], env={"NCCL_IB_HCA": f"={A0}"}),
    Case("second cable without addresses", lambda: _second_cable(), rails=PAIR, warnings=["NO_IPV4"], env=dict(ENV)),
    Case("no IPv4 anywhere", changed(set_addresses(enp1s0f0np0=[], enP2p1s0f0np0=[])), errors=["NO_IPV4", "NO_USABLE_PORT"]),
    Case("second half not on the bus", changed(no_halves), rails=PAIR[:1], errors=["HALF_ABSENT"]),
    Case("second half not on the bus, accepted", changed(no_halves), {"want_both_halves": False}, PAIR[:1], warnings=["HALF_ABSENT"]),
    Case("169.254 on all halves", changed(set_addresses(enp1s0f0np0=["169.254.1.1/16"], enP2p1s0f0np0=["169.254.1.2/16"])), rails=PAIR,
         warnings=["LINK_LOCAL", "SAME_SUBNET"], env=dict(ENV)),
    Case("169.254 on one half", changed(set_addresses(enP2p1s0f0np0=["169.254.1.2/16"])), rails=PAIR[:1], errors=["HALF_MISSING"]),
    Case("169.254 on the other port", lambda: _link_local_port(), rails=PAIR, warnings=["LINK_LOCAL_MIXED"], env=dict(ENV)),
    Case("169.254 beside a routable address", changed(set_addresses(enp1s0f0np0=["169.254.1.1/16", "192.168.100.10/24"])),
         rails=[(A0, "enp1s0f0np0", 5), PAIR[1]], warnings=["SOCKET_ADDRESS"], env={"NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("IPv6 only", changed(v6), errors=["IPV6_ONLY", "NO_USABLE_PORT"]),
    Case("IPv6 only, allowed", changed(v6), {"allow_ipv6": True}, PAIR,
         env={"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_SOCKET_FAMILY": "AF_INET6", "NCCL_IB_HCA": ENV["NCCL_IB_HCA"]}),
    Case("IPv6 on one half, allowed", changed(set_addresses(enP2p1s0f0np0=["fd00::1/64"])), {"allow_ipv6": True}, PAIR[:1], errors=["HALF_MISSING"]),
    Case("fe80 only is no address", changed(set_addresses(enp1s0f0np0=["fe80::1/64"], enP2p1s0f0np0=[])), {"allow_ipv6": True},
         errors=["NO_IPV4", "NO_USABLE_PORT"]),
    Case("two cabled ports", lambda: spark(ports="01", networks=FOUR), errors=["AMBIGUOUS_PORTS"]),
    Case("two cabled ports, cidr", lambda: spark(ports="01", networks=FOUR), {"fabric_cidr": ["192.168.21.0/24", "192.168.22.0/24"]}, PORT1),
    Case("two cabled ports, cidr of one half", lambda: spark(ports="01", networks=FOUR), {"fabric_cidr": ["192.168.21.0/24"]}, PORT1[:1],
         errors=["HALF_MISSING"]),
    Case("two cabled ports, cidr of both", lambda: spark(ports="01", networks=FOUR), {"fabric_cidr": ["192.168.0.0/16"]},
         [PAIR[0], PORT1[0], PAIR[1], PORT1[1]], warnings=["SECOND_CABLE"], env={"NCCL_IB_HCA": f"={A0},{A1},{B0},{B1}"}),
    Case("two cabled ports, both wanted", lambda: spark(ports="01", networks=FOUR), {"ports_wanted": 2}, [PAIR[0], PORT1[0], PAIR[1], PORT1[1]]),
    Case("two wanted, one cabled", spark, {"ports_wanted": 2}, PAIR, errors=["PORTS_WANTED"]),
    Case("two cabled ports, peers", lambda: spark(ports="01", networks=FOUR), {"peers": ["192.168.22.11", "192.168.21.12"]}, PORT1),
    Case("peers with this node among them", lambda: spark(ports="01", networks=FOUR), {"peers": ["192.168.11.10", "192.168.11.11"]}, PAIR),
    Case("peers on both ports", lambda: spark(ports="01", networks=FOUR), {"peers": ["192.168.11.9", "192.168.21.9"]}, errors=["PEERS_UNREACHED"]),
    Case("peers nowhere", lambda: spark(ports="01", networks=FOUR), {"peers": ["10.9.9.9"]}, errors=["PEERS_UNREACHED"]),
    Case("one subnet on both ports, peers", lambda: spark(ports="01", networks=("10.1.1", "10.1.2", "10.1.1", "10.1.2")), {"peers": ["10.1.1.9"]},
         errors=["AMBIGUOUS_PORTS"]),
    Case("nothing in cidr", spark, {"fabric_cidr": ["10.9.0.0/16"]}, errors=["CIDR_NONE"]),
    Case("a cidr without an address", spark, {"fabric_cidr": ["192.168.100.0/23", "192.168.50.0/24"]}, PAIR, warnings=["CIDR_UNUSED"]),
    Case("ring", lambda: spark(ports="01", networks=FOUR), {"topology": "ring", "control_ifname": "enP7s7"}, [PAIR[0], PORT1[0], PAIR[1], PORT1[1]],
         env={"NCCL_IB_MERGE_NICS": "0", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_NET_PLUGIN": "none", "GLOO_SOCKET_IFNAME": "enP7s7",
              "NCCL_IB_SUBNET_PREFIX_LEN": None}),
    Case("ring of /30", lambda: _small_ring("/30"), {"topology": "ring", "control_ifname": "enP7s7"}, [PAIR[0], PORT1[0], PAIR[1], PORT1[1]],
         env={"NCCL_IB_SUBNET_PREFIX_LEN": "30"}),
    Case("ring with two sizes", lambda: _small_ring("/24", "/30"), {"topology": "ring", "control_ifname": "enP7s7"},
         [PAIR[0], PORT1[0], PAIR[1], PORT1[1]], errors=["RING_PREFIX"]),
    Case("ring without control", lambda: spark(ports="01", networks=FOUR), {"topology": "ring"}, [PAIR[0], PORT1[0], PAIR[1], PORT1[1]],
         errors=["RING_CONTROL"]),
    Case("ring with one cable", spark, {"topology": "ring", "control_ifname": "enP7s7"}, errors=["RING_PORTS"]),
    Case("halves in one subnet", lambda: _one_subnet(), rails=PAIR, warnings=["SAME_SUBNET"], env=dict(ENV)),
    Case("halves in one subnet, ARP set", lambda: _one_subnet(lambda s: arp(s, 1, 2)), rails=PAIR, env=dict(ENV)),
    Case("halves in one subnet, ARP half set", lambda: _one_subnet(lambda s: arp(s, 1, 1)), rails=PAIR, warnings=["SAME_SUBNET"]),
    Case("halves in one subnet, rules by source", lambda: _one_subnet(several(rules(*HALVES), setting("arp_filter", 1))), rails=PAIR, env=dict(ENV)),
    Case("halves in one subnet, a rule for one", lambda: _one_subnet(several(rules(HALVES[0]), setting("arp_filter", 1))), rails=PAIR,
         warnings=["SAME_SUBNET"]),
    Case("halves in one subnet, rules without arp_filter", lambda: _one_subnet(rules(*HALVES)), rails=PAIR, warnings=["SAME_SUBNET"]),
    Case("halves in one subnet, strict rp_filter", lambda: _one_subnet(several(lambda s: arp(s, 1, 2), setting("rp_filter", 1))), rails=PAIR,
         warnings=["RP_FILTER"]),
    Case("halves in one subnet, loose rp_filter", lambda: _one_subnet(several(lambda s: arp(s, 1, 2), setting("rp_filter", 2))), rails=PAIR),
    Case("halves in one subnet, strict rp_filter and rules", lambda: _one_subnet(several(rules(*HALVES), setting("arp_filter", 1), setting("rp_filter", 1))),
         rails=PAIR),
    Case("strict rp_filter in two subnets", changed(setting("rp_filter", 1)), rails=PAIR, env=dict(ENV)),
    Case("bridges, tunnels, Wi-Fi and USB", changed(bystanders), rails=PAIR, env=dict(ENV)),
    Case("VLANs beside untagged addresses", changed(vlans), errors=["SEVERAL_NETWORKS"]),
    Case("VLANs by cidr", changed(vlans), {"fabric_cidr": ["192.168.77.0/24", "192.168.78.0/24"]},
         [(A0, "enp1s0f0np0.77", 5), (B0, "enP2p1s0f0np0.77", 5)], warnings=["VLAN"],
         env={"NCCL_IB_ADDR_RANGE": "192.168.76.0/22", "NCCL_SOCKET_IFNAME": "=enp1s0f0np0.77", "GLOO_SOCKET_IFNAME": "enp1s0f0np0.77"}),
    Case("untagged by cidr, VLANs there", changed(vlans), {"fabric_cidr": ["192.168.100.0/24", "192.168.101.0/24"]}, PAIR,
         env={**ENV, "NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("VLANs only", changed(vlans_only), rails=[(A0, "enp1s0f0np0.77", 3), (B0, "enP2p1s0f0np0.77", 3)], warnings=["VLAN"],
         env={"NCCL_IB_ADDR_RANGE": "192.168.76.0/22"}),
    Case("one VLAN", changed(lambda s: (vlans_only(s), s.down(B0))), {"want_both_halves": False}, [(A0, "enp1s0f0np0.77", 3)],
         warnings=["HALF_MISSING", "VLAN"], env={"NCCL_IB_ADDR_RANGE": "192.168.77.0/24"}),
    Case("VLAN set down", changed(lambda s: (vlans_only(s), [setattr(n, "up", False) for n in s.nets if n.kind == "vlan"])),
         errors=["NETDEV_DOWN", "NO_USABLE_PORT"]),
    Case("bond", changed(bond), rails=[("mlx5_bond_0", "bond0", 3)], warnings=["BOND", "NO_IPV4"],
         env={"NCCL_IB_HCA": "=mlx5_bond_0", "GLOO_SOCKET_IFNAME": "bond0"}),
    Case("bond without LAG", changed(bond_slave), errors=["BOND_SLAVE", "NO_IPV4", "NO_USABLE_PORT"]),
    Case("RoCE v1 only", changed(lambda s: [setattr(h, "v2", False) for h in s.hcas]), errors=["NO_USABLE_PORT", "V1_ONLY"]),
    Case("RoCE v1 on one half", changed(field_set(B0, v2=False)), rails=PAIR[:1], errors=["HALF_MISSING"]),
    Case("RoCE v2 only", changed(lambda s: [setattr(h, "v1", False) for h in s.hcas]), rails=[(A0, "enp1s0f0np0", 1), (B0, "enP2p1s0f0np0", 1)],
         env=dict(ENV)),
    Case("two IPv4 in two networks", changed(lambda s: two_addresses(s, "192.168.55.10/24")), errors=["SEVERAL_NETWORKS"], rails=PAIR[1:]),
    Case("two IPv4, cidr", changed(lambda s: two_addresses(s, "192.168.55.10/24")), {"fabric_cidr": ["192.168.100.0/23"]},
         [(A0, "enp1s0f0np0", 5), PAIR[1]], warnings=["SOCKET_ADDRESS"], env={**ENV, "NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("two IPv4, peers", changed(lambda s: two_addresses(s, "192.168.55.10/24")), {"peers": ["192.168.100.11"]},
         [(A0, "enp1s0f0np0", 5), PAIR[1]], warnings=["SOCKET_ADDRESS"], env={"NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("two IPv4 in one network", changed(lambda s: two_addresses(s, "192.168.100.9/24")), rails=PAIR, env={"NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("no range fits", changed(set_addresses(enp1s0f0np0=["192.168.150.10/24", "192.168.100.10/24"], enP2p1s0f0np0=["192.168.200.10/24"])),
         {"fabric_cidr": ["192.168.100.0/24", "192.168.200.0/24"]}, [(A0, "enp1s0f0np0", 5), PAIR[1]], errors=["NCCL_CHOICE"], warnings=["SOCKET_ADDRESS"]),
    Case("no range fits, pinned", changed(set_addresses(enp1s0f0np0=["192.168.150.10/24", "192.168.100.10/24"],
                                                        enP2p1s0f0np0=["192.168.250.10/24", "192.168.200.10/24"])),
         {"fabric_cidr": ["192.168.100.0/24", "192.168.200.0/24"], "gid_policy": "pin_per_node"},
         [(A0, "enp1s0f0np0", 5), (B0, "enP2p1s0f0np0", 5)], warnings=["GID_PINNED", "SOCKET_ADDRESS"],
         env={"NCCL_IB_GID_INDEX": "5", "NCCL_IB_ADDR_RANGE": None}),
    Case("GID index differs", changed(drifted), rails=[PAIR[0], (B0, "enP2p1s0f0np0", 4)], env={**ENV, "NCCL_IB_GID_INDEX": None}),
    Case("GID index differs, old NCCL", changed(drifted), {"nccl_version": "2.20.5"}, [PAIR[0], (B0, "enP2p1s0f0np0", 4)],
         errors=["NO_COMMON_GID_INDEX"]),
    Case("GID index differs, pin wanted", changed(drifted), {"gid_policy": "pin_per_node"}, [PAIR[0], (B0, "enP2p1s0f0np0", 4)],
         errors=["NO_COMMON_GID_INDEX"]),
    Case("old NCCL, one index", spark, {"nccl_version": "2.18.3"}, PAIR, warnings=["GID_PINNED"], env={**ENV, "NCCL_IB_GID_INDEX": "3"}),
    Case("pin, right index", spark, {"gid_policy": "pin_per_node", "gid_index": 3}, PAIR, warnings=["GID_PINNED"], env={"NCCL_IB_GID_INDEX": "3"}),
    Case("pin, wrong index", spark, {"gid_policy": "pin_per_node", "gid_index": 2}, PAIR, errors=["GID_INDEX_WRONG"]),
    Case("current NCCL", spark, {"nccl_version": "2.30.7"}, PAIR, env={**ENV, "NCCL_IB_GID_INDEX": None}),
    Case("GID unreadable", changed(unreadable), rails=PAIR[1:], errors=["HALF_MISSING"]),
    Case("stale GID on one half", changed(stale), rails=PAIR[1:], errors=["HALF_MISSING"]),
    Case("stale GID beside the right one", changed(lambda s: (field_set(A0, slots=s.table(s.hca(A0)) | {4: (gid("10.5.5.5"), V2, "enp1s0f0np0")})(s))),
         rails=PAIR, warnings=["GID_STALE"], env={**ENV, "NCCL_IB_ADDR_RANGE": "192.168.100.0/23"}),
    Case("renamed devices and netdevs", changed(renamed), rails=[("mlx5_0", "fabric0", 3), ("mlx5_2", "fabric2", 3)],
         env={"NCCL_IB_HCA": "=mlx5_0,mlx5_2", "GLOO_SOCKET_IFNAME": "fabric0"}),
    Case("port in InfiniBand mode", changed(field_set(A1, link_layer="InfiniBand", state="4: ACTIVE")), rails=PAIR, warnings=["IB_MODE"], env=dict(ENV)),
    Case("all ports in InfiniBand mode", changed(infiniband), errors=["IB_MODE", "NO_USABLE_PORT"]),
    Case("virtual function", changed(virtual_function), rails=PAIR, env=dict(ENV)),
    Case("virtual function, listed", changed(virtual_function), {"hcas": ["mlx5_vf"]}, [("mlx5_vf", "enp1s0f0v0", 3)], env={"NCCL_IB_HCA": "=mlx5_vf"}),
    Case("virtual function in the PF's place", changed(odd_virtual_function), {"hcas": ["mlx5_vf"]}, [("mlx5_vf", "enp1s0f0v0", 3)]),
    Case("virtual function in the PF's place, not listed", changed(odd_virtual_function), rails=PAIR, env=dict(ENV)),
    Case("one port, peers elsewhere", spark, {"peers": ["192.168.111.11"]}, errors=["PEERS_UNREACHED"]),
    Case("one port, only itself as a peer", spark, {"peers": ["192.168.100.10"]}, PAIR, env=dict(ENV)),
    Case("range of everything", changed(lambda s: (two_addresses(s), set_addresses(enP2p1s0f0np0=["10.1.1.1/24", "10.1.1.2/24"])(s))), rails=PAIR,
         env={"NCCL_IB_ADDR_RANGE": None}),
    Case("sub-function", changed(sub_function), rails=PAIR, env=dict(ENV)),
    Case("representor in device/net", changed(representors), rails=PAIR, env=dict(ENV)),
    Case("iWARP", changed(lambda s: [setattr(h, "node_type", "4: RNIC") for h in s.hcas]), errors=["NO_USABLE_PORT"]),
    Case("soft RoCE", changed(lambda s: [setattr(h, "pci", None) for h in s.hcas]), errors=["NO_USABLE_PORT"]),
    Case("more than 32", changed(many), {"fabric_cidr": ["10.0.0.0/8"]}, errors=["TOO_MANY_HCAS"], warnings=["SECOND_CABLE"]),
    Case("comma in a name", changed(field_set(A0, name="roce,1")), rails=[("roce,1", "enp1s0f0np0", 3), PAIR[1]], errors=["NAME_UNSAFE"]),
    Case("colon in a name", changed(field_set(A0, name="roce:1")), rails=[("roce:1", "enp1s0f0np0", 3), PAIR[1]], errors=["NAME_UNSAFE"]),
    Case("blank in a name", changed(field_set(A0, name="roce 1")), rails=[("roce 1", "enp1s0f0np0", 3), PAIR[1]], errors=["NAME_UNSAFE"]),
    Case("hcas that don't exist", spark, {"hcas": ["mlx5_0", "mlx5_2"]}, errors=["HCA_MISSING"]),
    Case("hcas of one half", spark, {"hcas": [A0]}, PAIR[:1], errors=["HALF_MISSING"]),
    Case("control on the 10GbE", spark, {"control_ifname": "enP7s7"}, PAIR, env={"GLOO_SOCKET_IFNAME": "enP7s7", "NCCL_IB_HCA": ENV["NCCL_IB_HCA"]}),
    Case("control that isn't there", spark, {"control_ifname": "eth9"}, PAIR, errors=["CONTROL_IFNAME"]),
    Case("control without address", spark, {"control_ifname": "enp1s0f1np1"}, PAIR, errors=["CONTROL_IFNAME"]),
    Case("strict", spark, {"strict": True}, PAIR, env={**ENV, "NCCL_NET": "IB"}),
    Case("low MTU", changed(lambda s: [setattr(n, "mtu", 1500) for n in s.nets]), rails=PAIR, warnings=["MTU_LOW"]),
    Case("one low MTU", changed(field_set("enP2p1s0f0np0", mtu=1500)), rails=PAIR, warnings=["MTU_LOW", "MTU_UNEQUAL"]),
    Case("slow link", changed(field_set("enp1s0f0np0", speed=100000)), rails=PAIR, warnings=["LINK_SPEED"]),
    Case("half B at x2", changed(field_set(B0, pcie=("32.0 GT/s PCIe", "2"))), rails=PAIR, warnings=["PCIE_LINK"]),
    Case("harmless nccl.conf", changed(lambda s: s.files.update({"etc/nccl.conf": "NCCL_DEBUG=INFO\n"})), rails=PAIR, warnings=["NCCL_CONF"], env=dict(ENV)),
    Case("nccl.conf pins an index", changed(lambda s: s.files.update({"etc/nccl.conf": "# old\nNCCL_IB_GID_INDEX=1\n"})), rails=PAIR,
         warnings=["NCCL_CONF"], env=dict(ENV)),
    Case("empty nccl.conf", changed(lambda s: s.files.update({"etc/nccl.conf": "# nothing\n"})), rails=PAIR, env=dict(ENV)),
    Case("unset physical ports", changed(lambda s: [setattr(n, "phys_port", None) for n in s.nets]), rails=PAIR, env=dict(ENV)),
]  # fmt: skip


def _second_cable() -> Spark:
    made = spark()
    for name in (A1, B1):
        made.hca(name).state, made.hca(name).phys_state = "4: ACTIVE", "5: LinkUp"
        made.net(made.hca(name).net).carrier = True
    return made


def _link_local_port() -> Spark:
    made = _second_cable()
    set_addresses(enp1s0f1np1=["169.254.3.1/16"], enP2p1s0f1np1=["169.254.3.2/16"])(made)
    return made


def _small_ring(*sizes: str) -> Spark:
    made = spark(ports="01", networks=FOUR)
    for index, net in enumerate(net for net in made.nets if net.phys_port):
        net.addresses = [net.addresses[0].replace("/24", sizes[index % len(sizes)])]
    return made


def _one_subnet(change: Callable[[Spark], object] = lambda made: None) -> Spark:
    made = spark()
    made.net("enP2p1s0f0np0").addresses = ["192.168.100.110/24"]
    change(made)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case, tmp_path: Path) -> None:
    result = look(case.make().write(tmp_path), **case.options)
    assert (codes(result, "errors"), codes(result, "warnings")) == (case.errors, case.warnings), result["summary"]
    if case.id != "more than 32":
        assert rails(result) == case.rails
    for name, value in case.env.items():
        assert result["env"].get(name) == value, name
    if not case.errors:
        chosen = [(row["hca"], row["netdev"], row["gid_index"]) for row in result["nccl"]["with_env"]["devices"]]
        assert chosen == case.rails, "NCCL, simulated, ends at what was chosen"
        assert result["env"]["NCCL_SOCKET_IFNAME"] == "=" + result["env"]["GLOO_SOCKET_IFNAME"]
        assert result["fabric"]["host_ip"]


def test_ids_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


CIDRS = {"allow_soft": True, "fabric_cidr": ["192.168.100.0/24", "192.168.101.0/24"]}
A, B = "rocep1s0f0", "roceP2p1s0f0"
RECORDED = [
    ("S01-two-halves-two-subnets", CIDRS, [(B, "enP2p1s0f0np0", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "NO_PCI_ORDER"]),
    ("S01-two-halves-two-subnets", {"allow_soft": True}, [], ["AMBIGUOUS_PORTS"], []),
    ("S01-two-halves-two-subnets", {}, [], ["NO_USABLE_PORT"], []),
    ("S02", CIDRS, [(A, "enp1s0f0np0", 1)], [], ["CIDR_UNUSED", "MTU_LOW"]),
    ("S04", {"allow_soft": True}, [(A, "enp1s0f0np0", 1)], [], ["LINK_LOCAL_MIXED", "MTU_LOW"]),
    ("S06", {"allow_soft": True, "ports_wanted": 2}, [(B, "enP2p1s0f0np0", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "NO_PCI_ORDER", "SAME_SUBNET"]),
    ("S07", {"allow_soft": True, "fabric_cidr": ["192.168.77.0/24"]}, [(A, "enp1s0f0np0.77", 2)], [], ["MTU_LOW", "VLAN"]),
    ("S07", CIDRS, [(B, "enP2p1s0f0np0", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "NO_PCI_ORDER"]),
    ("S09", CIDRS, [(B, "enP2p1s0f0np0", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "NO_PCI_ORDER"]),
    ("S10", CIDRS, [(B, "fabric1", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "NO_PCI_ORDER"]),
    ("S12", CIDRS, [(B, "enP2p1s0f0np0", 1), (A, "enp1s0f0np0", 1)], [], ["MTU_LOW", "MTU_UNEQUAL", "NO_PCI_ORDER"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    trees: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in trees:
            trees[name] = unpack(name, tmp_path_factory.mktemp(name))
        return trees[name]

    return get


@pytest.mark.parametrize(("name", "options", "wanted", "errors", "warnings"), RECORDED)
def test_recorded(
    recorded: Callable[[str], Path], name: str, options: dict[str, Any], wanted: list[Any], errors: list[str], warnings: list[str]
) -> None:
    result = look(recorded(name), **options)
    assert rails(result) == wanted
    assert (codes(result, "errors"), codes(result, "warnings")) == (errors, warnings), result["summary"]


def test_recorded_facts_of_a_real_kernel(recorded: Callable[[str], Path]) -> None:
    """An empty slot's type and netdev could not be read when the tree was recorded; a down port has its GID still."""
    result = look(recorded("S02"), allow_soft=True)
    down = next(item for item in result["candidates"] if item["dev"] == B)
    assert (down["state"], down["phys_state"], down["code"]) == ("DOWN", "Disabled", "PORT_DOWN")
    assert [item["ipv4"] for item in down["gids"]] == [None, "192.168.101.10"]
    assert down["rate_gbps"] is None


def test_the_vlan_range_of_a_recorded_tree(recorded: Callable[[str], Path]) -> None:
    result = look(recorded("S07"), allow_soft=True, fabric_cidr=["192.168.77.0/24"])
    assert result["env"]["NCCL_IB_ADDR_RANGE"] == "192.168.77.0/24"
    plain = {row["hca"]: row["ipv4"] for row in result["nccl"]["without_env"]["devices"]}
    assert plain[A] == "192.168.100.10", "without the range NCCL takes the untagged address"


def test_messages_name_what_was_found(tmp_path: Path) -> None:
    result = look(changed(lambda s: s.down(A0, B0))().write(tmp_path))
    message = result["errors"][0]["message"]
    for device, netdev, _pci, _port in SPARK:
        assert f"{device} ({netdev}): port DOWN, link Disabled" in message


def test_a_conflicting_conf_is_named_with_its_effect(tmp_path: Path) -> None:
    made = spark()
    made.files["etc/nccl.conf"] = "NCCL_IB_GID_INDEX=1\nNCCL_IB_HCA=mlx5\n"
    result = look(made.write(tmp_path))
    message = result["warnings"][0]["message"]
    assert "NCCL_IB_GID_INDEX=1" in message
    assert "changes what NCCL uses on the host" in message
    assert "overrides NCCL_IB_HCA" in message
    assert [row["gid_index"] for row in result["nccl"]["with_conf"]["devices"]] == [1, 1]


def test_the_same_address_on_two_netdevs_is_found_by_its_netdev(tmp_path: Path) -> None:
    """A GID counts only on the network device it names, not on any that has the address."""
    made = spark()
    made.net("docker0").addresses.append("192.168.100.10/24")
    made.net("enp1s0f0np0").addresses = ["192.168.100.11/24"]
    made.hca(A0).slots = {3: (gid("192.168.100.10"), V2, "enp1s0f0np0"), 5: (gid("192.168.100.11"), V2, "enp1s0f0np0")}
    result = look(made.write(tmp_path))
    assert result["chosen"][0]["gid_index"] == 5 or codes(result, "errors") == ["NCCL_CHOICE"]
    assert "GID_STALE" in codes(result, "warnings")


def test_a_drifted_table_from_a_field_report(tmp_path: Path) -> None:
    """Arranged from a public report: index 3 of one half became a hole, its GID stands at 4. A pin of 3 killed that half."""
    made = spark(ports="1")
    for name in (A1, B1):
        made.hca(name).slots = {}
    for line in (RECORDED_AT / "sysfs-gid-table-drifted.SYNTHETIC.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, index, rest = line.split(maxsplit=2)
            kind, address = rest.rsplit(maxsplit=1)
            slots = made.hca(name).slots
            if kind.strip() != "-" and slots is not None:
                slots[int(index)] = (address, kind.strip(), made.hca(name).net)
    result = look(made.write(tmp_path))
    assert rails(result) == [(A1, "enp1s0f1np1", 3), (B1, "enP2p1s0f1np1", 4)]
    assert "NCCL_IB_GID_INDEX" not in result["env"]
    pinned = look(tmp_path, gid_policy="pin_per_node", gid_index=3)
    assert codes(pinned, "errors") == ["GID_INDEX_WRONG"]
    assert f"{B1} 4" in pinned["errors"][0]["message"]


@pytest.mark.parametrize(("ports", "text"), [("0", "port0-up"), ("1", "port1-up"), ("01", "ring-all-up")])
def test_made_sparks_look_like_real_ones_to_ibdev2netdev(tmp_path: Path, ports: str, text: str) -> None:
    real = sorted((RECORDED_AT / f"ibdev2netdev-{text}.txt").read_text().splitlines())
    node = read_node(str(spark(ports=ports, networks=FOUR).write(tmp_path)), (tmp_path / "ip_j_addr.json").read_text())
    ours = []
    for device, port in node.ports():
        up = "Up" if node.netdevs[str(port.netdev)].operstate == "up" else "Down"
        ours.append(f"{device.name} port {port.number} ==> {port.netdev} ({up})")
    assert sorted(ours) == real


def test_left_alone_nccl_would_bootstrap_over_a_bystander(tmp_path: Path) -> None:
    result = look(changed(bystanders)().write(tmp_path))
    assert result["nccl"]["without_env"]["bootstrap"]["ifname"] == "enx0250b6"
    assert result["nccl"]["with_env"]["bootstrap"]["ifname"] == "enp1s0f0np0"


def test_rules_as_ip_prints_them() -> None:
    """Recorded: what also asks for a device, and the kernel's own rules, say nothing about a source alone."""
    found = parse_rules((RECORDED_AT / "ip_j_rule.json").read_text())
    assert [str(network) for network in found] == ["10.94.0.0/16", "10.93.2.11/32"]


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", "[1]", "garbage", '[{"src": 3, "table": 100}]', '[{"src": "x", "srclen": "y", "table": 1}]']
)
def test_rules_that_can_not_be_read_are_none(text: str | None) -> None:
    assert parse_rules(text) == []
