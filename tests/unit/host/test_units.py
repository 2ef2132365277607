"""The keeper of a unit of ours, against a systemd that is played by a small state machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import platforms
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import own_unit
from ansible.module_utils.sparklanes.host import units as host_units
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.restore import report
from fake_systemd import FakeSystemd

NAME = "sparklanes-x.service"
TEXT = "[Service]\nExecStart=true\n[Install]\nWantedBy=multi-user.target\n"


class Module:
    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.said = ""

    def fail_json(self, msg: str, **_: Any) -> None:
        self.said = msg


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "")
    made = FakeSystemd(tmp_path, NAME)
    monkeypatch.setattr(commands, "run", made.run)
    return made


def keeper(systemd: FakeSystemd, text: str = TEXT, check: bool = False, **more: Any) -> own_unit.OwnUnit:
    return own_unit.OwnUnit(HostEdits(Module(check), systemd.root), NAME, text, **more)


def converge(unit: own_unit.OwnUnit) -> list[str]:
    unit.place()
    unit.enable()
    if not unit.runs:
        unit.start()
    return unit.edits.actions


def test_from_nothing_then_nothing_then_away_without_one_reload(systemd: FakeSystemd) -> None:
    assert converge(keeper(systemd)) == [f"Write /etc/systemd/system/{NAME}", f"Enable {NAME}", f"Start {NAME}"]
    assert converge(keeper(systemd)) == []
    unit = keeper(systemd)
    unit.stop(", as asked")
    unit.remove()
    assert unit.edits.actions == [f"Stop {NAME}, as asked", f"Disable {NAME}", f"Remove /etc/systemd/system/{NAME}: asked for"]
    assert (unit.there, unit.state, unit.runs) == (False, "", False)
    unit = keeper(systemd)
    unit.stop()
    unit.remove()
    assert unit.edits.actions == []
    assert [call.split()[0] for call in systemd.calls] == ["enable", "restart", "stop", "disable"]


def test_the_unit_and_its_link_are_noted_until_they_are_gone(systemd: FakeSystemd) -> None:
    unit = keeper(systemd)
    converge(unit)
    noted = [f"/etc/systemd/system/multi-user.target.wants/{NAME}", f"/etc/systemd/system/{NAME}"]
    assert unit.edits.ledger.names("file") == noted
    assert [edit["standing"] for edit in report(unit.edits.ledger)] == ["ours", "ours"]
    keeper(systemd, text="").remove()  # who removes a unit need not know its text
    assert unit.edits.ledger.names("file") == []


def test_check_mode_only_says_it(systemd: FakeSystemd) -> None:
    assert len(converge(keeper(systemd, check=True))) == 3
    assert systemd.calls == []
    assert not (systemd.root / "etc").exists()


def test_another_text_is_read_by_systemd_once(systemd: FakeSystemd) -> None:
    converge(keeper(systemd))
    systemd.calls.clear()
    assert converge(keeper(systemd, TEXT + "#\n"))[-1] == "Make systemd read its unit files again"
    assert systemd.calls == ["daemon-reload"]
    assert converge(keeper(systemd, TEXT + "#\n")) == []


def test_another_text_waits_while_a_container_could_lose_its_gpu(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    converge(keeper(systemd))
    systemd.calls.clear()
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "rank0 would lose the GPU")
    unit = keeper(systemd, TEXT + "#\n")
    assert converge(unit) == []
    assert unit.edits.waiting == [f"{NAME} keeps its old text for now: rank0 would lose the GPU"]
    assert systemd.path.read_text() == TEXT
    # A run that was cut off between writing and reading is finished by a later one.
    systemd.path.write_text(TEXT + "#\n")
    assert keeper(systemd, TEXT + "#\n").show()["NeedDaemonReload"] == "yes"
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "")
    assert converge(keeper(systemd, TEXT + "#\n")) == ["Make systemd read its unit files again"]


@pytest.mark.parametrize("verb", ["enable", "restart"])
def test_a_verb_that_fails_shows_the_journal(systemd: FakeSystemd, verb: str) -> None:
    systemd.refuses.add(verb)
    unit = keeper(systemd)
    with pytest.raises(SystemExit):
        converge(unit)
    assert f"{NAME} failed: {verb} was refused\nThe journal of {NAME} ends with:\nthe journal" in unit.edits.module.said


def test_a_unit_that_started_and_does_not_do_its_work_fails(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_unit.time, "sleep", lambda _: None)
    answers = iter(["it is slow", "it is slow", ""])
    assert converge(keeper(systemd, prove=lambda: next(answers), seconds=60))[-1] == f"Start {NAME}"
    systemd.active = "inactive"
    unit = keeper(systemd, prove=lambda: "it does nothing")
    with pytest.raises(SystemExit):
        converge(unit)
    assert unit.edits.module.said.startswith(f"{NAME} was started, but it does nothing\nThe journal")


def test_a_machine_without_systemd_says_so(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = keeper(systemd)
    monkeypatch.setattr(commands, "run", lambda *_, **__: (1, "", "System has not been booted with systemd"))
    systemd.path.parent.mkdir(parents=True)
    systemd.path.write_text(TEXT)
    with pytest.raises(SystemExit):
        unit.place()
    assert "This role needs a Spark that runs systemd" in unit.edits.module.said


# When a daemon-reload may happen


def test_reload_waits_only_where_a_running_container_could_lose_its_gpu() -> None:
    assert host_units.reload_risk([], "systemd", ["/dev/nvidia0"]) == ""
    assert host_units.reload_risk(["rank0"], "systemd", []) == ""
    risk = host_units.reload_risk(["rank0"], "systemd", ["/dev/nvidia0"])
    assert "rank0 would lose the GPU" in risk
    assert "create-dev-char-symlinks" in risk
    assert "does not say" in host_units.reload_risk(None, "", [])


@platforms.needs_root
def test_device_nodes_without_a_link_are_found(tmp_path: Path) -> None:
    (tmp_path / "char").mkdir()
    try:
        os.mknod(tmp_path / "nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
        os.mknod(tmp_path / "nvidiactl", 0o600 | 0o020000, os.makedev(195, 255))
    except PermissionError:
        platforms.skip("device nodes")
    (tmp_path / "char/195:255").symlink_to("../nvidiactl")
    (tmp_path / "nvidia-caps").mkdir()
    assert host_units.missing_links(tmp_path) == [str(tmp_path / "nvidia0")]
