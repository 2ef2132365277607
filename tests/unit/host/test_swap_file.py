"""A swap file comes whole or not at all, only ours goes, and never under what serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import swap_file
from ansible.module_utils.sparklanes.common import commands, disk
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.gpu.occupied import Seen
from ansible.module_utils.sparklanes.host import survival, swap
from conftest import RunModule
from hypothesis import given
from hypothesis import strategies as st
from test_sysctl import lay


class Host:
    """A stand-in for mkswap, swapon and swapoff, below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: set[str] = set()
        self.holder = ""

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[0] in self.broken:
            return 1, "", "broken"
        swaps = self.root / "proc/swaps"
        if argv[0] == "swapon":
            swaps.write_text(swaps.read_text() + f"/{Path(argv[1]).relative_to(self.root)} file {1024**2} 0 -3\n")
        if argv[0] == "swapoff":
            swaps.write_text("".join(line for line in swaps.read_text().splitlines(True) if argv[1] not in line))
        return 0, "", ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    lay(tmp_path, {"/proc/swaps": "Filename Type Size Used Priority\n", "/etc/fstab": "UUID=1 / ext4 defaults 0 1"})
    made = Host(tmp_path)
    monkeypatch.setattr(commands, "run", made.run)
    monkeypatch.setattr(swap_file.occupied, "look", lambda: Seen(unknown=made.holder))
    return made


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def wish(host: Host, state: str, **more: Any) -> dict[str, Any]:
    return {"state": state, "gib": 1, "path": "/swap.img", "root": str(host.root), **more}


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _path: 100 * GIB)
    monkeypatch.setattr(swap_file.os, "posix_fallocate", lambda *_: None)


@pytest.mark.usefixtures("roomy")
def test_swap_is_made_once_and_removed_whole(host: Host, run_module: RunModule) -> None:
    before = tree(host.root)
    first = run_module(swap_file, wish(host, "present"))
    assert first["ours"] == ["/swap.img"]
    assert (host.root / "etc/fstab").read_text() == "UUID=1 / ext4 defaults 0 1\n/swap.img none swap sw,nofail 0 0\n"
    assert (host.root / "swap.img").stat().st_mode & 0o777 == 0o600
    assert not run_module(swap_file, wish(host, "present"))["changed"]
    host.holder = "python3 (pid 7) holds the GPU"
    assert "can end it (python3 (pid 7) holds the GPU)" in run_module(swap_file, wish(host, "absent"))["waiting"][0]
    assert (host.root / "swap.img").exists()
    host.holder = ""
    assert run_module(swap_file, wish(host, "absent"))["changed"]
    assert {**tree(host.root), "etc/fstab": ""} == {**before, "etc/fstab": ""}
    assert not run_module(swap_file, wish(host, "absent"))["changed"]


@pytest.mark.usefixtures("roomy")
def test_a_file_system_that_holds_no_swap_keeps_no_file(host: Host, run_module: RunModule) -> None:
    host.broken.add("swapon")
    assert "not every file system" in run_module(swap_file, wish(host, "present"))["msg"]
    assert not (host.root / "swap.img").exists()
    assert "swap.img" not in (host.root / "etc/fstab").read_text()


@pytest.mark.usefixtures("roomy")
def test_a_file_that_could_not_be_filled_is_not_left(host: Host, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(swap_file.os, "posix_fallocate", full)
    before = tree(host.root)
    assert "No space left" in run_module(swap_file, wish(host, "present"))["msg"]
    assert tree(host.root) == before, "the next run begins as this one did"


@pytest.mark.usefixtures("roomy")
def test_a_file_that_came_meanwhile_is_somebody_elses(host: Host, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, before = host.root / "swap.img", swap_file.SwapFile.fill

    def late(edits: swap_file.SwapFile, size: int) -> str:
        theirs.write_text("theirs")
        return before(edits, size)

    monkeypatch.setattr(swap_file.SwapFile, "fill", late)
    failed = run_module(swap_file, wish(host, "present"))
    assert "File exists" in failed["msg"]
    assert "removed again" not in failed["msg"]
    assert theirs.read_text() == "theirs"
    run_module(swap_file, wish(host, "absent"))
    assert theirs.read_text() == "theirs", "the ledger does not call it ours"


@pytest.mark.usefixtures("roomy")
def test_a_run_that_was_cut_off_can_be_undone(host: Host, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(swap_file.os, "posix_fallocate", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run_module(swap_file, wish(host, "present"))
    assert (host.root / "swap.img").exists()
    assert run_module(swap_file, wish(host, "absent"))["changed"]
    assert not (host.root / "swap.img").exists()


@pytest.mark.usefixtures("roomy")
def test_a_table_that_would_lose_bytes_is_left_alone(host: Host, run_module: RunModule) -> None:
    (host.root / "etc/fstab").write_bytes(b"//server/\xfcber /mnt cifs defaults 0 0\n")
    assert "by hand" in run_module(swap_file, wish(host, "present"))["msg"]
    assert not (host.root / "swap.img").exists()


def test_swap_that_is_there_is_enough_and_never_ours(host: Host, run_module: RunModule) -> None:
    (host.root / "proc/swaps").write_text("Filename Type Size Used Priority\n/swap.img\tfile\t16777212\t0\t-2\n")
    assert not run_module(swap_file, wish(host, "present", gib=16))["changed"]
    assert not run_module(swap_file, wish(host, "absent"))["changed"]


@pytest.mark.usefixtures("roomy")
def test_check_mode_says_it_and_makes_nothing(host: Host, run_module: RunModule) -> None:
    before = tree(host.root)
    said = run_module(swap_file, wish(host, "present"), check=True, diff=True)
    assert said["actions"] == ["Make /swap.img of 1.0 GiB and turn it on as swap", "Write /etc/fstab"]
    assert "/swap.img none swap" in said["diff"]["after"]
    assert tree(host.root) == before
    run_module(swap_file, wish(host, "present"))
    there = tree(host.root)
    said = run_module(swap_file, wish(host, "absent"), check=True)
    assert said["actions"] == ["Turn /swap.img off", "Write /etc/fstab", "Remove /swap.img"]
    assert tree(host.root) == there


@pytest.mark.usefixtures("roomy")
def test_a_folder_that_somebody_chose_by_a_link_gets_no_file(host: Host, run_module: RunModule) -> None:
    shared = host.root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to("../etc")
    before = tree(host.root)
    assert "others than root may write to" in run_module(swap_file, wish(host, "present", path="/shared/link/swap.img"))["msg"]
    assert tree(host.root) == before


def test_a_file_that_is_larger_than_any_configuration_is_removed_all_the_same(host: Host, run_module: RunModule) -> None:
    known = {"held": [], "linger": [], "journal_folder": False, "swap": "/swap.img"}  # of version 0.1
    lay(host.root, {survival.OLD_MEMORY: json.dumps(known), "/etc/fstab": f"{swap.fstab_line('/swap.img')}\n"})
    with (host.root / "swap.img").open("wb") as stream:
        stream.truncate(GIB)
    assert run_module(swap_file, wish(host, "absent"))["changed"]
    assert {path: text for path, text in tree(host.root).items() if path != "proc/swaps"} == {"etc/fstab": ""}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"gib": 0}, "gib: found 0"),
        ({"gib": "nan"}, "gib: found nan"),
        ({"path": "swap"}, "path: found"),
        ({"path": "/dev/nvme0n1"}, "path: found"),
        ({"path": "/a b"}, "path: found"),
        ({"path": "/var/../etc/x"}, "path: found"),
        ({"gib": 200}, "to spare"),
    ],
)
def test_wrong_wishes_change_nothing(
    host: Host, run_module: RunModule, args: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _path: 50 * GIB)
    before = tree(host.root)
    failed = run_module(swap_file, wish(host, "present", **args))
    assert failed["failed"]
    assert text in failed["msg"]
    assert tree(host.root) == before


@given(st.text())
def test_parsers_take_anything(text: str) -> None:
    assert all(one.size >= 0 for one in swap.parse_swaps(text))
    assert swap.fstab_without(swap.fstab_with("", "/s"), "/s") == ""
    assert swap.fstab_without(text, "/no such file") == text
