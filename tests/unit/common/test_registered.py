"""What a registered result says, whatever it is: facts, or words for the row that fails."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import registered
from ansible.module_utils.sparklanes.common.registered import LONGEST, NO_ANSWER, NOT_ASKED, answered, check_rows, look
from hypothesis import given
from hypothesis import strategies as st

ROW = {"id": "A.B", "host": "s1", "status": "pass", "found": "x"}


@pytest.mark.parametrize(
    ("result", "problem", "broke"),
    [
        (None, NOT_ASKED, False),
        ({}, NOT_ASKED, False),
        ("text", "a result that is no mapping but str", True),
        ([1], "a result that is no mapping but list", True),
        (True, "a result that is no mapping but bool", True),
        ({"unreachable": True}, NO_ANSWER, False),
        ({"unreachable": True, "msg": "No route\n to host"}, f"{NO_ANSWER} (No route to host)", False),
        ({"skipped": True, "skip_reason": "Conditional result was False"}, "was not asked (Conditional result was False)", True),
        ({"failed": True}, "the module failed without a word", True),
        ({"failed": True, "msg": "state.json is no JSON", "part": {"a": 1}}, "state.json is no JSON", True),
        # What `failed_when` has made of a failure.
        ({"failed": False, "failed_when_suppressed_exception": "…", "msg": "hash differs", "part": {}}, "hash differs", True),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Traceback\n  x\nKeyError: 'a'\n"}, "MODULE FAILURE: KeyError: 'a'", True),
        ({"failed": True, "msg": "non-zero return code", "stderr": "a\nno room"}, "non-zero return code: no room", True),
        ({"failed": True, "msg": "The command exited with a non-zero return code.", "stdout": "no room"},
         "The command exited with a non-zero return code: no room", True),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Connection to s1 closed.", "module_stdout": "x\nKeyError: 'a'"},
         "MODULE FAILURE: KeyError: 'a'", True),
        ({"failed": True, "exception": "Traceback\nValueError: no"}, "ValueError: no", True),
        ({"changed": False}, "the module gave no part", True),
        ({"part": None, "msg": "nvidia-smi hangs"}, "nvidia-smi hangs", True),
        ({"part": ["a"]}, "the module gave no part", True),
    ],
)  # fmt: skip
def test_what_holds_no_facts_says_why(result: Any, problem: str, broke: bool) -> None:
    seen = look(result, "part")
    assert (seen.facts, seen.problem, seen.broke) == (None, problem, broke)


def test_facts_are_those_of_a_module_that_came_to_its_end() -> None:
    assert look({"part": {}}, "part").facts == {}
    assert look({"changed": False}).facts == {"changed": False}
    assert answered({"failed": True, "staged": True}) is None


def test_words_of_others_are_cut() -> None:
    assert len(look({"failed": True, "msg": "x" * 9000}).problem) < LONGEST + 5


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_anything_is_either_facts_or_a_problem(result: Any) -> None:
    for part in ("", "part"):
        seen = look(result, part)
        assert (seen.facts is None) == bool(seen.problem)
    assert check_rows(result, "A.B", "s1", "measured", "")


@pytest.mark.parametrize(
    ("result", "rows"),
    [
        ({"checks": [ROW]}, [("A.B", "pass")]),
        ({"checks": [ROW], "failed": True, "msg": "killed"}, [("A.B", "pass"), ("MEM.X", "fail")]),
        ({"checks": [ROW, {"id": "C"}]}, [("A.B", "pass"), ("MEM.X", "fail")]),
        ({"checks": [ROW, 7]}, [("A.B", "pass"), ("MEM.X", "fail")]),
        ({"checks": []}, [("MEM.X", "fail")]),
        ({"checks": "none"}, [("MEM.X", "fail")]),
        ({}, [("MEM.X", "fail")]),
        ({"unreachable": True, "checks": [ROW]}, [("A.B", "pass"), ("MEM.X", "fail")]),
    ],
)
def test_checks_that_a_module_made_never_hide_that_it_failed(result: Any, rows: list[tuple[str, str]]) -> None:
    assert [(check.id, check.status) for check in check_rows(result, "MEM.X", "s1", "measured", "")] == rows


def test_a_module_that_measured_nothing_says_so() -> None:
    assert check_rows({"changed": False}, "MEM.X", "s1", "measured", "")[0].found == "not measured"
    assert registered.words({}) == ""


def test_results_of_hosts_are_told_in_their_order() -> None:
    known = {"s2": {"r": {"x": {"y": 1}, "msg": ""}}, "s1": {"r": {"failed": True, "msg": "no room"}}, "s3": {}}
    hosts = ["s1", "s2", "s3"]
    assert list(registered.results(known, hosts, "r").values()) == [known["s1"]["r"], known["s2"]["r"], None]
    found = registered.looks(known, hosts, "r", "x")
    assert [(seen.facts, seen.problem) for seen in found.values()] == [(None, "no room"), ({"y": 1}, ""), (None, NOT_ASKED)]
    assert registered.said(known, hosts, "r") == ["no room"]
