"""The fabric across nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, verdict
from ansible.module_utils.sparklanes.fabric.cluster import cluster_checks
from ansible.module_utils.sparklanes.fabric.devices import read_node
from ansible.module_utils.sparklanes.fabric.node import detect
from ansible.module_utils.sparklanes.fabric.options import read_options
from hypothesis import given
from hypothesis import strategies as st
from roce_trees import Spark, spark

Fabrics = dict[str, dict[str, Any]]
FOUR = ("10.1.1", "10.1.2", "10.1.3", "10.1.4")


def fabric(root: Path, made: Spark, **options: Any) -> dict[str, Any]:
    made.write(root)
    texts = [(root / name).read_text() for name in ("ip_j_addr.json", "ip_dj_link.json")]
    found: dict[str, Any] = detect(read_node(str(root), *texts), read_options(options))["fabric"]
    return found


@pytest.fixture
def pair(tmp_path: Path) -> Fabrics:
    return {f"s{number}": fabric(tmp_path / str(number), spark(host=10 + number)) for number in (1, 2)}


def by_id(checks: list[Check], status: str) -> set[str]:
    return {check.id for check in checks if check.status == status}


def failing(fabrics: Fabrics) -> dict[str, Check]:
    return {f"{check.id} {check.host}": check for check in cluster_checks(fabrics) if check.status == FAIL}


def test_a_good_pair_passes_every_check(pair: Fabrics) -> None:
    checks = cluster_checks(pair)
    assert verdict(checks) == PASS
    assert by_id(checks, PASS) == {
        "FABRIC.FACTS",
        "FABRIC.TRANSPORT",
        "FABRIC.RAILS",
        "FABRIC.NETWORK",
        "FABRIC.MTU",
        "FABRIC.ADDRESS",
    }
    assert {check.host for check in checks} == {"s1", "s2"}


def test_cables_in_different_ports_are_no_fault(tmp_path: Path) -> None:
    fabrics = {
        "s1": fabric(tmp_path / "1", spark(host=11, ports="0")),
        "s2": fabric(tmp_path / "2", spark(host=12, ports="1")),
    }
    assert fabrics["s1"]["env"]["NCCL_IB_HCA"] != fabrics["s2"]["env"]["NCCL_IB_HCA"]
    assert verdict(cluster_checks(fabrics)) == PASS


def test_one_node_needs_no_fabric(pair: Fabrics) -> None:
    checks = cluster_checks({"s1": {}})
    assert [(check.id, check.status, check.host) for check in checks] == [("FABRIC.RAILS", PASS, "s1")]
    assert verdict(cluster_checks({})) == FAIL, "no checks at all is no pass"


def edit(change: Callable[[Fabrics], object], pair: Fabrics) -> dict[str, Check]:
    made = copy.deepcopy(pair)
    change(made)
    return failing(made)


def crossed(pair: Fabrics) -> None:
    rails = pair["s2"]["rails"]
    for key in ("ipv4", "network"):
        rails[0][key], rails[1][key] = rails[1][key], rails[0][key]


EDITS: list[tuple[Callable[[Fabrics], object], str, str]] = [
    (lambda p: p["s2"]["rails"].pop(), "FABRIC.RAILS s2", "1 rail(s)"),
    (lambda p: p["s1"]["rails"].pop(), "FABRIC.RAILS s1", "1 rail(s)"),
    (lambda p: [p[h]["rails"].clear() for h in p], "FABRIC.RAILS s1", "none"),
    (crossed, "FABRIC.NETWORK s2", "rail 0"),
    (lambda p: p["s2"]["rails"][1].update(network="192.168.101.0/25"), "FABRIC.NETWORK s2", "/25"),
    (lambda p: p["s2"]["rails"][1].update(ipv4="10.9.9.9"), "FABRIC.NETWORK s2", "10.9.9.9"),
    (lambda p: [p[h]["rails"][0].update(network=None) for h in p], "FABRIC.NETWORK s1", "None"),
    (lambda p: p["s2"]["rails"][1].update(mtu=1500), "FABRIC.MTU s2", "1500"),
    (lambda p: p["s1"]["rails"][1].update(mtu=None), "FABRIC.MTU s1", "unknown"),
    (lambda p: p["s2"]["rails"][1].update(ipv4="192.168.101.11"), "FABRIC.ADDRESS s1", "192.168.101.11 is on s1 and s2"),
    (lambda p: p["s2"].update(host_ip="192.168.100.11"), "FABRIC.ADDRESS s2", "192.168.100.11 is on s1 and s2"),
    (lambda p: p["s2"].update(host_ip=None), "FABRIC.ADDRESS s2", "no host_ip"),
    (lambda p: p["s2"].update(host_ip="127.0.1.1"), "FABRIC.ADDRESS s2", "no address that another node can reach"),
    (lambda p: p["s2"].update(host_ip="::"), "FABRIC.ADDRESS s2", "no address that another node can reach"),
    (lambda p: p["s2"].update(host_ip="fab0"), "FABRIC.ADDRESS s2", "no IP address"),
    (lambda p: p["s2"].update(transport="socket"), "FABRIC.TRANSPORT s2", "socket"),
    (lambda p: p["s1"].update(nccl_version="2.30.7"), "FABRIC.NCCL_VERSION s2", "unknown"),
    (lambda p: [p["s1"].update(nccl_version="2.30.7"), p["s2"].update(nccl_version="2.28.3")], "FABRIC.NCCL_VERSION s2", "2.28.3"),
    (lambda p: p["s2"]["rails"][0].update(ipv4="169.254.1.1", network="169.254.0.0/16"), "FABRIC.LINK_LOCAL s2", "169.254.1.1"),
    (lambda p: p["s2"].clear(), "FABRIC.FACTS s2", "no fabric facts"),
    (lambda p: p["s2"].update(errors=[{"code": "PORT_DOWN", "message": "rocep1s0f0 down", "remedy": "Plug it"}]), "FABRIC.FACTS s2", "PORT_DOWN"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "check", "found"), EDITS, ids=[f"{number} {item[1]}" for number, item in enumerate(EDITS)])
def test_each_fault_is_found_on_its_host(change: Callable[[Fabrics], object], check: str, found: str, pair: Fabrics) -> None:
    faults = edit(change, pair)
    assert check in faults, list(faults)
    assert found in faults[check].found
    assert faults[check].remedy
    assert faults[check].expected


def test_crossed_halves_are_called_that(pair: Fabrics) -> None:
    assert "another order" in edit(crossed, pair)["FABRIC.NETWORK s2"].remedy


def test_a_duplicate_address_names_both_hosts_on_both(pair: Fabrics) -> None:
    faults = edit(lambda p: p["s2"]["rails"][1].update(ipv4="192.168.101.11"), pair)
    assert {"FABRIC.ADDRESS s1", "FABRIC.ADDRESS s2"} <= set(faults)


def test_a_host_without_facts_stops_the_comparison_of_the_rest(pair: Fabrics) -> None:
    checks = cluster_checks({**pair, "s3": {}})
    assert by_id(checks, FAIL) == {"FABRIC.FACTS"}
    assert "FABRIC.NETWORK" not in {check.id for check in checks}


def test_link_local_everywhere_only_warns(tmp_path: Path) -> None:
    fabrics = {}
    for number in (1, 2):
        made = spark()
        made.net("enp1s0f0np0").addresses = [f"169.254.1.{number}/16"]
        made.net("enP2p1s0f0np0").addresses = [f"169.254.2.{number}/16"]
        fabrics[f"s{number}"] = fabric(tmp_path / str(number), made)
    checks = cluster_checks(fabrics)
    assert verdict(checks) == WARN
    assert "FABRIC.LINK_LOCAL" in by_id(checks, WARN)


def test_warnings_of_a_node_are_warnings_of_the_gate(tmp_path: Path) -> None:
    fabrics = {}
    for number in (1, 2):
        made = spark(host=number + 10)
        for net in made.nets:
            net.mtu = 1500
        fabrics[f"s{number}"] = fabric(tmp_path / str(number), made)
    warned = [check for check in cluster_checks(fabrics) if check.status == WARN]
    assert {(check.host, check.id) for check in warned} == {("s1", "FABRIC.WARNING"), ("s2", "FABRIC.WARNING")}
    assert all(check.found.startswith("MTU_LOW: ") and check.remedy for check in warned)


@pytest.fixture
def ring(tmp_path: Path) -> Fabrics:
    """Three Sparks: p0 of each is cabled to p1 of the next, two networks a cable."""
    fabrics = {}
    for number in range(3):
        mine, last = f"10.{number + 1}", f"10.{(number - 1) % 3 + 1}"
        made = spark(host=number + 11, ports="01", networks=(f"{mine}.1", f"{mine}.2", f"{last}.1", f"{last}.2"))
        made.net("enP7s7").addresses = [f"10.0.0.{number + 11}/24"]
        fabrics[f"s{number + 1}"] = fabric(tmp_path / str(number), made, topology="ring", control_ifname="enP7s7")
    return fabrics


def test_a_ring_passes(ring: Fabrics) -> None:
    checks = cluster_checks(ring)
    assert verdict(checks) == PASS, [check for check in checks if check.status != PASS]
    assert {len(item["rails"]) for item in ring.values()} == {4}
    assert {item["ifname"] for item in ring.values()} == {"enP7s7"}


def test_a_ring_with_a_cable_in_the_wrong_place(ring: Fabrics) -> None:
    ring["s2"]["rails"][0].update(ipv4="10.9.9.9", network="10.9.9.0/24")
    faults = failing(ring)
    assert "shared with nobody" in faults["FABRIC.NETWORK s2"].found
    assert "FABRIC.NETWORK s3" in faults


def test_a_ring_with_two_mtus(ring: Fabrics) -> None:
    ring["s2"]["rails"][0].update(mtu=1500)
    assert "FABRIC.MTU s3" in failing(ring) or "FABRIC.MTU s2" in failing(ring)


def test_sockets_are_compared_too(tmp_path: Path) -> None:
    fabrics = {}
    for number in (1, 2):
        made = Spark(nets=spark(host=number + 10).nets[:1])
        fabrics[f"s{number}"] = fabric(tmp_path / str(number), made, transport="socket", fabric_cidr=["10.0.0.0/24"])
    assert verdict(cluster_checks(fabrics)) == PASS
    fabrics["s2"]["rails"][0].update(network="10.1.0.0/24", ipv4="10.1.0.12")
    assert set(failing(fabrics)) == {"FABRIC.NETWORK s2"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rails", "env", "errors", "warnings", "ipv4", "mtu"]), inner)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["s1", "s2", "s3"]),
        st.dictionaries(st.sampled_from(["rails", "env", "errors", "host_ip"]), JSON),
        min_size=2,
    )
)
def test_whatever_the_facts_are_there_is_a_verdict(fabrics: Fabrics) -> None:
    assert verdict(cluster_checks(fabrics)) == FAIL
