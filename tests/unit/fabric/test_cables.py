# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who is joined with whom, with a switch and without one, at which speed, and what nobody measured."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric import bandwidth, fact
from hostvars import registered
from test_bandwidth import A, fleet

RING = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}


def ring(*pairs: tuple[str, str], control: str = "10.9.9") -> dict[str, dict[str, Any]]:
    """Sparks whose cables join these pairs, one network each; their control addresses lie on the management network."""
    hosts = sorted({host for pair in pairs for host in pair})
    made: dict[str, dict[str, Any]] = {
        host: {"transport": "roce", "rails": [], "env": RING, "host_ip": f"{control}.{number}", "ifname": "mgmt"}
        for number, host in enumerate(hosts, 1)
    }
    for number, pair in enumerate(pairs):
        for end, host in enumerate(pair, 1):
            name = f"rocep1s0f{len(made[host]['rails'])}"
            made[host]["rails"].append(
                {"hca": name, "port": 1, "netdev": name, "ipv4": f"10.{number}.0.{end}", "network": f"10.{number}.0.0/24", "mtu": 9000,
                 "gid_index": 3, "link_gbps": 200.0}
            )  # fmt: skip
    return made


# Cabled across the order of ranks: s1-s3, s3-s2, s2-s4, s4-s1.
ACROSS = ring(("s1", "s3"), ("s3", "s2"), ("s2", "s4"), ("s4", "s1"))


def test_cables_are_measured_and_not_the_order_of_ranks() -> None:
    joined = {("s1", "s3"), ("s2", "s3"), ("s2", "s4"), ("s1", "s4")}
    assert set(bandwidth.cables(ACROSS)) == joined | {(two, one) for one, two in joined}
    made = bandwidth.plan(ACROSS)
    assert {test["peer"] for test in made["s1"]["measure"]} == {"s3", "s4"}
    assert [test["address"] for test in made["s1"]["measure"]] == ["10.0.0.2", "10.3.0.1"]
    served = [test["port"] for ends in made.values() for test in ends["serve"]]
    assert len(served) == len(set(served)) == 8
    assert bandwidth.unmeasured(ACROSS) == []


def test_a_rail_that_meets_nobody_is_a_failed_row() -> None:
    broken = ring(("s1", "s2"), ("s2", "s3"))
    broken["s3"]["rails"][0]["network"] = "10.77.0.0/24"
    rows = {check.host: check for check in bandwidth.unmeasured(broken)}
    assert set(rows) == {"s2", "s3"}
    assert all((check.id, check.status) == ("FABRIC.BANDWIDTH", "fail") for check in rows.values())
    assert "in 10.77.0.0/24 meets no rail of another Spark" in rows["s3"].found
    judged = bandwidth.judge(registered(list(broken), roce_fabric=broken, fabric_bandwidth_result={}), list(broken))
    assert {check.host for check in judged if "not measured: " in check.found} >= {"s2", "s3"}


def test_a_rail_that_the_neighbour_lacks_is_a_failed_row() -> None:
    fabrics = {**fleet(1), "s2": fleet(2, halves=1)["s2"]}
    assert [(check.host, check.status) for check in bandwidth.unmeasured(fabrics)] == [("s1", "fail")]
    assert bandwidth.unmeasured(fleet(3)) == []


def speeds(one: float | None, two: float | None) -> dict[str, dict[str, Any]]:
    fabrics = fleet(2)
    for host, link in (("s1", one), ("s2", two)):
        for rail in fabrics[host]["rails"]:
            rail["link_gbps"] = link
    return fabrics


def checks(fabrics: dict[str, Any], alone: float, total: float) -> dict[str, Any]:
    planned = bandwidth.plan(fabrics)["s1"]["measure"]
    results = [
        {"port": test["port"], "gbps": alone if test["mode"] == "alone" else total / 2, "mtu": 4096, "error": ""}
        for test in planned
    ]
    return {check.id: check for check in bandwidth.checks("s1", planned, results)}


@pytest.mark.parametrize(
    ("one", "two", "alone", "total", "statuses"),
    [
        (200.0, 200.0, 92.6, 190.0, ("pass", "pass")),
        (None, None, 92.6, 190.0, ("pass", "pass")),
        (None, None, 92.6, 95.0, ("pass", "fail")),
        # Two Sparks at 100G among 200G: healthy. Both halves of a port share its link.
        (100.0, 100.0, 92.6, 95.0, ("pass", "pass")),
        (100.0, 200.0, 92.6, 95.0, ("pass", "pass")),
        (200.0, 100.0, 92.6, 95.0, ("pass", "pass")),
        (100.0, 100.0, 92.6, 60.0, ("pass", "fail")),
        (100.0, 100.0, 60.0, 95.0, ("fail", "pass")),
        (25.0, 25.0, 23.0, 23.5, ("pass", "pass")),
        (25.0, 25.0, 12.0, 12.0, ("fail", "fail")),
    ],
)
def test_the_slower_end_decides(
    one: float | None, two: float | None, alone: float, total: float, statuses: tuple[str, str]
) -> None:
    made = checks(speeds(one, two), alone, total)
    assert (made["FABRIC.BANDWIDTH"].status, made["FABRIC.BANDWIDTH_TOTAL"].status) == statuses


def test_a_slow_link_is_no_fault_of_pcie() -> None:
    made = checks(speeds(100.0, 200.0), 92.6, 60.0)["FABRIC.BANDWIDTH_TOTAL"]
    assert "over a link of 100 Gb/s" in made.expected
    assert "PCIe" not in made.remedy
    assert "stale" not in checks(speeds(25.0, 25.0), 12.0, 12.0)["FABRIC.BANDWIDTH"].found
    assert "stale" in checks(speeds(200.0, 200.0), 13.0, 190.0)["FABRIC.BANDWIDTH"].found


def test_two_ports_have_two_links() -> None:
    rails = [
        {"hca": hca, "mode": "together", "link_gbps": 100.0}
        for hca in ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1")
    ]
    assert bandwidth._link_of(rails) == 200.0
    assert bandwidth._link_of(rails[:2]) == 100.0
    assert bandwidth._link_of([*rails, {"hca": A, "link_gbps": None}]) is None


def test_fabric_addresses_are_those_of_rails_and_the_control_address_is_another_thing() -> None:
    assert fact.fabric_addresses(ACROSS["s1"]) == ["10.0.0.1", "10.3.0.2"]
    assert fact.address_for(ACROSS["s3"], ACROSS["s1"]) == "10.0.0.2"
    assert fact.address_for(ACROSS["s2"], ACROSS["s1"]) == "", "no cable joins them, and management is not asked instead"
    behind = fleet(2)
    assert fact.fabric_addresses(behind["s1"]) == ["10.0.0.1"]
    assert fact.address_for(behind["s2"], behind["s1"]) == "10.0.0.2"
    assert fact.fabric_addresses({}) == []
    assert fact.address_for({}, behind["s1"]) == ""
