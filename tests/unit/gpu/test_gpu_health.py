"""Verdicts on GPUs: the states that were reported, a real H200, the job itself with players in the place of GPU and Docker."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import gpu_health as gpu_health_module
import gpu_health_info
import pytest
import yaml
from ansible.module_utils.sparklanes.gpu import burn as gpu_burn
from ansible.module_utils.sparklanes.gpu import cap as gpu_cap
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.gpu import measure as gpu_measure
from ansible.module_utils.sparklanes.gpu import nvidia_smi, occupied
from ansible.module_utils.sparklanes.gpu.health import Limits, assess, judge, summarise
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from conftest import FIXTURES, ROOT, RunModule
from hostvars import registered
from hypothesis import given
from hypothesis import strategies as st
from sparklanes import gpu_verdicts

HERE = FIXTURES / "gpu"
GIB = 1024**3
H200: list[dict[str, Any]] = json.loads((HERE / "h200-runs.json").read_text())


def states() -> dict[str, dict[str, str]]:
    """The states of gpu-states.tsv by name."""
    head, *rows = [line.split("\t") for line in (HERE / "gpu-states.tsv").read_text().splitlines()]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def run(state: str = "healthy-decode", tflops: float | None = None, slow: float = 1.0, **more: Any) -> dict[str, Any]:
    """A run of a GB10 in a reported state. A matrix product follows the clock: 90.1 TFLOPS at 2500 MHz unless said otherwise."""
    known = states()[state]
    clock = int(known["sm_mhz"])
    power = None if known["power_w"] == "-" else float(known["power_w"])
    said: list[dict[str, Any]] = [{"gpu": "NVIDIA GB10", "torch": "2.13.0"}]
    for phase, rate in (("matmul", tflops or 90.1 * clock / 2500), ("gemv", 220.0 * slow), ("copy", 230.0)):
        said += [{"phase": phase, "rate": rate * factor, "unit": ""} for factor in (0.99, 1.0, 1.01)]
    said.append({"phase": "end", "correct": True})
    sample = {
        "phase": "matmul",
        "sm_mhz": clock,
        "power_w": power,
        "utilization_percent": 96,
        "temperature_c": 52,
        "reasons": nvidia_smi.reasons(known["throttle_reasons"]),
    }
    return {
        "at": 1,
        "boot_id": "b",
        "image": "i",
        "caps": [],
        "error": "",
        "other_load": False,
        **summarise(said, [sample] * 12),
        **more,
    }


def cap(top: int, unit: str = gpu_cap.CAP_UNIT) -> dict[str, Any]:
    return {"caps": [{"unit": unit, "min_mhz": 0, "max_mhz": top}]}


def verdict(runs: dict[str, Any], host: str = "s2", **more: Any) -> gpu_health.Verdict:
    return judge(runs, **more)[host]


GOOD = run()


# Each verdict, from public reports


def test_a_healthy_fleet() -> None:
    made = judge({"s1": run(tflops=85.7), "s2": run(tflops=86.6), "s3": run(tflops=89.5), "s4": run(tflops=90.1)})
    assert {v.verdict for v in made.values()} == {"ok"}
    assert all(gpu_health.check(host, v).status == "pass" for host, v in made.items())


@pytest.mark.parametrize("state", ["low-power-stuck", "low-power-stuck-2"])
def test_a_stuck_spark_is_low_clock_alone_and_beside_others(state: str) -> None:
    for runs in ({"s2": run(state)}, {"s1": GOOD, "s2": run(state)}):
        found = verdict(runs)
        assert found.verdict == "low_clock"
        assert "no throttle reason" in found.why
        assert "60 s" in found.remedy
    assert verdict({"s1": GOOD, "s2": run(state)}, "s1").verdict == "ok"


def test_four_sparks_that_are_all_stuck_are_all_low() -> None:
    made = judge({f"s{n}": run("low-power-stuck") for n in range(4)})
    assert {v.verdict for v in made.values()} == {"low_clock"}


def test_lower_than_the_others_without_being_stuck() -> None:
    slow = run("healthy-decode")
    slow = {**slow, "clock_mhz": 2100.0, "clock_min_mhz": 1900.0, "matmul_tflops": 75.0}
    assert verdict({"s1": GOOD, "s2": slow}).verdict == "low_clock"
    assert verdict({"s1": GOOD, "s2": {**slow, "clock_mhz": 2130.0}}).verdict == "ok"  # 85.2 %


def test_a_steady_low_clock_may_be_a_lock_that_nobody_declared() -> None:
    found = verdict({"s1": run(tflops=92.0), "s2": {**run("capped-2100"), "clock_mhz": 2083.0}})
    assert found.verdict == "low_clock"
    assert "nvidia-smi -rgc" in found.remedy


@pytest.mark.parametrize(("state", "top"), [("capped-2100", 2100), ("capped-2200", 2200)])
def test_a_lock_of_a_unit_is_no_fault(state: str, top: int) -> None:
    found = verdict({"s1": GOOD, "s2": run(state, **cap(top))})
    assert found.verdict == "capped"
    assert f"locks it to {top} MHz" in found.why
    assert gpu_health.check("s2", found).status == "pass"
    assert verdict({"s1": GOOD, "s2": run(state, **cap(top, "of-the-site.service"))}).verdict == "capped"


def test_a_lock_explains_neither_a_stuck_spark_nor_slow_kernels_nor_one_that_is_ignored() -> None:
    assert verdict({"s1": GOOD, "s2": run("low-power-stuck", **cap(2100))}).verdict == "low_clock"
    slow = run("capped-2100", slow=0.3, **cap(2100))
    assert verdict({"s1": GOOD, "s2": slow}).verdict == "hidden_slow"
    assert verdict({"s1": GOOD, "s2": run("healthy-decode", **cap(2100))}).verdict == "ok"  # GPU.CLOCK_CAP tells that


def test_a_setting_that_the_driver_tells_is_no_fault() -> None:
    held = {**run("capped-2100"), "clock_mhz": 1500.0, "reasons": {"applications_clocks_setting": 12}}
    held["matmul_tflops"] = 54.0
    found = verdict({"s1": GOOD, "s2": held})
    assert (found.verdict, "-rgc" in found.note) == ("capped", True)
    assert gpu_health.check("s2", found).status == "warn"


def test_the_hidden_slow_state_shows_in_kernels_alone() -> None:
    """63 against 94 ms a step, matrix-vector product 3.3 times slower, copy and clock as ever."""
    found = verdict({"s1": run("hidden-slow"), "s2": run("hidden-slow", slow=1 / 3.3)})
    assert found.verdict == "hidden_slow"
    assert "matrix-vector product at 30 % of s1" in found.why
    third = verdict({"s1": run("hidden-slow", 90.0), "s2": run("hidden-slow", 90.0 * 63 / 94)})
    assert "matrix product per clock at 67 % of s1" in third.why


def test_a_state_that_comes_and_goes_shows_on_one_spark() -> None:
    rates = [220.0, 219.0, 66.0, 67.0, 221.0, 220.0, 66.0, 220.0]
    said = [{"phase": "gemv", "rate": rate} for rate in rates]
    slow = {**GOOD, "slow_blocks": summarise(said, [])["slow_blocks"]}
    assert slow["slow_blocks"]["gemv"] == 0.375
    found = verdict({"s2": slow})
    assert (found.verdict, "38 % of the time" in found.why) == ("hidden_slow", True)


def test_the_floor_counts_on_a_gb10_and_follows_a_lock() -> None:
    assert verdict({"s2": run(tflops=60.0)}).verdict == "hidden_slow"
    low = verdict({"s2": run(tflops=80.0)})
    assert (low.verdict, gpu_health.check("s2", low).status) == ("ok", "warn")
    assert verdict({"s2": run(tflops=86.0)}).note == ""
    assert verdict({"s2": run("capped-2100", 70.0, **cap(2100))}).verdict == "capped"
    assert verdict({"s2": run("capped-2100", 60.0, **cap(2100))}).verdict == "hidden_slow"
    assert verdict({"s2": run(tflops=60.0)}, limits=Limits(floor_tflops=60.0)).verdict == "ok"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (None, "not measured"),
        ({"error": "torch finds no CUDA device in this image"}, "no CUDA device"),
        ({"other_load": True}, "another process"),
        ({"gemv_gbs": None}, "gemv_gbs was not measured"),
        ({"matmul_tflops": None, "copy_gbs": None}, "matmul_tflops, copy_gbs"),
        ({"loaded_samples": 4}, "4 samples"),
        ({"clock_mhz": None, "loaded_samples": 0}, "0 samples"),
        ({"correct": False}, "wrong numbers"),
    ],
)
def test_what_proves_nothing_is_inconclusive_and_fails(broken: dict[str, Any] | None, words: str) -> None:
    found = verdict({"s1": GOOD, "s2": None if broken is None else {**GOOD, **broken}})
    assert found.verdict == "inconclusive"
    assert words in found.why
    assert gpu_health.check("s2", found).status == "fail"
    assert found.remedy


def test_deadlock_power_says_nothing_of_a_burn_and_idle_clocks_are_not_judged() -> None:
    idle = summarise([], [{"phase": "matmul", "sm_mhz": 208, "utilization_percent": 0, "reasons": ["gpu_idle"]}] * 30)
    assert (idle["loaded_samples"], idle["clock_mhz"]) == (0, None)


@pytest.mark.parametrize(
    ("reasons", "words"),
    [({"hw_thermal_slowdown": 9}, "too hot"), ({"hw_power_brake_slowdown": 12}, "power supply"), ({"sw_power_cap": 2}, "60 s")],
)
def test_the_remedy_follows_the_reason(reasons: dict[str, int], words: str) -> None:
    assert words in verdict({"s1": GOOD, "s2": {**run("low-power-stuck"), "reasons": reasons}}).remedy


# A real GPU


def test_the_h200_as_it_was_measured() -> None:
    first, second, contested = H200
    again = summarise(
        [{"gpu": first["gpu"], "torch": first["torch"]}, *first["blocks"], {"phase": "end", "correct": True}], first["samples"]
    )
    assert {key: first[key] for key in again} == again
    assert (first["matmul_tflops"], first["gemv_gbs"], first["copy_gbs"]) == (670.87, 4350.41, 4239.85)
    assert (first["clock_mhz"], first["reasons"], first["correct"]) == (1470.0, {"sw_power_cap": 24}, True)
    # It runs at its power limit below what would be stuck for a GB10: absolute numbers are of the GB10 only.
    assert verdict({"s2": first}).verdict == "inconclusive"
    assert "nothing to compare with" in verdict({"s2": first}).why
    assert {v.verdict for v in judge({"a": first, "b": second}).values()} == {"ok"}
    assert verdict({"s2": second}, earlier={"s2": [{**first, "verdict": "ok"}]}).verdict == "ok"
    assert "another process" in verdict({"s1": first, "s2": contested}).why
    assert gpu_health.table({"a": first}, judge({"a": first, "b": second}))[1].split() == (
        ["a", "ok", "670.9", "4350", "4240", "1470", "691", "61", "sw_power_cap"]
    )


def test_an_earlier_run_of_another_image_or_a_bad_one_is_no_measure() -> None:
    now = {**H200[1], "matmul_tflops": 400.0}
    assert verdict({"s2": now}, earlier={"s2": [{**H200[0], "verdict": "ok"}]}).verdict == "hidden_slow"
    for old in ({"verdict": "ok", "image": "other"}, {"verdict": "low_clock"}, {"verdict": ""}):
        assert verdict({"s2": now}, earlier={"s2": [{**H200[0], **old}]}).verdict == "inconclusive"


def test_other_kinds_of_gpu_are_not_compared() -> None:
    assert verdict({"s1": GOOD, "s2": H200[0]}).verdict == "inconclusive"


NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5000) | st.text(max_size=5)


@given(st.dictionaries(st.sampled_from(["matmul_tflops", "gemv_gbs", "copy_gbs", "clock_mhz", "loaded_samples"]), NUMBERS))
def test_no_run_breaks_a_judgement(changed: dict[str, Any]) -> None:
    made = judge({"s1": GOOD, "s2": {**GOOD, **changed}, "s3": None})
    assert {v.verdict for v in made.values()} <= set(gpu_health.VERDICTS)
    assert made["s3"].verdict == "inconclusive"
    assert len(gpu_health.table({"s1": GOOD, "s2": {**GOOD, **changed}, "s3": None}, made)) == 4


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["phase", "rate", "sm_mhz", "utilization_percent", "reasons"]),
            st.none() | st.integers(-9, 9) | st.just("matmul"),
        )
    )
)
def test_no_line_breaks_a_summary(lines: list[dict[str, Any]]) -> None:
    found = summarise([line for line in lines if "rate" in line], [])
    assert json.loads(json.dumps(found)).keys() == found.keys()


# What the playbook makes of it


def test_assess_has_a_row_for_each_host_whatever_became_of_it() -> None:
    first = {**H200[0]}
    found = assess(
        {
            "a": {"run": first},
            "b": {"run": {**H200[1]}},
            "c": {"msg": "The GPU was not loaded: the GPU is in use: VLLM::EngineCore (pid 415592)."},
            "d": {"unreachable": True, "msg": "ssh"},
            "e": {},
        },
        {"a": {"runs": []}},
    )
    assert found["verdicts"] == {"a": "ok", "b": "ok", "c": "inconclusive", "d": "inconclusive", "e": "inconclusive"}
    rows = {check["host"]: check["found"] for check in found["checks"]}
    assert "VLLM::EngineCore" in rows["c"]
    assert "no answer over ssh" in rows["d"]
    assert found["at"] == {"a": first["at"], "b": H200[1]["at"]}
    assert len(found["table"]) == 6


@pytest.mark.parametrize(
    ("other", "all_of_them"), [({"runs": [1]}, True), ({"runs": []}, False), ({"unreachable": True}, False), (None, False)]
)
def test_all_load_at_once_only_where_each_was_measured_before(other: Any, all_of_them: bool) -> None:
    known = registered(["a", "b"], gpu_health_known={"a": {"runs": [1]}, "b": other})
    assert gpu_health.measured_before(known, ["a", "b"]) is all_of_them


def test_a_site_has_its_own_limits_and_a_mistyped_one_is_refused() -> None:
    loose = assess({"a": {"run": H200[0]}}, {}, {"least_samples": 40})
    assert "24 samples" in loose["checks"][0]["found"]
    with pytest.raises(Exception, match="floor_tflop is none of"):
        gpu_verdicts({}, [], {"floor_tflop": 1})


@pytest.mark.parametrize("value", ["1400", None, True, -1, float("nan"), [1]])
def test_a_limit_that_is_no_number_is_refused_with_a_sentence(value: object) -> None:
    with pytest.raises(Exception, match=r"stuck_mhz .*; expected numbers of 0 and more"):
        gpu_verdicts({}, [], {"stuck_mhz": value})


def test_the_last_verdict_is_remembered_until_the_next_boot() -> None:
    assert gpu_health.remembered("s1", [], "b").status == "warn"
    assert gpu_health.remembered("s1", [{**GOOD, "verdict": "low_clock"}], "b").status == "fail"
    assert gpu_health.remembered("s1", [{**GOOD, "verdict": "ok"}], "b").status == "pass"
    later = gpu_health.remembered("s1", [{**GOOD, "verdict": "low_clock"}], "c")
    assert (later.status, "before the last reboot" in later.found) == ("warn", True)


def test_limits_are_documented() -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    missing = [name for name in Limits.__dataclass_fields__ if name not in page]
    assert not missing


# May it start

WELL: dict[str, Any] = {"error": "", "processes": []}


@pytest.mark.parametrize(
    ("facts", "boxes", "locks", "free", "words"),
    [
        (WELL, [], [], 100 * GIB, ""),
        (WELL, [{"name": "proxy", "running": True, "uses_gpu": False, "deployment": ""}], [], 100 * GIB, ""),
        ({"error": "nvidia-smi: exit 9"}, [], [], 100 * GIB, "Mend the driver"),
        ({"error": "", "processes": None}, [], [], 100 * GIB, "does not tell"),
        ({"error": "", "processes": [{"pid": 5, "name": "python3"}]}, [], [], 100 * GIB, "python3 (pid 5) holds the GPU"),
        (WELL, None, [], 100 * GIB, "Docker does not answer"),
        (WELL, [{"name": "rank0", "running": True, "uses_gpu": False, "deployment": "sparks"}], [], 100 * GIB, "rank0 runs"),
        (WELL, [{"name": "mine", "running": True, "uses_gpu": True, "deployment": ""}], [], 100 * GIB, "mine runs"),
        (WELL, [], ["sparks"], 100 * GIB, "transaction of deployment sparks"),
        (WELL, [], [], 5 * GIB, "5.0 GiB"),
        (WELL, [], [], None, "unknown"),
    ],
)
def test_what_refuses_a_burn(facts: dict[str, Any], boxes: Any, locks: list[str], free: int | None, words: str) -> None:
    why = gpu_measure.refusal(facts, occupied.of_facts(boxes, {}, facts, locks), free)
    assert (words in why) if words else why == ""


def test_the_container_is_pinned_bounded_and_alone() -> None:
    argv = gpu_measure.burn_argv({"image": "r/e@sha256:1", "seconds": 40.0}, Path("/x/gpu_burn.py"), "r/e@sha256:1")
    assert argv[:4] == ["docker", "run", "--rm", "--init"]
    for pair in (
        ("--network", "none"),
        ("--gpus", "all"),
        ("--pull", "never"),
        ("--volume", "/x/gpu_burn.py:/sparklanes/gpu_burn.py:ro"),
    ):
        assert pair in list(itertools.pairwise(argv))
    assert argv[-4:] == ["-B", "/sparklanes/gpu_burn.py", "--seconds", "40"]


# The job, with a player in the place of the GPU

NVIDIA_SMI = """#!{python}
import sys, time
if "-q" in sys.argv:
    sys.stdout.write(open({xml!r}).read())
elif any(word.startswith("--query-compute-apps") for word in sys.argv):
    print({apps!r}, end="")
elif any(word.startswith("--loop-ms") for word in sys.argv):
    for _ in range(2000):
        print("721, 8.90, 96, 42, P0, 0x0000000000000000", flush=True)
        time.sleep(0.01)
elif "clocks_event_reasons.active" in " ".join(sys.argv):
    sys.exit(2)
else:
    print("0x0000000000000000")
"""
BURN = """#!{python}
import json, sys, time
print("a banner of the image")
print(json.dumps(dict(gpu="NVIDIA GB10", torch="2")), flush=True)
for phase, rate in (("warmup", 26), ("matmul", 26), ("gemv", 200), ("copy", 220)):
    print(json.dumps(dict(phase=phase)), flush=True)
    for _ in range(4):
        time.sleep(0.1)
        print(json.dumps(dict(phase=phase, rate=rate, unit="")), flush=True)
print(json.dumps(dict(phase="end", correct=True)), flush=True)
"""


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with an nvidia-smi that plays a stuck GB10, and a `torchy` Python that plays the burn."""
    folder = tmp_path / "bin"
    folder.mkdir()
    xml = str(HERE / "h200-nvidia_smi_q_x.xml")
    for name, text in (
        ("nvidia-smi", NVIDIA_SMI.format(python=sys.executable, xml=xml, apps="")),
        ("torchy", BURN.format(python=sys.executable)),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_measure, "may_start", lambda *_, **__: ("", {"driver": {}, "caps": []}))
    return folder


def burn(folder: Path, **args: Any) -> dict[str, Any]:
    report = Reporter(folder, "gpu-health")
    return gpu_measure.burn({"seconds": 10.0, "folder": str(folder), **args}, {}, report)["run"]


def test_the_job_measures_keeps_and_is_judged(player: Path, tmp_path: Path) -> None:
    made = burn(tmp_path, python=str(player / "torchy"))
    assert (made["clock_mhz"], made["power_w"], made["matmul_tflops"], made["error"]) == (721.0, 8.9, 26.0, "")
    assert made["loaded_samples"] >= 5
    assert verdict({"s2": made}).verdict == "low_clock"
    assert gpu_measure.history(tmp_path) == [made]
    assert (tmp_path / "gpu_burn.py").read_text() == Path(gpu_burn.__file__).read_text()
    for _ in range(gpu_measure.RUNS_KEPT):
        gpu_measure.keep(tmp_path, [*gpu_measure.history(tmp_path), made])
    assert len(gpu_measure.history(tmp_path)) == gpu_measure.RUNS_KEPT


def test_a_load_that_breaks_tells_its_last_words(player: Path, tmp_path: Path) -> None:
    (player / "torchy").write_text(
        f"#!{sys.executable}\nimport sys\nprint('CUDA error: no kernel image is available')\nsys.exit(1)\n"
    )
    made = burn(tmp_path, python=str(player / "torchy"))
    assert "exit 1: CUDA error: no kernel image" in made["error"]
    assert verdict({"s2": made}).verdict == "inconclusive"


def test_a_load_that_never_ends_is_ended(player: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_measure, "START_SECONDS", -19.5)
    (player / "torchy").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(300)\n")
    with pytest.raises(JobError, match="did not end"):
        burn(tmp_path, python=str(player / "torchy"))


def test_a_stopped_job_asks_the_container_to_stop(player: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    (player / "docker").write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$1" = run ] && exec sleep 300\n[ "$1" = image ] && echo \'[{{"Id": "sha256:1"}}]\'\nexit 0\n'
    )
    (player / "docker").chmod(0o755)

    def stopped(*_: Any) -> None:
        raise JobError("stopped by SIGTERM")

    monkeypatch.setattr(gpu_measure, "compute_processes", stopped)
    monkeypatch.setattr(gpu_measure, "parse_sample", stopped)
    with pytest.raises(JobError, match="SIGTERM"):
        burn(tmp_path, image="r/e@sha256:1")
    assert calls.read_text().splitlines()[0] == "image inspect r/e@sha256:1"
    assert calls.read_text().splitlines()[-1] == "stop --time 10 sparklanes-gpu-health"
    assert gpu_measure.history(tmp_path) == []


def test_a_second_process_on_the_gpu_is_seen(player: Path, tmp_path: Path) -> None:
    text = (player / "nvidia-smi").read_text().replace("print('', end=\"\")", "print('1, a, 5 MiB\\n2, b, 5 MiB')")
    (player / "nvidia-smi").write_text(text)
    assert burn(tmp_path, python=str(player / "torchy"))["other_load"] is True


def test_the_reason_field_of_an_old_driver(player: Path) -> None:
    assert gpu_measure.reason_field() == "clocks_throttle_reasons.active"


def test_a_history_that_is_damaged_is_none(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text('{"runs": 5}')
    assert gpu_measure.history(tmp_path) == []


# The script itself, without a GPU


def test_the_plan_is_bounded() -> None:
    for seconds in (10, 40, 300):
        assert sum(part for _, part in gpu_burn.plan(seconds)) <= seconds * 1.2
    with pytest.raises(SystemExit):
        gpu_burn.main(["--seconds", "9999"])


# The modules


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "one of the following is required"),
        ({"image": "r/e:latest"}, "a tag moves"),
        ({"image": ""}, "Choose a lane"),
        ({"python": sys.executable, "seconds": 5}, "expected 10 to 300"),
        ({"python": sys.executable, "image": "x"}, "mutually exclusive"),
        ({"verdict": "ok"}, "required by"),
        ({"verdict": "fine", "at": 1}, "must be one of"),
    ],
)
def test_a_wrong_wish_is_refused(args: dict[str, Any], words: str, tmp_path: Path, run_module: RunModule) -> None:
    result = run_module(gpu_health_module, {"jobs_dir": str(tmp_path), **args})
    assert result["failed"]
    assert words in result["msg"]


def test_the_module_refuses_or_says_what_it_would_do(
    tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"jobs_dir": str(tmp_path), "python": sys.executable}
    monkeypatch.setattr(gpu_measure, "may_start", lambda *_: ("the GPU is in use: x (pid 1)", {}))
    for check in (True, False):
        assert "The GPU was not loaded: the GPU is in use" in run_module(gpu_health_module, args, check=check)["msg"]
    monkeypatch.setattr(gpu_measure, "may_start", lambda *_: ("", {}))
    assert run_module(gpu_health_module, args, check=True)["actions"] == ["Load the GPU for 40 s"]
    assert "is no program" in run_module(gpu_health_module, {**args, "python": "/no/python"}, check=True)["msg"]
    monkeypatch.setattr(gpu_health_module.shutil, "which", lambda _: None)
    image = run_module(gpu_health_module, {"jobs_dir": str(tmp_path), "image": "r/e@sha256:" + "a" * 64}, check=True)
    assert "Run site.yml" in image["msg"]


def test_a_verdict_is_kept_once_beside_its_run(tmp_path: Path, run_module: RunModule) -> None:
    gpu_measure.keep(tmp_path, [{**GOOD, "at": 7, "samples": [], "blocks": []}, {**GOOD, "at": 8, "samples": []}])
    args = {"folder": str(tmp_path), "at": 7, "verdict": "low_clock"}
    assert run_module(gpu_health_module, args, check=True)["changed"]
    assert [one.get("verdict") for one in gpu_measure.history(tmp_path)] == [None, None]
    assert run_module(gpu_health_module, args)["changed"]
    assert not run_module(gpu_health_module, args)["changed"]
    known = run_module(gpu_health_info, {"folder": str(tmp_path), "host": "s1"})
    assert [one.get("verdict") for one in known["runs"]] == ["low_clock", None]
    assert "samples" not in known["runs"][0]
    assert known["verdict"] == "warn"  # the last one was not judged
    assert "has no run of 9" in run_module(gpu_health_module, {**args, "at": 9})["msg"]


def test_the_role_measures_one_after_the_other_until_each_has_a_past() -> None:
    tasks = yaml.safe_load((ROOT / "roles/gpu_health/tasks/main.yml").read_text())
    (load,) = [task for block in tasks for task in block.get("block", []) if "long_job" in task]
    assert "else 1" in load["throttle"]
    assert "__gpu_health_measured" in load["throttle"]
