from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import page_cache_flush
import page_cache_unit
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.host import units as host_units
from ansible.module_utils.sparklanes.memory import page_cache
from ansible.module_utils.sparklanes.memory.page_cache import Effect, Governor, Memory, Settings
from conftest import FIXTURES, ROOT, RunModule
from fake_systemd import FakeSystemd
from hypothesis import given
from hypothesis import strategies as st

UNIT_PATH = f"etc/systemd/system/{page_cache_unit.UNIT}"
UNIT_TEXT = (ROOT / "roles/page_cache/files/sparklanes-page-cache.service").read_text()
SCRIPT = ROOT / "module_utils/sparklanes/memory/page_cache.py"


def meminfo(free_gib: float, cached_gib: float) -> str:
    kib = 1024**2
    return f"MemTotal: {128 * kib} kB\nMemFree: {int(free_gib * kib)} kB\nMemAvailable: {100 * kib} kB\nCached: {int(cached_gib * kib)} kB\n"


# The figures


def test_real_samples_are_read_in_bytes() -> None:
    found = page_cache.parse_meminfo((FIXTURES / "memory/meminfo-idle-with-cache.txt").read_text())
    assert found["MemFree"] == 45557560 * 1024
    assert page_cache.parse_meminfo("HugePages_Total:       3\n") == {"HugePages_Total": 3}


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert all(value >= 0 for value in page_cache.parse_meminfo(text).values())


def test_freed_is_what_left_the_cache_even_if_the_engine_took_it_at_once() -> None:
    before, after = Memory(10, 500, 0), Memory(8, 100, 0)
    assert Effect(before, after).freed == 400
    assert Effect(after, before).freed == 2
    assert Effect(Memory(5, 5, 5), Memory(5, 5, 5)).freed == 0


# The policies, played in time


def play(settings: Settings, free: list[float], freed: int) -> list[int]:
    """The seconds at which a governor flushes; `free` is MemFree in GiB second by second."""
    governor, flushes = Governor(settings), []
    for second, gib in enumerate(free):
        if governor.due(float(second), int(gib * GIB)):
            flushes.append(second)
            governor.flushed(float(second), freed)
    return flushes


def test_interval_flushes_whatever_memory_looks_like_and_whatever_it_brings() -> None:
    assert play(Settings("interval", interval_seconds=60), [100.0] * 200, freed=0) == [0, 60, 120, 180]
    assert play(Settings("boot_only", interval_seconds=60), [1.0] * 130, freed=0) == [0, 60, 120]


def test_floor_leaves_a_spark_with_room_alone() -> None:
    assert play(Settings("floor", floor_gib=8), [8.0] * 1000, freed=GIB) == []


def test_floor_flushes_below_it_and_again_soon_while_that_helps() -> None:
    assert play(Settings("floor", floor_gib=8), [9.0, 9.0, 7.9] + [7.0] * 13, freed=GIB) == [2, 7, 12]


def test_floor_backs_off_while_flushes_free_nothing_and_recovers() -> None:
    settings = Settings("floor", floor_gib=8)
    assert play(settings, [1.0] * 1000, freed=0) == [0, 5, 15, 35, 75, 155, 315, 615, 915]
    governor = Governor(settings)
    for now in (0.0, 5.0, 15.0):
        governor.flushed(now, 0)
    governor.flushed(35.0, GIB)  # this one helped
    governor.flushed(100.0, 0)
    assert governor.due(105.0, 0)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"policy": "sometimes"}, "expected one of interval"),
        ({"policy": "interval", "interval_seconds": 0}, "1 or more"),
        ({"policy": "floor", "floor_gib": 0}, "more than 0"),
        ({"policy": "floor", "floor_gib": -8}, "found -8, expected more than 0"),
        ({"policy": "floor", "floor_gib": "nan"}, "expected more than 0"),
        ({"policy": "interval", "floor_gib": -1}, "expected more than 0"),
        ({"policy": "interval", "duration_seconds": -1}, "or more"),
        ({"policy": "interval", "drop": 4}, "expected 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings.of(wrong)


# The loop


class Ended(Exception):
    """The test has seen enough."""


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose drop_caches is an ordinary file. Nothing waits for this machine's disks."""
    monkeypatch.setattr(page_cache.os, "sync", lambda: None)
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/drop_caches").write_text("0\n")
    (tmp_path / "proc/meminfo").write_text(meminfo(20, 60))
    (tmp_path / "run/sparklanes").mkdir(parents=True)
    return tmp_path


def test_the_loop_flushes_until_it_is_told_that_the_lane_serves(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, state = spark / "serving", spark / "state.json"
    clock = {"now": 0.0}

    def sleep(seconds: float) -> None:
        clock["now"] += seconds
        if clock["now"] >= 65:
            flag.touch()

    monkeypatch.setattr(page_cache.time, "sleep", sleep)
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: clock["now"])
    settings = Settings("boot_only", interval_seconds=30, serving_flag=str(flag))
    assert page_cache.run(settings, "abc", state, spark) == 0
    told = json.loads(state.read_text())
    assert told["flushes"] == 3
    assert told["identity"] == "abc"
    assert (spark / "proc/sys/vm/drop_caches").read_text() == "3\n"
    assert clock["now"] == 65.0  # noticed within a second, not at the next interval


def test_interval_with_a_duration_ends_after_it_and_says_so(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr(page_cache.time, "sleep", lambda seconds: clock.update(now=clock["now"] + seconds))
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: clock["now"])
    page_cache.run(Settings("interval", interval_seconds=60, duration_seconds=150), "abc", spark / "state.json", spark)
    told = json.loads((spark / "state.json").read_text())
    assert (told["flushes"], told["ended"]) == (3, "150 s are over")


IN_CONTAINER = f"0::/system.slice/docker-{'ab' * 32}.scope\n"


def test_a_floor_compacts_only_while_no_container_runs(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = spark / "proc/sys/vm/compact_memory"
    target.write_text("")
    (spark / "proc/7").mkdir()
    (spark / "proc/7/cgroup").write_text("0::/system.slice/ssh.service\n")
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise Ended

    monkeypatch.setattr(page_cache.time, "sleep", sleep)

    def compactions(policy: str) -> int:
        naps.clear()
        target.write_text("")
        with pytest.raises(Ended):
            page_cache.run(Settings(policy, floor_gib=32), "abc", spark / "state.json", spark)
        counted: int = json.loads((spark / "state.json").read_text())["compactions"]
        assert bool(counted) == (target.read_text() == "1\n")
        return counted

    assert compactions("floor") == 1
    assert compactions("interval") == 0
    (spark / "proc/8").mkdir()
    (spark / "proc/8/cgroup").write_text(IN_CONTAINER)
    assert compactions("floor") == 0


def test_who_can_not_look_takes_it_that_a_container_runs(tmp_path: Path) -> None:
    assert page_cache.container_runs(tmp_path)
    assert not page_cache.compact(tmp_path)


def test_the_loop_of_interval_never_looks_at_the_flag(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = spark / "serving"
    flag.touch()
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise Ended

    monkeypatch.setattr(page_cache.time, "sleep", sleep)
    with pytest.raises(Ended):
        page_cache.run(Settings("interval", serving_flag=str(flag)), "abc", spark / "state.json", spark)
    assert json.loads((spark / "state.json").read_text())["flushes"] == 1


def test_the_script_runs_alone_as_the_unit_calls_it(spark: Path) -> None:
    """Isolated, from another folder, without Ansible: as on a Spark."""
    script = spark / "page_cache.py"
    script.write_bytes(SCRIPT.read_bytes())
    config, state = spark / "config.json", spark / "state.json"
    config.write_text(json.dumps({"policy": "boot_only", "serving_flag": str(spark / "flag"), "identity": "i"}))
    (spark / "flag").touch()
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(config), str(state), str(spark)],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the lane serves" in done.stdout
    assert json.loads(state.read_text())["identity"] == "i"
    config.write_text(json.dumps({"policy": "never"}))
    assert (
        subprocess.run([sys.executable, "-I", str(script), str(config), str(state)], capture_output=True, check=False).returncode
        != 0
    )


# The module page_cache_flush


def test_flush_reports_the_effect(spark: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def freed() -> None:
        (spark / "proc/meminfo").write_text(meminfo(70, 10))
        (spark / "proc/buddyinfo").write_text("Node 0, zone   Normal " + " 0" * 13 + " 96\n")

    monkeypatch.setattr(page_cache.os, "sync", freed)
    result = run_module(page_cache_flush, {"root": str(spark), "wanted_free_gib": 60})
    assert result["changed"]
    assert (result["before"]["blocks"], result["after"]["blocks"]) == (
        None,
        96 * (os.sysconf("SC_PAGE_SIZE") << 13) // (32 << 20),
    )
    assert (result["before"]["mem_free"], result["after"]["mem_free"]) == (20 * GIB, 70 * GIB)
    assert result["freed_bytes"] == 50 * GIB
    again = run_module(page_cache_flush, {"root": str(spark), "wanted_free_gib": 60})
    assert not again["changed"]


def test_flush_without_the_wanted_effect_fails_with_figures(
    spark: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache.os, "sync", lambda: (spark / "proc/meminfo").write_text(meminfo(22, 58)))
    result = run_module(page_cache_flush, {"root": str(spark), "wanted_free_gib": 100})
    assert result["failed"]
    assert "MemFree is 22.00 GiB after the flush (before 20.00 GiB), wanted 100 GiB" in result["msg"]
    assert result["freed_bytes"] == 2 * GIB


@pytest.mark.parametrize(
    ("wanted", "text"), [(-1, "0 or more"), ("nan", "0 or more"), (200, "at most all memory of this Spark, 128.00 GiB")]
)
def test_a_wish_that_can_not_be_flushes_nothing(spark: Path, run_module: RunModule, wanted: Any, text: str) -> None:
    result = run_module(page_cache_flush, {"wanted_free_gib": wanted, "root": str(spark)})
    assert result["failed"]
    assert text in result["msg"]
    assert (spark / "proc/sys/vm/drop_caches").read_text() == "0\n"


def test_flush_in_check_mode_only_measures(spark: Path, run_module: RunModule) -> None:
    result = run_module(page_cache_flush, {"root": str(spark), "wanted_free_gib": 100}, check=True)
    assert result["changed"]
    assert (spark / "proc/sys/vm/drop_caches").read_text() == "0\n"


def test_flush_of_single_files_needs_no_root_and_counts_them(spark: Path, run_module: RunModule) -> None:
    models = spark / "models"
    (models / "sub").mkdir(parents=True)
    (models / "sub/a.safetensors").write_bytes(b"x" * 8192)
    (models / "link").symlink_to("sub/a.safetensors")
    (models / "dangling").symlink_to("nowhere")
    os.mkfifo(models / "pipe")
    result = run_module(page_cache_flush, {"root": str(spark), "paths": [str(models)]})
    assert result["files"] == 2
    assert (spark / "proc/sys/vm/drop_caches").read_text() == "0\n"
    missing = run_module(page_cache_flush, {"root": str(spark), "paths": ["/no/such/model"]})
    assert missing["failed"]
    assert "/no/such/model" in missing["msg"]


# The module page_cache_unit, against a systemd that is played by a small state machine


class Systemd(FakeSystemd):
    def __init__(self, root: Path) -> None:
        super().__init__(root, page_cache_unit.UNIT, {"docker": self.docker})
        self.containers: list[dict[str, Any]] = []
        self.started = self.report

    def report(self) -> str:
        """What the script does first."""
        config = json.loads((self.root / page_cache_unit.CONFIG_PATH.lstrip("/")).read_text())
        page_cache.save_state(self.root / page_cache.STATE_FILE.lstrip("/"), {"identity": config["identity"], "flushes": 1})
        return "active"

    def docker(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "info":
            return 0, json.dumps({"ServerVersion": "28", "CgroupDriver": "systemd", "Driver": "overlay2"}), ""
        if argv[1] == "ps":
            return 0, "".join(f"{box['Id']}\n" for box in self.containers), ""
        return 0, json.dumps(self.containers), ""


@pytest.fixture
def systemd(spark: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    made = Systemd(spark)
    monkeypatch.setattr(commands, "run", lambda argv, **more: made.run(argv, **more))
    monkeypatch.setattr(page_cache_unit, "PROOF_SECONDS", 0.0)
    monkeypatch.setattr(host_units.shutil, "which", lambda _: "/usr/bin/docker")
    return made


def unit(spark: Path, policy: str = "interval", **more: Any) -> dict[str, Any]:
    return {"root": str(spark), "policy": policy, "unit": UNIT_TEXT, **more}


def test_unit_from_nothing_then_nothing(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    first = run_module(page_cache_unit, unit(spark), diff=True)
    assert first["changed"]
    assert first["active"]
    assert systemd.calls == ["enable --no-reload sparklanes-page-cache.service", "restart sparklanes-page-cache.service"]
    assert (spark / page_cache_unit.SCRIPT_PATH.lstrip("/")).read_bytes() == SCRIPT.read_bytes()
    again = run_module(page_cache_unit, unit(spark))
    assert not again["changed"]
    assert len(systemd.calls) == 2


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"policy": "floor", "floor_gib": -8}, "found -8, expected more than 0"),
        ({"policy": "floor", "floor_gib": 128}, "less than all memory of this Spark"),
        ({"policy": "interval", "interval_seconds": 0}, "1 or more"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(
    spark: Path, systemd: Systemd, run_module: RunModule, wrong: dict[str, Any], text: str, live: bool
) -> None:
    before = sorted(spark.rglob("*"))
    result = run_module(
        page_cache_unit, {**unit(spark), **wrong, "live": live, "phase": "booting", "staged": str(spark / "staged")}
    )
    assert result["failed"]
    assert text in result["msg"]
    assert sorted(spark.rglob("*")) == before
    assert systemd.calls == []


def test_check_mode_on_a_virgin_node(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    result = run_module(page_cache_unit, unit(spark), check=True)
    assert result["changed"]
    assert [action.split()[0] for action in result["actions"]] == ["Write", "Write", "Write", "Enable", "Start"]
    assert systemd.calls == []
    assert not (spark / "etc").exists()
    off = run_module(page_cache_unit, unit(spark, "off"), check=True)
    assert not off["changed"]


def test_new_settings_restart_only_our_unit_without_a_reload(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    run_module(page_cache_unit, unit(spark))
    systemd.calls.clear()
    assert run_module(page_cache_unit, unit(spark, interval_seconds=30))["changed"]
    assert systemd.calls == ["restart sparklanes-page-cache.service"]


def test_an_interrupted_run_is_finished_by_the_next(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    run_module(page_cache_unit, unit(spark))
    state = spark / page_cache.STATE_FILE.lstrip("/")
    state.write_text('{"identity": "that of the old settings"}')
    assert run_module(page_cache_unit, unit(spark))["actions"] == ["Restart sparklanes-page-cache.service"]


def test_changed_unit_text_waits_for_gpu_containers(
    spark: Path, systemd: Systemd, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(page_cache_unit, unit(spark))
    systemd.calls.clear()
    monkeypatch.setattr(host_units, "missing_links", lambda _: ["/dev/nvidia0"])
    systemd.containers = [{"Id": "a", "Name": "/rank0", "HostConfig": {"Runtime": "nvidia"}, "State": {"Running": True}}]
    newer = {**unit(spark, interval_seconds=20), "unit": UNIT_TEXT + "# newer\n"}
    result = run_module(page_cache_unit, newer)
    assert "rank0 would lose the GPU" in result["waiting"][0]
    assert (spark / UNIT_PATH).read_text() == UNIT_TEXT
    assert systemd.calls == ["restart sparklanes-page-cache.service"]  # the new settings apply all the same
    assert not run_module(page_cache_unit, newer)["changed"]
    systemd.containers = []
    systemd.calls.clear()
    result = run_module(page_cache_unit, newer)
    assert result["waiting"] == []
    assert systemd.calls == ["daemon-reload"]
    assert "# newer" in (spark / UNIT_PATH).read_text()


def test_boot_only_stops_when_the_lane_serves_and_starts_with_the_next_boot(
    spark: Path, systemd: Systemd, run_module: RunModule
) -> None:
    boot = unit(spark, "boot_only")
    assert run_module(page_cache_unit, {**boot, "phase": "booting"})["active"]
    served = run_module(page_cache_unit, {**boot, "phase": "serving"})
    assert served["changed"]
    assert not served["active"]
    assert not run_module(page_cache_unit, boot)["changed"]  # site.yml leaves a served lane alone
    assert run_module(page_cache_unit, {**boot, "phase": "booting"})["active"]


def test_a_phase_alone_touches_no_settings_and_no_unit(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    run_module(page_cache_unit, unit(spark, "boot_only"))
    systemd.calls.clear()
    serving = {"root": str(spark), "phase": "serving"}
    assert run_module(page_cache_unit, serving, check=True)["changed"]
    assert run_module(page_cache_unit, serving)["changed"]
    assert not run_module(page_cache_unit, serving)["changed"]
    assert (spark / page_cache.SERVING_FLAG.lstrip("/")).exists()
    assert systemd.calls == []
    assert run_module(page_cache_unit, {"root": str(spark), "policy": "floor"})["failed"]  # a policy needs the unit's text


def test_a_unit_whose_time_is_over_stays_so_until_a_lane_boots(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    timed = unit(spark, duration_seconds=3600)
    run_module(page_cache_unit, timed)
    state = spark / page_cache.STATE_FILE.lstrip("/")
    state.write_text(json.dumps({**json.loads(state.read_text()), "ended": "3600 s are over"}))
    systemd.active = "inactive"
    assert not run_module(page_cache_unit, timed)["changed"]
    assert run_module(page_cache_unit, {**timed, "phase": "booting"})["active"]


def test_while_another_lane_serves_settings_only_wait(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    run_module(page_cache_unit, unit(spark))
    systemd.calls.clear()
    config = (spark / page_cache_unit.CONFIG_PATH.lstrip("/")).read_text()
    staged = run_module(page_cache_unit, unit(spark, "floor", live=False))
    assert staged["staged"] == "/etc/sparklanes/staged/page-cache.json"
    assert (spark / page_cache_unit.CONFIG_PATH.lstrip("/")).read_text() == config
    assert systemd.calls == []
    assert not run_module(page_cache_unit, unit(spark, "floor", live=False))["changed"]
    applied = run_module(page_cache_unit, unit(spark, "floor"))
    assert applied["staged"] == ""
    assert systemd.calls == ["restart sparklanes-page-cache.service"]


def test_off_stops_and_disables(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    run_module(page_cache_unit, unit(spark))
    systemd.calls.clear()
    assert not run_module(page_cache_unit, unit(spark, "off"))["active"]
    assert systemd.calls == ["disable --no-reload sparklanes-page-cache.service", "stop sparklanes-page-cache.service"]
    assert not run_module(page_cache_unit, unit(spark, "off"))["changed"]
    run_module(page_cache_unit, unit(spark))
    assert systemd.enabled, "a unit that came back is there after the next boot too"


def test_a_unit_that_does_not_come_up_shows_its_journal(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    systemd.started = lambda: "active"  # and nothing is reported
    result = run_module(page_cache_unit, unit(spark))
    assert result["failed"]
    assert "the journal" in result["msg"]


def test_removal_leaves_nothing_and_waits_for_what_serves(spark: Path, systemd: Systemd, run_module: RunModule) -> None:
    def tree() -> set[str]:
        return {str(path.relative_to(spark)) for path in spark.rglob("*") if path.is_file()}

    before = tree()
    assert not run_module(page_cache_unit, unit(spark, "absent"))["changed"]
    run_module(page_cache_unit, unit(spark))
    there = tree()
    assert there > before
    for more, check in (({"live": False}, False), ({}, True)):
        run_module(page_cache_unit, unit(spark, "absent", **more), check=check)
        assert tree() == there
    gone = run_module(page_cache_unit, unit(spark, "absent"), diff=True)
    assert gone["changed"]
    assert tree() == before
    assert systemd.calls[-2:] == ["stop sparklanes-page-cache.service", "disable --no-reload sparklanes-page-cache.service"]
    assert not run_module(page_cache_unit, unit(spark, "absent"))["changed"]
