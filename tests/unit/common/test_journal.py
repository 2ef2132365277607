# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""An empty journal is an answer only where journalctl may see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common import journal

Answer = tuple[int, str, str]
LINE = "2026-12-01T04:00:00+00:00 spark-2 kernel: NVRM: Xid\n"
HINT = "Hint: You are currently not seeing messages from other users and the system.\n"
DENIED = (1, "", "dmesg: read kernel buffer failed: Operation not permitted")


class Machine:
    def __init__(self, journalctl: Answer, dmesg: Answer = (0, "[ 1.0] dmesg\n", "")) -> None:
        self.answers, self.asked = {"journalctl": journalctl, "dmesg": dmesg}, list[list[str]]()

    def __call__(self, argv: Sequence[str], **_: Any) -> Answer:
        self.asked.append(list(argv))
        return self.answers[argv[0]]


HIDDEN = [
    (0, "", HINT),
    (0, "-- No entries --\n", HINT),
    (1, "", HINT),
    (1, "", "No journal files were opened due to insufficient permissions."),
    (0, "-- No entries --\n", "No journal files were found."),
    (1, "", "Compiled without pattern matching support"),
    (124, "", "journalctl did not answer within 60 s"),
    (127, "", "journalctl: No such file or directory"),
    (3, "", ""),
]


@pytest.mark.parametrize("grep", ["", "NVRM"])
@pytest.mark.parametrize("answer", HIDDEN)
def test_a_journal_that_was_not_seen_is_no_empty_one(answer: Answer, grep: str) -> None:
    assert journal.read(Machine(answer), grep=grep)[0] == ""
    assert journal.read(Machine(answer), grep=grep)[1]
    assert journal.kernel(Machine(answer), grep=grep) == ("[ 1.0] dmesg\n", ""), "dmesg stands in"
    assert journal.kernel(Machine(answer, DENIED), grep=grep) == ("", DENIED[2])
    assert journal.kernel(Machine(answer, (1, "", "")), grep=grep)[1], "somebody says why"


def test_what_was_seen_is_an_answer() -> None:
    for machine in (Machine((0, LINE, "")), Machine((0, LINE, HINT))):
        assert journal.kernel(machine, *journal.BOOT, grep="NVRM") == (LINE, "")
        assert [argv[0] for argv in machine.asked] == ["journalctl"]
        assert {"--boot", "_TRANSPORT=kernel", "--grep=NVRM", "--case-sensitive=yes"} <= set(machine.asked[0])
        assert "--quiet" not in machine.asked[0], "journalctl then hides that it may not see"
    assert journal.read(Machine((0, LINE, HINT))) == (LINE, HINT.strip()), "there may be more"


@pytest.mark.parametrize("answer", [(0, "", ""), (0, "-- No entries --\n", ""), (1, "", "")])
def test_where_no_line_matches_nothing_else_is_asked(answer: Answer) -> None:
    machine = Machine(answer, DENIED)
    assert journal.kernel(machine, *journal.BOOT, grep="NVRM") == ("", "")
    assert len(machine.asked) == 1


def test_a_journal_without_the_kernel_leaves_it_to_dmesg() -> None:
    assert journal.kernel(Machine((0, "-- No entries --\n", "")))[0] == "[ 1.0] dmesg\n"
    assert journal.kernel(Machine((0, "-- No entries --\n", ""), DENIED)) == ("", ""), "the journal had said that there is none"
