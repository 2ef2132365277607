# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who reaches an address."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.common.interfaces import interfaces


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("127.0.0.1", ""), ("127.8.0.1", ""), ("localhost", ""), ("::1", ""), ("[::1]", ""), ("::ffff:127.0.0.1", ""),
        ("0.0.0.0", "every interface"), ("::", "every interface"), ("", "every interface"), (" ", "every interface"),
        ("::ffff:0.0.0.0", "every interface"), ("192.168.1.11", "192.168.1.11"), ("fd00::1", "fd00::1"), ("spark-1.lan", "spark-1.lan"),
        ("localhost.example.com", "localhost.example.com"), ("128.0.0.1", "128.0.0.1"),
    ],
)  # fmt: skip
def test_where_an_api_is_reached_by_the_address_that_it_binds(host: str, where: str) -> None:
    assert interfaces(host) == where
