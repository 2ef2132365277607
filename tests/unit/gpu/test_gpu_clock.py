"""The cap of the clock, against a systemd and a GPU that are played by a small state machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_clock_unit
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.gpu import cap as gpu_cap
from ansible.module_utils.sparklanes.gpu import nvidia_smi
from ansible.module_utils.sparklanes.host import own_unit
from conftest import FIXTURES, ROOT, RunModule
from fake_systemd import FakeSystemd

UNIT_TEXT = (ROOT / "roles/gpu_clock/files/sparklanes-gpu-clock.service").read_text()
H200 = nvidia_smi.parse_xml((FIXTURES / "gpu/h200-nvidia_smi_q_x-burning.xml").read_text()).gpus[0]
GB10 = replace(
    H200,
    name="NVIDIA GB10",
    sm_mhz=2405,
    max_sm_mhz=3003,
    power_limit_w=None,
    default_power_limit_w=None,
    memory_total_bytes=None,
)


class Spark(FakeSystemd):
    """systemd with our unit, and a GPU that obeys it or not."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, gpu_clock_unit.UNIT)
        self.started, self.stopped = self.lock, self.reset
        self.gpu = GB10
        self.obeys = True
        self.stop_fails = False
        self.error = ""

    def settings(self) -> dict[str, str]:
        return gpu_cap.parse_settings((self.root / gpu_cap.CAP_SETTINGS).read_text())

    def report(self, _: Any) -> nvidia_smi.Report:
        return nvidia_smi.Report("580", "13.0", [] if self.error else [self.gpu], self.error)

    def lock(self) -> str:
        if self.obeys:
            power = self.settings()["POWER_W"]
            clock = int(self.settings()["MAX_MHZ"]) - 17
            self.gpu = replace(self.gpu, sm_mhz=clock, power_limit_w=float(power) if power else self.gpu.power_limit_w)
        return "active"

    def reset(self) -> str:
        default = self.settings()["DEFAULT_POWER_W"]
        self.gpu = replace(self.gpu, sm_mhz=2405, power_limit_w=float(default) if default else self.gpu.power_limit_w)
        return "failed" if self.stop_fails else "inactive"


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark(tmp_path)
    monkeypatch.setattr(commands, "run", lambda argv, **more: made.run(argv, **more))
    monkeypatch.setattr(gpu_clock_unit.gpu_facts, "report", made.report)
    monkeypatch.setattr(gpu_clock_unit, "EFFECT_SECONDS", 0.0)
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "")
    return made


def wish(spark: Spark, **more: Any) -> dict[str, Any]:
    return {"root": str(spark.root), "max_mhz": 2100, "unit": UNIT_TEXT, **more}


def gone(spark: Spark) -> dict[str, Any]:
    return {"root": str(spark.root), "state": "absent"}


def test_from_nothing_then_nothing_then_away(spark: Spark, run_module: RunModule) -> None:
    first = run_module(gpu_clock_unit, wish(spark), diff=True)
    assert (first["changed"], first["active"], first["sm_mhz"]) == (True, True, [2083])
    assert spark.calls == ["enable --no-reload sparklanes-gpu-clock.service", "restart sparklanes-gpu-clock.service"]
    assert spark.settings() == {"MIN_MHZ": "0", "MAX_MHZ": "2100", "POWER_W": "", "DEFAULT_POWER_W": ""}
    assert "MAX_MHZ=2100" in first["diff"]["after"]
    again = run_module(gpu_clock_unit, wish(spark))
    assert (again["changed"], again["actions"]) == (False, [])
    away = run_module(gpu_clock_unit, gone(spark))
    assert (away["changed"], away["active"], spark.gpu.sm_mhz) == (True, False, 2405)
    assert spark.calls[-2:] == ["stop sparklanes-gpu-clock.service", "disable --no-reload sparklanes-gpu-clock.service"]
    assert [path for path in spark.root.rglob("*") if path.is_file()] == []
    assert not run_module(gpu_clock_unit, gone(spark))["changed"]
    assert "daemon-reload" not in spark.calls


def test_check_mode_changes_nothing(spark: Spark, run_module: RunModule) -> None:
    result = run_module(gpu_clock_unit, wish(spark), check=True)
    assert [action.split()[0] for action in result["actions"]] == ["Write", "Write", "Enable", "Start"]
    assert (spark.calls, list(spark.root.iterdir())) == ([], [])
    run_module(gpu_clock_unit, wish(spark))
    spark.calls.clear()
    assert len(run_module(gpu_clock_unit, gone(spark), check=True)["actions"]) == 4
    assert len(run_module(gpu_clock_unit, wish(spark, max_mhz=1900), check=True)["actions"]) == 3
    assert (spark.calls, spark.settings()["MAX_MHZ"]) == ([], "2100")


def test_new_figures_need_no_reload(spark: Spark, run_module: RunModule) -> None:
    run_module(gpu_clock_unit, wish(spark))
    spark.calls.clear()
    result = run_module(gpu_clock_unit, wish(spark, max_mhz=2000))
    assert (result["changed"], result["sm_mhz"]) == (True, [1983])
    assert spark.calls == ["stop sparklanes-gpu-clock.service", "restart sparklanes-gpu-clock.service"]


def test_a_driver_that_accepts_and_ignores_fails(spark: Spark, run_module: RunModule) -> None:
    spark.obeys = False
    result = run_module(gpu_clock_unit, wish(spark))
    assert result["failed"]
    assert "the clock is 2405 MHz, above 2100: the driver ignores it" in result["msg"]
    assert "Start sparklanes-gpu-clock.service" in result["actions"]
    # The next run tries again rather than calling it done.
    assert run_module(gpu_clock_unit, wish(spark))["failed"]


def test_a_lock_that_somebody_took_off_is_set_again(spark: Spark, run_module: RunModule) -> None:
    run_module(gpu_clock_unit, wish(spark))
    spark.gpu = replace(spark.gpu, sm_mhz=2470)
    result = run_module(gpu_clock_unit, wish(spark))
    assert result["actions"] == ["Restart sparklanes-gpu-clock.service: the clock is 2470 MHz, above 2100"]


def test_a_power_limit_is_set_and_given_back(spark: Spark, run_module: RunModule) -> None:
    spark.gpu = H200
    run_module(gpu_clock_unit, wish(spark, max_mhz=1500, power_limit_w=500))
    assert (spark.settings()["POWER_W"], spark.settings()["DEFAULT_POWER_W"], spark.gpu.power_limit_w) == ("500", "700", 500.0)
    assert not run_module(gpu_clock_unit, wish(spark, max_mhz=1500, power_limit_w=500))["changed"]
    run_module(gpu_clock_unit, wish(spark, max_mhz=1500))  # the limit alone goes
    assert (spark.gpu.power_limit_w, spark.settings()["POWER_W"]) == (700.0, "")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_mhz": 5000}, "expected 300 to 3003"),
        ({"max_mhz": 21}, "expected 300"),
        ({"min_mhz": 2200}, "expected 0 to max_mhz"),
        ({"min_mhz": -1}, "expected 0 to"),
        ({"power_limit_w": 100}, "NVIDIA GB10 has no power limit"),
        ({"unit": None}, "unit"),
        ({"max_mhz": None}, "max_mhz"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(
    wrong: dict[str, Any], words: str, spark: Spark, run_module: RunModule
) -> None:
    args = {key: value for key, value in wish(spark, **wrong).items() if value is not None}
    result = run_module(gpu_clock_unit, args)
    assert result["failed"]
    assert words in result["msg"]
    assert (spark.calls, list(spark.root.iterdir())) == ([], [])


def test_a_power_limit_above_the_default_is_refused(spark: Spark, run_module: RunModule) -> None:
    spark.gpu = H200
    assert "expected 1 to 700" in run_module(gpu_clock_unit, wish(spark, max_mhz=1500, power_limit_w=900))["msg"]


def test_without_a_gpu_no_cap_and_removal_still_works(spark: Spark, run_module: RunModule) -> None:
    run_module(gpu_clock_unit, wish(spark))
    spark.error = "nvidia-smi is not installed"
    assert "cannot be read back" in run_module(gpu_clock_unit, wish(spark))["msg"]
    assert run_module(gpu_clock_unit, gone(spark))["changed"]


def test_a_cap_that_does_not_go_keeps_its_files(spark: Spark, run_module: RunModule) -> None:
    run_module(gpu_clock_unit, wish(spark))
    spark.stop_fails = True
    assert "could not take the cap off" in run_module(gpu_clock_unit, gone(spark))["msg"]
    assert spark.settings()["MAX_MHZ"] == "2100"


def test_a_new_text_waits_for_gpu_containers(spark: Spark, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    run_module(gpu_clock_unit, wish(spark))
    spark.calls.clear()
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "rank0 would lose the GPU")
    result = run_module(gpu_clock_unit, wish(spark, unit=UNIT_TEXT + "# newer\n"))
    assert ("rank0" in result["waiting"][0], result["changed"], spark.calls) == (True, False, [])
    monkeypatch.setattr(own_unit, "reload_risk_here", lambda *_: "")
    run_module(gpu_clock_unit, wish(spark, unit=UNIT_TEXT + "# newer\n"))
    assert spark.calls == ["daemon-reload"]


def test_our_unit_is_read_as_a_cap() -> None:
    settings = gpu_cap.parse_settings(gpu_cap.cap_settings(0, 2100, None, ""))
    assert gpu_cap.parse_cap(gpu_cap.CAP_UNIT, UNIT_TEXT, settings) == gpu_cap.Cap(gpu_cap.CAP_UNIT, 0, 2100)
    assert gpu_cap.CAP_SETTINGS in UNIT_TEXT
