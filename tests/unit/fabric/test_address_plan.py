"""Which Spark gets which address, and every way in which a plan is refused."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check, verdict
from ansible.module_utils.sparklanes.common.registered import Look
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.fabric import netplan
from ansible.module_utils.sparklanes.gates import network
from hostvars import registered
from hypothesis import given
from hypothesis import strategies as st

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
RAILS = [{"interface": A, "network": "192.168.100.0/24"}, {"interface": B, "network": "192.168.101.0/24"}]


def settings(count: int = 2, **more: Any) -> dict[str, dict[str, Any]]:
    return {
        f"s{number}": {"rails": RAILS, "addresses": {}, "first": 11, "mtu": 9000, "renderer": "", **more}
        for number in range(1, count + 1)
    }


def info(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "tool": "/usr/sbin/netplan",
        "interfaces": {
            "lo": {"addresses": ["127.0.0.1/8"]},
            "enP7s7": {"addresses": [f"10.0.0.{number}/24"]},
            A: {"addresses": []},
            B: {"addresses": []},
        },
        "management": {"enP7s7": "carries this ssh connection"},
        "owners": [],
        "file": {"path": "/etc/netplan/40-cx7.yaml", "text": None, "trial": None},
        "pending": {"armed": False, "when": ""},
        **more,
    }


def judge(wanted: dict[str, Any], **infos: Any) -> dict[str, Check]:
    known = {host: infos.get(host, info(index)) for index, host in enumerate(wanted, 1)}
    _, made = fabric_addresses.judge(wanted, {host: Look(one) for host, one in known.items()})
    return {f"{check.host} {check.id}": check for check in sorted(made, key=lambda check: check.status == "fail")}


def failing(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.found for name, check in checks.items() if check.status == "fail"}


def test_addresses_follow_the_place_in_the_group() -> None:
    rails, made = fabric_addresses.judge(settings(3), {f"s{n}": Look(info(n)) for n in (1, 2, 3)})
    assert verdict(made) == "pass"
    assert rails["s3"] == [{"name": A, "address": "192.168.100.13/24"}, {"name": B, "address": "192.168.101.13/24"}]


def test_a_given_address_wins() -> None:
    wanted = settings(2)
    wanted["s2"] = {**wanted["s2"], "addresses": {B: "192.168.101.99/24"}}
    rails, made = fabric_addresses.judge(wanted, {"s1": Look(info(1)), "s2": Look(info(2))})
    assert verdict(made) == "pass"
    assert [rail["address"] for rail in rails["s2"]] == ["192.168.100.12/24", "192.168.101.99/24"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rails": []}, "fabric_network_rails is empty"),
        ({"rails": [{"interface": A}]}, "give its network"),
        ({"rails": [{"interface": "", "network": "10.1.0.0/24"}]}, "must be the name of a network device"),
        ({"rails": [{"interface": "a b", "network": "10.1.0.0/24"}]}, "must be the name of a network device"),
        ({"rails": [{"interface": A, "network": "192.168.100.5/24"}]}, "has host bits set"),
        ({"rails": [{"interface": A, "network": "everything"}]}, "does not appear to be an IPv4 or IPv6 network"),
        ({"rails": [RAILS[0], RAILS[0]]}, "names one interface twice"),
        ({"first": 254}, "192.168.100.0/24 has no host number 255"),
        ({"first": 0}, "has no host number 0"),
        ({"first": "many"}, "invalid literal"),
        ({"addresses": {"eth9": "10.1.0.1/24"}}, "names eth9, which is not an interface"),
        ({"addresses": {A: "192.168.100.11"}}, "has no prefix length"),
        ({"addresses": {A: "192.168.100.300/24"}}, "192.168.100.300/24"),
        ({"addresses": {A: "192.168.100.0/24"}}, "network or broadcast address"),
        ({"addresses": {A: "192.168.100.255/24"}}, "network or broadcast address"),
        ({"addresses": {A: "127.0.0.5/24"}}, "no address for a rail"),
        ({"addresses": {A: "169.254.3.4/16"}}, "no address for a rail"),
        ({"addresses": {A: "192.168.100.11/32"}}, "a network of one address"),
        ({"mtu": 100}, "fabric_network_mtu 100"),
        ({"mtu": "9k"}, "invalid literal"),
        ({"rails": [RAILS[0], {"interface": B, "network": "192.168.100.0/25"}]}, "share 192.168.100.0/24"),
    ],
)
def test_a_plan_that_can_not_be_is_refused(more: dict[str, Any], words: str) -> None:
    found = failing(judge(settings(2, **more)))
    assert any(name.endswith("NETPLAN.ADDRESS") and words in text for name, text in found.items()), found


def test_one_address_on_two_sparks_names_both() -> None:
    found = failing(judge(settings(2, addresses={A: "192.168.100.50/24"})))
    assert "192.168.100.50 is on s1 enp1s0f0np0 and s2 enp1s0f0np0" in found["s1 NETPLAN.ADDRESS"]
    assert "s2 NETPLAN.ADDRESS" in found


def test_a_rail_that_nobody_shares_is_refused_unless_there_is_one_spark() -> None:
    wanted = settings(2)
    wanted["s2"] = {**wanted["s2"], "addresses": {B: "192.168.150.12/24"}}
    assert "enP2p1s0f0np0: nobody else is in 192.168.150.0/24" in failing(judge(wanted))["s2 NETPLAN.ADDRESS"]
    assert failing(judge(settings(1))) == {}


@pytest.mark.parametrize(
    ("more", "check", "words"),
    [
        ({"tool": ""}, "NETPLAN.TOOL", "netplan is not installed"),
        ({"management": {A: "carries this ssh connection (192.168.1.5)"}}, "NETPLAN.MANAGEMENT", "carries this ssh connection"),
        ({"management": {"enP7s7": "x", B: "has the default route"}}, "NETPLAN.MANAGEMENT", "enP2p1s0f0np0 has the default route"),
        ({"management": {}}, "NETPLAN.MANAGEMENT", "neither an ssh connection nor a default route"),
        ({"interfaces": {A: {"addresses": []}, "enP7s7": {"addresses": []}}}, "NETPLAN.INTERFACE", "enP2p1s0f0np0 is not there"),
        ({"interfaces": {A: {"addresses": []}, B: {"addresses": []}, "enP7s7": {"addresses": ["192.168.100.5/16"]}}}, "NETPLAN.MANAGEMENT",
         "192.168.100.0/24 of enp1s0f0np0 overlaps 192.168.100.5/16 on enP7s7"),
        ({"owners": [{"interface": A, "kind": "netplan", "path": "/etc/netplan/90.yaml", "weight": "blocks", "why": "names it"}]}, "NETPLAN.OWNER",
         "enp1s0f0np0: netplan /etc/netplan/90.yaml names it"),
        ({"pending": {"armed": True, "when": "soon"}}, "NETPLAN.PENDING", "another trial is armed"),
    ],
)  # fmt: skip
def test_what_the_spark_itself_says_against_it(more: dict[str, Any], check: str, words: str) -> None:
    found = failing(judge(settings(2), s2=info(2, **more)))
    assert list(found) == [f"s2 {check}"]
    assert words in found[f"s2 {check}"]


def test_who_gives_way_is_told() -> None:
    told = [
        {"interface": A, "kind": "NetworkManager", "path": "/run/x", "weight": "tells", "why": "has it until netplan takes it"}
    ]
    assert judge(settings(2), s2=info(2, owners=told))["s2 NETPLAN.OWNER"].status == "warn"


def test_the_same_trial_may_go_on() -> None:
    text = netplan.render([{"name": A, "address": "192.168.100.11/24"}, {"name": B, "address": "192.168.101.11/24"}], 9000)
    file = {"path": "/etc/netplan/40-cx7.yaml", "text": None, "trial": text}
    assert failing(judge(settings(2), s1=info(1, pending={"armed": True, "when": ""}, file=file))) == {}


@pytest.mark.parametrize("silent", [None, {}, {"unreachable": True}])
def test_a_silent_spark_stops_the_plan(silent: Any) -> None:
    made = network_plan(settings(2), {"s1": info(1), "s2": silent})["checks"]
    assert [(check.host, check.id) for check in made if check.status == "fail"] == [("s2", "NODE.REACHABLE")]


def network_plan(wanted: dict[str, Any], infos: dict[str, Any], present: bool = True) -> dict[str, Any]:
    known = registered(wanted, fabric_network_settings=wanted, fabric_network_now=infos)
    return fabric_addresses.network_plan(known, list(wanted), present)


def test_to_take_it_away_no_plan_is_needed() -> None:
    made = network_plan({"s1": {}, "s2": {}}, {"s1": info(1), "s2": info(2, tool="")}, present=False)["checks"]
    assert [(check.host, check.id) for check in made if check.status == "fail"] == [("s2", "NETPLAN.TOOL")]
    trial = {"path": "x", "text": "y", "trial": netplan.NOTHING}
    again = network_plan({"s1": {}}, {"s1": info(1, pending={"armed": True, "when": ""}, file=trial)}, present=False)
    assert all(check.status == "pass" for check in again["checks"])


def test_rails_of_one_network_are_what_proves_it() -> None:
    rails, _ = fabric_addresses.plan(settings(2))
    probes = fabric_addresses.network_probes(rails, 9000)
    assert [(one["ifname"], one["source"], one["address"], one["size"]) for one in probes["s1"]] == [
        (A, "192.168.100.11", "192.168.100.12", 8972),
        (B, "192.168.101.11", "192.168.101.12", 8972),
    ]
    found = {"probes": [{**one, "ok": True} for one in probes["s1"]]}
    tried: dict[str, Any] = {"s1": {"changed": True}, "s2": {"failed": True, "msg": "netplan apply failed"}}
    known = registered(tried, fabric_network_tried=tried, fabric_network_pinged={"s1": found})
    bad = [(check.host, check.id) for check in network.network_proof(known, list(tried), rails, 9000) if check.status == "fail"]
    assert bad == [("s2", "NETPLAN.APPLIED"), ("s2", "FABRIC.PEER"), ("s2", "FABRIC.PEER")]
    silent = registered(tried, fabric_network_tried={**tried, "s2": {"unreachable": True}})
    assert [check.status for check in network.network_proof(silent, list(tried), {}, 9000)] == ["pass", "fail"]


def test_who_keeps_the_new_network_is_known() -> None:
    kept = {"s1": {"changed": True}, "s2": {"changed": False}, "s3": {"unreachable": True}, "s4": None}
    assert fabric_addresses.network_kept(registered([*kept, "s5"], fabric_network_kept=kept), [*kept, "s5"]) == ["s1"]


@given(
    st.lists(st.sampled_from(["10.1.0.0/24", "10.2.0.0/30", "fd00::/64", "10.1.0.0/16"]), min_size=1, max_size=3),
    st.integers(-5, 300),
    st.integers(1, 9),
)
def test_a_plan_that_passes_has_no_address_twice_and_all_in_their_networks(networks: list[str], first: int, count: int) -> None:
    rails = [{"interface": f"n{index}", "network": network} for index, network in enumerate(networks)]
    made, checks = fabric_addresses.plan(settings(count, rails=rails, first=first))
    checks += fabric_addresses.address_checks({host: mine for host, mine in made.items() if mine})
    if verdict(checks) == "pass":
        found = [ipaddress.ip_interface(one["address"]) for mine in made.values() for one in mine]
        assert len({interface.ip for interface in found}) == len(rails) * count
        assert all(interface.network in map(ipaddress.ip_network, networks) for interface in found)
