"""The bank of a lane is judged before the stop: the file is whole, and the lane can score enough of it."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as banks
from ansible.module_utils.sparklanes.quality.teacher_forcing.score import load
from test_lanes import lane


def corpus(*lengths: int, highest: int = 511) -> dict[str, Any]:
    documents = [banks.document(f"text-{n}", "text", [*([7] * (length - 1)), highest]) for n, length in enumerate(lengths, 1)]
    return {"schema": banks.CORPUS_SCHEMA, "documents": documents, "chunk": 2048}


def bank(*lengths: int, highest: int = 511, runs: int = 3, **more: Any) -> dict[str, Any]:
    held = corpus(*(lengths or (300, 400, 500)), highest=highest)
    run = {"docs": {doc["id"]: {"lp": [None, *[-1.0] * (len(doc["token_ids"]) - 1)]} for doc in held["documents"]}}
    return {
        "schema": banks.BANK_SCHEMA,
        "corpus": held,
        "corpus_sha256": banks.corpus_sha256(held),
        "engine": {},
        "limits": {},
        "runs": [run] * runs,
        **more,
    }


def written(path: Path, data: Any) -> str:
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return str(path)


def judged(path: str, **more: Any) -> dict[str, Any]:
    """Id → the row with the worst status."""
    made = filters.bank_checks(lane(**{"lane_max_model_len": 512, **more}), path, "pair")
    return {check.id: check for check in sorted(made, key=lambda check: check.status != "pass")}


def test_no_bank_is_no_row() -> None:
    assert filters.bank_checks(lane(), "", "pair") == []


def test_a_whole_bank_that_fits_passes(tmp_path: Path) -> None:
    made = judged(written(tmp_path / "x.json.gz", bank()))
    assert [check.status for check in made.values()] == ["pass", "pass"]
    assert "3 documents, 1,197 tokens, 3 runs" in made["BANK.READ"].found


CUT = gzip.compress(json.dumps(bank()).encode())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CUT[: len(CUT) // 2], "cut off"),
        (CUT[:-4], "cut off"),
        (CUT[:20] + b"\xff" * 20 + CUT[40:], "it is"),
        (CUT[:-8] + b"\0" * 8, "CRC"),
        (b"", "empty"),
        (b"\x1f\x8b", "cut off"),
        (b"garbage", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (gzip.compress(b"[" * 100_000), "no JSON"),
        (b"[]", "no bank"),
        (b"{}", "no bank (schema None)"),
        (json.dumps({"schema": banks.BANK_SCHEMA}).encode(), "missing"),
        (json.dumps({**bank(), "runs": None}).encode(), "another kind"),
        (json.dumps({**bank(), "corpus_sha256": "0"}).encode(), "the digest that it names"),
        (json.dumps(bank(runs=1)).encode(), "1 run(s)"),
        (json.dumps({**bank(), "runs": [{"docs": {}}, {"docs": {}}]}).encode(), "run 1 lacks 3 documents"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_whole_bank_is_a_row_with_its_name(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "tiny.json.gz").write_bytes(content)
    (row,) = judged(str(tmp_path / "tiny.json.gz")).values()
    assert (row.id, row.host, row.status) == ("BANK.READ", "pair", "fail")
    assert str(tmp_path / "tiny.json.gz") in row.found
    assert words in row.found
    assert "playbooks/bank.yml" in row.remedy


def test_a_folder_and_a_file_that_went_are_rows_too(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        assert judged(str(path))["BANK.READ"].status == "fail"


def test_a_file_that_unpacks_without_end_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"[" + b"0," * 50_000 + b"0]"))
    with pytest.raises(ValueError, match="more than"):
        load(tmp_path / "b.gz", most=10_000)


def test_documents_that_are_too_long_are_left_out_where_enough_remain(tmp_path: Path) -> None:
    row = judged(written(tmp_path / "x.json.gz", bank()), lane_max_model_len=448)["BANK.FIT"]
    assert row.status == "warn"
    assert "698 tokens fit; 1 of 3 documents are left out, too long for lane_max_model_len 448" in row.found


@pytest.mark.parametrize(
    ("window", "status"), [(501, "pass"), (500, "warn"), (401, "warn"), (400, "warn"), (301, "warn"), (300, "fail"), (2, "fail")]
)
def test_the_window_counts_one_free_slot(tmp_path: Path, window: int, status: str) -> None:
    row = judged(written(tmp_path / "x.json.gz", bank()), lane_max_model_len=window)["BANK.FIT"]
    assert row.status == status
    if status == "fail":
        assert f"lane_max_model_len {window}" in row.found
        assert "0 tokens remain" in row.found
        assert "Set lane_max_model_len to 501 or more" in row.remedy


def test_a_lane_that_leaves_its_window_to_the_engine(tmp_path: Path) -> None:
    assert judged(written(tmp_path / "x.json.gz", bank()), lane_max_model_len=None)["BANK.FIT"].status == "pass"
    small = judged(written(tmp_path / "y.json.gz", bank(100, 100)), lane_max_model_len=None)["BANK.FIT"]
    assert (small.status, small.found) == ("fail", "198 tokens remain")


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    path = written(tmp_path / "x.json.gz", bank(highest=151_000))
    row = judged(path, lane_memory={"vocab_size": 151_000})["BANK.FIT"]
    assert row.status == "fail"
    assert "token id 151,000, and the lane's vocabulary has 151,000" in row.found
    assert judged(path, lane_memory={"vocab_size": 151_001})["BANK.FIT"].status == "pass"


def test_chunks_and_logits(tmp_path: Path) -> None:
    path = written(tmp_path / "x.json.gz", bank(engine={"max_num_batched_tokens": 2048}))
    assert (
        "recorded with max_num_batched_tokens 2048, this lane has 8192"
        in judged(path, lane_max_num_batched_tokens=8192)["BANK.FIT"].found
    )
    assert judged(path, lane_max_num_batched_tokens=2048)["BANK.FIT"].status == "pass"
    logits = judged(path, lane_engine_args={"--logprobs-mode": "raw_logits"})["BANK.FIT"]
    assert (logits.status, logits.expected) == ("fail", "raw_logprobs")


def test_tokens_that_are_no_numbers(tmp_path: Path) -> None:
    odd = copy.deepcopy(bank())
    odd["corpus"]["documents"][0]["token_ids"] = ["a", "b"]
    odd["corpus"]["documents"][0]["sha256"] = banks.digest(["a", "b"])
    odd["corpus_sha256"] = banks.corpus_sha256(odd["corpus"])
    assert "no numbers" in judged(written(tmp_path / "x.json.gz", odd))["BANK.READ"].found
