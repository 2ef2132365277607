from __future__ import annotations

import ctypes
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jit_cache as module
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker import jit_cache
from ansible.module_utils.sparklanes.docker.jit_cache import CacheError
from ansible.module_utils.sparklanes.lane import render as lane_render
from conftest import ROOT, RunModule
from platforms import needs_root

DIGEST = "sha256:7010d9cf73a987fade85c599ae26b655893b68ac3c9f82bb82096efb49f236b7"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "a/lane"
    (folder / "triton/0a").mkdir(parents=True)
    (folder / "triton/0a/kernel.cubin").write_bytes(b"cubin")
    (folder / "triton/0a/build.lock").write_bytes(b"")
    (folder / "inductor").mkdir()
    (folder / "inductor/x.py").write_text("code")
    (folder / "inductor/link").symlink_to("/etc/passwd")
    return folder


def names(folder: Path) -> list[str]:
    return [entry.name for entry in jit_cache.files_of(folder)]


def test_a_cache_arrives_as_it_was(cache: Path, tmp_path: Path) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    there = tmp_path / "b/lane"
    there.mkdir(parents=True)
    assert jit_cache.unpack(tmp_path / "cache.tar", there) == 2
    assert names(there) == ["inductor/x.py", "triton/0a/kernel.cubin"]
    assert (there / "triton/0a/kernel.cubin").read_bytes() == b"cubin"
    assert int((there / "inductor/x.py").stat().st_mtime) == int((cache / "inductor/x.py").stat().st_mtime)


def test_what_a_spark_compiled_itself_is_never_written_over(cache: Path, tmp_path: Path) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    there = tmp_path / "b/lane"
    there.mkdir(parents=True)
    (there / "own").write_text("mine")
    assert jit_cache.unpack(tmp_path / "cache.tar", there) == 0
    assert names(there) == ["own"]


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../out"])
def test_an_archive_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "cache.tar", "w") as packed:
        member = tarfile.TarInfo(name)
        member.size = 1
        packed.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(CacheError, match="no plain file below it"):
        jit_cache.unpack(tmp_path / "cache.tar", tmp_path / "b/lane")
    assert not (tmp_path / "b/lane").exists()
    assert not (tmp_path / "out").exists()


def test_half_an_archive_fills_nothing(cache: Path, tmp_path: Path) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    whole = (tmp_path / "cache.tar").read_bytes()
    (tmp_path / "cache.tar").write_bytes(whole[:1027])
    with pytest.raises(CacheError):
        jit_cache.unpack(tmp_path / "cache.tar", tmp_path / "b/lane")
    assert list((tmp_path / "b").iterdir()) == []


def test_an_empty_cache_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no compiled kernel"):
        jit_cache.pack(tmp_path, tmp_path / "cache.tar")


def test_the_module_measures_packs_and_fills_once(cache: Path, tmp_path: Path, run_module: RunModule) -> None:
    looked = run_module(module, {"path": str(cache)})
    assert (looked["changed"], looked["files"], looked["bytes"]) == (False, 2, 9)
    archive, there = str(tmp_path / "cache.tar"), str(tmp_path / "b/lane")
    assert run_module(module, {"path": str(cache), "state": "packed", "archive": archive})["changed"]
    would = run_module(module, {"path": there, "state": "filled", "archive": archive}, check=True)
    assert (would["changed"], would["files"]) == (True, 0)
    filled = run_module(module, {"path": there, "state": "filled", "archive": archive})
    assert (filled["changed"], filled["files"]) == (True, 2)
    assert not Path(archive).exists()
    Path(archive).write_bytes(b"")
    assert not run_module(module, {"path": there, "state": "filled", "archive": archive})["changed"]


@pytest.mark.parametrize(("running", "changed"), [(True, False), (False, True)])
def test_a_cache_is_not_replaced_under_a_container_that_writes_into_it(
    cache: Path, tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, running: bool, changed: bool
) -> None:
    there = tmp_path / "b/lane"
    there.mkdir(parents=True)
    box = {"Id": "box", "State": {"Running": running}, "Mounts": [{"Source": str(there), "Destination": "/jit"}]}
    monkeypatch.setattr(commands, "run", lambda argv, **_: (0, "box" if argv[1] == "ps" else json.dumps([box]), ""))
    jit_cache.pack(cache, tmp_path / "cache.tar")
    result = run_module(module, {"path": str(there), "state": "filled", "archive": str(tmp_path / "cache.tar")})
    assert (result["changed"], result["files"]) == (changed, 2 * changed)
    assert not (tmp_path / "cache.tar").exists()


def test_a_file_that_a_compiler_renames_or_shortens_meanwhile_is_left_out_or_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.open

    def renamed(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if path == "x.py":
            (cache / "inductor/x.py").rename(cache / "inductor/y.py")
        return look(path, flags, *more, **how)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(jit_cache, "measure", lambda _: (2, 9))
        meanwhile.setattr(os, "open", renamed)
        jit_cache.pack(cache, tmp_path / "cache.tar")
    with tarfile.open(tmp_path / "cache.tar") as packed:
        assert packed.getnames() == ["triton/0a/kernel.cubin"]
    whole = tarfile.TarFile.addfile

    def shortened(self: tarfile.TarFile, member: tarfile.TarInfo, content: Any = None) -> None:
        os.truncate(cache / member.name, 1)
        whole(self, member, content)

    monkeypatch.setattr(tarfile.TarFile, "addfile", shortened)
    with pytest.raises(CacheError, match="became shorter while it was packed"):
        jit_cache.pack(cache, tmp_path / "cache.tar")


# What the container does while root packs.

RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """renameat2(2): each gets the other's name, in one step."""
    ctypes.CDLL(None, use_errno=True).renameat2(-100, bytes(one), -100, bytes(other), RENAME_EXCHANGE)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder of the host."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "shadow").write_text("root:$y$SECRET")
    return folder


def packed_bytes(archive: Path) -> bytes:
    with tarfile.open(archive) as packed:
        return b"".join(content.read() for member in packed if (content := packed.extractfile(member)))


@pytest.mark.parametrize("what", ["a folder", "a file", "the folder between"])
def test_no_exchange_of_names_leads_root_to_a_file_of_the_host(tmp_path: Path, secret: Path, what: str) -> None:
    cache, outside = tmp_path / "jit/lane", tmp_path / "other"
    for number in range(20):
        (cache / f"a{number:03}").mkdir(parents=True)
        (cache / f"a{number:03}/k.so").write_bytes(b"k" * 500)
    inside = {"a folder": cache / "z", "a file": cache / "z/shadow", "the folder between": cache / "z"}[what]
    leaf = cache / ("z/y" if what == "the folder between" else "z")
    leaf.mkdir(parents=True)
    (leaf / "shadow").write_text("harmless")
    (tmp_path / "host/y").mkdir(parents=True)
    (tmp_path / "host/y/shadow").write_text("root:$y$SECRET")
    goal = {"a folder": secret, "a file": secret / "shadow", "the folder between": tmp_path / "host"}[what]
    outside.symlink_to(goal)
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            exchange(inside, outside)
            time.sleep(0.0002)

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        for _ in range(15):
            jit_cache.pack(cache, tmp_path / "lane.tar")
            assert b"SECRET" not in packed_bytes(tmp_path / "lane.tar")
    finally:
        over.set()
        flipping.join()


def test_what_was_looked_at_is_what_is_read(cache: Path, tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without chance: the exchange comes between the look at a name and the reading, and between the look at a folder and its list."""
    (tmp_path / "file").symlink_to(secret / "shadow")
    (tmp_path / "folder").symlink_to(secret)
    (cache / "triton/0a/shadow").write_text("harmless")
    look = os.open

    def meanwhile(path: Any, flags: int, *more: Any, **how: Any) -> int:
        handle = look(path, flags, *more, **how)
        if flags & os.O_PATH and path == "x.py":
            exchange(cache / "inductor/x.py", tmp_path / "file")
        if flags & os.O_PATH and path == "0a":
            exchange(cache / "triton/0a", tmp_path / "folder")
        return handle

    monkeypatch.setattr(jit_cache, "measure", lambda _: (3, 17))
    monkeypatch.setattr(os, "open", meanwhile)
    jit_cache.pack(cache, tmp_path / "lane.tar")
    assert (cache / "triton/0a").is_symlink()
    assert (cache / "inductor/x.py").is_symlink()
    assert packed_bytes(tmp_path / "lane.tar") == b"codecubinharmless"


def test_a_pipe_or_a_link_in_the_place_of_the_folder_is_neither_waited_for_nor_followed(cache: Path, tmp_path: Path) -> None:
    os.mkfifo(cache / "pipe")
    assert jit_cache.measure(cache) == (2, 9)
    (tmp_path / "link").symlink_to(cache)
    assert jit_cache.measure(tmp_path / "link") == (0, 0)
    jit_cache.pack(cache, tmp_path / "cache.tar")
    with pytest.raises(CacheError, match="is a link, and not ours to remove"):
        jit_cache.unpack(tmp_path / "cache.tar", tmp_path / "link")


def test_only_root_and_who_fetches_it_may_read_an_archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, int]] = []
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, user, _group, follow_symlinks: given.append((Path(path).name, user)))
    jit_cache.pack(cache, tmp_path / "cache.tar")
    assert (tmp_path / "cache.tar").stat().st_mode & 0o777 == 0o600
    assert given == [("cache.tar", 1234)]


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 1), ("MOST_BYTES", 8), ("MOST_ENTRIES", 4)])
def test_a_cache_without_an_end_is_not_packed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(jit_cache, limit, most)
    with pytest.raises(CacheError, match=r"holds more than .*Look what else is in it"):
        jit_cache.pack(cache, tmp_path / "cache.tar")
    assert not (tmp_path / "cache.tar").exists()
    assert jit_cache.measure(cache)[0] <= 2


def test_folders_within_folders_without_an_end_are_left_out(cache: Path, tmp_path: Path) -> None:
    deep = os.open(cache, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        jit_cache.pack(cache, tmp_path / "cache.tar")
        assert packed_bytes(tmp_path / "cache.tar") == b"codecubin"
    finally:
        # pytest tidies up by recursion, three runs later, and would end in an error of its own.
        subprocess.run(["rm", "-rf", str(cache / "d")], check=True)


def test_a_name_that_no_spark_would_take_is_not_packed(cache: Path, tmp_path: Path) -> None:
    (cache / "a\nb").write_text("")
    with pytest.raises(CacheError, match=r"'a\\nb' is no plain file below it"):
        jit_cache.pack(cache, tmp_path / "cache.tar")


# What another Spark sends.


def archive_of(path: Path, *members: tuple[str, bytes, int]) -> Path:
    """name, type and size of each."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as packed:
        for name, kind, size in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname, member.mode = kind, size, "/etc/passwd", 0o6755
            packed.addfile(member, io.BytesIO(b"x" * size) if size else None)
    return path


FILE, HARD, LINK, DEVICE, FOLDER = (
    t for t in (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
)
ODD = {
    "a dot": [(".", FILE, 1)],
    "a dot and a file": [("./a", FILE, 1)],
    "no name": [("", FILE, 1)],
    "two slashes": [("a//b", FILE, 1)],
    "a control character": [("a\nb", FILE, 1)],
    "a link": [("a", LINK, 0)],
    "a link, then a file in it": [("a", LINK, 0), ("a/b", FILE, 1)],
    "a hard link": [("a", HARD, 0)],
    "a device": [("a", DEVICE, 0)],
    "a folder": [("a", FOLDER, 0)],
    "a file, then one in it": [("a", FILE, 1), ("a/b", FILE, 1)],
    "a folder, then a file of its name": [("a/b", FILE, 1), ("a", FILE, 1)],
    "a name twice": [("a", FILE, 1), ("a", FILE, 2)],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_archive_is_refused_in_a_sentence_and_leaves_nothing(tmp_path: Path, odd: list[tuple[str, bytes, int]]) -> None:
    with pytest.raises(CacheError, match=r"Nothing was kept$"):
        jit_cache.unpack(archive_of(tmp_path / "x.tar", ("first", FILE, 1), *odd), tmp_path / "b/lane")
    assert list((tmp_path / "b").iterdir()) == []


def test_no_mode_gives_rights(tmp_path: Path) -> None:
    jit_cache.unpack(archive_of(tmp_path / "x.tar", ("s", FILE, 1)), tmp_path / "b/lane")
    assert (tmp_path / "b/lane/s").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 1), ("MOST_BYTES", 3)])
def test_an_archive_without_an_end_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(jit_cache, limit, most)
    with pytest.raises(CacheError, match=r"holds more than .*Nothing was kept"):
        jit_cache.unpack(archive_of(tmp_path / "x.tar", ("a", FILE, 2), ("b", FILE, 2)), tmp_path / "b/lane")
    assert list((tmp_path / "b").iterdir()) == []


def test_a_size_that_only_a_header_has_is_not_believed(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a")
    member.size = 1 << 40
    (tmp_path / "x.tar").write_bytes(member.tobuf(tarfile.PAX_FORMAT) + bytes(4096))
    with pytest.raises(CacheError, match="holds more than"):
        jit_cache.unpack(tmp_path / "x.tar", tmp_path / "b/lane")


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 64 << 20
    with (tmp_path / "x.tar").open("wb") as stream:
        stream.write(member.tobuf(tarfile.PAX_FORMAT))
        stream.truncate(65 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CacheError, match="is damaged: a header of it has"):
            jit_cache.unpack(tmp_path / "x.tar", tmp_path / "b/lane")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_packed_archive_is_not_unpacked_without_end(tmp_path: Path) -> None:
    plain = archive_of(tmp_path / "x.tar", ("a", FILE, 9)).read_bytes()
    (tmp_path / "x.tar").write_bytes(gzip.compress(plain) + bytes(1024))
    with pytest.raises(CacheError, match="is damaged"):
        jit_cache.unpack(tmp_path / "x.tar", tmp_path / "b/lane")


@pytest.mark.parametrize("what", ["a link", "a link to a folder", "a pipe"])
def test_a_folder_that_holds_something_else_is_not_removed_for_kernels(cache: Path, tmp_path: Path, what: str) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    there = tmp_path / "b/lane"
    (there / "sub").mkdir(parents=True)
    (there / "sub/build.lock").write_text("")
    if what == "a pipe":
        os.mkfifo(there / "sub/mine")
    else:
        (there / "sub/mine").symlink_to(tmp_path if "folder" in what else "/etc/passwd")
    with pytest.raises(CacheError, match=r"sub/mine is .*not ours to remove"):
        jit_cache.unpack(tmp_path / "cache.tar", there)
    assert (there / "sub/mine").lstat()
    (there / "sub/mine").unlink()
    assert jit_cache.unpack(tmp_path / "cache.tar", there) == 2


def lane(**more: object) -> dict[str, object]:
    return {
        "lane_id": "x",
        "lane_image": {"digest": DIGEST, "ids": []},
        "lane_jit_caches": {"TRITON_CACHE_DIR": "triton"},
        **more,
    }


def test_another_image_or_lane_has_another_cache() -> None:
    assert lane_render.jit_cache(lane()) == "/var/lib/sparklanes/jit/7010d9cf73a9/x"
    other = lane(lane_image={"digest": None, "ids": ["sha256:" + "b" * 64]})
    assert lane_render.jit_cache(other) == "/var/lib/sparklanes/jit/bbbbbbbbbbbb/x"
    assert lane_render.jit_cache(lane(lane_jit_caches={})) == ""


SHARE = """
- hosts: sparks
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: engine_image, tasks_from: jit}
"""


@needs_root
def test_a_spark_where_nothing_ever_ran_gets_the_kernels_of_the_first_that_can_give(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "lane/triton").mkdir(parents=True)
    (tmp_path / "a/lane/triton/x").write_text("kernel")
    common = {
        "ansible_connection": "local",
        "ansible_become": True,
        "ansible_python_interpreter": sys.executable,
        "deployment": "sparks",
        "cache_directory": f"{tmp_path}/cache",
        "engine_image_jit_cache": f"{tmp_path}/{{{{ inventory_hostname }}}}/lane",
    }
    (tmp_path / "inventory.json").write_text(
        json.dumps({"all": {"children": {"sparks": {"hosts": {"a": {}, "b": {}, "c": {}}, "vars": common}}}})
    )
    (tmp_path / "play.yml").write_text(SHARE)
    # Docker is asked for a folder that is there already (b); it has no container.
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    command = ["ansible-playbook", "-vvv", "-i", str(tmp_path / "inventory.json"), str(tmp_path / "play.yml")]
    for changed in (1, 0):
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert "ansible.legacy.slurp" not in done.stdout
        assert "slurp.py" not in done.stdout
        for name in "bc":
            assert (tmp_path / name / "lane/triton/x").read_text() == "kernel"
            assert re.search(rf"^{name} .*changed={changed} ", done.stdout, re.MULTILINE)
    assert not list(tmp_path.rglob("*.tar"))
