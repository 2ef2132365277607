"""Reading of sysfs and of `ip`, text by text."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.fabric.devices import parse_ip, read_node
from ansible.module_utils.sparklanes.fabric.environment import smallest_network, unsafe
from ansible.module_utils.sparklanes.fabric.sysfs import (
    Tree,
    clean,
    number,
    parse_conf,
    parse_gid,
    parse_gid_type,
    parse_rate,
    pci_key,
)
from conftest import FIXTURES
from roce_trees import A0, EMPTY, Net, spark


@pytest.mark.parametrize(
    ("text", "value"),
    [("4: ACTIVE", 4), ("1: DOWN", 1), ("200000", 200000), ("-1", -1), ("", None), ("up", None), (None, None), ("4" * 40, None), ("４", None), (True, None), (7, 7)],
)  # fmt: skip
def test_numbers(text: object, value: int | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200 Gb/sec (4X HDR)", 200.0),
        ("200 Gb/sec (2X NDR)", 200.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("40", None),
        ("", None),
        (None, None),
    ],
)
def test_rates(text: str | None, rate: float | None) -> None:
    assert parse_rate(text) == rate


def test_gids() -> None:
    assert parse_gid(EMPTY) is None
    assert parse_gid("0000:0000:0000:0000:0000:ffff:c0a8:640a") == ipaddress.IPv6Address("::ffff:192.168.100.10")
    for wrong in (None, "", "fe80::1", "zzzz" + EMPTY[4:], EMPTY + "0"):
        assert parse_gid(wrong) is None


@pytest.mark.parametrize(
    ("text", "version"), [("IB/RoCE v1", 1), ("RoCE v1", 1), ("RoCE v2", 2), ("", None), (None, None), ("iWARP", None)]
)
def test_gid_types(text: str | None, version: int | None) -> None:
    assert parse_gid_type(text) == version


@pytest.mark.parametrize(
    ("leaf", "key"),
    [("0000:01:00.0", 0x1000), ("0002:01:00.1", 0x201001), (None, None), ("virtio1", 0), ("mlx5_core.sf.4", 0)],
)
def test_pci_keys(leaf: str | None, key: int | None) -> None:
    assert pci_key(leaf) == key


def test_pci_keys_order_the_spark_by_domain_first() -> None:
    functions = ["0002:01:00.0", "0000:01:00.1", "0000:01:00.0", "0002:01:00.1"]
    assert sorted(functions, key=lambda leaf: pci_key(leaf) or 0) == [
        "0000:01:00.0",
        "0000:01:00.1",
        "0002:01:00.0",
        "0002:01:00.1",
    ]


def test_conf_as_nccl_reads_it() -> None:
    text = "# comment\nNCCL_DEBUG=INFO\n NCCL_X = 1\nnothing\nNCCL_DEBUG=WARN\nNCCL_IB_HCA==a,b\n"
    assert parse_conf(text) == {"NCCL_DEBUG": "INFO", " NCCL_X ": " 1", "NCCL_IB_HCA": "=a,b"}
    assert parse_conf(None) == {}


def test_ip_json_of_two_commands_adds_up() -> None:
    addr = json.dumps([{"ifindex": 2, "ifname": "v", "flags": ["UP"], "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}]}, {}])
    link = json.dumps(
        [{"ifindex": 2, "ifname": "v", "link": "e", "linkinfo": {"info_kind": "vlan"}}, {"ifindex": 1, "ifname": "e"}]
    )
    found = parse_ip(addr, link)
    assert found is not None
    assert [(item.name, item.kind, item.lower) for item in found] == [("e", "physical", None), ("v", "vlan", "e")]
    assert [str(item) for item in found[1].addresses] == ["10.0.0.1/24"]
    assert found[1].running


@pytest.mark.parametrize("text", [None, "", "{}", "Device not found", "[" * 100000, "nul"])
def test_no_ip_json(text: str | None) -> None:
    assert parse_ip(text) is None


def test_addresses_that_are_not_ready_are_none() -> None:
    entries = [
        {"local": "fd00::1", "prefixlen": 64, "tentative": True},
        {"local": "x", "prefixlen": 64},
        {"local": "fd00::2", "prefixlen": 64},
        7,
    ]
    found = parse_ip(
        json.dumps([{"ifname": "e", "addr_info": entries}, {"ifname": "f", "addr_info": {"a": 1}}, {"ifname": 3}, 5])
    )
    assert found is not None
    assert [[str(item) for item in netdev.addresses] for netdev in found] == [["fd00::2/64"], []]


def test_a_device_without_carrier_is_not_running() -> None:
    found = parse_ip(
        json.dumps([{"ifname": "e", "flags": ["NO-CARRIER", "UP"]}, {"ifname": "f", "flags": ["BROADCAST"]}, {"ifname": "g"}])
    )
    assert found is not None
    assert [(item.up, item.running) for item in found] == [(True, False), (False, False), (None, None)]


def test_the_tree_never_leaves_its_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to("/etc")
    (tmp_path / "root" / "loop").symlink_to("loop")
    tree = Tree(str(tmp_path / "root"))
    assert tree.real("out") is None
    assert tree.real("loop") is None
    assert tree.text("loop") is None
    assert tree.text("\0") is None
    assert tree.names("no") == []
    assert tree.text("/absent") is None


def test_names_that_are_not_utf8_become_json() -> None:
    assert json.loads(json.dumps(clean("e\udce9th"))) == "e\ufffdth"
    assert clean("plain") == "plain"
    assert clean("\ud800ü😀") == "\ufffdü😀", "a surrogate that no file name can hold, from the JSON of ip"


def test_gid_tables_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """A directory lists 10 before 2, and a real table has 256 slots."""
    made = spark()
    made.hca(A0).table = 256
    node = read_node(str(made.write(tmp_path)))
    device = next(item for item in node.devices if item.name == A0)
    assert device.ports[0].slots == list(range(256))
    assert list(device.ports[0].gids) == [0, 1, 2, 3]


def test_real_show_gids_output_says_what_a_made_spark_says(tmp_path: Path) -> None:
    """The shape of our hand-made GID tables is that of a real Spark: index, version and address."""
    made = spark(networks=("192.168.100", "192.168.100"))
    made.net("enP2p1s0f0np0").addresses = ["192.168.100.14/24"]
    node = read_node(str(made.write(tmp_path)))
    ours = {
        (device.name, gid.index, str(gid.ipv4 or ""), f"v{gid.version}", gid.netdev)
        for device in node.devices
        for gid in device.ports[0].gids.values()
    }
    lines = (FIXTURES / "fabric" / "roce" / "show_gids-index3.txt").read_text().splitlines()[2:-1]
    real = set()
    for line in lines:
        name, _port, index, _gid, *rest = line.split()
        real.add((name, int(index), rest[0] if len(rest) == 3 else "", rest[-2], rest[-1]))
    assert ours == real


def test_a_netdev_known_to_sysfs_only(tmp_path: Path) -> None:
    made = spark()
    made.nets.append(Net("bond7", kind="bond", speed=None))
    root = made.write(tmp_path)
    node = read_node(str(root))
    assert not node.addresses_known
    assert node.netdevs["bond7"].kind == "bond"
    assert node.netdevs["enp1s0f0np0"].mtu == 9000
    assert node.netdevs["enp1s0f0np0"].kind == "physical"


@pytest.mark.parametrize("name", ["", "a,b", "a:1", "^a", "a=b", "a b", "a\tb", "ä", "a\ufffd", "x" * 64, 'a"b', "a$b", "a\\b"])
def test_unsafe_names(name: str) -> None:
    assert unsafe(name)


@pytest.mark.parametrize("name", ["rocep1s0f0", "enp1s0f0np0.77", "mlx5_bond_0", "fab-0", "x" * 63])
def test_safe_names(name: str) -> None:
    assert not unsafe(name)


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.0.0.1"], "10.0.0.1/32"),
        (["192.168.100.10", "192.168.101.10"], "192.168.100.0/23"),
        (["192.168.77.1", "192.168.78.1"], "192.168.76.0/22"),
        (["0.0.0.1", "255.0.0.1"], "0.0.0.0/0"),
        (["fd00::1", "fd00::2"], "fd00::/126"),
    ],
)
def test_smallest_networks(addresses: list[str], network: str) -> None:
    assert str(smallest_network([ipaddress.ip_address(item) for item in addresses])) == network
