"""Texts of commands and files of others: read as data, never run; what is no recipe is refused in a sentence."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.lane.importers import shell, source
from ansible.module_utils.sparklanes.lane.importers.source import Refused
from hypothesis import given
from hypothesis import strategies as st


def words(text: str) -> list[list[str]]:
    return [one.words for one in shell.statements(text)[0] if one.words]


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_words_that_were_quoted_come_back_as_they_were(given_words: list[str]) -> None:
    assert words(shlex.join(["x", *given_words])) == [["x", *given_words]]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a \\\n  b", [["a", "b"]]),
        ("a \\  \n  b", [["a", "b"]]),  # a blank behind the backslash, as people leave it
        ("a # b\nc", [["a"], ["c"]]),
        ("a x#y", [["a", "x#y"]]),
        ("a; b && c || d", [["a"], ["b"], ["c"], ["d"]]),
        ("a '$X' \"$X\" $X", [["a", "$X", "$X", "$X"]]),
        ("X=1\na $X ${X} '$X'", [["a", "1", "1", "$X"]]),
        ("X='1 2'\na $X \"$X\"", [["a", "1", "2", "1 2"]]),
        ("a ${X:-3} ${X-4} ${X%.py}", [["a", "3", "4", "${X%.py}"]]),
        ('A=(--x 1 # why\n --y)\na ${A[@]} "${A[@]}"', [["a", "--x", "1", "--y", "--x", "1", "--y"]]),
        ("A=(1)\nA+=(2)\na ${A[@]}", [["a", "1", "2"]]),
        ("X=a\nX+=b\nc $X", [["c", "ab"]]),
        ('a "{\\"b\\": 1}"', [["a", '{"b": 1}']]),
        ("a ~/x {b,c} *.py", [["a", "~/x", "{b,c}", "*.py"]]),  # nothing is expanded
        ("export X=1; a $X", [["export", "X=1"], ["a", "1"]]),
        ("a > log 2>&1 &", [["a"]]),
        ("a $1 $@ $?", [["a", "$1", "$@", "$?"]]),
    ],
)
def test_what_a_text_says(text: str, meant: list[list[str]]) -> None:
    assert words(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a $(reboot)", "line 1: $(…) would run a command"),
        ("\na `reboot`", "line 2: `…` would run a command"),
        ('a "$(reboot)"', "would run a command"),
        ('a "`reboot`"', "would run a command"),
        ("a $((1+1))", "$((…))"),
        ("X=$(reboot)", "would run a command"),
        ("a <(b)", "something to read"),
        ("a < b", "something to read"),
        ("cat <<EOF\nx\nEOF", "something to read"),
        ("(a)", "language"),
        ("f() { a; }", "language"),
        ("a 'b", "a ' has no end"),
        ('a "b', 'a " has no end'),
        ("A=(1 2", "a list of words has no end"),
        ("a $'\\n'", "escapes of a shell"),
        ("X=12345678\n" + "X=$X$X\n" * 40, "variables make it longer than 512 KiB"),
        ("X='" + "1" * 9000 + "'\na " + "$X " * 4000, "variables make it longer than 512 KiB"),
        ("X='" + "1" * 90000 + "'\na \"" + "$X" * 90000 + '"', "variables make it longer than 512 KiB"),
        ("a " * 6000, "more than 5000 words"),
    ],
)
def test_what_would_run_something_is_refused_by_name_and_line(text: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        shell.statements(text)
    assert said in str(refused.value)


def test_nothing_runs_and_no_variable_of_ours_is_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SECRET_OF_MINE", "12345")
    assert words("a $SECRET_OF_MINE ${HOME} ~") == [["a", "$SECRET_OF_MINE", "${HOME}", "~"]]


# --- files -----------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nmodel: [*b, *b]\n"


def kind(path: Path, content: bytes) -> tuple[str, object]:
    path.write_bytes(content)
    return source.kind_and_data(source.read(str(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"vllm serve a/b\0", "binary"),
        (b"\x89PNG\r\n\x1a\n\xff", "not UTF-8"),
        ("vllm serve a/b".encode("utf-16"), "binary"),
        (b"vllm serve a/b \xe2\x80\xae", "U+202E"),
        (b"vllm serve a/b \x1b[31m", "U+001B"),
        (b"x" * (source.LARGEST + 1), "more than 512 KiB"),
        (b"model: a/b\nmodel: c/d\n", "line 2: 'model' stands twice"),
        (b"model: a/b\nenv:\n  A: 1\n  A: 2\n", "'A' stands twice"),
        (BOMB.encode(), "repeats another part"),
        (b"model: " + b"[" * 100 + b"]" * 100, "nested deeper than 40"),
        (b"model: !!python/object/apply:os.system [reboot]\n", "is no YAML"),
        (b"model: a/b\n  bad: [\n", "is no YAML"),
        (b"model: {[]: 1}\n", "is no YAML"),
        (b'[{"Config": {}, "Config": {}}]', "'Config' stands twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'[{"Config": NaN}]', "NaN is no number"),
        (b'{"a": 1}', "no record of docker inspect"),
        (b"[1, 2]", "no record of docker inspect"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(Refused) as refused:
        kind(tmp_path / "given", content)
    assert said in str(refused.value)
    assert "given" in str(refused.value)
    assert len(str(refused.value)) < 500


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "is no file"),
        (tmp_path, "can't be read"),
        (tmp_path / "gone", "can't be read"),
        (Path("/dev/zero"), "is no file"),
    ):
        with pytest.raises(Refused, match=said):
            source.read(str(path))


@pytest.mark.parametrize(
    ("content", "meant"),
    [
        (b"\xef\xbb\xbfmodel: a/b\r\ncommand: x\r\n", "recipe"),
        (b"# a recipe\nrecipe_version: '2'\n", "recipe"),
        (b"docker run x vllm serve a/b", "command"),
        (b"MODEL=a/b\nvllm serve $MODEL", "command"),
        (b'[{"Config": {}, "HostConfig": {}}]', "container"),
        (b' {"Config": {}}', "container"),
    ],
)
def test_files_are_told_apart_by_what_stands_in_them(tmp_path: Path, content: bytes, meant: str) -> None:
    assert kind(tmp_path / "given", content)[0] == meant
