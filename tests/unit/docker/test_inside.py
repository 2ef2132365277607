# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a path in a container opens: on data, on a disk, and held against the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.docker.inside import opens, strays
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REPO = "/home/u/.cache/huggingface/hub/models--a--b"
SNAPSHOT = f"{REPO}/snapshots/c"
LINKS = {
    f"{SNAPSHOT}/config.json": "../../blobs/1",
    f"{SNAPSHOT}/sub/vocab.json": "../../../blobs/2",
    "/models/x/config.json": "/mnt/nas/x/config.json",
    "/models/x/here.json": "./sub/../config2.json",
    "/models/x/up.json": "../../etc/passwd",
    "/models/x/over.json": "../../../../../../m/here.json",
    "/models/x/loop.json": "loop.json",
    "/models/x/folder": "/mnt/nas",
    "/mnt/nas/x": "y",
}
OUT = "is not shown by any mount of the container"


@pytest.mark.parametrize(
    ("mounts", "path", "where", "why"),
    [
        # A snapshot of a Hub cache alone: its links lead beside it.
        ({"/models/b": SNAPSHOT}, "/models/b/config.json", "", f"its link leads to /blobs/1, which {OUT}"),
        ({"/models/b": SNAPSHOT}, "/models/b/sub/vocab.json", "", f"its link leads to /blobs/2, which {OUT}"),
        # The repository: they stay within.
        ({"/models/b": REPO}, "/models/b/snapshots/c/config.json", f"{REPO}/blobs/1", ""),
        ({"/models/b": REPO}, "/models/b/snapshots/c/sub/vocab.json", f"{REPO}/blobs/2", ""),
        # Whatever lies there in the container is what opens.
        ({"/models/b": SNAPSHOT, "/blobs": "/srv/other"}, "/models/b/config.json", "/srv/other/1", ""),
        # An absolute link means the container's root.
        ({"/m": "/models/x"}, "/m/config.json", "", f"its link leads to /mnt/nas/x/config.json, which {OUT}"),
        ({"/m": "/models/x", "/mnt/nas": "/mnt/nas"}, "/m/config.json", "/mnt/nas/y/config.json", ""),
        ({"/m": "/models/x", "/mnt/nas": "/data"}, "/m/config.json", "/data/x/config.json", ""),
        ({"/m": "/models/x", "/mnt/nas": "/mnt/nas"}, "/m/folder/x/z", "/mnt/nas/y/z", ""),
        ({"/m": "/models/x"}, "/m/here.json", "/models/x/config2.json", ""),
        # `..` of the root is the root.
        ({"/m": "/models/x"}, "/m/over.json", "/models/x/config2.json", ""),
        ({"/m": "/models/x"}, "/m/up.json", "", f"its link leads to /etc/passwd, which {OUT}"),
        ({"/m": "/models/x"}, "/m/loop.json", "", "its links go round in circles"),
        ({"/m": "/models/x"}, "/m/plain", "/models/x/plain", ""),
        ({"/m/": "/models/x/"}, "/m//./plain", "/models/x/plain", ""),
        ({"/m": "/models/x"}, "/n/plain", "", f"it {OUT}"),
        ({"/a/b": "/models/x"}, "/a", "", "it is no file of a mount"),
        # What is mounted deeper covers what lies there.
        ({"/m": "/models/x", "/m/sub": "/srv/sub"}, "/m/sub/plain", "/srv/sub/plain", ""),
        ({"/m": "/models/x", "/m/config.json": "/srv/patched"}, "/m/config.json", "/srv/patched", ""),
        ({"/": "/srv"}, "/plain", "/srv/plain", ""),
    ],
)
def test_what_a_path_opens(mounts: dict[str, str], path: str, where: str, why: str) -> None:
    found = opens(mounts, path, LINKS.get)
    assert (found.path, found.why) == (where, why)


def test_a_file_counts_only_where_it_is_the_one_that_was_verified(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    for path in (folder / "sub", elsewhere):
        path.mkdir(parents=True)
    for path in (folder / "plain", folder / "sub/plain", elsewhere / "a", elsewhere / "plain"):
        path.write_text(str(path))
    (folder / "relative").symlink_to("../elsewhere/a")
    (folder / "absolute").symlink_to(elsewhere / "a")
    (folder / "within").symlink_to("sub/plain")
    (folder / "dangling").symlink_to("nowhere")
    names = ["plain", "sub/plain", "relative", "absolute", "within", "dangling", "absent"]
    alone = [{"source": str(folder), "target": "/models/m"}]
    assert strays(alone, str(folder), "/models/m", names) == {
        "relative": "its link leads to /models/elsewhere/a, which is not shown by any mount of the container",
        "absolute": f"its link leads to {elsewhere}/a, which is not shown by any mount of the container",
    }
    both = [*alone, {"source": str(elsewhere), "target": "/models/elsewhere"}, {"source": str(tmp_path), "target": str(tmp_path)}]
    assert strays(both, str(folder), "/models/m", names) == {}
    # Something lies there, but it is another file; and something that should be there is not.
    other = [
        *alone,
        {"source": str(folder / "sub"), "target": "/models/elsewhere"},
        {"source": str(folder), "target": str(elsewhere)},
    ]
    assert strays(other, str(folder), "/models/m", names) == {
        "relative": f"{folder}/sub/a is not there",
        "absolute": f"{folder}/a is not there",
    }
    (folder / "sub/a").write_text("another")
    assert strays(other, str(folder), "/models/m", ["relative"]) == {
        "relative": f"the container opens {folder}/sub/a, another file"
    }
    # What is mounted may itself be a link: Docker takes what it leads to.
    (tmp_path / "link").symlink_to(folder)
    assert strays([{"source": str(tmp_path / "link"), "target": "/m"}], str(tmp_path / "link"), "/m", ["plain"]) == {}
    assert strays([], str(folder), "/m", ["plain"]) == {"plain": "it is not shown by any mount of the container"}


NAMES = st.sampled_from("abcd")
# `..` comes first in each, so that it is never one of a file.
TEXTS = st.builds(
    lambda start, words: (start + "/".join(words)).rstrip("/") or "/",
    st.sampled_from(["", "/", "../", "../../", "./", "../../../../"]),
    st.lists(NAMES, max_size=3),
).filter(bool)
OPENAT2, IN_ROOT = 437, 0x10


class How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


def kernel(root: str, path: str) -> tuple[int, int] | None:
    """What the kernel opens for somebody whose root is this folder."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    base = os.open(root, os.O_PATH | os.O_DIRECTORY)
    how = How(os.O_PATH, 0, IN_ROOT)
    try:
        handle = call(OPENAT2, base, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if handle < 0:
            return None
        stat = os.fstat(handle)
        os.close(handle)
        return stat.st_dev, stat.st_ino
    finally:
        os.close(base)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.one_of(st.none(), TEXTS), max_size=8), st.data())
def test_the_kernel_says_the_same(tree: dict[tuple[str, ...], str | None], data: st.DataObject) -> None:
    """A tree of files and links below a root of its own, against openat2(2) with RESOLVE_IN_ROOT."""
    with tempfile.TemporaryDirectory() as root:
        for words, text in sorted(tree.items()):
            path = Path(root, *words)
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                if text is None:
                    path.write_text("")
                else:
                    path.symlink_to(text)
        path = "/" + "/".join(data.draw(st.lists(NAMES, min_size=1, max_size=4)))

        def readlink(place: str) -> str | None:
            try:
                return str(Path(place).readlink())
            except OSError:
                return None

        found = opens({"/": root}, path, readlink).path
        ours = None
        if found:
            with contextlib.suppress(OSError):
                stat = Path(found).lstat()
                ours = (stat.st_dev, stat.st_ino)
        assert ours == kernel(root, path)
