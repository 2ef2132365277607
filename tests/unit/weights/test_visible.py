# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A model counts as staged only where a rank's container opens each file of it, and none of its files is a link to nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import FAIL
from ansible.module_utils.sparklanes.weights import folder as weights_folder
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.hub_cache import place_inside
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError
from ansible.module_utils.sparklanes.weights.safetensors import INDEX
from ansible.module_utils.sparklanes.weights.standing import standing
from checkpoints import SECOND, checkpoint, hub_cache, model

C = "c" * 40


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A snapshot in a Hub cache."""
    return hub_cache(tmp_path / "hub" / "models--acme--tiny", checkpoint(tmp_path / "source"))


def mounted(one: Model, *mounts: tuple[Path | str, str]) -> Model:
    return replace(one, mounts=tuple({"source": str(source), "target": target} for source, target in mounts))


def staged(tmp_path: Path, one: Model) -> ModelStore:
    """As if staging had read all of it."""
    store, records = ModelStore(tmp_path / "staged", one.path), {}
    for name, seen in weights_folder.look(Path(one.path)).items():
        digest = hashlib.sha256(Path(one.path, name).read_bytes()).hexdigest()
        records[name] = Record(seen.size, seen.mtime_ns, digest, seen.ctime_ns)
    files = {name: Content(record.size, record.sha256) for name, record in records.items()}
    manifest = Manifest(one.repo, one.revision, files, "hub")
    store.save_manifest(manifest)
    store.save(manifest, records, complete=True)
    return store


def failures(one: Model, store: ModelStore) -> dict[str, str]:
    found = standing(one, "s7", store)
    wrong = [check for check in found.checks if check.status == FAIL]
    assert found.staged == (not wrong)
    assert all(check.remedy for check in wrong)
    return {check.id: check.found for check in wrong}


def test_the_snapshot_alone_shows_no_file_and_its_repository_shows_all(tmp_path: Path, cached: Path) -> None:
    one = model(cached)
    store = staged(tmp_path, one)
    assert failures(one, store) == {}, "not asked where nothing is known of mounts"
    assert failures(mounted(one, (cached.parents[1], "/models/tiny")), store) == {}
    wrong = failures(mounted(one, (cached, "/models/tiny")), store)
    count = len(weights_folder.look(cached))
    assert list(wrong) == ["WEIGHTS.VISIBLE"]
    assert f"{count} of {count} files do not open in the container" in wrong["WEIGHTS.VISIBLE"]
    assert "its link leads to /blobs/" in wrong["WEIGHTS.VISIBLE"]
    found = standing(mounted(one, (cached, "/models/tiny")), "s7", store)
    assert not found.fixable, "reading or fetching it again mends nothing"


def test_a_link_to_a_snapshot_is_named_with_what_to_write(tmp_path: Path, cached: Path) -> None:
    link = tmp_path / "models"
    link.symlink_to(cached)
    one = mounted(model(link), (link, "/models/tiny"))
    checks = standing(one, "s7", staged(tmp_path, one)).checks
    assert [check.id for check in checks] == ["WEIGHTS.VISIBLE"]
    assert f"lane_model_site: {{path: {cached}}}" in checks[0].remedy


@pytest.mark.parametrize("name", [SECOND, "config.json", INDEX])
def test_one_link_that_leads_nowhere_inside_is_found_and_named(tmp_path: Path, name: str) -> None:
    """It stays within the folder, by a path that only the Spark has."""
    folder = checkpoint(tmp_path / "tiny")
    (folder / "real").mkdir()
    (folder / name).rename(folder / "real" / name)
    (folder / name).symlink_to(folder / "real" / name)
    one = mounted(model(folder), (folder, "/models/tiny"))
    store = staged(tmp_path, one)
    found = standing(one, "s7", store)
    assert [check.id for check in found.checks if check.status == FAIL] == ["WEIGHTS.VISIBLE"]
    wrong = failures(one, store)["WEIGHTS.VISIBLE"]
    assert f"1 of {len(weights_folder.look(folder))} files do not open" in wrong
    assert f"{name}: its link leads to {folder}/real/{name}, which is not shown by any mount" in wrong
    assert [check.remedy for check in found.checks if check.status == FAIL] == ["Put the files themselves there (cp -L)"]
    # The folder is mounted there too: it opens, and is the file that was read.
    assert failures(mounted(one, (folder, "/models/tiny"), (folder, str(folder))), store) == {}
    # Another folder is mounted there: something opens, and nobody verified it.
    other = tmp_path / "other"
    shutil.copytree(folder / "real", other)
    wrong = failures(mounted(one, (folder, "/models/tiny"), (other, f"{folder}/real")), store)["WEIGHTS.VISIBLE"]
    assert f"the container opens {other}/{name}, another file" in wrong
    # So does one that is mounted over it.
    wrong = failures(mounted(one, (folder, "/models/tiny"), (other / name, f"/models/tiny/{name}")), store)["WEIGHTS.VISIBLE"]
    assert "another file" in wrong


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing"])
@pytest.mark.parametrize("known", [True, False])
def test_a_link_that_leads_out_is_refused_before_anybody_asks_what_a_container_opens(
    tmp_path: Path, known: bool, there: bool
) -> None:
    """Whether the container has what it leads to, and even whether there is anything, is not looked at."""
    folder, elsewhere = checkpoint(tmp_path / "tiny"), tmp_path / "elsewhere"
    one = mounted(model(folder), (folder, "/models/tiny"))
    store = staged(tmp_path, one) if known else ModelStore(tmp_path / "staged", one.path)
    elsewhere.mkdir()
    (folder / SECOND).rename(elsewhere / SECOND)
    (folder / SECOND).symlink_to(elsewhere / SECOND)
    if not there:
        (elsewhere / SECOND).unlink()
    for each in (one, mounted(one, (folder, "/models/tiny"), (elsewhere, str(elsewhere)))):
        found = standing(each, "s7", store)
        assert [check.id for check in found.checks] == ["WEIGHTS.LINK"]
        assert f"{SECOND} is a link to '{elsewhere}/{SECOND}', out of {folder}" in found.checks[0].found
        assert not found.fixable


def test_a_model_that_no_rank_mounts(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    one = mounted(model(folder), ("/srv/other", "/models/tiny"))
    assert failures(one, staged(tmp_path, one)) == {"WEIGHTS.VISIBLE": f"{folder} is mounted into no rank"}


def test_it_is_known_before_378_gib_are_read(tmp_path: Path, cached: Path) -> None:
    one = mounted(model(cached), (cached, "/models/tiny"))
    found = standing(one, "s7", ModelStore(tmp_path / "staged", one.path))
    assert [check.id for check in found.checks] == ["WEIGHTS.REVISION", "WEIGHTS.VISIBLE"]
    assert not found.fixable
    fine = standing(mounted(one, (cached.parents[1], "/models/tiny")), "s7", ModelStore(tmp_path / "staged", one.path))
    assert [check.id for check in fine.checks] == ["WEIGHTS.REVISION"]
    assert fine.fixable


@pytest.mark.parametrize(
    ("path", "mounts", "place"),
    [
        ("/r/models--a--b/snapshots/c", [("/r/models--a--b", "/m")], "/m/snapshots/c"),
        ("/r/models--a--b/snapshots/c", [("/r/models--a--b/snapshots/c", "/m")], "/m"),
        ("/srv/x", [("/srv/x", "/m/snapshots/c")], "/m/snapshots/c"),
        ("/srv/x", [("/srv/x", "/m"), ("/srv/x", "/again")], "/m"),
        ("/srv/x", [("/srv", "/m")], ""),
    ],
)
def test_where_a_rank_sees_a_model(path: str, mounts: list[tuple[str, str]], place: str) -> None:
    assert place_inside(path, [{"source": source, "target": target} for source, target in mounts]) == place


def test_what_travels_to_the_job_is_what_was_asked(cached: Path) -> None:
    one = mounted(model(cached), (cached, "/models/tiny"))
    data = json.loads(json.dumps(one.to_dict()))
    assert Model.from_dict(data) == one
    assert data == one.to_dict(), "a running job is recognised by it"


# Links to nothing

LOST: list[tuple[str, Callable[[Path], Any]]] = [
    (name, lambda path: path.resolve().unlink()) for name in ("config.json", INDEX, SECOND)
]


@pytest.mark.parametrize(("name", "lose"), LOST, ids=[name for name, _ in LOST])
def test_a_link_to_nothing_is_a_missing_file(tmp_path: Path, cached: Path, name: str, lose: Callable[[Path], Any]) -> None:
    one, store = model(cached), ModelStore(tmp_path / "staged", str(cached))
    before = staged(tmp_path / "before", one)
    content = (cached / name).read_bytes()
    lose(cached / name)
    assert (cached / name).is_symlink()
    # At the first look: no list may be made without it.
    wrong = failures(one, store)
    assert wrong["WEIGHTS.MISSING"] == f"{cached}: 1 links lead nowhere: {name}"
    with pytest.raises(StagingError, match=f"lacks {name} .links that lead nowhere: {name}., and is to be used as it is"):
        weights_folder.in_place(one, cached, None)
    # Later: it is in the list.
    assert name in failures(one, before)["WEIGHTS.MISSING"]
    # Once it is there again all is as if it had been there before.
    (cached / name).resolve().write_bytes(content)
    assert weights_folder.in_place(one, cached, None).files[name].size == len(content)
    assert list(failures(one, store)) == ["WEIGHTS.REVISION"]


@pytest.mark.parametrize("target", ["nowhere", "none/nowhere", "n" * 300], ids=["file", "folder", "name too long"])
def test_a_folder_of_dangling_links_only(tmp_path: Path, target: str) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").symlink_to(target)
    found = standing(model(tmp_path / "tiny"), "s7", ModelStore(tmp_path / "staged", str(tmp_path / "tiny")))
    assert [check.id for check in found.checks] == ["WEIGHTS.REVISION", "WEIGHTS.MISSING"]
    with pytest.raises(StagingError, match=r"lacks config\.json"):
        weights_folder.in_place(model(tmp_path / "tiny"), tmp_path / "tiny", None)


def test_a_pinned_file_that_is_not_there_is_missing_whatever_its_size(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    one = replace(model(folder), sha256={"gone.json": "a" * 64})
    with pytest.raises(StagingError, match=r"lacks gone\.json, and is to be used as it is"):
        weights_folder.in_place(one, folder, None)
