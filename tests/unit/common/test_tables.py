# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Cells stand under each other, whatever the rows are."""

from __future__ import annotations

from ansible.module_utils.sparklanes.common.tables import BETWEEN, columns
from hypothesis import given
from hypothesis import strategies as st


def test_cells_stand_under_each_other() -> None:
    rows = [("rank", "node", "doing"), ("0", "spark-1", ""), ("11", "s2", "serves"), ("together",)]
    assert columns(rows) == ["rank      node     doing", "0         spark-1", "11        s2       serves", "together"]
    assert columns([("a", "5.00"), ("bb", "120.00")], right={1}, least=(4, 8)) == ["a         5.00", "bb      120.00"]
    assert columns([]) == []


def test_a_long_last_cell_is_wrapped_below_itself() -> None:
    lines = columns([("FAIL", "word " * 12), ("PASS", "short"), ("alone",)], width=40)
    assert lines == [
        "FAIL   word word word word word word",
        "       word word word word word word",
        "PASS   short",
        "alone",
    ]
    assert columns([("x" * 50, "word " * 8)], width=40)[1] == " " * 52 + "word word", "it never gets too narrow to be read"


@given(
    st.lists(
        st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=6), min_size=1, max_size=4), max_size=5
    )
)
def test_no_cell_is_lost_and_none_stands_askew(rows: list[list[str]]) -> None:
    lines = columns(rows)
    assert [line.split() for line in lines] == [[cell for cell in row if cell] for row in rows]
    sizes = [max(len(row[place]) for row in rows if place < len(row)) for place in range(max(map(len, rows), default=0))]
    for line, row in zip(lines, rows, strict=True):
        for place, cell in enumerate(row):
            begin = sum(sizes[:place]) + place * len(BETWEEN)
            assert line[begin : begin + len(cell)] == cell
