# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Programs that are missing, hang, ignore signals, leave children, or print without end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import commands


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.2)


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_exit_status_output_and_errors() -> None:
    assert commands.run(shell("echo said; echo wrong >&2; exit 3")) == (3, "said\n", "wrong\n")
    assert commands.run(shell("kill -9 $$"))[0] == -9


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert commands.run(["/no/such/program"]) == (commands.NOT_FOUND, "", "/no/such/program: No such file or directory")
    assert commands.run([str(tmp_path)])[0] == commands.NOT_FOUND


def test_it_speaks_english_reads_nothing_and_takes_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE", "de_DE")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    _, out, _ = commands.run(shell('cat; echo "$LC_ALL $LANGUAGE $MINE"'), environ_update={"MINE": "x"})
    assert out == "C.UTF-8 C x\n"


def test_bytes_that_are_no_text() -> None:
    assert commands.run(shell(r"printf 'a\377b'"))[1] == "a�b"


@pytest.mark.parametrize("text", ["sleep 60", "trap '' TERM; sleep 60 & wait; sleep 60", "echo half; sleep 60 & sleep 60"])
def test_one_that_hangs_is_ended_with_all_that_it_started(text: str, tmp_path: Path) -> None:
    began = time.monotonic()
    code, out, err = commands.run(shell(f"echo $$ > {tmp_path}/pid; {text}"), seconds=0.2)
    assert time.monotonic() - began < 5
    assert (code, err) == (commands.TIMED_OUT, "sh did not answer within 0.2 s")
    assert out == ("half\n" if "half" in text else "")
    group = int((tmp_path / "pid").read_text())
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("something of it runs on")


def test_a_child_that_lives_on_does_not_hold_us() -> None:
    began = time.monotonic()
    code, out, _ = commands.run(shell("sleep 5 & echo done"))
    assert (code, out) == (0, "done\n")
    assert time.monotonic() - began < 4


def test_output_without_end_is_bounded_and_does_not_block_the_program() -> None:
    code, out, _ = commands.run([sys.executable, "-c", "print('x' * 5_000_000)"], most_bytes=1000)
    assert (code, out) == (0, "x" * 1000)


def test_programs_at_once_take_the_time_of_the_slowest() -> None:
    began = time.monotonic()
    found = commands.together([shell("sleep 0.3; echo one; echo wrong >&2"), shell("sleep 0.3; exit 2"), ["/no/such"]], 10)
    assert time.monotonic() - began < 5
    assert found == [(0, "one\nwrong\n", ""), (2, "", ""), (127, "", "/no/such: No such file or directory")]


def test_of_programs_at_once_none_outlives_the_time() -> None:
    began = time.monotonic()
    found = commands.together([shell("echo a; sleep 60"), shell("sleep 60"), shell("echo quick")], 0.3)
    assert time.monotonic() - began < 10
    assert found == [
        (124, "a\n", "sh did not answer within 0.3 s"),
        (124, "", "sh did not answer within 0.3 s"),
        (0, "quick\n", ""),
    ]


def test_a_program_that_no_module_may_end_for() -> None:
    def run(argv: list[str], handle_exceptions: bool = True) -> tuple[int, str, str]:
        assert not handle_exceptions
        raise FileNotFoundError(2, "No such file or directory")

    assert commands.ask(run, ["nothing"]) == (127, "", "nothing: No such file or directory")


def test_a_program_reads_what_it_is_given_where_it_is_wanted(tmp_path: Path) -> None:
    assert commands.run(["cat"], data="ä\n" * 100_000)[:2] == (0, "ä\n" * 100_000)
    assert commands.run(["cat"]) == (0, "", "")
    assert commands.run(["sh", "-c", "pwd"], cwd=tmp_path)[1].strip() == str(tmp_path)
    assert commands.run(["cat"], cwd=tmp_path / "none")[0] == commands.NOT_FOUND
