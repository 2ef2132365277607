"""What was there before us is noted before it is changed, never overwritten, and given back unless somebody else was there since."""

from __future__ import annotations

import ast
import contextlib
import json
import threading
from pathlib import Path

import host_edits_info
import pytest
from ansible.module_utils.sparklanes.host import ledger as host_ledger
from ansible.module_utils.sparklanes.host.ledger import Ledger, LedgerError
from ansible.module_utils.sparklanes.host.restore import restore
from ansible.module_utils.sparklanes.host.tree import Entry, Tree
from conftest import ROOT, RunModule
from hypothesis import given
from hypothesis import strategies as st

TABLE = b"UUID=1 / ext4 defaults 0 1\n"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Tree(tmp_path), "page_cache_unit")


def write(ledger: Ledger, path: str, content: bytes, mode: int = 0o644) -> None:
    ledger.file(path, Entry("file", f"{mode:04o}", content=content), lambda: ledger.tree.write(path, content, mode))


def drop(ledger: Ledger, path: str) -> None:
    ledger.file(path, None, lambda: ledger.tree.remove(path))


def files(ledger: Ledger) -> dict[str, bytes]:
    root = ledger.tree.root
    return {
        f"/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    }


def book(ledger: Ledger) -> Path:
    return ledger.tree.at(host_ledger.LEDGER)


def test_a_file_that_was_not_there_goes(ledger: Ledger) -> None:
    write(ledger, "/etc/sparklanes/a.json", b"1")
    write(ledger, "/etc/sparklanes/a.json", b"2")
    (record,) = ledger.load().values()
    assert (record.by, record.before, record.foreign) == ("page_cache_unit", {"kind": "absent"}, False)
    assert (book(ledger).stat().st_mode & 0o777, book(ledger).parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert restore(ledger, "file", "/etc/sparklanes/a.json").done
    assert files(ledger) == {}, "nothing to give back, nothing to keep"
    assert "not in the ledger" in restore(ledger, "file", "/etc/sparklanes/a.json").sentence


def test_a_file_of_somebody_comes_back_whole(ledger: Ledger) -> None:
    ledger.tree.write("/etc/fstab", TABLE, 0o640)
    before = files(ledger)
    write(ledger, "/etc/fstab", b"ours", 0o644)
    write(ledger, "/etc/fstab", b"ours, later", 0o644)
    (copy,) = ledger.copies()
    kept = ledger.tree.at(f"{host_ledger.COPIES}/{copy}")
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (TABLE, 0o600)
    assert restore(ledger, "file", "/etc/fstab").sentence == "/etc/fstab is again as it was before sparklanes"
    assert files(ledger) == before
    assert ledger.tree.at("/etc/fstab").stat().st_mode & 0o777 == 0o640


def test_a_file_that_we_removed_and_a_link_that_we_replaced_come_back(ledger: Ledger) -> None:
    ledger.tree.write("/etc/old", TABLE)
    ledger.tree.link("/etc/link", "old")
    drop(ledger, "/etc/old")
    write(ledger, "/etc/link", b"a file")
    assert restore(ledger, "file", "/etc/link").done
    assert restore(ledger, "file", "/etc/old").done
    assert (ledger.tree.at("/etc/link").readlink(), ledger.tree.read("/etc/link")) == (Path("old"), TABLE)


def test_a_module_that_takes_its_own_edit_back_leaves_no_record(ledger: Ledger) -> None:
    ledger.tree.write("/etc/fstab", TABLE)
    before = files(ledger)
    write(ledger, "/etc/fstab", b"ours")
    write(ledger, "/etc/sparklanes/x", b"ours")
    write(ledger, "/etc/fstab", TABLE)
    drop(ledger, "/etc/sparklanes/x")
    assert files(ledger) == before


def test_what_another_program_made_of_our_wish_is_ours_too(ledger: Ledger) -> None:
    path = "/etc/systemd/system/multi-user.target.wants/x.service"
    ledger.file(path, Entry("link", target="/etc/systemd/system/x.service"), lambda: ledger.tree.link(path, "../x.service"))
    assert restore(ledger, "file", path).done
    assert not ledger.tree.there(path)


@pytest.mark.parametrize("theirs", [b"an admin's", None])
def test_what_somebody_else_changed_since_is_named_and_stays(ledger: Ledger, theirs: bytes | None) -> None:
    ledger.tree.write("/etc/fstab", TABLE)
    write(ledger, "/etc/fstab", b"ours")
    if theirs is None:
        ledger.tree.remove("/etc/fstab")
    else:
        ledger.tree.write("/etc/fstab", theirs)
    said = restore(ledger, "file", "/etc/fstab")
    assert not said.done
    assert "was changed by somebody else after page_cache_unit did, so it stays as it is" in said.sentence
    (copy,) = ledger.copies()
    assert copy in said.sentence
    assert ledger.tree.read("/etc/fstab") == theirs
    assert ledger.load()["file /etc/fstab"], "it is known until it is as before"


def test_an_edit_of_somebody_between_two_of_ours_is_not_undone_with_ours(ledger: Ledger) -> None:
    ledger.tree.write("/etc/fstab", TABLE)
    write(ledger, "/etc/fstab", TABLE + b"ours\n")
    ledger.tree.write("/etc/fstab", TABLE + b"ours\nan admin's\n")
    write(ledger, "/etc/fstab", TABLE + b"ours, later\nan admin's\n")
    assert not restore(ledger, "file", "/etc/fstab").done
    assert b"an admin's" in (ledger.tree.read("/etc/fstab") or b"")


def test_a_file_that_somebody_put_in_place_of_ours_is_what_was_before(ledger: Ledger) -> None:
    write(ledger, "/etc/netplan/40.yaml", b"# Written by sparklanes\n")
    ledger.tree.write("/etc/netplan/40.yaml", b"an admin's")
    write(ledger, "/etc/netplan/40.yaml", b"# Written by sparklanes\n")
    assert restore(ledger, "file", "/etc/netplan/40.yaml").done
    assert ledger.tree.read("/etc/netplan/40.yaml") == b"an admin's"


@pytest.mark.parametrize(
    ("path", "content"),
    [("/etc/systemd/system/sparklanes-x.service", b"old"), ("/etc/sysctl.d/99-site.conf", b"# Kept by sparklanes (role x)\n")],
)
def test_what_a_version_without_a_ledger_laid_down_is_ours(ledger: Ledger, path: str, content: bytes) -> None:
    ledger.tree.write(path, content)
    write(ledger, path, b"new")
    assert restore(ledger, "file", path).done
    assert ledger.tree.read(path) is None


@pytest.mark.parametrize("path", ["/run/sparklanes/x", "/var/lib/sparklanes/x"])
def test_what_passes_by_itself_is_not_noted(ledger: Ledger, path: str) -> None:
    write(ledger, path, b"1")
    assert ledger.load() == {}


def test_a_write_that_failed_leaves_no_record_and_one_that_was_cut_off_can_be_given_back(ledger: Ledger) -> None:
    def cut_off() -> None:
        raise OSError(28, "No space left on device")

    ledger.tree.write("/etc/fstab", TABLE)
    before = files(ledger)
    with pytest.raises(OSError, match="No space left"):
        ledger.file("/etc/fstab", Entry("file", "0644", content=b"ours"), cut_off)
    assert files(ledger) == before
    write(ledger, "/etc/fstab", b"ours")
    ledger.tree.write("/etc/fstab", TABLE)  # as a power cut between noting and writing leaves it
    said = restore(ledger, "file", "/etc/fstab")
    assert (said.done, said.sentence) == (False, "/etc/fstab is as it was before sparklanes")
    assert files(ledger) == before


def test_a_copy_that_is_gone_or_was_changed_is_never_written_back(ledger: Ledger) -> None:
    ledger.tree.write("/etc/fstab", TABLE)
    write(ledger, "/etc/fstab", b"ours")
    (copy,) = ledger.copies()
    ledger.tree.write(f"{host_ledger.COPIES}/{copy}", b"another")
    assert "is gone or was changed" in restore(ledger, "file", "/etc/fstab").sentence
    assert ledger.tree.read("/etc/fstab") == b"ours"


def test_settings_keep_the_value_of_before_us(ledger: Ledger) -> None:
    ledger.tree.write("/proc/sys/vm/swappiness", b"60\n")
    for old, new in (("60", "10"), ("10", "0")):
        ledger.change("sysctl", ["vm.swappiness"], old, new)
        ledger.tree.write("/proc/sys/vm/swappiness", f"{new}\n".encode())
    assert ledger.before("sysctl", "vm.swappiness") == "60"
    ledger.tree.write("/proc/sys/vm/swappiness", b"33\n")
    assert "changed by somebody else" in restore(ledger, "sysctl", "vm.swappiness").sentence
    ledger.tree.write("/proc/sys/vm/swappiness", b"0\n")
    assert restore(ledger, "sysctl", "vm.swappiness").done
    assert ledger.tree.read("/proc/sys/vm/swappiness") == b"60\n"
    assert ledger.load() == {}


def test_what_is_no_file_is_given_back_by_its_role(ledger: Ledger) -> None:
    ledger.change("state", ["hold nvidia-driver"], "install", "hold", "role spark_survival, spark_survival_hold: absent")
    assert "spark_survival_hold: absent" in restore(ledger, "state", "hold nvidia-driver").sentence
    assert ledger.names("state", "hold ") == ["hold nvidia-driver"]


RECORD = {"kind": "sysctl", "name": "vm.swappiness", "before": "60", "after": "10", "by": "x", "at": "2026-01-01T00:00:00Z"}
HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ('{"schema": 1, "rec', "is no JSON"),
        ("[]", "has schema None"),
        ("{}", "has schema None"),
        ('{"schema": 1}', "no list of records"),
        ('{"schema": "1", "records": []}', "has schema '1'"),
        ('{"schema": 2, "records": []}', "written by a newer sparklanes"),
        (json.dumps({"schema": 1, "records": [3]}), "of another shape"),
        (json.dumps({"schema": 1, "records": [{**RECORD, "more": 1}]}), "of another shape"),
        (json.dumps({"schema": 1, "records": [RECORD, RECORD]}), "stands twice"),
        (json.dumps({"schema": 1, "records": [{**RECORD, "kind": "other"}]}), "expected one of file"),
        (json.dumps({"schema": 1, "records": [{**RECORD, "before": 60}]}), "no texts"),
        (json.dumps({"schema": 1, "records": [{**RECORD, "kind": "file"}]}), "what was there"),
        (
            json.dumps(
                {"schema": 1, "records": [{**RECORD, "kind": "file", "before": {"kind": "file"}, "after": {"kind": "absent"}}]}
            ),
            "hash, mode or owner",
        ),
        (
            json.dumps(
                {
                    "schema": 1,
                    "records": [
                        {**RECORD, "kind": "file", "name": "etc", "before": {"kind": "absent"}, "after": {"kind": "absent"}}
                    ],
                }
            ),
            "not absolute",
        ),
        ("\ud800", "can't decode"),
    ],
)
def test_a_ledger_that_can_not_be_read_is_no_empty_one(ledger: Ledger, text: str, words: str, run_module: RunModule) -> None:
    ledger.tree.write(host_ledger.LEDGER, text.encode("utf-8", "surrogatepass"))
    before = files(ledger)
    for use in (ledger.load, lambda: write(ledger, "/etc/sparklanes/x", b"1"), lambda: restore(ledger, "file", "/etc/x")):
        with pytest.raises(LedgerError, match="Nothing was changed") as told:
            use()
        assert words in str(told.value)
    said = run_module(host_edits_info, {"root": str(ledger.tree.root)})
    assert said["failed"]
    assert words in said["msg"]
    assert files(ledger) == before


def test_half_a_write_aside_is_nothing(ledger: Ledger) -> None:
    write(ledger, "/etc/sparklanes/x", b"1")
    book(ledger).with_name(".ledger.json.0a0b0c").write_text('{"schema": 1, "rec')
    assert list(ledger.load()) == ["file /etc/sparklanes/x"]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(LedgerError):
        assert host_ledger.parse(text) == {}


def test_many_modules_at_once_lose_no_record(ledger: Ledger) -> None:
    def work(number: int) -> None:
        own = Ledger(Tree(ledger.tree.root), f"module{number}")
        for step in range(5):
            write(own, f"/etc/sparklanes/{number}-{step}", b"1")
            own.change("sysctl", [f"vm.x{number}{step}"], "1", "2")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.load()) == 40


def test_who_waits_too_long_for_the_lock_says_so(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ledger, "LOCK_SECONDS", 0.0)
    with ledger.open(), pytest.raises(LedgerError, match="Another run holds"):
        write(Ledger(Tree(ledger.tree.root), "other"), "/etc/sparklanes/x", b"1")
    assert ledger.tree.read("/etc/sparklanes/x") is None


def test_the_ledger_has_an_end(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ledger, "MOST_RECORDS", 1)
    monkeypatch.setattr(host_ledger, "LARGEST_COPY", 8)
    write(ledger, "/etc/sparklanes/a", b"1")
    with pytest.raises(LedgerError, match="all it takes"):
        write(ledger, "/etc/sparklanes/b", b"1")
    monkeypatch.setattr(host_ledger, "MOST_RECORDS", 9)
    ledger.tree.write("/etc/fstab", TABLE)
    with pytest.raises(LedgerError, match="it was not changed"):
        write(ledger, "/etc/fstab", b"ours")
    assert (ledger.tree.read("/etc/sparklanes/b"), ledger.tree.read("/etc/fstab")) == (None, TABLE)


def test_what_was_known_before_there_was_a_ledger_is_adopted_once(ledger: Ledger) -> None:
    ledger.tree.write("/etc/netplan/40.yaml", b"# Written by sparklanes\n")
    ledger.adopt("/etc/netplan/40.yaml", b"an admin's", 0o600)
    ledger.adopt("/etc/netplan/40.yaml", b"something later", 0o600)
    assert restore(ledger, "file", "/etc/netplan/40.yaml").done
    assert ledger.tree.read("/etc/netplan/40.yaml") == b"an admin's"


def test_nothing_is_begun_for_what_was_never_ours(ledger: Ledger) -> None:
    ledger.forget("state", ["hold x"])
    ledger.forget("state", [])
    assert list(ledger.tree.root.iterdir()) == []


def test_the_module_tells_what_stands_there(ledger: Ledger, run_module: RunModule) -> None:
    args = {"root": str(ledger.tree.root)}
    said = run_module(host_edits_info, args)
    assert (said["changed"], said["edits"], said["changed_since"]) == (False, [], [])
    ledger.tree.write("/proc/sys/vm/swappiness", b"10\n")
    write(ledger, "/etc/sparklanes/a", b"1")
    ledger.tree.write("/etc/fstab", TABLE)
    write(ledger, "/etc/fstab", b"ours")
    ledger.tree.write("/etc/fstab", b"theirs")
    ledger.change("sysctl", ["vm.swappiness"], "60", "10")
    ledger.change("state", ["hold x"], "install", "hold", "undo")
    said = run_module(host_edits_info, args)
    assert {edit["name"]: edit["standing"] for edit in said["edits"]} == {
        "/etc/fstab": "changed",
        "/etc/sparklanes/a": "ours",
        "hold x": "unknown",
        "vm.swappiness": "ours",
    }
    (sentence,) = said["changed_since"]
    assert sentence.startswith("/etc/fstab was changed by somebody else after page_cache_unit did (20")


def edits_of(module: Path) -> list[ast.ClassDef]:
    """The classes of a module that edit a host."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "HostEdits" in map(ast.unparse, node.bases)]


def test_every_module_that_edits_a_host_says_its_name() -> None:
    found = {module.stem: edits_of(module) for module in (ROOT / "library").glob("*.py")}
    named = {
        stem: ast.unparse(line.value)
        for stem, classes in found.items()
        for one in classes
        for line in one.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "by"
    }
    assert named == {stem: repr(stem) for stem, classes in found.items() if classes}
    assert len(named) >= 7
