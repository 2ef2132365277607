# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is known of the files in a folder: by records, by a Hub's client, by a look."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.weights import folder as weights_folder
from ansible.module_utils.sparklanes.weights.folder import ModelStore, Seen, assess, look, untouched, with_ctime
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Record, StagingError
from checkpoints import COMMIT, SECOND, A, B, checkpoint, hub_cache, model
from hypothesis import given
from hypothesis import strategies as st


def test_files_are_sorted_by_what_is_known() -> None:
    names = ("verified", "touched", "digest", "short", "gone")
    manifest = Manifest("r", "v", {name: Content(5, A) for name in names})
    seen = {"verified": Seen(5, 1), "touched": Seen(5, 2), "digest": Seen(5, 1), "short": Seen(4, 1), "alias": Seen(5, 1)}
    records = {"verified": Record(5, 1, A), "touched": Record(5, 1, A), "digest": Record(5, 1, B), "short": Record(5, 1, A)}
    result = assess(manifest, records, seen)
    assert result.verified == ["verified"]
    assert result.unread == ["digest", "touched"]
    assert (result.wrong_size, result.missing, result.extra) == (["short"], ["gone"], ["alias"])
    assert not result.complete


STATS = st.dictionaries(st.sampled_from("abcd"), st.builds(Seen, st.integers(0, 2), st.integers(0, 2)))


RECORDS = st.dictionaries(
    st.sampled_from("abcd"), st.builds(Record, st.integers(0, 2), st.integers(0, 2), st.sampled_from([A, B]))
)


CONTENTS = st.dictionaries(st.sampled_from("abcd"), st.builds(Content, st.integers(0, 2), st.sampled_from([A, B, ""])))


@given(CONTENTS, RECORDS, STATS)
def test_every_file_is_in_one_heap_and_only_exact_ones_are_verified(
    files: dict[str, Content], records: dict[str, Record], seen: dict[str, Seen]
) -> None:
    result = assess(Manifest("r", "v", files), records, seen)
    heaps = result.verified + result.unread + result.wrong_size + result.missing
    assert sorted(heaps) == sorted(files)
    assert set(result.extra) == set(seen) - set(files)
    for name in result.verified:
        record, stat = records[name], seen[name]
        assert (record.size, record.mtime_ns) == (stat.size, stat.mtime_ns)
        assert files[name].sha256 in ("", record.sha256)
        assert files[name].size == stat.size


def test_a_hub_cache_knows_its_digests(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    snapshot = hub_cache(tmp_path / "models--acme--tiny", source)
    manifest = weights_folder.in_place(model(snapshot), snapshot, None)
    assert manifest.source == "client's list"
    shard = manifest.files[SECOND]
    assert shard.sha256 == hashlib.sha256((source / SECOND).read_bytes()).hexdigest()
    assert manifest.files["config.json"].git_sha1
    assert not manifest.files["config.json"].matches(A, "e" * 40)


def test_the_client_list_names_what_is_missing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    tree = folder / ".cache" / "huggingface" / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir(parents=True)
    tree.write_text(
        json.dumps({"files": {"config.json": {"size": 26, "blob_id": "d" * 40}, "gone.json": {"size": 3, "blob_id": "e" * 40}}})
    )
    manifest = weights_folder.in_place(model(folder), folder, None)
    assert manifest.files["gone.json"] == Content(3, "", "e" * 40)
    assert manifest.files["config.json"].git_sha1 == "d" * 40
    assert not [name for name in manifest.files if name.startswith(".cache")]


def test_an_empty_folder_cannot_be_adopted(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match=r"holds no files\. Put the model there, or let it be fetched"):
        weights_folder.in_place(model(tmp_path / "none"), tmp_path / "none", None)


def seen(size: int, mtime: int, ctime: int) -> Seen:
    return Seen(size, mtime, ctime)


@pytest.mark.parametrize(
    ("record", "stat", "same"),
    [
        (Record(5, 1, A, ctime_ns=7), seen(5, 1, 7), True),
        # Whoever changes a file can set its mtime back, its ctime not; back in time is another file too.
        (Record(5, 1, A, ctime_ns=7), seen(5, 1, 8), False),
        (Record(5, 1, A, ctime_ns=7), seen(5, 1, 6), False),
        (Record(5, 1, A, ctime_ns=7, noted_ns=9), seen(5, 1, 8), False),
        (Record(5, 1, A, ctime_ns=7), seen(5, 2, 7), False),
        (Record(5, 1, A, ctime_ns=7), seen(4, 1, 7), False),
        # Without a ctime (0.1, 0.2) a record holds for an inode that is older than it.
        (Record(5, 1, A, noted_ns=9), seen(5, 1, 9), True),
        (Record(5, 1, A, noted_ns=9), seen(5, 1, 10), False),
    ],
)
def test_whether_a_file_is_still_the_one_that_was_read(record: Record, stat: Seen, same: bool) -> None:
    assert untouched(record, stat) is same


def test_records_of_earlier_versions_are_read_trusted_by_time_and_completed(tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "a").write_bytes(b"12345")
    store, stat = ModelStore(tmp_path / "staged", str(path)), look(path)["a"]
    time.sleep(0.05)  # times of files go by the kernel's tick
    entry = {"size": 5, "mtime_ns": stat.mtime_ns, "sha256": A}
    store.folder.mkdir(parents=True)
    store.marker.write_text(json.dumps({"path": str(path), "repo": "r", "revision": "v", "files": {"a": entry}}))
    manifest = Manifest("r", "v", {"a": Content(5, A)})
    old = store.records()
    assert assess(manifest, old, look(path)).verified == ["a"], "nothing is read again for want of a ctime"
    completed = with_ctime(old["a"], look(path)["a"])
    store.save(manifest, {"a": completed}, complete=True)
    assert json.loads(store.marker.read_text())["files"]["a"] == {**entry, "ctime_ns": stat.ctime_ns}
    # Changed with its mtime set back, before and after the ctime was known.
    time.sleep(0.05)
    (path / "a").write_bytes(b"12354")
    os.utime(path / "a", ns=(stat.mtime_ns, stat.mtime_ns))
    assert assess(manifest, old, look(path)).unread == ["a"]
    assert assess(manifest, store.records(), look(path)).unread == ["a"]
