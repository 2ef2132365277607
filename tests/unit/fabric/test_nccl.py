"""NCCL's rules, simulated: against hand-worked answers and against a second statement of them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric.devices import Device, Gid, Netdev, Port
from ansible.module_utils.sparklanes.fabric.nccl import (
    Settings,
    atoi,
    choose_devices,
    choose_gid,
    choose_interface,
    parse_list,
    parse_version,
)
from hypothesis import given
from hypothesis import strategies as st

SPARK = ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (None, SPARK),
        ("", SPARK),
        ("=", SPARK),  # an empty list takes all
        (",,", SPARK),
        ("^", []),  # and an empty exclusion excludes all
        ("^=", []),
        ("roce", SPARK),
        ("rocep1s0f1", ["rocep1s0f1"]),  # not roceP2p1s0f1: prefixes are case-sensitive
        ("rocep1", SPARK[:2]),
        ("=rocep1", []),
        ("=rocep1s0f1,roceP2p1s0f1", ["rocep1s0f1", "roceP2p1s0f1"]),
        ("=roceP2p1s0f1,rocep1s0f1", ["rocep1s0f1", "roceP2p1s0f1"]),  # the list's order says nothing
        ("^=rocep1s0f1,roceP2p1s0f1", ["rocep1s0f0", "roceP2p1s0f0"]),
        ("^rocep1", SPARK[2:]),
        ("=^rocep1s0f1", []),  # the other way round is a device named "^rocep1s0f1"
        ("==rocep1s0f1,roceP2p1s0f1", ["roceP2p1s0f1"]),  # the first is then named "=rocep1s0f1"
        ("=rocep1s0f1, roceP2p1s0f1", ["rocep1s0f1"]),  # blanks are part of a name
        ("=rocep1s0f1:1", ["rocep1s0f1"]),
        ("=rocep1s0f1:2", []),
        ("=rocep1s0f1:", ["rocep1s0f1"]),
        ("=rocep1s0f1:x", []),  # atoi: port 0
        ("=rocep1s0f1:1:0:3", ["rocep1s0f1"]),  # rail and plane of 2.30
        ("=:1", SPARK),  # an entry without a name is none
        ("^rocep1s0f1:2", SPARK),
    ],
)
def test_hca_lists(text: str | None, taken: list[str]) -> None:
    names = parse_list(text)
    assert [name for name in SPARK if names.takes(name, 1)] == taken


def test_a_prefix_takes_more_than_meant() -> None:
    assert parse_list("mlx5_1").takes("mlx5_10", 1)
    assert not parse_list("=mlx5_1").takes("mlx5_10", 1)
    assert parse_list("bond0").takes("bond0.2093.1")


def test_lists_stop_at_32_entries_and_63_characters() -> None:
    names = ",".join(f"hca{number}" for number in range(40))
    assert parse_list(f"={names}").takes("hca31", 1)
    assert not parse_list(f"={names}").takes("hca32", 1)
    assert parse_list("=" + "x" * 70).entries == (("x" * 63, -1),)


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [("3", 10, 3), (" 3x", 10, 3), ("auto", 10, 0), ("", 10, 0), ("-1", 10, -1), ("0x10", 0, 16), ("010", 0, 8), ("08", 0, 0), ("0x10", 10, 0)],
)  # fmt: skip
def test_numbers_as_c_reads_them(text: str, base: int, value: int) -> None:
    assert atoi(text, base) == value


@pytest.mark.parametrize(
    ("text", "value"), [("2.30.7", (2, 30, 7)), ("2.21", (2, 21)), ("2.30.7-1", (2, 30, 7)), ("2.28.3+cuda13.0", (2, 28, 3))]
)
def test_versions(text: str, value: tuple[int, ...]) -> None:
    assert parse_version(text) == value


@pytest.mark.parametrize("text", ["", "latest", "2", "2.x", "v2.21", "2.21\n2"])
def test_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match="not an NCCL version"):
        parse_version(text)


def port(*entries: tuple[str, int | None], device: str = "rocep1s0f0", slots: int = 16, **more: Any) -> Port:
    gids = {
        index: Gid(index, ipaddress.IPv6Address(f"::ffff:{text}" if "." in text else text), version, "net")
        for index, (text, version) in enumerate(entries)
        if text
    }
    fields = {"state": 4, "state_text": "ACTIVE", "phys_state": "LinkUp", "link_layer": "Ethernet", "rate_gbps": 200.0, **more}
    return Port(device=device, number=1, slots=list(range(slots)), gids=gids, **fields)


CONNECTX = [("fe80::1", 1), ("fe80::1", 2), ("192.168.100.10", 1), ("192.168.100.10", 2)]


@pytest.mark.parametrize(
    ("entries", "env", "index"),
    [
        (CONNECTX, {}, 3),
        (CONNECTX[1:2] + CONNECTX[3:], {}, 1),  # soft RoCE and irdma: v2 only
        ([*CONNECTX[:3], ("", None), *CONNECTX[3:]], {}, 4),  # drifted: index 3 is a hole
        (CONNECTX[:2], {}, 0),  # no IPv4: fe80 of RoCE v1, silently
        (CONNECTX[:1] + CONNECTX[2:3], {}, 1),  # v1 only: v1 is taken silently
        ([], {}, 0),
        ([*CONNECTX, ("10.0.0.1", 1), ("10.0.0.1", 2)], {}, 3),  # the first address wins …
        ([*CONNECTX, ("10.0.0.1", 1), ("10.0.0.1", 2)], {"NCCL_IB_ADDR_RANGE": "10.0.0.0/24"}, 5),  # … of the range
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/24"}, 0),  # out of range: fe80, silently
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "192.168.100.77/24"}, 3),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "192.168.100.10/32"}, 3),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "192.168.100.11/32"}, 0),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "10.0.0.0"}, 3),  # without a slash it is no range
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "fabric/24"}, 3),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/33"}, 3),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/x"}, 3),  # length 0 holds everything
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": "10.0.0.0/-1"}, 0),
        (CONNECTX, {"NCCL_IB_ADDR_RANGE": ""}, 3),
        (CONNECTX, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
        (CONNECTX, {"NCCL_IB_GID_INDEX": "1"}, 1),
        (CONNECTX, {"NCCL_IB_GID_INDEX": "200"}, 200),  # used unchecked
        (CONNECTX, {"NCCL_IB_GID_INDEX": "auto"}, 0),
        (CONNECTX, {"NCCL_IB_GID_INDEX": ""}, 3),  # empty is unset in 2.30.7
        (CONNECTX, {"NCCL_IB_GID_INDEX": "-1"}, 3),
        ([("fe80::1", 1), ("169.254.1.1", 2)], {}, 1),  # 169.254 counts as valid
        ([("fe80::1", 1), ("fe80::1", 2), ("fd00::1", 1), ("fd00::1", 2)], {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 3),
        ([("fe80::1", 1), ("fe80::1", 2)], {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0),
        ([("fe80::1", 1), ("fd00::1", 2), ("fd01::1", 2)], {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ADDR_RANGE": "fd01::/16"}, 2),
        ([("10.0.0.1", 2)], {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 1),  # the first empty slot
        (CONNECTX, {"NCCL_IB_ADDR_FAMILY": "IPv6"}, 3),  # unknown words are AF_INET
    ],
)  # fmt: skip
def test_gids(entries: list[tuple[str, int | None]], env: dict[str, str], index: int) -> None:
    assert choose_gid(port(*entries), Settings(env)) == index


def test_old_nccl_takes_index_0_unless_told() -> None:
    assert choose_gid(port(*CONNECTX), Settings({}, (2, 20, 5))) == 0
    assert choose_gid(port(*CONNECTX), Settings({"NCCL_IB_GID_INDEX": "3"}, (2, 20, 5))) == 3
    assert choose_gid(port(*CONNECTX), Settings({}, (2, 21))) == 3


def test_infiniband_has_its_own_rule() -> None:
    plain = port(("fe80::1", None), ("fe80::2", None), link_layer="InfiniBand")
    routable = port(("fe80::1", None), ("fe80:0:7::2", None), link_layer="InfiniBand")
    assert (choose_gid(plain, Settings({})), choose_gid(routable, Settings({}))) == (0, 1)


ADDRESSES = st.sampled_from(
    ["", "fe80::1", "fe80::2", "10.0.0.1", "10.0.1.1", "169.254.1.1", "fd00::1", "fd00:1::1", "2001:db8::1"]
)
ENTRY = st.tuples(ADDRESSES, st.sampled_from([1, 2]))


def second_statement(entries: list[tuple[str, int]], family: int, network: Any) -> int:
    """The rule as prose has it: the first address of the family that is in range is taken as it is; after that, and
    for IPv6 from the start, a valid one of version 2 replaces what is not a valid version 2."""
    gids = [(ipaddress.IPv6Address(f"::ffff:{a}" if "." in a else a or "::"), v) for a, v in entries]

    def fits(address: ipaddress.IPv6Address) -> bool:
        inner: Any = address.ipv4_mapped or address
        return inner.version == family and (network is None or inner in network)

    def good(address: ipaddress.IPv6Address) -> bool:
        return int(address) != 0 and not address.is_link_local

    best = 0
    for index in range(1, len(gids)):
        address, version = gids[index]
        held, held_version = gids[best] if gids else (ipaddress.IPv6Address("::"), 0)
        if not fits(address):
            continue
        held_family = 4 if held.ipv4_mapped else 6
        foreign = held_family != family
        better = good(address) and version == 2 and (held_version != 2 or not good(held))
        if foreign or better:
            best = index
    return best


@given(
    st.lists(ENTRY, min_size=1, max_size=12),
    st.sampled_from([(4, None), (4, "10.0.1.0/24"), (4, "10.0.0.0/8"), (6, None), (6, "fd00::/16"), (6, "fd00:1::/32")]),
)
def test_both_statements_of_the_rule_agree(entries: list[tuple[str, int]], wanted: tuple[int, str | None]) -> None:
    family, text = wanted
    env = {"NCCL_IB_ADDR_FAMILY": "AF_INET6" if family == 6 else "AF_INET"} | ({"NCCL_IB_ADDR_RANGE": text} if text else {})
    network = ipaddress.ip_network(text) if text else None
    made = port(*entries, slots=len(entries))
    # an empty slot has no type: NCCL compares whatever was in its variable, so leave those cases to chance no one meets
    if any(not address for address, _version in entries):
        entries = [(address, version if address else 0) for address, version in entries]
    assert choose_gid(made, Settings(env)) == second_statement(entries, family, network)


def device(name: str, leaf: str | None, **more: Any) -> Device:
    made = Device(name, "pf", 1, "a", "", "", leaf, leaf, None, None)
    made.ports = [port(*CONNECTX, device=name, **more)]
    return made


def test_devices_are_ordered_by_pci_address_not_by_name_or_list() -> None:
    devices = [
        device("a", "0002:01:00.0"),
        device("b", "0000:01:00.1"),
        device("c", "0000:01:00.0"),
        device("soft", None),
        device("d", "0000:0a:00.0"),
    ]
    chosen = choose_devices(devices, Settings({"NCCL_IB_HCA": "=a,b,c,d,soft"}))
    assert [item.name for item, _port in chosen] == ["c", "b", "d", "a", "soft"]
    unsorted = choose_devices(devices, Settings({"NCCL_IB_DEVICE_PCI_ORDER": "0"}))
    assert [item.name for item, _port in unsorted] == ["a", "b", "c", "soft", "d"]


def test_ports_that_are_not_active_or_of_no_link_layer_vanish() -> None:
    devices = [
        device("a", "0000:01:00.0", state=1),
        device("b", "0000:02:00.0", link_layer="Unspecified"),
        device("c", "0000:03:00.0"),
    ]
    assert [item.name for item, _port in choose_devices(devices, Settings({}))] == ["c"]


def test_at_most_32_devices() -> None:
    devices = [device(f"d{number:02}", f"0000:{number:02x}:00.0") for number in range(40)]
    assert len(choose_devices(devices, Settings({}))) == 32


def netdev(index: int, name: str, *addresses: str, running: bool = True) -> Netdev:
    return Netdev(name, ifindex=index, up=True, running=running, addresses=[ipaddress.ip_interface(item) for item in addresses])


NETS = [
    netdev(9, "enp1s0f0np0", "192.168.100.10/24"),
    netdev(1, "lo", "127.0.0.1/8", "::1/128"),
    netdev(2, "docker0", "172.17.0.1/16"),
    netdev(3, "tailscale0", "100.64.0.1/32"),
    netdev(4, "enp1s0f1np1", "10.0.0.1/24", running=False),
    netdev(5, "enP7s7", "fd00::1/64", "10.1.0.1/24"),
]


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, ("tailscale0", "100.64.0.1")),  # why it is never left to NCCL
        ({"NCCL_SOCKET_IFNAME": "=enp1s0f0np0"}, ("enp1s0f0np0", "192.168.100.10")),
        ({"NCCL_SOCKET_IFNAME": "enp"}, ("enp1s0f0np0", "192.168.100.10")),
        ({"NCCL_SOCKET_IFNAME": "=enp1s0f1np1"}, None),  # not running
        ({"NCCL_SOCKET_IFNAME": "=enP7s7"}, ("enP7s7", "10.1.0.1")),  # IPv4 of all devices come first
        ({"NCCL_SOCKET_IFNAME": "=enP7s7", "NCCL_SOCKET_FAMILY": "AF_INET6"}, ("enP7s7", "fd00::1")),
        ({"NCCL_SOCKET_IFNAME": "^tailscale,docker,lo"}, ("enP7s7", "10.1.0.1")),
        ({"NCCL_SOCKET_IFNAME": "e"}, ("tailscale0", "100.64.0.1")),  # one letter counts as unset
        ({"NCCL_SOCKET_IFNAME": "=wlan0"}, None),
    ],
)
def test_bootstrap_interfaces(env: dict[str, str], found: tuple[str, str] | None) -> None:
    assert choose_interface(NETS, Settings(env)) == found
