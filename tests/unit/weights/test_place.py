# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A Hub cache that somebody has filled is found, used where it lies, kept, and passed over where it is not whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hub_cache_info
import pytest
from ansible.module_utils.sparklanes.host.mounts import Mount
from ansible.module_utils.sparklanes.weights import place as weights_place
from ansible.module_utils.sparklanes.weights.folder import ModelStore, in_place, look
from ansible.module_utils.sparklanes.weights.hub_cache import folders, needed
from ansible.module_utils.sparklanes.weights.model import Manifest, Model
from ansible.module_utils.sparklanes.weights.place import Cache, Place, place
from ansible.module_utils.sparklanes.weights.safetensors import INDEX
from checkpoints import COMMIT, SECOND, checkpoint, hub_cache, model
from conftest import RunModule
from platforms import needs_root

REPOSITORY = "models--acme--tiny"


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds this machine's temporary files."""
    monkeypatch.setattr(weights_place, "where", lambda path: Mount("/dev/nvme0n1p2", "/", "ext4"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The hub folder of a user who has the whole commit."""
    hub_cache(tmp_path / "home/hub" / REPOSITORY, checkpoint(tmp_path / "source"))
    return tmp_path / "home/hub"


def snapshot(cache: Path) -> Path:
    return cache / REPOSITORY / "snapshots" / COMMIT


def asked(tmp_path: Path, *caches: Path, **more: Any) -> Place:
    return place(wanted(tmp_path, **more), [Cache(str(cache)) for cache in caches], tmp_path / "staged")


def wanted(tmp_path: Path, **more: Any) -> Model:
    return model(tmp_path / "models/tiny", **more)


def trees(cache: Path, *more: str) -> dict[str, Any]:
    """The client's list of the commit, with further files that are not there."""
    files: dict[str, Any] = {name: {"size": seen.size, "blob_id": "0" * 40} for name, seen in look(snapshot(cache)).items()}
    files |= {name: {"size": 9, "blob_id": "1" * 40} for name in more}
    (cache / REPOSITORY / "trees").mkdir(exist_ok=True)
    (cache / REPOSITORY / "trees" / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    return files


def test_a_whole_snapshot_of_the_commit_is_used_where_it_lies(tmp_path: Path, cache: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = asked(tmp_path, cache)
    assert (found.path, found.cached, found.passed_over) == (str(snapshot(cache)), True, ())
    assert found.to_dict("s7")["said"] == [
        f"s7: model: {snapshot(cache)} is used where it lies, instead of {tmp_path}/models/tiny"
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("there", ["whole", "one file", "link to nothing"])
def test_what_lies_at_the_lanes_own_path_wins(tmp_path: Path, cache: Path, there: str) -> None:
    own = tmp_path / "models/tiny"
    if there == "whole":
        checkpoint(own)
    else:
        own.mkdir(parents=True)
        (own / "config.json").symlink_to("nothing") if there != "one file" else (own / "config.json").write_text("{}")
    assert asked(tmp_path, cache) == Place(wanted(tmp_path), str(own))


def test_another_commit_that_we_put_there_does_not(tmp_path: Path, cache: Path) -> None:
    checkpoint(tmp_path / "models/tiny", seed=2)
    store = ModelStore(tmp_path / "staged", str(tmp_path / "models/tiny"))
    store.save_manifest(Manifest("acme/tiny", "d" * 40, {}, "hub"))
    assert asked(tmp_path, cache).cached


def test_the_first_cache_is_taken_and_the_one_that_staging_has_read_is_kept(tmp_path: Path, cache: Path) -> None:
    other = tmp_path / "root/hub"
    shutil.copytree(cache, other, symlinks=True)
    assert asked(tmp_path, cache, other).path == str(snapshot(cache))
    assert asked(tmp_path, other, cache).path == str(snapshot(other))
    ModelStore(tmp_path / "staged", str(snapshot(other))).save_manifest(Manifest("acme/tiny", COMMIT, {}, "client's list"))
    for order in ((cache, other), (other, cache)):
        assert asked(tmp_path, *order).path == str(snapshot(other))
    shutil.rmtree(other)
    assert asked(tmp_path, cache, other).path == str(snapshot(cache)), "until its files go away"
    shutil.rmtree(cache)
    assert not asked(tmp_path, cache, other).cached


def lose(name: str) -> Callable[[Path], Any]:
    return lambda cache: (snapshot(cache) / name).unlink()


PARTIAL: list[tuple[str, Callable[[Path], Any], str]] = [
    ("a shard", lose(SECOND), f"it lacks 1 files ({SECOND})"),
    ("config", lose("config.json"), "it lacks 1 files (config.json)"),
    ("blob", lambda cache: (snapshot(cache) / SECOND).resolve().unlink(), f"it lacks 1 files ({SECOND})"),
    ("download", lambda cache: (cache / REPOSITORY / "blobs/1.2.incomplete").write_text(""), "a download into it has not ended (1 files"),
    ("listed", lambda cache: trees(cache, "tokenizer.json", "README.md"), "it lacks 1 files (tokenizer.json)"),
    ("no shards", lambda cache: [path.unlink() for path in snapshot(cache).glob("model*")], "it has 0 shards, expected some"),
    ("other commit", lambda cache: snapshot(cache).rename(snapshot(cache).with_name("e" * 40)), "it has other commits than cccc"),
    ("short", lambda cache: (trees(cache), (snapshot(cache) / SECOND).resolve().write_bytes(b"x")), f"{SECOND} has 1 of"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "why"), [one[1:] for one in PARTIAL], ids=[one[0] for one in PARTIAL])
def test_a_snapshot_that_is_not_whole_is_named_and_left_alone(
    tmp_path: Path, cache: Path, spoil: Callable[[Path], Any], why: str
) -> None:
    spoil(cache)
    before = sorted(cache.rglob("*"))
    found = asked(tmp_path, cache)
    assert (found.path, found.cached) == (str(tmp_path / "models/tiny"), False)
    assert [line for line in found.passed_over if why in line] == list(found.passed_over)
    assert len(found.passed_over) == 1
    assert str(cache / REPOSITORY) in found.passed_over[0]
    assert sorted(cache.rglob("*")) == before
    other = tmp_path / "other"
    hub_cache(other / REPOSITORY, tmp_path / "source")
    assert asked(tmp_path, cache, other).path == str(snapshot(other))


@pytest.mark.parametrize("guard", [{"expect": {"shards": 4}}, {"sha256": {"tokenizer.json": "a" * 64}}])
def test_a_snapshot_lacks_what_the_lane_asks_for(tmp_path: Path, cache: Path, guard: dict[str, Any]) -> None:
    found = asked(tmp_path, cache, **guard)
    assert not found.cached
    assert found.passed_over


def test_what_no_engine_reads_need_not_be_there(tmp_path: Path, cache: Path) -> None:
    """An engine that filled the cache by itself took the files it reads; the list of the commit names them all."""
    files = trees(
        cache, "README.md", ".gitattributes", "LICENSE", "figures/a.png", "pytorch_model.bin", "original/consolidated.00.pth"
    )
    (cache / REPOSITORY / "blobs/1.2.incomplete").write_text("")
    assert asked(tmp_path, cache).cached, "what a list says to be whole is, whatever else is under way"
    manifest = in_place(model(snapshot(cache)), snapshot(cache), None)
    assert set(manifest.files) == {name for name in files if needed(name)}
    assert manifest.source == "client's list"
    assert needed("vocab.txt")
    assert needed("modeling_tiny.py")


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        (Mount("nas:/home", "/home", "nfs4"), "may be missing after a boot (nfs4 at /home)"),
        (Mount("gocryptfs", "/home/u", "fuse.gocryptfs"), "may be missing after a boot"),
        (Mount("/home/.ecryptfs/u", "/home/u", "ecryptfs"), "may be missing after a boot"),
        (Mount("/dev/mapper/home-u", "/home/u", "btrfs"), "may be missing after a boot"),
        (Mount("/dev/sda1", "/data", "xfs"), ""),
        (None, "no mount is known"),
    ],
)
def test_a_disk_that_may_be_missing_after_a_boot_is_for_a_person_to_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount | None, why: str
) -> None:
    monkeypatch.setattr(weights_place, "where", lambda path: mount)
    found = asked(tmp_path, cache)
    assert found.cached == (not why)
    assert all(why in line and f"lane_model_host: {{path: {snapshot(cache)}}}" in line for line in found.passed_over)
    assert bool(found.passed_over) == bool(why)


def test_a_home_that_is_locked_until_somebody_logs_in(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_place.fcntl, "ioctl", lambda _, __, flags: flags.__setitem__(0, weights_place.ENCRYPTED))
    assert "it is encrypted, and locked" in asked(tmp_path, cache).passed_over[0]


def test_a_link_out_of_the_repository_is_named_before_anything_is_read(tmp_path: Path, cache: Path) -> None:
    (snapshot(cache) / "vocab.json").symlink_to("/etc/shadow")
    found = asked(tmp_path, cache)
    assert not found.cached
    assert "vocab.json is a link to '/etc/shadow', out of" in found.passed_over[0]


@needs_root
def test_nobody_elses_link_leads_to_a_repository(tmp_path: Path, cache: Path) -> None:
    linked = tmp_path / "user"
    linked.mkdir()
    (linked / REPOSITORY).symlink_to(cache / REPOSITORY)
    os.lchown(linked / REPOSITORY, 65534, 65534)
    found = asked(tmp_path, linked)
    assert not found.cached
    assert "others than root can set it" in found.passed_over[0]


@needs_root
@pytest.mark.parametrize(
    ("mode", "folder_of", "logs_in", "used"),
    [
        (0o755, 0, 1000, True),
        (0o750, 1000, 1000, True),
        (0o750, 1001, 1000, False),
        (0o775, 0, 1000, False),
        (0o777, 0, 1000, False),
        (0o1777, 0, 1000, True),
        (0o777, 0, None, True),
        (0o750, 1001, None, True),
    ],
)
def test_nobody_but_root_and_who_logs_in_may_change_what_root_runs(
    tmp_path: Path, cache: Path, mode: int, folder_of: int, logs_in: int | None, used: bool
) -> None:
    """None: a person named this cache."""
    home = cache.parent
    home.chmod(mode)
    os.chown(home, folder_of, folder_of)
    found = place(wanted(tmp_path), [Cache(str(cache), logs_in)], tmp_path / "staged")
    assert found.cached == used
    assert all("others than root and the user who logs in can write to it" in line for line in found.passed_over)


@pytest.mark.parametrize(("more", "path"), [({"revision": "main"}, ""), ({"repo": ""}, ""), ({}, "snapshot")])
def test_nothing_is_looked_for_where_nothing_can_be_meant(tmp_path: Path, cache: Path, more: dict[str, Any], path: str) -> None:
    """No commit, no repository, or a person has named a snapshot."""
    one = wanted(tmp_path, **more) if not path else model(snapshot(cache).with_name("e" * 40))
    assert place(one, [Cache(str(cache))], tmp_path / "staged") == Place(one, one.path)


@pytest.mark.parametrize(
    ("environment", "made", "found"),
    [
        ({}, ["h/.cache/huggingface/hub"], ["h/.cache/huggingface/hub"]),
        ({"HF_HOME": "hf"}, ["hf/hub", "h/.cache/huggingface/hub"], ["hf/hub", "h/.cache/huggingface/hub"]),
        ({"HF_HOME": "hf", "HF_HUB_CACHE": "c"}, ["hf/hub", "c"], ["c"]),
        ({"HUGGINGFACE_HUB_CACHE": "c"}, ["c"], ["c"]),
        ({"XDG_CACHE_HOME": "x"}, ["x/huggingface/hub"], ["x/huggingface/hub"]),
        ({}, [], []),
    ],
)
def test_where_a_client_keeps_its_cache(tmp_path: Path, environment: dict[str, str], made: list[str], found: list[str]) -> None:
    for name in made:
        (tmp_path / name).mkdir(parents=True)
    told = {key: str(tmp_path / value) for key, value in environment.items()}
    assert folders(told, str(tmp_path / "h")) == [str(tmp_path / name) for name in found]


def test_a_linked_cache_folder_is_the_one_that_it_leads_to(tmp_path: Path) -> None:
    """Whoever logs in follows it, with what that user may enter; root then goes to the folder itself."""
    (tmp_path / "data/huggingface/hub").mkdir(parents=True)
    (tmp_path / "h").mkdir()
    (tmp_path / "h/.cache").symlink_to(tmp_path / "data")
    assert folders({}, str(tmp_path / "h")) == [str(tmp_path / "data/huggingface/hub")]


def test_the_module_says_all_of_it(tmp_path: Path, cache: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    asks = {"name": "model", "path": str(tmp_path / "models/tiny"), "repo": "acme/tiny", "revision": COMMIT}
    args = {"models": [asks], "folders": [str(cache)], "staged_dir": str(tmp_path / "staged")}
    real, check = run_module(hub_cache_info, args), run_module(hub_cache_info, args, check=True)
    assert real == check
    assert (real["changed"], real["folders"], real["uid"]) == (False, [], os.geteuid())
    login = {"login": {"folders": [str(cache)], "uid": os.geteuid()}, "folders": []}
    assert run_module(hub_cache_info, {**args, **login})["places"] == real["places"]
    assert [(one["path"], one["instead_of"], one["cached"]) for one in real["places"]] == [
        (str(snapshot(cache)), str(tmp_path / "models/tiny"), True)
    ]
    (snapshot(cache) / INDEX).unlink()
    (snapshot(cache) / INDEX).write_text("no index")
    assert run_module(hub_cache_info, args)["places"][0]["cached"], "what an index says is judged with the headers"
    assert "must be absolute" in run_module(hub_cache_info, {"models": [{**asks, "path": "x"}]})["msg"]
