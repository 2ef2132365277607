# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Sizes as Docker, engines and nvidia-smi write them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.sizes import GIB, MIB, NO_LIMIT, exact_bytes, nvidia_bytes, size_bytes, size_or_none
from ansible.module_utils.sparklanes.memory import page_cache
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2g", 2 * GIB),
        ("32G", 32 * GIB),
        ("64m", 64 * MIB),
        ("10gb", 10 * GIB),
        ("10GiB", 10 * GIB),
        ("1.5 GiB", GIB * 3 // 2),
        ("1.5m", 3 * MIB // 2),
        (1024, 1024),
        (2**35, 2**35),
        ("-1", NO_LIMIT),
        (-1, NO_LIMIT),
        ("0", 0),
        (0, 0),
        ("", 0),
        (None, 0),
    ],
)
def test_docker(text: Any, size: int) -> None:
    assert size_bytes(text) == size
    assert size_or_none(text) == size


@pytest.mark.parametrize("text", ["two gig", "x", "-2", "-1g", "1e9", "1.", "g", "1 g b", "9" * 21, True, [], {}])
def test_what_docker_refuses_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        size_bytes(text)
    assert size_or_none(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("69564 MiB", 69564 * MIB), ("5", 5 * MIB), ("2 GiB", 2 * GIB), ("7 B", 7), ("[N/A]", None), (None, None)]
)
def test_nvidia(text: str | None, size: int | None) -> None:
    assert nvidia_bytes(text) == size


@pytest.mark.parametrize("text", ["8g", "1k", "1.3 KiB", "GiB", "-1", "", "8 GiB of it"])
def test_what_two_readers_read_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size|not a whole number"):
        exact_bytes(text)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    assert (size_or_none(text) or 0) >= NO_LIMIT
    assert nvidia_bytes(text) is None or isinstance(nvidia_bytes(text), int)


def test_the_file_that_travels_alone_agrees() -> None:
    assert page_cache.GIB == GIB
