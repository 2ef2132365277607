"""Who gives an image and compiled kernels to whom: nobody gives what he is not known to have."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import spread
from hostvars import registered

UNKNOWN = [None, {}, {"unreachable": True}, {"failed": True, "msg": "x", "here": True, "files": 3}, {"skipped": True}]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_who_has_the_image(unknown: Any) -> None:
    found = {"s1": {"here": False}, "s2": {"here": True}, "s3": unknown, "s4": {"here": True}}
    assert spread.with_image(registered(found, engine_image_result=found), list(found)) == ["s2", "s4"]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_who_has_kernels_and_who_has_none(unknown: Any) -> None:
    found = {"s1": {"files": 0}, "s2": {"files": 7}, "s3": unknown}
    assert spread.kernels(registered(found, engine_image_jit=found), list(found)) == {"compiled": ["s2"], "empty": ["s1"]}


def fabric(*addresses: str, ring: bool = False) -> dict[str, Any]:
    rails = [{"ipv4": address, "network": address.rpartition(".")[0] + ".0/24"} for address in addresses]
    return {"host_ip": "192.168.0.1", "rails": rails, "env": {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"} if ring else {}}


def test_an_image_goes_over_the_fabric_where_one_address_serves_all() -> None:
    behind = {f"s{n}": {"roce_fabric": fabric(f"10.0.0.{n}", f"10.1.0.{n}")} for n in (1, 2, 3)}
    assert spread.lending_address(behind, list(behind), "s2") == "10.0.0.2"
    assert spread.spreads(behind, list(behind))
    # Without a switch each neighbour knows another address: then each takes the image from its source, not over management.
    ring = {
        "s1": {"roce_fabric": fabric("10.0.0.1", "10.2.0.2", ring=True)},
        "s2": {"roce_fabric": fabric("10.0.0.2", "10.1.0.1", ring=True)},
        "s3": {"roce_fabric": fabric("10.1.0.2", "10.2.0.1", ring=True)},
    }
    assert not spread.spreads(ring, list(ring))
    pair = {"s1": {"roce_fabric": fabric("10.0.0.1", ring=True)}, "s2": {"roce_fabric": fabric("10.0.0.2", ring=True)}}
    assert (spread.lending_address(pair, list(pair), "s1"), spread.spreads(pair, list(pair))) == ("10.0.0.1", True)
    assert not spread.spreads({"s1": {"roce_fabric": fabric("10.0.0.1")}}, ["s1"])
    assert not spread.spreads({"s1": {"roce_fabric": fabric("10.0.0.1")}, "s2": {}}, ["s1", "s2"])
