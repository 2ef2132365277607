from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import survival_kit
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import ledger, survival
from conftest import RunModule
from hypothesis import given
from hypothesis import strategies as st
from test_sysctl import lay

PACKAGES = """\
base-files\t13\tinstall\tinstalled
libnvidia-compute-580:arm64\t580.173.02-0ubuntu0.24.04.1\tinstall\tinstalled
linux-image-6.17.0-1032-nvidia\t6.17.0-1032.32\tinstall\tinstalled
linux-nvidia-hwe-24.04\t7.0.0-1019.19\thold\tinstalled
nvidia-driver-570-open\t570.1\tdeinstall\tconfig-files
nvidia-driver-580-open\t580.173.02-0ubuntu0.24.04.1\tinstall\tinstalled
"""
SSH = "/etc/systemd/system/ssh.service.d/91-sparklanes-oom.conf"


class Host:
    """A stand-in for systemd, dpkg and logind, below a root."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []  # type: Path, list[list[str]]
        self.loaded: dict[str, str] = {}
        self.wants = {package.name: package.want for package in survival.parse_packages(PACKAGES)}
        self.gpu_containers: list[str] | None = []
        self.broken: set[str] = set()

    def files(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self.root.glob("etc/systemd/system/*/*.conf")}

    def run(self, argv: list[str], data: str | None = None, **_: Any) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[0].rpartition("/")[2] in self.broken:
            return 1, "", "broken"
        if argv[:2] == ["systemctl", "show"]:
            texts = "".join(text for path, text in self.loaded.items() if f"/{argv[2]}.d/" in path)
            score = next((line.partition("=")[2] for line in texts.splitlines() if line.startswith("OOMScoreAdjust")), "0")
            least = next((line.partition("=")[2] for line in texts.splitlines() if line.startswith("MemoryMin")), "0M")
            stale = "yes" if self.files() != self.loaded else "no"
            size = int(least.rstrip("M")) * 1024**2
            return 0, f"LoadState=loaded\nNeedDaemonReload={stale}\nOOMScoreAdjust={score}\nMemoryMin={size}\n", ""
        if argv[:2] == ["systemctl", "daemon-reload"]:
            self.loaded = self.files()
        if argv[:2] == ["systemctl", "restart"] and (self.root / survival.JOURNAL_DROP_IN.lstrip("/")).exists():
            (self.root / "var/log/journal").mkdir(parents=True, exist_ok=True)
        if argv[0] == "dpkg-query":
            rows = [(package, self.wants[package.name]) for package in survival.parse_packages(PACKAGES)]
            return 0, "".join(f"{p.name}\t{p.version}\t{want}\t{p.status}\n" for p, want in rows), ""
        if argv[0] == "dpkg":
            self.wants.update(line.split("\t") for line in (data or "").splitlines())  # type: ignore[arg-type]
        linger = self.root / "var/lib/systemd/linger" / argv[-1]
        if argv[:2] == ["loginctl", "enable-linger"]:
            linger.parent.mkdir(parents=True, exist_ok=True)
            linger.touch()
        if argv[:2] == ["loginctl", "disable-linger"]:
            linger.unlink()
        return 0, "", ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(commands, "run", made.run)
    monkeypatch.setattr(survival_kit.host_units, "gpu_containers", lambda _run: (made.gpu_containers, "systemd"))
    monkeypatch.setattr(survival_kit.host_units, "missing_links", lambda _dev: ["/dev/nvidia0"])
    return made


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


ALL = {"ssh": "present", "reserve": "present", "journal": "present", "hold": "present", "linger": "present", "linger_user": "eve"}


def test_all_of_it_comes_stays_and_goes_without_a_trace(host: Host, run_module: RunModule) -> None:
    before, wanted = tree(host.root), dict(host.wants)
    first = run_module(survival_kit, {**ALL, "root": str(host.root)})
    assert first["changed"]
    assert first["ours"] == {
        "held": ["libnvidia-compute-580:arm64", "linux-image-6.17.0-1032-nvidia", "nvidia-driver-580-open"],
        "linger": ["eve"],
        "journal_folder": True,
    }
    assert host.wants["nvidia-driver-580-open"] == "hold"
    assert host.wants["nvidia-driver-570-open"] == "deinstall"
    assert host.wants["base-files"] == "install"
    calls = len(host.calls)
    again = run_module(survival_kit, {**ALL, "root": str(host.root)})
    assert not again["changed"], again["actions"]
    assert not {"restart", "daemon-reload", "try-restart"} & {call[1] for call in host.calls[calls:]}
    gone = run_module(survival_kit, {**dict.fromkeys(ALL, "absent"), "linger_user": "eve", "root": str(host.root)})
    assert gone["changed"]
    assert tree(host.root) == before
    assert not (host.root / "var/log/journal").exists()
    assert not (host.root / SSH.lstrip("/")).parent.exists()
    assert host.wants == wanted  # what a person held before is still held
    assert not run_module(survival_kit, {**dict.fromkeys(ALL, "absent"), "root": str(host.root)})["changed"]


def test_check_mode_says_all_and_does_nothing(host: Host, run_module: RunModule) -> None:
    before, wanted = tree(host.root), dict(host.wants)
    said = run_module(survival_kit, {**ALL, "root": str(host.root)}, check=True, diff=True)
    assert said["changed"]
    assert f"Write {SSH}" in said["actions"]
    assert "Make systemd read its unit files again" in said["actions"]
    assert "OOMScoreAdjust=-900" in said["diff"]["after"]
    assert tree(host.root) == before
    assert host.wants == wanted
    assert all(call[1] in ("show", "--show", "-t") or call[0] == "dpkg-query" for call in host.calls)


def test_a_reload_waits_while_a_container_could_lose_its_gpu(host: Host, run_module: RunModule) -> None:
    host.gpu_containers = ["sparklanes-sparks-rank0"]
    first = run_module(survival_kit, {"ssh": "present", "root": str(host.root)})
    assert "sparklanes-sparks-rank0 would lose the GPU" in first["waiting"][0]
    assert ["systemctl", "daemon-reload"] not in host.calls
    host.gpu_containers = []
    later = run_module(survival_kit, {"ssh": "present", "root": str(host.root)})
    assert later["actions"][0] == "Make systemd read its unit files again"
    assert not later["waiting"]
    assert ["systemctl", "try-restart", "ssh.service"] in host.calls
    assert not run_module(survival_kit, {"ssh": "present", "root": str(host.root)})["changed"]


def test_a_drop_in_that_wins_over_ours_is_a_failure(host: Host, run_module: RunModule) -> None:
    lay(host.root, {"/etc/systemd/system/ssh.service.d/10-first.conf": "[Service]\nOOMScoreAdjust=0\n"})
    failed = run_module(survival_kit, {"ssh": "present", "root": str(host.root)})
    assert "systemd says 0, expected -900" in failed["msg"]


def test_sshd_with_a_broken_configuration_is_not_restarted(
    host: Host, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival_kit.shutil, "which", lambda name, path=None: f"/usr/sbin/{name}")
    host.broken.add("sshd")
    failed = run_module(survival_kit, {"ssh": "present", "root": str(host.root)})
    assert "mend /etc/ssh/sshd_config first" in failed["msg"]
    assert ["systemctl", "try-restart", "ssh.service"] not in host.calls


def test_what_was_held_is_remembered_though_a_later_part_fails(host: Host, run_module: RunModule) -> None:
    host.broken.add("loginctl")
    assert run_module(survival_kit, {"hold": "present", "linger": "present", "root": str(host.root)})["failed"]
    host.broken.clear()
    gone = run_module(survival_kit, {"hold": "absent", "root": str(host.root)})
    assert gone["changed"]
    assert host.wants["nvidia-driver-580-open"] == "install"


def test_what_version_0_1_did_is_adopted_and_undone(host: Host, run_module: RunModule) -> None:
    host.wants["nvidia-driver-580-open"] = "hold"
    known = {"held": ["nvidia-driver-580-open"], "linger": ["eve"], "journal_folder": True}
    old = json.dumps({**known, "swap": "/swap.img"})
    lay(host.root, {survival.OLD_MEMORY: old, survival.JOURNAL_DROP_IN: "", "/var/log/journal/x": ""})
    lay(host.root, {"/var/lib/systemd/linger/eve": ""})
    before = tree(host.root)
    args = {"root": str(host.root), "linger_user": "eve"}
    run_module(survival_kit, args, check=True)
    assert tree(host.root) == before
    assert run_module(survival_kit, args)["ours"] == known
    gone = run_module(survival_kit, {**args, **dict.fromkeys(("hold", "linger", "journal"), "absent")})
    assert gone["ours"] == {"held": [], "linger": [], "journal_folder": False}
    assert host.wants["nvidia-driver-580-open"] == "install"
    assert set(tree(host.root)) == {ledger.LEDGER.lstrip("/")}
    assert "swap /swap.img" in tree(host.root)[ledger.LEDGER.lstrip("/")], "swap_file finds it there"


@pytest.mark.parametrize("text", ["", "[]", '{"held": 3}'])
def test_a_memory_that_can_not_be_read_is_no_empty_one(host: Host, run_module: RunModule, text: str) -> None:
    lay(host.root, {survival.OLD_MEMORY: text})
    assert "Mend it, or move it aside" in run_module(survival_kit, {"hold": "absent", "root": str(host.root)})["msg"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"ssh": "present", "ssh_oom_score": 5}, "ssh_oom_score"),
        ({"reserve": "present", "reserve_mib": 65536}, "reserve_mib"),
        ({"journal": "present", "journal_max_mib": 0}, "journal_max_mib"),
        ({"linger": "present", "linger_user": "../.."}, "the name of a user"),
    ],
)
def test_wrong_wishes_change_nothing(host: Host, run_module: RunModule, args: dict[str, Any], text: str) -> None:
    before = tree(host.root)
    failed = run_module(survival_kit, {**ALL, **args, "root": str(host.root)})
    assert failed["failed"]
    assert text in failed["msg"]
    assert tree(host.root) == before


@given(st.text())
def test_parsers_take_anything(text: str) -> None:
    for package in survival.parse_packages(text):
        assert package.name
