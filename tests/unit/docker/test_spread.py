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
