# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A model's folder may be somebody else's: whatever links they put there, root neither reads, lends nor writes a file of anybody else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platforms
import pytest
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights import stage as weights_stage
from ansible.module_utils.sparklanes.weights.chain import lend as chain_lend
from ansible.module_utils.sparklanes.weights.chain import offer as chain_offer
from ansible.module_utils.sparklanes.weights.digest import digest
from ansible.module_utils.sparklanes.weights.folder import ModelStore, in_place, incoming_of, look
from ansible.module_utils.sparklanes.weights.home import Home, LeadsAway, private, way
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError
from ansible.module_utils.sparklanes.weights.pace import Pace
from ansible.module_utils.sparklanes.weights.sources import MirrorSource
from ansible.module_utils.sparklanes.weights.standing import standing
from ansible.module_utils.sparklanes.weights.tools import own_folder
from checkpoints import COMMIT, SECOND, checkpoint, hub_cache, model
from conftest import free_port
from staging_nodes import Node, node

__all__ = ["node"]  # a fixture

SOMEBODY = 65534
NAME, BODY = "sub/config.json", b"bits of the model\n"
FREE = Pace(0, threading.Event())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What belongs to somebody else."""
    (tmp_path / "etc" / "cron.d").mkdir(parents=True)
    found = tmp_path / "etc" / "shadow"
    found.write_text("root:secret\n")
    found.chmod(0o600)
    return found


def put(path: Path, what: str, secret: Path) -> None:
    """Something that is no file of the model, in place of one."""
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.symlink_to(secret.parent)
    elif what == "absolute":
        path.symlink_to(secret)
    else:
        # The second one's path begins as that of the folder.
        with Home(path.parent) as home:
            beside = Path(f"{home.bound}.json")
        beside.write_text("of the folder above")
        path.symlink_to(os.path.relpath(secret if what == "relative" else beside, path.parent))


ODD = ["absolute", "relative", "beside", "folder", "pipe"]


def noted(folder: Path, root: Path) -> tuple[ModelStore, Model]:
    """A folder whose every file is recorded as read."""
    one, store = model(folder), ModelStore(root / "staged", str(folder))
    records = {name: Record(seen.size, seen.mtime_ns, "a" * 64, seen.ctime_ns) for name, seen in look(folder).items()}
    made = Manifest(
        one.repo, one.revision, {name: Content(record.size, record.sha256) for name, record in records.items()}, "first look"
    )
    store.save_manifest(made)
    store.save(made, records, complete=True)
    return store, one


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("cached", [False, True])
def test_a_link_that_leads_away_is_refused_by_name_wherever_it_is_met(
    tmp_path: Path, secret: Path, what: str, cached: bool
) -> None:
    folder = checkpoint(tmp_path / "tiny")
    if cached:
        folder = hub_cache(tmp_path / "models--acme--tiny", folder)
    store, one = noted(folder, tmp_path)
    with Home(folder) as home:
        put(folder / "config.json", what, secret)
        for ask in (home.open, home.stat) if what != "pipe" else (home.open,):
            with pytest.raises(LeadsAway, match=r"config\.json is (a link to|no file).*\. (Put|Remove)"):
                ask("config.json")
    for act in (
        lambda: look(folder),
        lambda: in_place(one, folder, None),
        lambda: digest(folder, "config.json", False, FREE, lambda _: None),
        lambda: chain_offer.offer(one, store, chain_offer.Work()),
    ):
        with pytest.raises(LeadsAway, match=r"config\.json is"):
            act()
    stands = standing(one, "s1", store)
    assert [(check.id, check.status) for check in stands.checks] == [("WEIGHTS.LINK", "fail")]
    assert not stands.staged
    assert not stands.fixable
    assert secret.read_text() not in str(stands.to_dict())


def test_a_link_to_a_link_or_through_one_is_refused(tmp_path: Path, secret: Path) -> None:
    snapshot = hub_cache(tmp_path / "models--acme--tiny", checkpoint(tmp_path / "tiny"))
    blobs = snapshot.parents[1] / "blobs"
    (blobs / "x").symlink_to(secret)
    (blobs / "y").symlink_to(secret.parent)
    for target in ("../../blobs/x", "../../blobs/y/shadow"):
        (snapshot / "a").unlink(missing_ok=True)
        (snapshot / "a").symlink_to(target)
        with pytest.raises(LeadsAway):
            look(snapshot)
        with Home(snapshot) as home, pytest.raises(LeadsAway):
            home.open("a")


def test_links_within_one_repository_are_followed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "tiny")
    snapshot = hub_cache(tmp_path / "models--acme--tiny", source)
    assert {name: seen.size for name, seen in look(snapshot).items()} == {
        path.name: path.stat().st_size for path in source.iterdir()
    }
    (source / "again.json").symlink_to("config.json")
    assert look(source)["again.json"].size == (source / "config.json").stat().st_size
    # The same layout under another name is no cache: whose is what lies above it?
    other = hub_cache(tmp_path / "acme", checkpoint(tmp_path / "third"))
    with pytest.raises(LeadsAway, match="out of "):
        look(other)


def test_a_folder_in_a_snapshot_is_of_the_same_repository(tmp_path: Path, secret: Path) -> None:
    checkpoint(tmp_path / "tiny" / "sub")
    folder = hub_cache(tmp_path / "models--acme--tiny", tmp_path / "tiny") / "sub"
    assert set(look(folder)) == {path.name for path in (tmp_path / "tiny" / "sub").iterdir()}
    put(folder / "config.json", "relative", secret)
    with pytest.raises(LeadsAway, match=f"out of {tmp_path}/models--acme--tiny"):
        look(folder)


def test_a_folder_on_the_way_that_is_a_link_of_ours_is_gone_through(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "disk" / "tiny")
    for name, target in (("absolute", tmp_path / "disk"), ("relative", Path("disk")), ("twice", Path("relative/../disk/."))):
        (tmp_path / name).symlink_to(target)
        assert look(tmp_path / name / "tiny") == look(folder)
        assert incoming_of(str(tmp_path / name / "tiny")) == tmp_path / "disk" / ".tiny.incoming"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LeadsAway, match="loop is a link"):
        look(tmp_path / "loop" / "tiny")
    assert look(tmp_path / "none" / "tiny") == look(folder / "config.json") == {}


@platforms.needs_root
def test_a_folder_on_the_way_that_is_a_link_of_somebody_else_is_not(tmp_path: Path) -> None:
    checkpoint(tmp_path / "disk" / "tiny")
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(tmp_path / "disk")
    os.chown(home / "models", SOMEBODY, SOMEBODY, follow_symlinks=False)
    for owner in (0, SOMEBODY):  # by its own owner, then by that of its folder
        os.chown(home, owner, owner)
        with pytest.raises(
            LeadsAway, match=r"models is a link to .*, and others than root can set it\. Give the model's path without it"
        ):
            look(home / "models" / "tiny")
        os.chown(home / "models", 0, 0, follow_symlinks=False)


@pytest.mark.parametrize(
    ("mode", "owner", "reader"),
    [
        (0o755, 0, None), (0o1777, 0, None), (0o777, 0, (65534, 0)), (0o775, 0, (65534, 0)), (0o755, SOMEBODY, (SOMEBODY, SOMEBODY)),
        (0o1777, SOMEBODY, (SOMEBODY, SOMEBODY)),
    ],
)  # fmt: skip
@platforms.needs_root
def test_files_arrive_where_nobody_else_can_put_anything(
    tmp_path: Path, mode: int, owner: int, reader: tuple[int, int] | None
) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    home.chmod(mode)
    os.chown(home, owner, owner)
    path = home / "models" / "tiny"
    with way(path) as found:
        assert (found.reader, found.left) == (reader, ("tiny",))
    incoming = incoming_of(str(path))
    assert incoming.parent == (tmp_path if reader else home / "models")
    private(incoming)
    assert (incoming.stat().st_uid, incoming.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    path.mkdir()
    assert incoming_of(str(path)) == incoming, "the same once the folder is there"
    incoming.rmdir()
    incoming.symlink_to(home)
    os.chown(incoming, SOMEBODY, SOMEBODY, follow_symlinks=False)
    with pytest.raises(LeadsAway):
        private(incoming)


@platforms.needs_root
def test_a_model_of_somebody_else_arrives_beside_it_where_only_it_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    os.chown(tmp_path / "tiny", SOMEBODY, SOMEBODY)
    assert incoming_of(str(tmp_path / "tiny")) == tmp_path / ".tiny.incoming"


class Fake(MirrorSource):
    """Brings one file as the mirror does."""

    asked = 0

    def __init__(self) -> None:
        super().__init__({"urls": {}, "lists": {}}, FREE)

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        return Manifest(model.repo, model.revision, {NAME: Content(len(BODY), hashlib.sha256(BODY).hexdigest())}, "mirror")

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        self.asked += 1
        path = own_folder(name, incoming) / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(BODY)
        return path


Stage = Callable[[Path], str]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Stage one file to a path: why it failed, or nothing."""
    monkeypatch.setattr(weights_stage, "make_source", lambda *_: Fake())
    (tmp_path / "job").mkdir()

    def run(path: Path) -> str:
        asked = {"name": "model", "path": str(path), "repo": "acme/tiny", "revision": COMMIT}
        args: dict[str, Any] = {
            "host": "s1",
            "models": [asked],
            "source": "mirror",
            "verify": "quick",
            "repair": True,
            "also": [],
        }
        args |= {"rate": 0, "workers": 1, "verify_workers": 1, "verify_rate": 0, "reserve": 0, "was_staged": False}
        try:
            weights_stage.stage({**args, "staged_dir": str(tmp_path / "staged")}, {}, Reporter(tmp_path / "job", "stage"))
        except JobError as error:
            return str(error)
        return ""

    return run


@platforms.needs_root
@pytest.mark.parametrize("planted", ["nothing", "folder", "file", "incoming", "arrival", "old"])
def test_nothing_is_written_through_a_link_of_somebody_else(tmp_path: Path, secret: Path, stage: Stage, planted: str) -> None:
    user = tmp_path / "home" / "u"
    path = user / "model"
    path.mkdir(parents=True)
    incoming = user / ".model.incoming"
    before = secret.read_text()
    if planted == "folder":
        (path / "sub").symlink_to(secret.parent / "cron.d")
    elif planted == "file":
        (path / "sub").mkdir()
        (path / NAME).symlink_to(secret)
    elif planted == "incoming":
        incoming.symlink_to(secret.parent)
    elif planted == "arrival":
        own_folder(NAME, incoming).mkdir(parents=True)
        (own_folder(NAME, incoming) / "file").symlink_to(secret)
    elif planted == "old":
        # What an earlier revision had, to be removed: through a link it would be a file of somebody else.
        (path / "old").symlink_to(secret.parent)
        store = ModelStore(tmp_path / "staged", str(path))
        store.save_manifest(Manifest("acme/tiny", "d" * 40, {"old/shadow": Content(1, "a" * 64)}, "hub"))
    for one in (user, *user.rglob("*")):
        os.chown(one, SOMEBODY, SOMEBODY, follow_symlinks=False)
    why = stage(path)
    assert secret.read_text() == before
    assert {one.name for one in secret.parent.rglob("*")} == {"cron.d", "shadow"}
    refused = {"folder": "model/sub is", "file": f"{NAME} is a link to", "old": "model/old is"}.get(planted, "")
    assert refused in why if refused else (path / NAME).read_bytes() == BODY, why
    assert not list((tmp_path / "home").glob(".sparklanes*")) or refused


@platforms.needs_root
def test_a_link_that_comes_between_look_and_name_leads_nowhere(
    tmp_path: Path, secret: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home" / "model"
    path.mkdir(parents=True)
    os.chown(path.parent, SOMEBODY, SOMEBODY)
    fetch, asked = Fake.fetch, []

    def and_then(self: Fake, *args: Any) -> Path:
        asked.append(1)
        came = fetch(self, *args)
        if not (path / "sub").exists():
            (path / "sub").symlink_to(secret.parent / "cron.d")
        return came

    monkeypatch.setattr(Fake, "fetch", and_then)
    assert "model/sub is a link or a file, where a folder of the model should be" in stage(path)
    assert not list((secret.parent / "cron.d").iterdir())
    assert len(asked) == 1, "it is not fetched again for that"


def test_what_is_lent_is_never_more_than_the_model(tmp_path: Path) -> None:
    for root in ("/", "/srv"):
        with pytest.raises(StagingError, match="is no folder of a model"):
            chain_lend.config({"model": root}, "127.0.0.1", 1, ["127.0.0.1"], tmp_path, tmp_path, True)
    one, store = model(tmp_path / "none"), ModelStore(tmp_path / "staged", str(tmp_path / "none"))
    store.save_manifest(Manifest(one.repo, one.revision, {"a": Content(1, "a" * 64)}, "hub"))
    assert chain_offer.offer(one, store, chain_offer.Work())[1] is None, "a path that is not there yet may become anything"


@platforms.needs_root
def test_a_folder_of_somebody_else_is_lent_as_them(node: Node) -> None:
    """Whatever they put in its place later, rsync reads no more than they can."""
    checkpoint(node.path)
    assert node.stage(COMMIT, source="directory")["staged"]
    (node.path / "private").write_text("root's own")
    (node.path / "private").chmod(0o600)
    os.chown(node.path, SOMEBODY, SOMEBODY)
    port = free_port()
    url = node.lend(COMMIT, port, "once")["urls"][0]

    def take(name: str) -> int:
        command = ["rsync", f"{url}/model/{name}", str(node.root / "taken")]
        environment = {**os.environ, "RSYNC_PASSWORD": "once"}
        return subprocess.run(command, env=environment, check=False, capture_output=True).returncode

    assert take(SECOND) == 0
    assert (node.root / "taken").read_bytes() == (node.path / SECOND).read_bytes()
    assert take("private") != 0
    # Another folder in its place, before the daemon hears of it.
    aside = node.path.with_name("aside")
    node.path.rename(aside)
    node.path.symlink_to(node.root)
    assert take("models/aside/private") != 0
