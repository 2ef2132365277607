from __future__ import annotations

from pathlib import Path
from typing import Any

import kernel_settings
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import ledger, sysctl
from conftest import RunModule
from test_sysctl import OURS, lay

STAGED = "/etc/sparklanes/staged/99-zz-sparklanes.conf"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay(tmp_path, {"/proc/sys/vm/swappiness": "60\n", "/usr/lib/sysctl.d/50-vendor.conf": "vm.swappiness = 60\n"})


@pytest.fixture(autouse=True)
def logind(monkeypatch: pytest.MonkeyPatch, root: Path) -> dict[str, Any]:
    """A stand-in for systemctl and busctl: logind answers from the files it last read."""
    state: dict[str, Any] = {"running": True, "says": "true", "deaf": False}

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "is-active"]:
            return (0 if state["running"] else 3), "", ""
        if argv[:2] == ["systemctl", "kill"] and not state["deaf"]:
            state["says"] = "false" if (root / kernel_settings.IPC_DROP_IN.lstrip("/")).exists() else "true"
        return 0, f"b {state['says']}\n", ""

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(kernel_settings.time, "sleep", lambda _: None)
    return state


def swappiness(root: Path) -> str:
    return (root / "proc/sys/vm/swappiness").read_text().strip()


def ask(root: Path, value: object = 10, **more: Any) -> dict[str, Any]:
    return {"settings": {} if value is None else {"vm.swappiness": value}, "watch": ["vm.swappiness"], "root": str(root), **more}


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_sets_live_and_file_and_then_changes_nothing(run_module: RunModule, root: Path) -> None:
    first = run_module(kernel_settings, ask(root), diff=True)
    assert first["changed"]
    assert swappiness(root) == "10"
    assert first["live"] == {"vm.swappiness": "10"}
    assert first["file"]["settings"] == {"vm.swappiness": "10"}
    assert first["effective"]["vm.swappiness"] == {"systemd-sysctl": "10", "sysctl --system": "10"}
    assert first["winner"]["vm.swappiness"]["systemd-sysctl"] == OURS
    assert "vm.swappiness = 60 (live)" in first["diff"]["before"]
    assert (root / OURS.lstrip("/")).stat().st_mode & 0o777 == 0o644
    assert not run_module(kernel_settings, ask(root))["changed"]


def test_a_value_lost_at_reboot_is_set_again(run_module: RunModule, root: Path) -> None:
    run_module(kernel_settings, ask(root))
    (root / "proc/sys/vm/swappiness").write_text("60\n")
    again = run_module(kernel_settings, ask(root))
    assert again["actions"] == ["Set vm.swappiness from 60 to 10 in the running kernel"]
    assert swappiness(root) == "10"


def test_check_mode_on_a_virgin_node_says_all_and_touches_nothing(run_module: RunModule, root: Path) -> None:
    before = tree(root)
    result = run_module(kernel_settings, ask(root, remove_ipc="no"), check=True, diff=True)
    assert result["changed"]
    assert result["actions"] == [
        "Set vm.swappiness from 60 to 10 in the running kernel",
        f"Write {OURS}",
        f"Write {kernel_settings.IPC_DROP_IN}",
    ]
    assert "vm.swappiness = 10" in result["diff"]["after"]
    assert tree(root) == before


@pytest.mark.parametrize("later", ["/etc/sysctl.d/99-zzz.conf", "/etc/sysctl.conf"])
def test_a_file_that_would_win_is_named_before_anything_changes(run_module: RunModule, root: Path, later: str) -> None:
    lay(root, {later: "vm.swappiness = 1\n"})
    before = tree(root)
    for check in (True, False):
        result = run_module(kernel_settings, ask(root), check=check)
        assert result["failed"]
        assert f"{later} sets 1 after {OURS}" in result["msg"]
        assert "Remove that line" in result["msg"]
    assert tree(root) == before


def test_while_another_lane_serves_only_a_file_nobody_reads_is_written(run_module: RunModule, root: Path) -> None:
    run_module(kernel_settings, ask(root, 10))
    live = tree(root)
    noted = ledger.LEDGER.lstrip("/")
    result = run_module(kernel_settings, ask(root, 0, live=False))
    assert result["changed"]
    assert swappiness(root) == "10"
    assert result["effective"]["vm.swappiness"]["systemd-sysctl"] == "10"
    assert {**tree(root), noted: ""} == {**live, noted: "", STAGED.lstrip("/"): result["diff"]["after"].partition("\n")[2]}
    assert result["staged"] == STAGED
    assert not run_module(kernel_settings, ask(root, 0, live=False))["changed"]
    applied = run_module(kernel_settings, ask(root, 0))
    assert swappiness(root) == "0"
    assert applied["staged"] == ""
    assert not run_module(kernel_settings, ask(root, 0))["changed"]


def test_staging_what_is_live_already_leaves_nothing_waiting(run_module: RunModule, root: Path) -> None:
    run_module(kernel_settings, ask(root, 10))
    run_module(kernel_settings, ask(root, 0, live=False))
    back = run_module(kernel_settings, ask(root, 10, live=False))
    assert back["staged"] == ""
    assert not run_module(kernel_settings, ask(root, 10, live=False))["changed"]


def test_nothing_asked_leaves_it_alone_and_says_who_set_it(run_module: RunModule, root: Path) -> None:
    before = tree(root)
    result = run_module(kernel_settings, ask(root, None))
    assert not result["changed"]
    assert result["actions"] == [
        "vm.swappiness left alone, as nothing asks for a value: live 60, set by /usr/lib/sysctl.d/50-vendor.conf"
    ]
    assert tree(root) == before


def test_removal_goes_back_to_what_the_remaining_files_say(run_module: RunModule, root: Path) -> None:
    run_module(kernel_settings, ask(root, 10))
    assert run_module(kernel_settings, ask(root, None, state="absent", live=False))["changed"] is False
    assert swappiness(root) == "10"
    result = run_module(kernel_settings, ask(root, None, state="absent"))
    assert result["changed"]
    assert swappiness(root) == "60"
    assert result["file"]["settings"] is None
    assert not run_module(kernel_settings, ask(root, None, state="absent"))["changed"]


def test_removal_without_another_file_goes_back_to_what_was_before_us(run_module: RunModule, root: Path) -> None:
    (root / "usr/lib/sysctl.d/50-vendor.conf").unlink()
    before = tree(root)
    run_module(kernel_settings, ask(root, 10))
    run_module(kernel_settings, ask(root, 0))  # another lane of ours is no "before us"
    assert run_module(kernel_settings, ask(root, None, state="absent"))["changed"]
    assert tree(root) == before
    assert not run_module(kernel_settings, ask(root, None, state="absent"))["changed"]


def test_where_nobody_knows_what_was_before_us_it_is_said(run_module: RunModule, root: Path) -> None:
    (root / "usr/lib/sysctl.d/50-vendor.conf").unlink()
    run_module(kernel_settings, ask(root, 10))
    (root / ledger.LEDGER.lstrip("/")).unlink()
    result = run_module(kernel_settings, ask(root, None, state="absent"))
    assert "vm.swappiness stays 10 until the next reboot: no remaining file sets it" in result["actions"]


def test_what_version_0_1_kept_is_adopted(run_module: RunModule, root: Path) -> None:
    lay(
        root,
        {
            "/usr/lib/sysctl.d/50-vendor.conf": "",
            "/proc/sys/vm/swappiness": "10\n",
            OURS: sysctl.render({"vm.swappiness": "10"}, kernel_settings.COMMENT),
            kernel_settings.OLD_MEMORY: '{\n  "vm.swappiness": "60"\n}\n',
        },
    )
    before = tree(root)
    assert not run_module(kernel_settings, ask(root, 10), check=True)["changed"]
    assert tree(root) == before
    assert not run_module(kernel_settings, ask(root, 10))["changed"]
    assert not (root / kernel_settings.OLD_MEMORY.lstrip("/")).exists()
    assert run_module(kernel_settings, ask(root, None, state="absent"))["changed"]
    assert swappiness(root) == "60"


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_memory_that_can_not_be_read_is_no_empty_one(run_module: RunModule, root: Path, text: str) -> None:
    lay(root, {kernel_settings.OLD_MEMORY: text})
    assert "Mend it, or move it aside" in run_module(kernel_settings, ask(root))["msg"]
    assert swappiness(root) == "60"


def test_an_unreadable_ledger_ends_the_run_before_it_begins(run_module: RunModule, root: Path) -> None:
    lay(root, {ledger.LEDGER: "{"})
    before = tree(root)
    for check in (True, False):
        assert "is no JSON" in run_module(kernel_settings, ask(root), check=check)["msg"]
    assert tree(root) == before


def test_a_setting_that_is_asked_no_more_goes_back(run_module: RunModule, root: Path) -> None:
    lay(root, {"/proc/sys/vm/min_free_kbytes": "67584\n"})
    both = {"vm.swappiness": 10, "vm.min_free_kbytes": 1048576}
    run_module(kernel_settings, {"settings": both, "root": str(root)})
    assert (root / "proc/sys/vm/min_free_kbytes").read_text().strip() == "1048576"
    said = run_module(kernel_settings, ask(root, 10), check=True)
    assert "Set vm.min_free_kbytes from 1048576 to 67584 in the running kernel" in said["actions"]
    run_module(kernel_settings, ask(root, 10))
    assert (root / "proc/sys/vm/min_free_kbytes").read_text().strip() == "67584"
    assert swappiness(root) == "10"
    assert not run_module(kernel_settings, ask(root, 10))["changed"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"settings": {"vm.swappines": 10}}, "no such setting"),
        ({"settings": {"vm.swappiness": 300}}, "from 0 to 200"),
        ({"settings": {"vm.swappiness": "\N{SUPERSCRIPT TWO}"}}, "plain ASCII"),
        ({"settings": {"vm.swappiness": "\N{ARABIC-INDIC DIGIT ONE}"}}, "plain ASCII"),
        ({"settings": {"vm/../../../etc/sysctl.conf": "1"}}, "no name below /proc/sys"),
        ({"settings": {"vm.swappiness": None}}, "has no value"),
        ({"settings": {"vm.swappiness": 1}, "name": "../evil.conf"}, "plain file name"),
        ({"settings": {"vm.swappiness": 1}, "name": "99-x"}, "ends in .conf"),
    ],
)
def test_wrong_wishes_are_refused(run_module: RunModule, root: Path, args: dict[str, Any], text: str) -> None:
    before = tree(root)
    result = run_module(kernel_settings, {"root": str(root), **args})
    assert result["failed"]
    assert text in result["msg"]
    assert tree(root) == before


def test_a_value_the_kernel_refuses_never_becomes_permanent(run_module: RunModule, root: Path) -> None:
    target = root / "proc/sys/vm/swappiness"
    target.unlink()
    target.mkdir()  # opening it for writing fails, as the kernel's EINVAL would
    result = run_module(kernel_settings, ask(root))
    assert result["failed"]
    assert not (root / OURS.lstrip("/")).exists()


def test_semaphores_of_ranks_are_kept_and_logind_itself_is_asked(
    run_module: RunModule, root: Path, logind: dict[str, Any]
) -> None:
    first = run_module(kernel_settings, ask(root, None, remove_ipc="no"))
    assert first["changed"]
    assert first["remove_ipc"] == "no"
    assert not run_module(kernel_settings, ask(root, None, remove_ipc="no"))["changed"]
    logind["says"] = "true"  # somebody started logind with other files
    again = run_module(kernel_settings, ask(root, None, remove_ipc="no"))
    assert again["changed"]
    assert logind["says"] == "false"


def test_a_logind_that_does_not_follow_is_a_failure(run_module: RunModule, root: Path, logind: dict[str, Any]) -> None:
    logind["deaf"] = True
    result = run_module(kernel_settings, ask(root, None, remove_ipc="no"))
    assert result["failed"]
    assert "systemd-logind says yes" in result["msg"]


def test_a_later_drop_in_is_named(run_module: RunModule, root: Path) -> None:
    lay(root, {"/etc/systemd/logind.conf.d/99-site.conf": "[Login]\nRemoveIPC=yes\n"})
    result = run_module(kernel_settings, ask(root, None, remove_ipc="no"))
    assert result["failed"]
    assert "/etc/systemd/logind.conf.d/99-site.conf sets it after" in result["msg"]
    assert not (root / kernel_settings.IPC_DROP_IN.lstrip("/")).exists()


def test_the_drop_in_is_never_taken_away_under_a_rank(run_module: RunModule, root: Path) -> None:
    run_module(kernel_settings, ask(root, None, remove_ipc="no", live=False))
    drop_in = root / kernel_settings.IPC_DROP_IN.lstrip("/")
    assert drop_in.exists()  # laid down at once: it protects whatever runs
    assert not run_module(kernel_settings, ask(root, None, remove_ipc="default", live=False))["changed"]
    assert drop_in.exists()
    assert run_module(kernel_settings, ask(root, None, remove_ipc="default"))["changed"]
    assert not drop_in.exists()
    assert not run_module(kernel_settings, ask(root, None, remove_ipc="default"))["changed"]


def test_no_logind_no_danger(run_module: RunModule, root: Path, logind: dict[str, Any]) -> None:
    logind["running"] = False
    assert run_module(kernel_settings, ask(root, None, remove_ipc="no"))["remove_ipc"] == "not running"
