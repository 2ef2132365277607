# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What several threads find out about one model's files is kept, saved, and taken back where it was wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record
from ansible.module_utils.sparklanes.weights.tracker import Tracker

SHA, GIT, NAMES = "a" * 64, "d" * 40, [f"{number:03}" for number in range(200)]
RECORD = Record(1, 7, SHA)
KNOWN = Content(1, SHA)
Make = Callable[..., Tracker]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def tracker(content: Content = KNOWN, names: list[str] = NAMES, complete: bool = False) -> Tracker:
        model = Model.from_dict({"name": "model", "path": str(tmp_path / "tiny"), "repo": "a/b", "revision": "c" * 40})
        store = ModelStore(tmp_path / "staged", model.path)
        manifest = Manifest("a/b", "c" * 40, dict.fromkeys(names, content), "hub")
        store.save_manifest(manifest)
        records = dict.fromkeys(names, RECORD) if complete else {}
        store.save(manifest, records, complete)
        return Tracker(model, store, manifest, records, complete)

    return tracker


def test_what_many_threads_find_right_is_all_there_and_on_the_disk(make: Make) -> None:
    tracker = make(Content(1, git_sha1=GIT))
    ticks: list[int] = []
    with tracker.saving(lambda: ticks.append(tracker.verified_bytes(NAMES))), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: tracker.found_right(name, RECORD), NAMES))
    assert tracker.lacking() == []
    assert tracker.verified_bytes(NAMES[:3]) == 3
    assert set(tracker.store.records()) == set(NAMES)
    assert {content.sha256 for content in tracker.manifest.files.values()} == {SHA}
    assert tracker.store.manifest() == tracker.manifest, "the next Spark of a chain learns the digests"
    assert ticks == sorted(ticks)


def test_what_was_found_is_saved_where_the_work_fails(make: Make) -> None:
    tracker, before = make(), threading.active_count()

    def work() -> None:
        with tracker.saving():
            tracker.found_right("001", RECORD)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert set(tracker.store.records()) == {"001"}
    assert threading.active_count() == before


def test_a_complete_model_keeps_its_marker_until_a_file_is_bad(make: Make) -> None:
    tracker = make(names=["a", "b"], complete=True)
    with tracker.saving():
        tracker.found_right("a", RECORD)
    assert tracker.store.marker.exists()
    tracker.found_bad("b")
    assert not tracker.store.marker.exists()
    assert (tracker.lacking(), set(tracker.store.records())) == (["b"], {"a"})
