"""The table of fabrics that people meet, each with the cases that prove what we do there. A row without a case fails, a renamed case too."""

from __future__ import annotations

import pytest
import test_fabric_cluster
import test_fabric_reach
import test_lanes
import test_nccl
import test_roce_cases
import test_roce_facts
from test_roce_cases import CASES, RECORDED

# What is met → cases of test_roce_cases, names of recorded trees, or test functions.
TABLE: dict[str, list[str]] = {
    "no RDMA device, told by the PCI function": [
        "no device, no PCI function", "no device, PCI function there", "no device, driver loaded",
    ],
    "port DOWN, INIT, ARMED; its GID may look fine": [
        "all ports down", "port INIT", "port ARMED, no half wanted", "twin down keeps its GID", "S02",
        "test_recorded_facts_of_a_real_kernel", "test_messages_name_what_was_found",
    ],
    "link up, no IPv4": [
        "twin without IPv4", "twin without IPv4, accepted", "second cable without addresses", "no IPv4 anywhere", "fe80 only is no address",
    ],
    "169.254 only, on some, beside others": [
        "169.254 on all halves", "169.254 on one half", "169.254 on the other port", "169.254 beside a routable address", "S04",
        "test_link_local_everywhere_only_warns",
    ],
    "IPv6 only": ["IPv6 only", "IPv6 only, allowed", "IPv6 on one half, allowed", "test_ipv6_takes_its_larger_header_and_unknown_mtu_a_small_ping"],
    "two active QSFP ports": [
        "two cabled ports", "two cabled ports, cidr", "two cabled ports, cidr of one half", "two cabled ports, cidr of both",
        "two cabled ports, both wanted", "two wanted, one cabled", "two cabled ports, peers", "peers with this node among them",
        "peers on both ports", "peers nowhere", "one subnet on both ports, peers", "one port, peers elsewhere", "one port, only itself as a peer",
        "nothing in cidr", "a cidr without an address",
    ],
    "ring": [
        "ring", "ring of /30", "ring with two sizes", "ring without control", "ring with one cable", "test_a_ring_passes",
        "test_a_ring_with_a_cable_in_the_wrong_place", "test_a_ring_with_two_mtus", "test_in_a_ring_the_ends_of_each_cable_meet",
    ],
    "two halves, two subnets": ["two halves, two subnets", "S01-two-halves-two-subnets", "test_a_good_pair_passes_every_check"],
    "one half missing": ["second half not on the bus", "second half not on the bus, accepted", "hcas of one half"],
    "two devices in one subnet, with and without ARP settings and rules": [
        "halves in one subnet", "halves in one subnet, ARP set", "halves in one subnet, ARP half set", "halves in one subnet, rules by source",
        "halves in one subnet, a rule for one", "halves in one subnet, rules without arp_filter", "halves in one subnet, strict rp_filter",
        "halves in one subnet, loose rp_filter", "halves in one subnet, strict rp_filter and rules", "strict rp_filter in two subnets", "S06",
        "test_rules_as_ip_prints_them", "test_the_failing_pair_and_rail_are_named_and_mtu_is_told_from_silence",
    ],
    "VLAN": [
        "VLANs beside untagged addresses", "VLANs by cidr", "untagged by cidr, VLANs there", "VLANs only", "one VLAN", "VLAN set down", "S07",
        "test_the_vlan_range_of_a_recorded_tree",
    ],
    "bond": ["bond", "bond without LAG"],
    "RoCE v1 only": ["RoCE v1 only", "RoCE v1 on one half", "RoCE v2 only"],
    "several IPv4 on one network device": [
        "two IPv4 in two networks", "two IPv4, cidr", "two IPv4, peers", "two IPv4 in one network", "no range fits", "no range fits, pinned",
        "range of everything", "test_a_second_address_on_the_socket_device_is_told",
    ],
    "GID index differs, by HCA and by node": [
        "GID index differs", "GID index differs, old NCCL", "GID index differs, pin wanted", "old NCCL, one index", "pin, right index",
        "pin, wrong index", "current NCCL", "test_a_drifted_table_from_a_field_report",
    ],
    "GID whose type or device can't be read": ["GID unreadable", "S09"],
    "GID whose address has gone, or is coming": [
        "stale GID on one half", "stale GID beside the right one", "test_an_address_that_is_coming_is_looked_at_again",
        "test_a_stale_gid_is_looked_at_twice_and_no_more", "test_the_same_address_on_two_netdevs_is_found_by_its_netdev",
    ],
    "renamed network devices, mlx5_* names, no physical port names": ["renamed devices and netdevs", "unset physical ports", "S10"],
    "Mellanox port in InfiniBand mode": ["port in InfiniBand mode", "all ports in InfiniBand mode"],
    "VF, SF, representors, soft RoCE, iWARP": [
        "virtual function", "virtual function, listed", "virtual function in the PF's place", "virtual function in the PF's place, not listed",
        "sub-function", "representor in device/net", "iWARP", "soft RoCE",
    ],
    "docker0, br-*, veth, podman, tailscale, Wi-Fi, USB, 10GbE": [
        "bridges, tunnels, Wi-Fi and USB", "control on the 10GbE", "control that isn't there", "control without address",
        "test_left_alone_nccl_would_bootstrap_over_a_bystander",
    ],
    "more than 32 HCAs; comma, colon or blank in a name": ["more than 32", "comma in a name", "colon in a name", "blank in a name"],
    "nccl.conf on the host, and stale in the image": [
        "harmless nccl.conf", "nccl.conf pins an index", "empty nccl.conf", "test_a_conflicting_conf_is_named_with_its_effect",
        "test_an_nccl_conf_in_the_image",
    ],
    "variables of the fabric said elsewhere": ["test_the_fabric_sets_what_it_keeps_lanes_from"],
    "one Spark": ["test_one_node_needs_no_fabric", "test_one_spark_needs_no_fabric_and_no_peers", "test_one_node_tries_nothing"],
    "cables on different ports of the nodes": ["cable in the other port", "test_cables_in_different_ports_are_no_fault"],
    "rails crossed, addresses twice, MTU unequal": [
        "test_crossed_halves_are_called_that", "test_a_duplicate_address_names_both_hosts_on_both", "test_each_fault_is_found_on_its_host",
        "one low MTU", "low MTU", "S12",
    ],
    "slow link or PCIe": ["slow link", "half B at x2"],
}  # fmt: skip
MODULES = (test_fabric_cluster, test_fabric_reach, test_lanes, test_nccl, test_roce_cases, test_roce_facts)


@pytest.mark.parametrize("row", TABLE)
def test_every_row_has_its_cases(row: str) -> None:
    known = {case.id for case in CASES} | {name for name, *_ in RECORDED}
    known |= {name for module in MODULES for name in vars(module) if name.startswith("test_")}
    assert TABLE[row], row
    assert [name for name in TABLE[row] if name not in known] == []


def test_every_case_belongs_to_a_row() -> None:
    placed = {name for names in TABLE.values() for name in names}
    options_only = {"hcas that don't exist", "strict"}  # about what a person said, not about a fabric
    assert {case.id for case in CASES} - placed == options_only
    assert {name for name, *_ in RECORDED} <= placed
