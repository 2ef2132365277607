"""The unit of the clock's cap and the job that loads a GPU, under a real systemd. The GPU is emulated: this proves nothing of one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest
from conftest import ROOT, Fleet
from outcome import Outcome

NODE = "spark-1"
UNIT = "sparklanes-gpu-clock.service"
EMULATED = {"nvidia-smi": "emulated-nvidia-smi", "emulated-gpu-burn": "emulated-gpu-burn"}
Role = Callable[..., Outcome]


@pytest.fixture
def role(fleet: Fleet) -> Iterator[Role]:
    """Apply one role to a node that has an emulated GPU; afterwards it has none."""
    for name, source in EMULATED.items():
        fleet.put(NODE, f"/usr/local/bin/{name}", (ROOT / "tests/e2e/emulated" / source).read_bytes())

    def apply(name: str, *more: str) -> Outcome:
        extra = [word for pair in more for word in ("-e", pair)]
        argv = ["ansible", "-i", "inventory/sandbox", NODE, "-b", "-m", "include_role", "-a", f"name={name}", *extra]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        return Outcome(done.returncode, done.stdout + done.stderr)

    yield apply
    fleet.on(NODE, f"systemctl disable --now {UNIT}; rm -f /etc/systemd/system/{UNIT} /etc/sparklanes/gpu-clock.env", check=False)
    names = " ".join(f"/usr/local/bin/{name}" for name in EMULATED)
    fleet.on(
        NODE,
        f"rm -rf {names} /var/tmp/emulated-gpu /var/lib/sparklanes/health /var/lib/sparklanes/jobs/gpu-health; systemctl daemon-reload",
    )


def clock(fleet: Fleet) -> str:
    return fleet.on(NODE, "nvidia-smi -q -x | grep -o '<sm_clock>[0-9]*' | head -1").rpartition(">")[2]


def test_a_cap_is_set_holds_changes_and_goes_without_a_reload(fleet: Fleet, role: Role) -> None:
    role("gpu_clock", "gpu_clock_max_mhz=2100").ok()
    assert clock(fleet) == "2083"
    assert fleet.on(NODE, f"systemctl is-enabled {UNIT}; systemctl is-active {UNIT}").split() == ["enabled", "active"]
    again = role("gpu_clock", "gpu_clock_max_mhz=2100")
    again.ok()
    assert "CHANGED" not in again.out
    role("gpu_clock", "gpu_clock_max_mhz=2000").ok()
    assert clock(fleet) == "1983"
    # As a boot does it: the figures come from the file.
    fleet.on(NODE, f"nvidia-smi --reset-gpu-clocks; systemctl restart {UNIT}")
    assert clock(fleet) == "1983"
    assert fleet.on(NODE, f"systemctl show {UNIT} --property=NeedDaemonReload --value") == "no"
    role("gpu_clock", "gpu_clock_remove=true").ok()
    assert clock(fleet) == "2405"
    assert fleet.on(NODE, f"systemctl show {UNIT} --property=ActiveState --value") == "inactive"
    assert (
        fleet.on(
            NODE,
            f"ls /etc/systemd/system/{UNIT} /etc/systemd/system/*.wants/{UNIT} /etc/sparklanes/gpu-clock.env 2>/dev/null || true",
        )
        == ""
    )
    assert "CHANGED" not in role("gpu_clock", "gpu_clock_remove=true").out


def test_a_cap_that_the_driver_ignores_fails(fleet: Fleet, role: Role) -> None:
    fleet.on(NODE, "mkdir -p /var/tmp/emulated-gpu && touch /var/tmp/emulated-gpu/ignores")
    role("gpu_clock", "gpu_clock_max_mhz=2100").failed("above 2100: the driver ignores it")
    role("gpu_clock", "gpu_clock_max_mhz=2100", "gpu_clock_power_limit_w=50").failed("has no power limit")


def test_a_healthy_and_a_stuck_gpu_and_one_in_use(fleet: Fleet, role: Role) -> None:
    burn = ("gpu_health", "gpu_health_python=/usr/local/bin/emulated-gpu-burn", "gpu_health_seconds=15")
    role(*burn).ok()
    fleet.on(NODE, "touch /var/tmp/emulated-gpu/stuck")
    role(*burn).failed("GPU.HEALTH", "low_clock", "721 MHz", "60 s")
    runs = json.loads(fleet.on(NODE, "cat /var/lib/sparklanes/health/gpu.json"))["runs"]
    assert [run["verdict"] for run in runs] == ["ok", "low_clock"]
    # In the journal's own words: the job was a unit, and it is gone.
    assert fleet.on(NODE, "systemctl is-active sparklanes-job-gpu-health || true") == "inactive"
    fleet.on(NODE, "rm /var/tmp/emulated-gpu/stuck; echo 1 > /var/tmp/emulated-gpu/busy")
    role(*burn).failed("inconclusive", "emulated-gpu-burn (pid 1) holds the GPU")
    assert len(json.loads(fleet.on(NODE, "cat /var/lib/sparklanes/health/gpu.json"))["runs"]) == 2
