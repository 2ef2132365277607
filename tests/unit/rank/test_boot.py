"""How long a boot may take."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.rank import boot
from hostvars import registered


@pytest.mark.parametrize(
    ("more", "cold", "seconds"),
    [
        ({}, False, 600),
        ({}, True, 600),
        ({"lane_first_boot_timeout_seconds": None}, True, 600),
        ({"lane_first_boot_timeout_seconds": 1800}, False, 600),
        ({"lane_first_boot_timeout_seconds": 1800}, True, 1800),
    ],
)
def test_a_boot_that_compiles_may_take_longer(more: dict[str, Any], cold: bool, seconds: int) -> None:
    assert boot.boot_seconds({"lane_boot_timeout_seconds": 600, **more}, cold) == seconds


@pytest.mark.parametrize(
    ("workers", "head", "cold"),
    [
        ({"s1": {"skipped": True}, "s2": {"cold": False}}, {"s1": {"cold": False}, "s2": {"skipped": True}}, False),
        ({"s1": {"skipped": True}, "s2": {"cold": True}}, {"s1": {"cold": False}}, True),
        ({"s1": {"skipped": True}, "s2": {"cold": False}}, {"s1": {"cold": True}}, True),
        ({}, {}, False),
    ],
)
def test_one_cold_rank_makes_all_wait(workers: Any, head: Any, cold: bool) -> None:
    known = registered(["s1", "s2"], __rank_started=workers, __rank_head_started=head)
    assert boot.cold(known, ["s1", "s2"]) is cold
