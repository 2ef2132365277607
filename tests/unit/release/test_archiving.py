from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import lane_archive
import pytest
from ansible.module_utils.sparklanes.common import disk, sums
from ansible.module_utils.sparklanes.common.files import replacing
from ansible.module_utils.sparklanes.docker.archive import ArchiveError
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.release import archive as release_archive
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Manifest, Model, Record
from conftest import RunModule

ID = "sha256:" + "1" * 64


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker save` that writes a file and counts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f"#!/bin/sh\necho saved >> {tmp_path}/saves\nprintf image\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return tmp_path / "saves"


@pytest.fixture
def args(tmp_path: Path) -> dict[str, Any]:
    overlay = tmp_path / "overlays/x/scheduler.py"
    overlay.parent.mkdir(parents=True)
    overlay.write_bytes(b"overlay")
    models = []
    for name in ("model", "drafter"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(name.encode())
        model = Model.from_dict({"name": name, "path": str(folder), "repo": "a/b", "revision": "c" * 40})
        size = len(name)
        record = Record(size, (folder / "config.json").stat().st_mtime_ns, sha(name.encode()))
        ModelStore(tmp_path / "staged", model.path).save(
            Manifest(model.repo, model.revision, {}, "hub"), {"config.json": record}, True
        )
        models.append(model.to_dict())
    (tmp_path / "nas").mkdir()
    return {
        "directory": str(tmp_path / "nas"),
        "lane": {"lane_id": "tiny"},
        "lane_id": "tiny",
        "files": [{"name": "overlays/glm/scheduler.py", "path": str(overlay), "sha256": sha(b"overlay")}],
        "models": models,
        "whole": ["drafter"],
        "host": "spark-1",
        "staged_dir": str(tmp_path / "staged"),
        "reserve": 0,
        "image": {"name": "engine@x", "id": ID, "repo_digests": [], "size_bytes": 5},
    }


def archive(args: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "job"
    folder.mkdir(exist_ok=True)
    return release_archive.archive_lane(args, {}, Reporter(folder, "archive"))


def test_an_archive_holds_all_and_sha256sum_agrees(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    result = archive(args, tmp_path)
    folder = tmp_path / "nas/tiny"
    assert result["changed"]
    assert result["image_sha256"] == sha(b"image")
    assert (folder / "overlays/glm/scheduler.py").read_bytes() == b"overlay"
    assert (folder / "models/drafter/config.json").read_bytes() == b"drafter"
    assert not (folder / "models/model").exists()
    assert json.loads((folder / "manifests/model.json").read_text())["files"]["config.json"]["sha256"] == sha(b"model")
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, check=True, capture_output=True, text=True)
    assert checked.stdout.count(": OK") == 7


def test_a_second_run_adds_nothing_and_weights_come_when_asked(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    archive(args, tmp_path)
    again = archive(args, tmp_path)
    assert (again["changed"], again["actions"]) == (False, [])
    assert docker.read_text() == "saved\n"
    more = archive({**args, "whole": ["drafter", "model"]}, tmp_path)
    assert "Archive models/model/config.json" in more["actions"]
    less = archive(args, tmp_path)
    assert "models/model/config.json" in sums.read((tmp_path / "nas/tiny/SHA256SUMS").read_text())
    assert less["image_sha256"] == sha(b"image")


def test_a_file_that_changed_since_it_was_staged_is_refused(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    (tmp_path / "models/drafter/config.json").write_bytes(b"DRAFTER")
    with pytest.raises(JobError, match="changed since it was staged"):
        archive(args, tmp_path)
    assert not (tmp_path / "nas/tiny/models/drafter/config.json").exists()


def test_a_model_that_is_not_complete_is_refused(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    args["models"][0]["revision"] = "d" * 40
    with pytest.raises(JobError, match="not complete here"):
        archive(args, tmp_path)


def test_a_name_cannot_leave_the_archive(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    args["files"][0]["name"] = "overlays/../../out"
    with pytest.raises(JobError, match="no name below"):
        archive(args, tmp_path)


def test_room_counts_what_is_replaced_until_its_successor_is_whole(
    args: dict[str, Any], docker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(args, tmp_path)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 4)
    assert not archive(args, tmp_path)["changed"], "what is there already needs no room"
    # The image of 5 bytes is another now; its old archive lies there until the new one is whole.
    with pytest.raises(JobError, match="Nothing was written"):
        archive({**args, "image": {**args["image"], "id": "sha256:" + "2" * 64}}, tmp_path)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 5)
    assert archive({**args, "image": {**args["image"], "id": "sha256:" + "2" * 64}}, tmp_path)["changed"]


def test_room_is_looked_at_before_anything_is_written(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="Nothing was written"):
        archive({**args, "reserve": 2**60}, tmp_path)
    assert [path.name for path in (tmp_path / "nas/tiny").iterdir()] == [".sparklanes"]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_unsafe_names(name: str) -> None:
    with pytest.raises(ArchiveError):
        release_archive.safe(name)


def test_an_image_that_a_killed_job_replaced_is_not_taken_for_the_one_before(
    args: dict[str, Any], docker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(args, tmp_path)
    other = {**args, "image": {**args["image"], "id": "sha256:" + "2" * 64}}
    with monkeypatch.context() as patch:
        patch.setattr(release_archive.Archive, "close", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            archive(other, tmp_path)
    saves = docker.read_text().count("saved")
    archive(args, tmp_path)
    assert docker.read_text().count("saved") == saves + 1


def test_the_restore_lines_are_yaml_of_the_lane() -> None:
    lines = release_archive.restore_lines("/nas/tiny", {"id": ID}, "f" * 64)
    assert lines.startswith("lane_image_site: {")
    assert "/nas/tiny/image.tar" in lines


def test_the_module_refuses_before_it_starts_a_job(run_module: RunModule, tmp_path: Path) -> None:
    ask = {"directory": str(tmp_path / "absent"), "lane": {"lane_id": "x"}, "image": "a@b", "host": "spark-1"}
    result = run_module(lane_archive, ask)
    assert result["failed"]
    assert "is no folder" in result["msg"]
    absent = [{"name": "overlays/a", "path": "/nowhere/a", "sha256": ""}]
    assert "not staged" in run_module(lane_archive, {**ask, "directory": str(tmp_path), "files": absent})["msg"]


# A folder that was somebody's before us


PEOPLES = (".profile.original", ".vimrc.backup_1", ".bash.settings", ".gitattributes.metadata", ".config/.app.database", ".keep")
HALF = (".sparklanes-partial.ab12cd_9", "models/model/.sparklanes-partial.ab12cd_9", ".image.tar.ab12cd_9")


def old(path: Path, hours: float = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (time.time() - 3600 * hours,) * 2)


def test_only_what_we_did_not_finish_is_swept(tmp_path: Path) -> None:
    for name in (*PEOPLES, *HALF):
        old(tmp_path / name)
    old(tmp_path / ".sparklanes-partial.young678", 0.5)
    old(tmp_path / "elsewhere/.sparklanes-partial.ab12cd_9")
    (tmp_path / "lane").mkdir()
    (tmp_path / "lane/link").symlink_to(tmp_path / "elsewhere")
    release_archive.sweep(tmp_path / "lane", time.time())
    assert (tmp_path / "elsewhere/.sparklanes-partial.ab12cd_9").exists()
    release_archive.sweep(tmp_path, time.time())
    assert all((tmp_path / name).exists() for name in (*PEOPLES, ".sparklanes-partial.young678"))
    assert not any((tmp_path / name).exists() for name in HALF)


def test_what_replacing_leaves_when_it_is_killed_is_what_is_swept(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        with replacing(tmp_path / "image.tar") as stream:
            stream.write(b"half")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    release_archive.sweep(tmp_path, time.time() + 7200)
    assert list(tmp_path.iterdir()) == []


def test_a_lane_named_as_somebodys_folder_is_not_archived_into_it(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    home = tmp_path / "nas/tiny"
    for name in PEOPLES:
        old(home / name)
    before = sorted(home.rglob("*"))
    with pytest.raises(JobError, match=r"tiny is there already, and no file \.sparklanes in it says that it is ours"):
        release_archive.archive_lane(args, {}, Reporter(tmp_path, "archive"))
    assert sorted(home.rglob("*")) == before


def test_an_archive_that_an_earlier_version_made_is_gone_on_with(args: dict[str, Any], docker: Path, tmp_path: Path) -> None:
    release_archive.archive_lane(args, {}, Reporter(tmp_path, "archive"))
    (tmp_path / "nas/tiny/.sparklanes").unlink()
    assert not release_archive.archive_lane(args, {}, Reporter(tmp_path, "archive"))["changed"]
    assert (tmp_path / "nas/tiny/.sparklanes").is_file()
