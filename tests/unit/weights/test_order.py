# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from its hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.sparklanes.weights.chain import order as chain_order
from sparklanes import one_time_secret  # filter_plugins/sparklanes.py

MODEL = {"repo": "acme/tiny", "revision": "c" * 40, "path": "/m/tiny", "container_path": "/models/tiny", "config_sha256": None}


def test_models_are_named_and_stripped_of_what_staging_does_not_know() -> None:
    assert chain_order.models(MODEL, {}) == [{"name": "model", "repo": "acme/tiny", "revision": "c" * 40, "path": "/m/tiny"}]
    assert [one["name"] for one in chain_order.models(MODEL, {**MODEL, "path": "/m/draft"})] == ["model", "drafter"]
    assert chain_order.models({}, None) == []


def test_a_borrower_needs_less() -> None:
    asked = chain_order.models({**MODEL, "sha256": {"config.json": "a" * 64}})
    assert chain_order.borrowed(asked) == [{"name": "model", "path": "/m/tiny", "repo": "acme/tiny", "revision": "c" * 40}]


def test_only_a_spark_that_said_so_is_complete() -> None:
    hostvars = {
        "s1": {"r": {"unreachable": True}},
        "s2": {"r": {"staged": False}},
        "s3": {"r": {"staged": True}},
        "s4": {},
        "s5": {"r": {"failed": True, "msg": "no"}},
        "s6": {"r": {"staged": True}},
    }
    assert chain_order.complete_on(hostvars, ["s6", "s1", "s2", "s3", "s4", "s5"], "r") == ["s6", "s3"]


def test_addresses_of_those_that_have_one() -> None:
    hostvars = {
        "s1": fabric(1),
        "s2": {},
        # Its control address lies on the management network: nothing is lent there.
        "s3": {"roce_fabric": {"host_ip": "192.168.0.3", "rails": [{"ipv4": "10.0.0.3", "network": "10.0.0.0/24"}]}},
    }
    assert chain_order.fabric_addresses(hostvars, ["s1", "s2", "s3"]) == ["10.0.0.1", "10.0.0.3"]


def fabric(number: int) -> dict[str, Any]:
    rails = [{"ipv4": f"10.{rail}.0.{number}", "network": f"10.{rail}.0.0/24"} for rail in (0, 1)]
    return {"roce_fabric": {"host_ip": f"10.0.0.{number}", "rails": rails}}


def cabled(*pairs: tuple[int, int]) -> dict[str, Any]:
    """Without a switch: each cable a network, and the control addresses on the management network."""
    made: dict[str, Any] = {}
    for cable, ends in enumerate(pairs):
        for end, number in enumerate(ends, 1):
            empty: dict[str, Any] = {"env": {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}, "host_ip": f"192.168.0.{number}", "rails": []}
            one = made.setdefault(f"s{number}", {"ansible_host": f"192.168.0.{number}", "roce_fabric": empty})
            one["roce_fabric"]["rails"].append({"ipv4": f"10.{cable}.0.{end}", "network": f"10.{cable}.0.0/24"})
    for one in made.values():
        rails = chain_order.fabric_addresses({"s": one}, ["s"])
        one["lent"] = {"urls": [f"rsync://u@{address}:1" for address in [*rails, one["ansible_host"]]]}
    return made


def test_without_a_switch_weights_go_along_the_cables() -> None:
    # s1 – s3 – s2 – s4 – s1, across the order of ranks.
    hostvars, ranks = cabled((1, 3), (3, 2), (2, 4), (4, 1)), ["s1", "s2", "s3", "s4"]
    order = chain_order.chain_order(ranks, [], hostvars)
    assert order == ["s1", "s3", "s2", "s4"]

    def taken(host: str) -> list[tuple[str, str]]:
        peers = chain_order.chain_peers(hostvars, order, host, "lent")
        return [(peer["name"], chain_order.address_in(peer["url"])) for peer in peers if "management" not in peer["name"]]

    assert taken("s3") == [("s1", "10.0.0.1")]
    assert taken("s2") == [("s3", "10.1.0.1")], "s1 has it too, and no cable leads there"
    assert taken("s4") == [("s2", "10.2.0.1"), ("s1", "10.3.0.2")]
    assert chain_order.chain_order(ranks, ["s2"], hostvars)[0] == "s2"


def test_a_rank_without_a_cable_takes_nothing_over_management_unasked() -> None:
    hostvars = cabled((1, 2), (2, 3))
    hostvars["s3"]["roce_fabric"]["rails"] = [{"ipv4": "10.77.0.3", "network": "10.77.0.0/24"}]
    for one in hostvars.values():
        one["lent"]["urls"] = one["lent"]["urls"][:-1]  # the management network may not be used, so nothing is lent there
    order = chain_order.chain_order(["s3", "s1", "s2"], ["s1"], hostvars)
    assert order == ["s1", "s2", "s3"]
    assert chain_order.chain_peers(hostvars, order, "s3", "lent") == []


def test_a_secret_is_used_once() -> None:
    assert one_time_secret("") != one_time_secret("")
    assert len(one_time_secret("")) > 40


def test_a_chain_is_taken_from_backwards_and_over_management_last() -> None:
    hostvars = {
        "s1": {**fabric(1), "lent": {"urls": ["rsync://u@10.0.0.1:1", "rsync://u@192.168.0.1:1"]}},
        "s2": {**fabric(2), "lent": {"msg": "no rsync"}},
        "s3": {**fabric(3), "lent": {"urls": ["rsync://u@10.0.0.3:1"]}},
        "s4": fabric(4),
    }
    order = ["s1", "s2", "s3", "s4"]
    assert [peer["name"] for peer in chain_order.chain_peers(hostvars, order, "s4", "lent")] == [
        "s3",
        "s1",
        "s1 (management network)",
    ]
    assert chain_order.chain_peers(hostvars, order, "s1", "lent") == []


def test_management_addresses_are_the_inventorys() -> None:
    hostvars = {
        "s1": {"ansible_host": "192.168.0.1"},
        "s2": {"ansible_host": "x", "model_weights_management_address": "10.9.9.2"},
        "s3": {},
    }
    assert chain_order.management_addresses(hostvars, ["s1", "s2", "s3"]) == ["192.168.0.1", "10.9.9.2", "s3"]


LACKING = {"name": "model", "path": "/m/tiny", "staged": False, "lacking": 2, "lacks": "a.bin, b.bin", "server": ""}


def test_who_lacks_what_is_told_where_anybody_does() -> None:
    hostvars = {
        "s1": {"r": {"staged": True, "models": [{**LACKING, "staged": True}]}},
        "s2": {"r": {"staged": False, "models": [LACKING], "msg": "s2: disk full"}},
        "s3": {"r": {"unreachable": True, "msg": "no route"}},
        "s4": {},
    }
    assert chain_order.table(hostvars, ["s1", "s4"], "r", ["s1"]) == []
    assert chain_order.table(hostvars, ["s1", "s2", "s3", "s4"], "r", ["s1", "s2", "s3"]) == [
        "s1: complete",
        "s2: model in /m/tiny lacks 2 files (a.bin, b.bin). disk full. Mend that and run this again: what is verified stays",
        "s3: did not answer",
    ]


def test_a_lack_without_a_message_is_told_by_its_checks() -> None:
    checks = [
        {"status": "fail", "found": "/m/tiny: 4 shards", "expected": "5"},
        {"status": "warn", "found": "x", "expected": "y"},
    ]
    text = chain_order.lack({"models": [{**LACKING, "lacking": 0}], "checks": checks}, "s2")
    assert text.startswith("s2: model in /m/tiny lacks files, or their proof. /m/tiny: 4 shards; expected 5. Mend")
    assert "nobody said why" in chain_order.lack({}, "s2")


def test_file_servers_are_found() -> None:
    one = {"models": [{**LACKING, "server": "srv:/x"}, LACKING]}
    assert chain_order.servers({"s1": {"r": one}, "s2": {"r": {"models": [LACKING]}}, "s3": {}}, ["s1", "s2", "s3"], "r") == [
        "srv:/x"
    ]


def test_the_chain_begins_with_those_that_have_it() -> None:
    assert chain_order.chain_order(["s1", "s2", "s3", "s4"], ["s3"]) == ["s3", "s1", "s2", "s4"]


def test_who_has_the_model_in_a_cache_goes_before_who_has_nothing() -> None:
    def seen(name: str, cached: bool) -> dict[str, object]:
        return {"model_weights_places": [{"name": name, "cached": cached}]}

    hostvars = {
        "s1": {},
        "s2": seen("drafter", True),
        "s3": seen("model", True),
        "s4": seen("model", False),
        "s5": {"model_weights_places": None},
    }
    assert chain_order.held(hostvars, list(hostvars)) == ["s3"]
    assert chain_order.chain_order(list(hostvars), ["s3"])[0] == "s3"
