"""What version 0.1 left on a Spark, before there was a ledger, is known as ours, kept, and taken away by this version."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boot_policy
import fabric_network
import gpu_clock_unit
import kernel_settings
import page_cache_unit
import pytest
import survival_kit
import swap_file
import test_survival
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.fabric import trial as fabric_trial
from ansible.module_utils.sparklanes.gpu.occupied import Seen
from ansible.module_utils.sparklanes.host import units as host_units
from ansible.module_utils.sparklanes.host.ledger import LEDGER, Ledger
from ansible.module_utils.sparklanes.host.restore import report, restore
from ansible.module_utils.sparklanes.host.tree import Tree
from conftest import FIXTURES, RunModule
from fake_systemd import FakeSystemd
from test_fabric_network import spark as fabric_programs  # noqa: F401

LEFT: dict[str, dict[str, str]] = json.loads((FIXTURES / "host/left_by_0_1.json").read_text(encoding="utf-8"))
UNITS = (page_cache_unit.UNIT, gpu_clock_unit.UNIT, boot_policy.UNIT)
PROGRAMS = (page_cache_unit.SCRIPT_PATH, boot_policy.PROGRAM)
PARTS = ("ssh", "reserve", "journal", "hold", "linger")


class Machine(test_survival.Host):
    """systemd with our three units, logind, dpkg and swap as version 0.1 left them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.units = {name: FakeSystemd(root, name) for name in UNITS}
        self.loaded = self.files()
        self.wants |= dict.fromkeys(json.loads(LEFT["/var/lib/sparklanes/survival.json"]["text"])["held"], "hold")

    def run(self, argv: list[str], data: str | None = None, **more: Any) -> tuple[int, str, str]:
        own = next((unit for name, unit in self.units.items() if name in argv), None)
        if own is not None:
            return own.run(argv, **more)
        if fabric_trial.TIMER in str(argv) or argv[0] in ("ip", "netplan", "systemd-run", "sh"):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        if argv[0] == "busctl":
            kept = (self.root / kernel_settings.IPC_DROP_IN.lstrip("/")).exists()
            return 0, f"b {'false' if kept else 'true'}\n", ""
        if argv[0] == "swapoff":
            (self.root / "proc/swaps").write_text("Filename Type Size Used Priority\n")
        return super().run(argv, data, **more)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for path, one in LEFT.items():
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(one["text"], encoding="utf-8")
        place.chmod(int(one["mode"], 8))
    for path in PROGRAMS:
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text("# a program of version 0.1\n")
    (tmp_path / "var/log/journal").mkdir(parents=True)
    made = Machine(tmp_path)
    for unit in made.units.values():
        unit.link.parent.mkdir(parents=True, exist_ok=True)
        unit.link.symlink_to(f"/etc/systemd/system/{unit.unit}")
    with monkeypatch.context() as patch:
        patch.setattr(commands, "run", lambda argv, **more: made.run(argv, **more))
        patch.setattr(host_units, "gpu_containers", lambda _run: ([], "systemd"))
        patch.setattr(swap_file.occupied, "look", Seen)
        patch.setattr(kernel_settings.time, "sleep", lambda _: None)
        yield made


def files(root: Path) -> dict[str, str]:
    return {
        f"/{path.relative_to(root)}": path.read_text(encoding="utf-8")
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in ("proc", "programs")
    }


def taken_away(machine: Machine, run_module: RunModule) -> None:
    root = {"root": str(machine.root)}
    for module, args in (
        (kernel_settings, {"state": "absent", "remove_ipc": "default"}),
        (page_cache_unit, {"policy": "absent", "unit": ""}),
        (gpu_clock_unit, {"state": "absent"}),
        (boot_policy, {"policy": "absent"}),
        (swap_file, {"state": "absent"}),
        (survival_kit, {**dict.fromkeys(PARTS, "absent"), "linger_user": "eve"}),
    ):
        said = run_module(module, {**root, **args})
        assert said["changed"], (module.__name__, said)
        assert not run_module(module, {**root, **args})["changed"], module.__name__


def test_all_that_0_1_did_goes_without_a_trace(
    machine: Machine,
    run_module: RunModule,
    fabric_programs: Path,  # noqa: F811
) -> None:
    taken_away(machine, run_module)
    assert (machine.root / "proc/sys/vm/swappiness").read_text() == "60\n"
    assert set(machine.wants.values()) == {"install", "hold", "deinstall"}
    assert machine.wants["linux-nvidia-hwe-24.04"] == "hold", "a person held it before us"
    assert machine.wants["nvidia-driver-580-open"] == "install"
    for state in ("absent", "kept"):
        assert run_module(fabric_network, {"state": state, "root": str(machine.root)})["changed"]
    assert files(machine.root) == {
        "/etc/fstab": "UUID=1 / ext4 defaults 0 1\n",
        "/etc/netplan/40-cx7.yaml": "network: {version: 2}\n",
    }
    assert not [path for path in machine.root.rglob("*") if path.is_symlink()]


def test_what_0_1_did_stays_ours_when_this_version_goes_on(machine: Machine, run_module: RunModule) -> None:
    """As `site.yml` would: all of it again, two of them with another wish. Then the ledger can give each of it back."""
    root = {"root": str(machine.root)}
    settings = {"settings": {"vm.swappiness": 0}, "remove_ipc": "no"}
    assert run_module(kernel_settings, {**root, **settings})["changed"]
    again = {**dict.fromkeys(PARTS, "present"), "linger_user": "eve", "journal_max_mib": 2048}
    said = run_module(survival_kit, {**root, **again})
    assert said["actions"] == ["Write /etc/systemd/journald.conf.d/90-sparklanes.conf"]
    assert (len(said["ours"]["held"]), said["ours"]["linger"], said["ours"]["journal_folder"]) == (3, ["eve"], True)
    ledger = Ledger(Tree(machine.root), "test")
    for edit in report(ledger):
        assert edit["standing"] == ("unknown" if edit["kind"] == "state" else "ours"), edit
        assert edit["kind"] != "file" or edit["before"] == {"kind": "absent"}, edit
        restore(ledger, edit["kind"], edit["name"])
    assert (machine.root / "proc/sys/vm/swappiness").read_text() == "60\n"
    left = {edit["name"].partition(" ")[0] for edit in report(ledger)}
    assert left == {"hold", "journal", "swap"}
    assert LEDGER in files(machine.root)
    assert "/var/lib/systemd/linger/eve" not in files(machine.root)
