# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Lists of hashes are read as written, by us and by sha256sum; names stay below their folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import sums
from ansible.module_utils.sparklanes.common.files import below
from hypothesis import given
from hypothesis import strategies as st

A, B = "a" * 64, "b" * 64
NAMES = st.text(min_size=1, max_size=12)


@given(st.dictionaries(NAMES, st.from_regex(r"[0-9a-f]{64}", fullmatch=True), max_size=4))
def test_a_list_is_read_as_written_or_not_written(found: dict[str, str]) -> None:
    try:
        text = sums.write(found)
    except ValueError:
        return
    assert sums.read(text) == found


@given(st.text(max_size=90))
def test_any_list_is_read_or_refused(text: str) -> None:
    try:
        found = sums.read(text)
    except ValueError:
        return
    assert all(len(digest) == 64 and below(name) == name for name, digest in found.items())


def test_all_kinds_of_lines() -> None:
    text = f"# made by hand\n{A}  x\n\n{B.upper()} *./d/y z\r\n{A}  with\u2028line\n"
    assert sums.read(text) == {"x": A, "d/y z": B, "with\u2028line": A}
    assert sums.read("") == {}


@pytest.mark.parametrize(
    "line", ["abc  x", A, f"{A} x", f"{A}\tx", f"{A}  ", f"{A}  ../x", f"{A}  /etc/x", f"\\{A}  x\\\\y", f"{A[:63]}g  x"]
)
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"is none|no name|reads otherwise"):
        sums.read(line)


@pytest.mark.parametrize("entry", [("x", "0"), ("x", A.upper()), ("../x", A), ("a\nb", A), ("a\\b", A), ("x\r", A), ("-", A)])
def test_what_no_reader_takes_is_not_written(entry: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no sha256|no name|reads otherwise"):
        sums.write(dict([entry]))


def test_sha256sum_agrees(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    made = {}
    for name in ("x", "d/with blank", "é"):
        (tmp_path / name).write_text(name)
        made[name] = hashlib.sha256(name.encode()).hexdigest()
    (tmp_path / sums.SUMS).write_text(sums.write(made))
    subprocess.run(["sha256sum", "--check", "--strict", sums.SUMS], cwd=tmp_path, check=True, capture_output=True)
    told = subprocess.run(["sha256sum", "--", *made], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert sums.read(told) == made


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", ".", "..", "a\nb", "a\x7f", "a\0"])
def test_a_name_that_leaves_its_folder_or_has_two_spellings_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name below a folder"):
        below(name)


@given(st.text(max_size=20))
def test_any_accepted_name_stays_below_its_folder(name: str) -> None:
    try:
        below(name)
    except ValueError:
        return
    assert os.path.normpath(os.path.join("/folder", name)) == f"/folder/{name}"  # noqa: PTH118
