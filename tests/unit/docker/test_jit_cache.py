from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

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


def test_a_cache_arrives_as_it_was(cache: Path, tmp_path: Path) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    there = tmp_path / "b/lane"
    there.mkdir(parents=True)
    assert jit_cache.unpack(tmp_path / "cache.tar", there) == 2
    assert sorted(str(path.relative_to(there)) for path in jit_cache.files_of(there)) == [
        "inductor/x.py",
        "triton/0a/kernel.cubin",
    ]
    assert (there / "triton/0a/kernel.cubin").read_bytes() == b"cubin"
    assert int((there / "inductor/x.py").stat().st_mtime) == int((cache / "inductor/x.py").stat().st_mtime)


def test_what_a_spark_compiled_itself_is_never_written_over(cache: Path, tmp_path: Path) -> None:
    jit_cache.pack(cache, tmp_path / "cache.tar")
    there = tmp_path / "b/lane"
    there.mkdir(parents=True)
    (there / "own").write_text("mine")
    assert jit_cache.unpack(tmp_path / "cache.tar", there) == 0
    assert [path.name for path in jit_cache.files_of(there)] == ["own"]


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


def test_a_file_that_a_compiler_renames_meanwhile_is_left_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [*jit_cache.files_of(cache), cache / "inductor/gone.py"]
    monkeypatch.setattr(jit_cache, "files_of", lambda _: iter(there))
    assert jit_cache.measure(cache)[0] == 2
    jit_cache.pack(cache, tmp_path / "cache.tar")
    with tarfile.open(tmp_path / "cache.tar") as packed:
        assert sorted(packed.getnames()) == ["inductor/x.py", "triton/0a/kernel.cubin"]


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
