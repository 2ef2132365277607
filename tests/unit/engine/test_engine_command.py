"""The words of a command as the engine's own parser takes them."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.engine.command import Flag, flags_and_words, whole_number


@pytest.mark.parametrize(
    ("words", "before", "flags"),
    [
        ("vllm serve a/b --port 1", ["vllm", "serve", "a/b"], [("--port", ["1"])]),
        ("--enforce-eager a/b", ["a/b"], [("--enforce-eager", [])]),  # a switch takes no value
        ("--headless a/b --no-enable-prefix-caching", ["a/b"], [("--headless", []), ("--no-enable-prefix-caching", [])]),
        ("--trust_remote_code a/b", ["a/b"], [("--trust_remote_code", [])]),
        ("--enable-prefix-caching True a/b", ["a/b"], [("--enable-prefix-caching", ["True"])]),
        ("--port=1 a/b", ["a/b"], [("--port", ["1"])]),  # what is bound has no further value
        ("--served-model-name a b --x", [], [("--served-model-name", ["a", "b"]), ("--x", [])]),
        ("-tp 2 -pp=1 -O3 -n 2 -q fp8", [], [("--tensor-parallel-size", ["2"]), ("--pipeline-parallel-size", ["1"]), ("--optimization-level", ["3"]), ("--nnodes", ["2"]), ("--quantization", ["fp8"])]),
        ("--x -1 --x 2", [], [("--x", ["-1"]), ("--x", ["2"])]),  # both: which one counts is the reader's to say
    ],
)  # fmt: skip
def test_flags_and_words(words: str, before: list[str], flags: list[Flag]) -> None:
    assert flags_and_words(words.split()) == (before, flags)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-1", -1), ("128K", 131072), ("128k", 128000), ("1.5k", 1500), ("6G", 6 * 2**30), ("1m", 10**6)],
)
def test_a_number_with_its_unit(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["auto", "", "1.5K", "6GiB", "K", "1e3"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|could not"):
        whole_number(text)
