from __future__ import annotations

from pathlib import Path

import kernel_settings
import pytest
from ansible.module_utils.sparklanes.host import setters
from conftest import RunModule
from hypothesis import given
from hypothesis import strategies as st
from test_sysctl import lay

WANTED = {"vm.swappiness": "10"}


def enable(root: Path, name: str, text: str, folder: str = "etc/systemd/system") -> Path:
    lay(root, {f"/{folder}/{name}": text})
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / name).symlink_to(f"/{folder}/{name}")
    return root


@pytest.mark.parametrize(
    "command",
    [
        "ExecStart=/usr/sbin/sysctl -w vm.swappiness=0",
        "ExecStart=/bin/sh -c 'echo 0 > /proc/sys/vm/swappiness'",
        "ExecStart=/bin/sh -c 'echo 0 | sudo tee /proc/sys/vm/swappiness'",
        'ExecStart=sysctl -q "vm/swappiness = 0"',
    ],
)
def test_a_service_that_sets_another_value_is_named(tmp_path: Path, command: str) -> None:
    enable(tmp_path, "tweak.service", f"[Service]\n{command}\n", "usr/lib/systemd/system")
    (said,) = setters.contradicting(tmp_path, WANTED)
    assert "tweak.service (/usr/lib/systemd/system/tweak.service) sets 0" in said
    assert "Disable it" in said
    assert setters.contradicting(tmp_path, {"vm.swappiness": "0"}) == [], "it says the same"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("Before=systemd-sysctl.service systemd-journald.service", 0),
        ("Before=sysinit.target systemd-sysctl.service", 0),
        ("Before=not-systemd-sysctl.service", 1),
        ("After=systemd-sysctl.service", 1),
    ],
)
def test_what_comes_before_the_files_does_not_win_over_them(tmp_path: Path, order: str, said: int) -> None:
    enable(tmp_path, "early.service", f"[Unit]\n{order}\n[Service]\nExecStart=/usr/sbin/sysctl -w vm.swappiness=60\n")
    assert len(setters.contradicting(tmp_path, WANTED)) == said


def test_the_script_that_a_service_names_is_read_too(tmp_path: Path) -> None:
    enable(tmp_path, "boot-tune.service", "[Service]\nExecStart=/bin/bash /opt/tune.sh --now\n")
    lay(tmp_path, {"/opt/tune.sh": "#!/bin/bash\nsysctl vm.swappiness=1\n"})
    (said,) = setters.contradicting(tmp_path, WANTED)
    assert "boot-tune.service (/opt/tune.sh) sets 1" in said


@pytest.mark.parametrize(
    ("files", "who"),
    [
        ({"/etc/tuned/active_profile": "hpc\n", "/usr/lib/tuned/hpc/tuned.conf": "[sysctl]\nvm.swappiness = 1\n"}, "tuned"),
        ({"/etc/rc.local": "#!/bin/sh\nsysctl -w vm.swappiness=1\n"}, "rc.local"),
        ({"/etc/cron.d/tune": "@reboot root sysctl -w vm.swappiness=1\n"}, "cron (/etc/cron.d/tune)"),
    ],
)
def test_others_that_set_it_are_named(tmp_path: Path, files: dict[str, str], who: str) -> None:
    (said,) = setters.contradicting(lay(tmp_path, files), WANTED)
    assert who in said


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/systemd/system/idle.service": "[Service]\nExecStart=sysctl -w vm.swappiness=0\n"},  # not enabled
        {"/etc/tuned/active_profile": "balanced\n", "/usr/lib/tuned/hpc/tuned.conf": "vm.swappiness = 1\n"},
        {"/etc/rc.local": "# sysctl -w vm.swappiness=1\ncat /proc/sys/vm/swappiness\nsysctl vm.swappiness\n"},
        {"/etc/cron.d/x": "* * * * * root sysctl -w my.vm.swappiness=1\n"},
    ],
)
def test_what_does_not_set_it_at_a_boot_is_no_reason(tmp_path: Path, files: dict[str, str]) -> None:
    assert setters.contradicting(lay(tmp_path, files), WANTED) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(setters.values(text, "vm.swappiness"), list)


def test_binaries_and_large_files_are_left_alone(tmp_path: Path) -> None:
    enable(tmp_path, "x.service", "[Service]\nExecStart=/opt/x\n")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/x").write_bytes(b"\x7fELF\0 vm.swappiness=0")
    assert setters.contradicting(tmp_path, WANTED) == []
    (tmp_path / "opt/x").write_text("vm.swappiness=0\n" + " " * setters.LARGEST)
    assert setters.contradicting(tmp_path, WANTED) == []


def test_the_module_refuses_before_anything_changes(run_module: RunModule, tmp_path: Path) -> None:
    root = lay(tmp_path, {"/proc/sys/vm/swappiness": "60\n"})
    enable(root, "tweak.service", "[Service]\nExecStart=sysctl -w vm.swappiness=0\n")
    said = run_module(kernel_settings, {"settings": {"vm.swappiness": 10}, "root": str(root)})
    assert said["failed"]
    assert "tweak.service" in said["msg"]
    assert (root / "proc/sys/vm/swappiness").read_text() == "60\n"
    assert not (root / "etc/sysctl.d").exists()
