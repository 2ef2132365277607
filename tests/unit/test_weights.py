# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from its hosts."""

from __future__ import annotations

from ansible.module_utils.sparklanes import weights
from sparklanes import one_time_secret  # filter_plugins/sparklanes.py

MODEL = {"repo": "acme/tiny", "revision": "c" * 40, "path": "/m/tiny", "container_path": "/models/tiny", "config_sha256": None}


def test_models_are_named_and_stripped_of_what_staging_does_not_know() -> None:
    assert weights.models(MODEL, {}) == [{"name": "model", "repo": "acme/tiny", "revision": "c" * 40, "path": "/m/tiny"}]
    assert [one["name"] for one in weights.models(MODEL, {**MODEL, "path": "/m/draft"})] == ["model", "drafter"]
    assert weights.models({}, None) == []


def test_a_borrower_needs_less() -> None:
    asked = weights.models({**MODEL, "sha256": {"config.json": "a" * 64}})
    assert weights.borrowed(asked) == [{"name": "model", "path": "/m/tiny", "repo": "acme/tiny", "revision": "c" * 40}]


def test_only_a_spark_that_said_so_is_complete() -> None:
    hostvars = {
        "s1": {"r": {"unreachable": True}},
        "s2": {"r": {"staged": False}},
        "s3": {"r": {"staged": True}},
        "s4": {},
        "s5": {"r": {"failed": True, "msg": "no"}},
        "s6": {"r": {"staged": True}},
    }
    assert weights.complete_on(hostvars, ["s6", "s1", "s2", "s3", "s4", "s5"], "r") == ["s6", "s3"]


def test_addresses_of_those_that_have_one() -> None:
    hostvars = {"s1": {"roce_fabric": {"host_ip": "10.0.0.1"}}, "s2": {}, "s3": {"roce_fabric": {"host_ip": None}}}
    assert weights.fabric_addresses(hostvars, ["s1", "s2", "s3"]) == ["10.0.0.1"]


def test_a_secret_is_used_once() -> None:
    assert one_time_secret("") != one_time_secret("")
    assert len(one_time_secret("")) > 40
