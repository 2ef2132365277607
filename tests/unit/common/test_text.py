# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Text of others on one line, without anything that a terminal would obey."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.common.text import said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;a title\x07x", "x"),
        ("\x1b]52;c;never closed\nand what follows", "and what follows"),
        ("\x1bP1$r\x1b\\x\x1bcy\x1b(B", "xy"),
        ("a\u202eb\x00c\u2028d", "abc d"),
        ("one\r\n two\tthree", "one two three"),
    ],
)
def test_what_a_terminal_would_obey_goes(text: str, shown: str) -> None:
    assert said(text) == shown


def test_it_is_short() -> None:
    assert len(said("x" * 9000)) == 300
    assert said("word " * 9000, 20).endswith("…")
