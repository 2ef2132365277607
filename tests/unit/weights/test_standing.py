# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The judgement of a model by a quick look at its folder, what is lent of it, and what is planned for it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.weights import folder as weights_folder
from ansible.module_utils.sparklanes.weights import plan
from ansible.module_utils.sparklanes.weights import room as weights_room
from ansible.module_utils.sparklanes.weights import standing as weights_standing
from ansible.module_utils.sparklanes.weights.chain import offer as chain_offer
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError
from ansible.module_utils.sparklanes.weights.safetensors import INDEX
from checkpoints import SECOND, B, checkpoint, flip, hub_cache, model, rot


def mark(folder: Path, store: ModelStore, one: Model) -> None:
    """As if staging had ended well."""
    records = {}
    for name, seen in weights_folder.look(folder).items():
        records[name] = Record(seen.size, seen.mtime_ns, hashlib.sha256((folder / name).read_bytes()).hexdigest())
    files = {name: Content(record.size, record.sha256) for name, record in records.items()}
    manifest = Manifest(one.repo, one.revision, files, "hub")
    store.save_manifest(manifest)
    store.save(manifest, records, complete=True)


@pytest.fixture
def staged(tmp_path: Path) -> tuple[Path, ModelStore, Model]:
    folder = checkpoint(tmp_path / "tiny")
    one, store = model(folder), ModelStore(tmp_path / "staged", str(folder))
    mark(folder, store, one)
    return folder, store, one


def failures(one: Model, store: ModelStore) -> dict[str, str]:
    found = weights_standing.standing(one, "s7", store)
    assert found.staged == (not [check for check in found.checks if check.status == FAIL])
    assert {check.host for check in found.checks} == {"s7"}
    return {check.id: check.found for check in found.checks if check.status == FAIL}


def test_a_wrong_total_in_the_index_is_a_warning_of_what_is_staged(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] = 7
    (folder / INDEX).write_text(json.dumps(index))
    one, store = model(folder), ModelStore(tmp_path / "staged", str(folder))
    mark(folder, store, one)
    found = weights_standing.standing(one, "s7", store)
    assert found.staged
    assert [(check.id, check.status) for check in found.checks] == [("WEIGHTS.INDEX", WARN), ("WEIGHTS.STAGED", PASS)]


def test_what_was_staged_is_complete(staged: tuple[Path, ModelStore, Model]) -> None:
    _, store, one = staged
    found = weights_standing.standing(one, "s7", store)
    assert found.staged
    assert (found.files, found.missing_bytes, found.unread_bytes) == (5, 0, 0)
    assert found.account is not None
    assert found.account.tensors == 12


def test_a_flipped_bit_with_a_new_mtime_is_not_trusted(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    flip(folder / SECOND, keep_mtime=False)
    size = (folder / SECOND).stat().st_size
    expected = f"{folder}: 1 files ({size} B) not read since they changed: {SECOND}"
    assert failures(one, store) == {"WEIGHTS.UNREAD": expected}


def test_a_flipped_bit_with_its_mtime_set_back_is_not_trusted(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    time.sleep(0.05)  # times of files go by the kernel's tick
    flip(folder / SECOND, keep_mtime=True)
    assert "not read since they changed" in failures(one, store)["WEIGHTS.UNREAD"]


def test_a_flipped_bit_in_a_header_shows_even_with_its_times(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    rot(folder / SECOND, store.folder, at=12)
    assert f"{folder}/{SECOND}" in failures(one, store)["WEIGHTS.HEADER"]


def test_truncated(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    size = (folder / SECOND).stat().st_size
    os.truncate(folder / SECOND, size - 8)
    check = next(check for check in weights_standing.standing(one, "s7", store).checks if check.id == "WEIGHTS.SIZE")
    assert check.found == f"{folder}/{SECOND}: {size - 8} bytes"
    assert check.expected == f"{size} bytes"
    assert check.remedy


def test_missing(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    (folder / SECOND).unlink()
    assert SECOND in failures(one, store)["WEIGHTS.MISSING"]


def test_a_second_copy_of_a_shard(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    (folder / "alias.safetensors").write_bytes((folder / SECOND).read_bytes())
    assert "alias.safetensors" in failures(one, store)["WEIGHTS.EXTRA"]
    assert not weights_standing.standing(one, "s7", store).fixable


def test_another_stray_file_is_only_named(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    (folder / "chat_template.jinja").write_text("patched")
    found = weights_standing.standing(one, "s7", store)
    assert found.staged
    assert [check.found for check in found.checks if check.status == "warn"] == [f"{folder}: chat_template.jinja, in no manifest"]


@pytest.mark.parametrize(
    ("guard", "found", "expected"),
    [
        ({"expect": {"shards": 4}}, "3 shards", "4"),
        ({"expect": {"tensors": 177569}}, "12 tensors", "177,569"),
        ({"expect": {"bytes": 1}}, "bytes", "1"),
        ({"config_sha256": B}, "config.json: sha256", "bbbbbbbbbbbbbbbb…"),
    ],
)
def test_guards(staged: tuple[Path, ModelStore, Model], guard: dict[str, Any], found: str, expected: str) -> None:
    folder, store, _ = staged
    check = next(c for c in weights_standing.standing(model(folder, **guard), "s7", store).checks if c.id == "WEIGHTS.GUARD")
    assert found in check.found
    assert check.expected == expected
    assert "lane_model" in check.remedy


def test_guards_that_hold(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, _ = staged
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    config = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    guarded = model(folder, expect={"shards": 3, "tensors": 12, "bytes": size}, config_sha256=config)
    assert weights_standing.standing(guarded, "s7", store).staged


def test_another_revision_is_not_this_one(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, _ = staged
    assert "acme/tiny@cccccccccccc" in failures(model(folder, revision="d" * 40), store)["WEIGHTS.REVISION"]


def test_without_a_marker_nothing_is_complete(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    manifest, records = store.manifest(), store.records()
    assert manifest is not None
    store.save(manifest, records, complete=False)
    assert not store.marker.exists()
    assert failures(one, store) == {"WEIGHTS.MARKER": f"{folder}: staging did not end"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 5}', '{"files": {"a": 1}}'])
def test_broken_files_of_ours_are_as_good_as_none(staged: tuple[Path, ModelStore, Model], text: str) -> None:
    _, store, one = staged
    (store.folder / "manifest.json").write_text(text)
    store.marker.write_text(text)
    assert store.records() == {}
    assert not weights_standing.standing(one, "s7", store).staged


def test_nothing_of_ours_lies_beside_the_weights(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, _ = staged
    assert set(weights_folder.look(folder)) == {file.name for file in folder.iterdir()}
    assert folder not in store.marker.parents


def test_a_hub_cache_is_lent_as_blobs(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path / "models--acme--tiny", checkpoint(tmp_path / "source"))
    one, store = model(snapshot), ModelStore(tmp_path / "staged", str(snapshot))
    mark(snapshot, store, one)
    offer, root = chain_offer.offer(one, store, chain_offer.Work())
    assert root == tmp_path / "models--acme--tiny" / "blobs"
    content = offer.verified[SECOND]
    assert content.at == content.sha256
    assert set(offer.verified) == set(weights_folder.look(snapshot))


def test_only_what_is_verified_is_offered(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    flip(folder / SECOND, keep_mtime=False)
    offer, root = chain_offer.offer(one, store, chain_offer.Work())
    assert (root, offer.manifest) == (folder, store.manifest())
    assert set(offer.verified) == set(weights_folder.look(folder)) - {SECOND}
    assert chain_offer.offer(model(folder, revision="d" * 40), store, chain_offer.Work())[0].verified == {}


def test_room_is_refused_before_the_first_byte() -> None:
    one, other = model(), model("/models/drafter")
    image = [{"what": "image", "path": "/var/lib/docker", "bytes": 10}]
    weights_room.check_room("s7", [(one, 10)], 10, [], lambda path: 20, lambda path: 1)
    weights_room.check_room("s7", [(one, 0)], 10, image, lambda path: 0, lambda path: 1)
    weights_room.check_room("s7", [(one, 10), (other, 10)], 10, image, lambda path: 20, hash)
    with pytest.raises(StagingError, match="model and image need 20 B more in /models/tiny and /var/lib/docker"):
        weights_room.check_room("s7", [(one, 10)], 10, image, lambda path: 29, lambda path: 1)
    with pytest.raises(StagingError, match="model and model need 20 B more in /models/tiny and /models/drafter"):
        weights_room.check_room("s7", [(one, 10), (other, 10)], 10, [], lambda path: 29, lambda path: 1)
    with pytest.raises(
        StagingError, match=r"s7: model needs 377.4 GiB more in /models/tiny, and 10.0 GiB are to stay free; 100.0 GiB are free"
    ):
        weights_room.check_room("s7", [(one, int(377.4 * 2**30))], 10 << 30, [], lambda path: 100 << 30, lambda path: 1)


def test_the_plan_says_what_would_be_done(staged: tuple[Path, ModelStore, Model]) -> None:
    folder, store, one = staged
    size = (folder / SECOND).stat().st_size
    (folder / SECOND).unlink()
    flip(folder / "config.json", keep_mtime=False)
    look = weights_standing.standing(one, "s7", store)
    there = f"{human_bytes(look.verified_bytes)} of {human_bytes(look.bytes)} verified; 5.0 GiB free"
    steps = f"model ({folder}): read 27 B that is there and take {size} B from the Hub; {there}; "
    for speed, told in (
        (plan.Speed(), "time not known yet: nothing was measured here"),
        (plan.Speed(read=27), "time not known yet: nothing was measured here"),
        (plan.Speed(read=27, fetch=size / 59), "about 1 min 00 s at the rate of last time"),
        (plan.Speed(limit=(27 + size) / 60), "1 min 00 s or more, by the limit"),
        (plan.Speed(read=27, fetch=size, read_limit=27 / 59), "about 1 min 00 s at the rate of last time"),
    ):
        assert plan.plan([look], "the Hub", lambda path: 5 << 30, speed) == [steps + told]


def test_the_rate_of_large_jobs_is_remembered(tmp_path: Path) -> None:
    plan.note_rate(tmp_path, "read", 1 << 20, 1)
    assert plan.speed_of(tmp_path, "hub", 0) == plan.Speed()
    plan.note_rate(tmp_path, "read", 1 << 30, 2)
    plan.note_rate(tmp_path, "chain", 1 << 30, 4)
    assert plan.speed_of(tmp_path, "chain", 5) == plan.Speed(read=1 << 29, fetch=1 << 28, limit=5)
    assert plan.speed_of(tmp_path, "hub", 0) == plan.Speed(read=1 << 29)
    (tmp_path / "rates.json").write_text('{"read": []}')
    assert plan.speed_of(tmp_path, "hub", 7) == plan.Speed(limit=7)
