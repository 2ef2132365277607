# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from its hosts."""

from __future__ import annotations

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
    hostvars = {"s1": {"roce_fabric": {"host_ip": "10.0.0.1"}}, "s2": {}, "s3": {"roce_fabric": {"host_ip": None}}}
    assert chain_order.fabric_addresses(hostvars, ["s1", "s2", "s3"]) == ["10.0.0.1"]


def test_a_secret_is_used_once() -> None:
    assert one_time_secret("") != one_time_secret("")
    assert len(one_time_secret("")) > 40


def test_a_chain_is_taken_from_backwards_and_over_management_last() -> None:
    hostvars = {
        "s1": {"lent": {"urls": ["rsync://u@10.0.0.1:1", "rsync://u@192.168.0.1:1"]}},
        "s2": {"lent": {"msg": "no rsync"}},
        "s3": {"lent": {"urls": ["rsync://u@10.0.0.3:1"]}},
        "s4": {},
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
