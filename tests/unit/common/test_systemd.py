# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What `systemctl show` prints, of one unit and of several."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.common import systemd

TWO = "Id=a.service\nActiveState=active\nExecStart={ path=/x ; argv[]=/x --y=1 }\n\nActiveState=inactive\nId=b.service\n"


def test_each_unit_is_a_block() -> None:
    found = systemd.parse_shows(TWO)
    assert {name: unit["ActiveState"] for name, unit in found.items()} == {"a.service": "active", "b.service": "inactive"}
    assert found["a.service"] == systemd.parse_show(TWO.partition("\n\n")[0])
    assert found["a.service"]["ExecStart"].endswith("--y=1 }")


@pytest.mark.parametrize("text", ["", "\n\n", "no pairs\n", "ActiveState=active\n"])
def test_a_block_without_an_id_is_no_unit(text: str) -> None:
    assert systemd.parse_shows(text) == {}
