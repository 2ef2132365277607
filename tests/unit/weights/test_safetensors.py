# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The accounting finds what sizes and headers can show, and says where."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.weights import safetensors
from checkpoints import SECOND, checkpoint, shard
from hypothesis import given
from hypothesis import strategies as st

FIRST = "model-00001-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "model")


def said(folder: Path, known: tuple[str, ...] = ()) -> str:
    return " / ".join(f"{p.file}: {p.found}; {p.expected}" for p in safetensors.scan(folder, known).problems)


def test_a_good_checkpoint_adds_up(folder: Path) -> None:
    account = safetensors.scan(folder)
    assert account.problems == account.notes == []
    assert (account.shards, account.tensors, account.tensor_bytes) == (3, 12, 12 * 64)
    assert account.file_bytes == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert account.dtypes == ["BF16"]


def test_one_file_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard({"a": ("F32", [2], b"12345678"), "b": ("F4", [3, 2], b"123")}))
    account = safetensors.scan(tmp_path)
    assert account.problems == []
    assert (account.tensors, account.tensor_bytes) == (2, 11)


def test_truncated(folder: Path) -> None:
    path = folder / SECOND
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    assert f"{SECOND}: {size - 10} bytes; {size} bytes by its own header" in said(folder)


def test_longer_than_its_header_says(folder: Path) -> None:
    with (folder / SECOND).open("ab") as stream:
        stream.write(b"\0")
    assert f"{SECOND}: " in said(folder)
    assert "by its own header" in said(folder)


def test_truncated_within_the_header(folder: Path) -> None:
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:20])
    assert f"{FIRST}: no safetensors header in 20 bytes" in said(folder)


def test_missing(folder: Path) -> None:
    (folder / SECOND).unlink()
    assert said(folder) == f"{SECOND}: no such file; a shard named by model.safetensors.index.json"


def test_a_second_copy_under_another_name(folder: Path) -> None:
    (folder / "copy.safetensors").write_bytes((folder / FIRST).read_bytes())
    assert "copy.safetensors: a shard that the index does not name" in said(folder)
    assert said(folder, known=("copy.safetensors",)) == "", "its publisher put it there"


def edit(path: Path, change: str) -> None:
    """Rewrite a shard's header with another place for its tensors, its data untouched."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    if change == "hole":
        header[names[-1]]["data_offsets"][0] += 2
        header[names[-1]]["shape"] = [31]
    elif change == "alias":
        header[names[-1]]["data_offsets"] = header[names[0]]["data_offsets"]
    elif change == "type":
        header[names[0]]["dtype"] = "F32"
    elif change == "unknown type":
        header[names[0]]["dtype"] = "Q3"
    elif change == "name":
        header["other"] = header.pop(names[0])
    text = json.dumps(header).encode()
    if change == "twice":
        text = text[:-1] + f', "{names[0]}": {json.dumps(header[names[0]])}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("hole", "a hole before tensor layers.1.3.weight at byte 194; byte 192"),
        ("alias", "an overlap before tensor layers.1.3.weight at byte 0; byte 64"),
        ("type", "64 bytes for tensor layers.1.0.weight; 128 bytes"),
        ("unknown type", "tensor layers.1.0.weight of unknown type Q3"),
        ("name", "tensor other; it in no shard by"),
        ("twice", "1 names twice; each name once"),
    ],
)
def test_what_only_the_header_shows(folder: Path, change: str, message: str) -> None:
    edit(folder / SECOND, change)
    assert f"{SECOND}: {message}" in said(folder)


def test_a_tensor_that_is_gone_is_named(folder: Path) -> None:
    edit(folder / SECOND, "name")
    assert f"{SECOND}: no tensor layers.1.0.weight; it here by" in said(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / FIRST).read_bytes())
    assert f"{SECOND}: tensor layers.0.0.weight, also in {FIRST}" in said(folder)


def test_a_wrong_total_is_a_note_not_a_problem(folder: Path) -> None:
    index = json.loads((folder / safetensors.INDEX).read_text())
    index["metadata"]["total_size"] = 7
    (folder / safetensors.INDEX).write_text(json.dumps(index))
    account = safetensors.scan(folder)
    assert account.problems == []
    assert [note.found for note in account.notes] == ["total_size 7"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": 5}'])
def test_an_unreadable_index(folder: Path, text: str) -> None:
    (folder / safetensors.INDEX).write_text(text)
    assert f"{safetensors.INDEX}: an unreadable index" in said(folder)


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert said(tmp_path) == "*.safetensors: no shard; at least one"


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8)  # fmt: skip
ENTRY = st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON})


@given(st.dictionaries(st.text(max_size=5), ENTRY | JSON, max_size=3) | JSON, st.integers(0, 1000))
def test_any_header_is_judged_without_an_exception(header: object, size: int) -> None:
    text = json.dumps(header).encode()
    judged = safetensors.parse_shard("f", size, text)
    assert judged.problems or judged.size == 8 + len(text) + judged.tensor_bytes


@given(st.binary(max_size=40), st.integers(0, 1 << 40))
def test_any_bytes_are_judged_without_an_exception(content: bytes, size: int) -> None:
    length = safetensors.header_length(content, size)
    assert length is None or 0 < length <= size - 8
    assert safetensors.parse_shard("f", size, content).problems or content.strip().startswith(b"{")
