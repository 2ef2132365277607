"""Failures as sentences, once each; tables that are folded; nothing that a terminal obeys."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.screen import words


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\n\ttext äß中", "plain\n\ttext äß中"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;a title\x07x", "x"),
        ("\x1b]8;;http://bad\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x1bP1$r\x1b\\x\x1bcy\x1b(B", "xy"),
        ("\x9b31mred", "red"),
        ("a\rb\r\nc", "a\nb\nc"),
        ("bell\x07 back\x08 null\x00", "bell back null"),
        ("a\u202egpj.exe\u2066", "agpj.exe"),
        ("\x1b]52;c;never closed", ""),
        ("ends in \x1b", "ends in "),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(raw: str, shown: str) -> None:
    assert words.clean(raw) == shown


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "spark-1: no room."}, "spark-1: no room."),
        ({"msg": ["one", "two"]}, "one\ntwo"),
        (
            {
                "msg": "Task failed: Action failed: The command exited with a non-zero return code.",
                "stderr": "a\noops",
                "stdout": "x",
            },
            "The command exited with a non-zero return code: oops",
        ),
        (
            {"msg": "Task failed: Module failed: non-zero return code", "stderr": "a\noops", "stdout": "x"},
            "non-zero return code: oops",
        ),
        (
            {"msg": "MODULE FAILURE\nSee stdout", "module_stderr": "Traceback\nKeyError: 'x'"},
            "MODULE FAILURE\nSee stdout: KeyError: 'x'",
        ),
        ({"module_stdout": "", "exception": "Traceback\nOSError: gone"}, "OSError: gone"),
        ({}, "failed without a word"),
        (
            {
                "msg": "Task failed: Finalization of task args for 'ansible.builtin.copy' failed: Error while resolving value for 'content': "
                "The filter plugin 'sparklanes_new_lane' failed: 'my-tiny' is no name of a lane"
            },
            "'my-tiny' is no name of a lane",
        ),
        ({"msg": "all", "results": [{"failed": True, "msg": "a"}, {"msg": "fine"}, {"failed": True, "msg": "a"}]}, "a"),
        ({"msg": "the items", "results": []}, "the items"),
    ],
)
def test_a_failure_is_what_it_says_for_itself(result: dict[str, Any], said: str) -> None:
    assert words.failure(result) == said


def test_sentences_have_their_ends() -> None:
    assert words.joined(["expected free", "Nothing was stopped.", ""]) == "expected free. Nothing was stopped."


def test_what_hosts_say_alike_is_said_once_and_with_all_of_them() -> None:
    told = words.told(
        [
            ("s1", "no room"),
            ("s2", "no room"),
            ("s2", "no room"),
            ("s3", "s3: dead"),
            ("localhost", "typo"),
            ("s1", "FAIL x\nFAIL y"),
        ]
    )
    assert told == ["s1, s2: no room.", "s3: dead.", "typo.", "FAIL x\nFAIL y"]


def test_a_host_is_named_where_only_part_of_a_word_is_its_name() -> None:
    assert words.named("spark-1", "spark-10 is dead") == "spark-1: spark-10 is dead"


TABLE = """FAIL  A.B   s1   bad, and a long story
                 that goes on
WARN  C.D   s2   so so
PASS  E.F   all  fine
PASS  G.H   all  fine, and a long story
                 that goes on
PASS  I.J   all  fine
PASS  K.L   all  fine
→ s1 A.B: mend it"""


def test_passed_checks_are_counted_and_nothing_else_is_lost() -> None:
    assert words.folded(TABLE).splitlines() == [*TABLE.splitlines()[:3], "PASS  4 checks", "→ s1 A.B: mend it"]
    assert "PASS  4 checks of gate A" in words.folded(TABLE, of="gate A").splitlines()
    assert words.folded(TABLE, most=4) == TABLE
    assert words.folded("no table") == "no table"


def test_nothing_stands_beside_a_line_of_the_box() -> None:
    made = words.box("launch: done", ["curl x", "a" * 200])
    assert made[1:3] == ["curl x", "a" * 200]
    assert made[0].startswith("══ launch: done ═")
    assert set(made[3]) == {"═"}
