"""What root reads, writes and removes on a host is what stands there, and nowhere that somebody else chose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.host import tree as host_tree
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.tree import Tree
from platforms import needs_root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A host below tmp_path/root with a folder that anybody may write to, and a secret beside it."""
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/shared").mkdir()
    (tmp_path / "root/shared").chmod(0o777)
    (tmp_path / "secret").write_text("s3cret")
    return tmp_path


def tree(outside: Path) -> Tree:
    return Tree(outside / "root")


def test_a_file_comes_whole_with_its_folders_and_mode_and_goes(outside: Path) -> None:
    here = tree(outside)
    assert here.read("/var/lib/x/file") is None
    assert here.entry("/var/lib/x/file") is None
    here.write("/var/lib/x/file", "ä\n".encode(), 0o640)
    path = outside / "root/var/lib/x/file"
    assert (path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777) == ("ä\n", 0o640)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"], "nothing is left aside"
    found = here.entry("/var/lib/x/file")
    assert found is not None
    assert (found.kind, found.mode, found.uid, found.content) == ("file", "0640", os.geteuid(), "ä\n".encode())
    here.remove("/var/lib/x/file")
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match="/var/lib/x/file"):
        here.remove("/var/lib/x/file")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_aside(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tree(outside)
    here.write("/etc/file", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_tree.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as told:
        here.write("/etc/file", b"new")
    assert told.value.filename == "/etc/file"
    assert {path.name: path.read_text() for path in (outside / "root/etc").iterdir()} == {"file": "old"}


def test_links_of_root_are_followed_on_the_way_and_absolute_ones_stay_below_the_root(outside: Path) -> None:
    here, root = tree(outside), outside / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "opt").symlink_to("/usr/lib")
    (root / "usr/lib/deep").symlink_to("../../etc")
    here.write("/lib/a", b"1")
    here.write("/opt/b", b"2")
    here.write("/lib/deep/c", b"3")
    assert (root / "usr/lib/a").read_bytes() == b"1"
    assert (root / "usr/lib/b").read_bytes() == b"2"
    assert (root / "etc/c").read_bytes() == b"3"
    (root / "etc/link").symlink_to("c")
    assert here.read("/etc/link") == b"3"
    entry = here.entry("/etc/link")
    assert entry is not None
    assert (entry.kind, entry.target) == ("link", "c")


@pytest.mark.parametrize("target", ["../../secret", "/etc/passwd", "../etc/file"])
def test_a_link_that_others_may_have_made_is_not_followed(outside: Path, target: str) -> None:
    here, root = tree(outside), outside / "root"
    (root / "etc/file").write_text("ours")
    (root / "shared/link").symlink_to(target)
    (root / "shared/folder").symlink_to("../etc")
    for reach in (here.read, lambda path: here.entry(path) and here.read(path)):
        with pytest.raises(PermissionError, match="others than root may write to"):
            reach("/shared/link")
    for path in ("/shared/folder/file", "/shared/folder/new"):
        with pytest.raises(PermissionError, match="Remove the link"):
            here.write(path, b"x")
        with pytest.raises(PermissionError):
            here.remove(path)
    assert (root / "etc/file").read_text() == "ours"
    here.write("/shared/link", b"a file now")  # the link itself is replaced
    assert not (root / "shared/link").is_symlink()
    assert (outside / "secret").read_text() == "s3cret"


@needs_root
def test_a_folder_of_somebody_else_is_no_folder_of_root(outside: Path) -> None:
    root = outside / "root"
    (root / "home").mkdir()
    (root / "home/link").symlink_to("../etc")
    os.chown(root / "home", 1000, 1000)
    with pytest.raises(PermissionError):
        tree(outside).write("/home/link/file", b"x")


def test_what_is_no_plain_file_is_never_waited_for(outside: Path) -> None:
    here = tree(outside)
    os.mkfifo(outside / "root/etc/pipe")
    with pytest.raises(OSError, match="no plain file"):
        here.read("/etc/pipe")
    entry = here.entry("/etc/pipe")
    assert entry is not None
    assert entry.kind == "other"
    (outside / "root/etc/a").symlink_to("b")
    (outside / "root/etc/b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        here.read("/etc/a")


def test_a_link_to_nothing_masks_as_dev_null_does(outside: Path) -> None:
    (outside / "root/etc/masked").symlink_to("/dev/null")
    assert tree(outside).read("/etc/masked") is None, "below another root there is no /dev/null"
    assert Tree("/").read("/dev/null") == b""


@pytest.mark.parametrize("path", ["/etc/../../secret", "..", "/", ""])
def test_a_path_that_leaves_the_root_is_refused(outside: Path, path: str) -> None:
    with pytest.raises(OSError, match=r"without \.\."):
        tree(outside).write(path, b"x")


def test_a_file_that_is_no_configuration_is_not_read_whole(outside: Path) -> None:
    with (outside / "root/etc/huge").open("wb") as stream:
        stream.truncate(host_tree.LARGEST + 1)
    with pytest.raises(OSError, match="larger than 16 MiB"):
        tree(outside).read("/etc/huge")


# Edits


class Module:
    """What HostEdits needs of an AnsibleModule."""

    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.ended: dict[str, Any] = {}
        self.warned: list[str] = []

    def fail_json(self, **result: Any) -> None:
        self.ended = {"failed": True, **result}

    def exit_json(self, **result: Any) -> None:
        self.ended = result

    def warn(self, sentence: str) -> None:
        self.warned.append(sentence)


def test_each_edit_is_a_sentence_and_a_difference_and_a_second_one_is_none(outside: Path) -> None:
    edits = HostEdits(Module(), outside / "root")
    assert edits.write("/etc/a", "one\n")
    assert not edits.write("/etc/a", "one\n")
    assert edits.write("/etc/a", "two\n")
    assert edits.write("/etc/program", b"\x00\xff", shown=False)
    assert edits.drop("/etc/a")
    assert not edits.drop("/etc/a")
    assert edits.actions == ["Write /etc/a", "Write /etc/a", "Write /etc/program", "Remove /etc/a: asked for"]
    assert edits.diff == {"before": "/etc/a:\none\n/etc/a:\ntwo\n", "after": "/etc/a:\none\n/etc/a:\ntwo\n/etc/program\n"}


def test_check_mode_says_the_same_and_writes_nothing(outside: Path) -> None:
    edits = HostEdits(Module(check_mode=True), outside / "root")
    (outside / "root/etc/old").write_text("old\n")
    assert edits.write("/etc/new/a", "one\n")
    assert edits.write("/etc/old", "new\n")
    assert edits.drop("/etc/old")
    assert edits.changed
    assert [path.name for path in (outside / "root/etc").iterdir()] == ["old"]
    assert (outside / "root/etc/old").read_text() == "old\n"


def test_a_link_of_the_same_text_becomes_a_file(outside: Path) -> None:
    edits = HostEdits(Module(), outside / "root")
    (outside / "root/etc/there").write_text("one\n")
    (outside / "root/etc/a").symlink_to("there")
    assert edits.write("/etc/a", "one\n")
    assert not (outside / "root/etc/a").is_symlink()
    (outside / "root/etc/gone").symlink_to("nowhere")
    assert edits.drop("/etc/gone")
    assert (outside / "root/etc/there").read_text() == "one\n"


def test_what_the_disk_refuses_is_told_once_with_its_path_and_what_was_done(outside: Path) -> None:
    module = Module()
    edits = HostEdits(module, outside / "root")
    (outside / "root/etc/file").write_text("")

    def work() -> dict[str, Any]:
        edits.write("/etc/a", "one\n")
        edits.write("/etc/file/b", "two\n")
        return {}

    with pytest.raises(SystemExit):
        edits.finish(work)
    assert module.ended == {"failed": True, "msg": "/etc/file/b: Not a directory", "actions": ["Write /etc/a"], "waiting": []}


def test_what_waits_is_a_warning_too(outside: Path) -> None:
    module = Module()
    edits = HostEdits(module, outside / "root")
    edits.waiting.append("later")
    with pytest.raises(SystemExit):
        edits.finish(lambda: {"more": 1})
    assert module.warned == ["later"]
    assert (module.ended["changed"], module.ended["waiting"], module.ended["more"]) == (False, ["later"], 1)
