# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Is a GPU as fast as it should be: rules over what a burn measured.

Clocks alone do not tell. A Spark that is stuck at 721 MHz reports state P0, 96 % utilisation and no throttle reason; one in
the hidden slow state reports the clock of a healthy one and computes at two thirds of its speed. So clocks count only under
load, and kernels are compared: with the other Sparks, with this Spark's own better days, and with published numbers.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.registered import HostVars, look, looks, results, words
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.gpu.cap import CAP_SLACK_MHZ
from ansible.module_utils.sparklanes.gpu.nvidia_smi import WISHED

OK = "ok"
LOW_CLOCK = "low_clock"
HIDDEN_SLOW = "hidden_slow"
CAPPED = "capped"
INCONCLUSIVE = "inconclusive"
VERDICTS = (OK, CAPPED, LOW_CLOCK, HIDDEN_SLOW, INCONCLUSIVE)

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """Thresholds; docs/gpu.md names the source of each."""

    # Stuck Sparks were seen at 500 to 850 MHz, healthy ones near 2400 (hoesing/spark-gpu-throttle-check: fail below 1400).
    stuck_mhz: int = 1400
    # Below this share of the best Spark's clock, or of its matrix product per clock. Healthy ones: 85.7 of 90.1, so 0.95.
    share_of_best: float = 0.85
    # The hidden slow state lost a third of a step and 70 % of a matrix-vector product. These two vary more between runs.
    memory_share_of_best: float = 0.75
    # A sample says something of the clock only while the GPU works.
    loaded_percent: int = 80
    least_samples: int = 5
    # bf16 TFLOPS of healthy GB10s: 85.7 to 90.1 (GLM-5.3 743B recipe), 95.0 after a reboot, 97 at 8192³ (public GEMM burn).
    floor_tflops: float = 85.7
    # Another image brings another kernel, hence the allowance below the lowest published value before it is a fault.
    floor_allowance: float = 0.9
    healthy_mhz: int = 2400
    # Slow and fast phases within one run: the hidden state comes and goes within seconds.
    slow_block: float = 0.75
    slow_blocks_share: float = 0.15
    cap_slack_mhz: int = CAP_SLACK_MHZ


def floor_known(run: Run) -> bool:
    """Absolute numbers exist for the GB10 only."""
    return "GB10" in str(run.get("gpu") or "")


# --- from samples to a run -----------------------------------------------------------------------------------


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def _rates(said: Sequence[Mapping[str, Any]], phase: str) -> list[float]:
    rates = [data.get("rate") for data in said if data.get("phase") == phase]
    return [float(rate) for rate in rates if isinstance(rate, int | float) and rate > 0]


def summarise(
    said: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]], limits: Limits | None = None
) -> dict[str, Any]:
    """One run in a few numbers: `said` are the lines of gpu_burn, `samples` those of nvidia-smi beside it."""
    limits = limits or Limits()
    head = next((data for data in said if data.get("gpu")), {})
    end = next((data for data in said if data.get("phase") == "end"), {})
    loaded = [
        sample
        for sample in samples
        if sample.get("phase") == "matmul"
        and (sample.get("utilization_percent") or 0) >= limits.loaded_percent
        and sample.get("sm_mhz") is not None
    ]
    clocks = [float(sample["sm_mhz"]) for sample in loaded]
    reasons = Counter(reason for sample in loaded for reason in sample.get("reasons") or [])
    slow: dict[str, float] = {}
    for phase in ("matmul", "gemv", "copy"):
        rates = _rates(said, phase)
        slow[phase] = round(sum(rate < limits.slow_block * max(rates) for rate in rates) / len(rates), 3) if rates else 0.0
    return {
        "gpu": head.get("gpu"),
        "torch": head.get("torch"),
        "matmul_tflops": _median(_rates(said, "matmul")),
        "gemv_gbs": _median(_rates(said, "gemv")),
        "copy_gbs": _median(_rates(said, "copy")),
        "slow_blocks": slow,
        "correct": end.get("correct"),
        "loaded_samples": len(loaded),
        "clock_mhz": _median(clocks),
        "clock_min_mhz": min(clocks, default=None),
        "clock_max_mhz": max(clocks, default=None),
        "power_w": _median([float(sample["power_w"]) for sample in loaded if sample.get("power_w") is not None]),
        "temperature_c": max(
            (sample["temperature_c"] for sample in loaded if sample.get("temperature_c") is not None), default=None
        ),
        "reasons": {name: count for name, count in sorted(reasons.items()) if name != "gpu_idle"},
    }


# --- from runs to verdicts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What a Spark's GPU is like, why we say so, and what to do."""

    verdict: str
    why: str
    remedy: str = ""
    note: str = ""


REBOOT = (
    "Reboot it and measure again (a crash leaves the GPU so; 721 → 2262 MHz after a reboot). If that changes nothing, shut it down, "
    "take its power supply off the mains for 60 s and measure again; clocks that stay low then are a case for the vendor"
)
SLOW_REMEDY = (
    "Reboot it and measure again; then 60 s without mains power. Compare BIOS and driver with a fast Spark (playbooks/status.yml)"
)


def _number(run: Run, key: str) -> float | None:
    """A rate, clock or count that was measured; nothing of these is zero, negative or infinite."""
    value = run.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def _loaded(run: Run) -> int:
    return int(_number(run, "loaded_samples") or 0)


def unusable(run: Run | None, limits: Limits) -> tuple[str, str]:
    """Why a run proves nothing and what to do about it; empty where it does."""
    if not run:
        return "it was not measured", "See why it did not answer, then measure again"
    if run.get("error"):
        return str(run["error"]), "Mend that, then measure again"
    if run.get("other_load"):
        return "another process used the GPU meanwhile", "End it, then measure again"
    missing = [key for key in ("matmul_tflops", "gemv_gbs", "copy_gbs") if _number(run, key) is None]
    if missing:
        return f"{', '.join(missing)} was not measured", "Measure longer (gpu_health_seconds)"
    if _number(run, "clock_mhz") is None or _loaded(run) < limits.least_samples:
        return (
            f"{_loaded(run)} samples at {limits.loaded_percent} % utilisation or more, {limits.least_samples} are needed",
            "Measure longer (gpu_health_seconds)",
        )
    if run.get("correct") is False:
        return "the GPU returned wrong numbers", "Trust nothing it computes. " + REBOOT
    return "", ""


def cap_of(run: Run) -> float | None:
    """The lowest upper end of the locks that units set at boot, in MHz."""
    tops = [float(cap["max_mhz"]) for cap in run.get("caps") or [] if cap.get("max_mhz")]
    return min(tops, default=None)


def locked(run: Run) -> bool:
    """The driver itself says that somebody's setting holds the clock, in most samples."""
    asked = int((run.get("reasons") or {}).get("applications_clocks_setting", 0))
    return asked * 2 > _loaded(run)


def held_back(run: Run) -> list[str]:
    """Reasons of the hardware or firmware, in at least half of the samples."""
    return [name for name, count in (run.get("reasons") or {}).items() if name not in WISHED and count * 2 >= _loaded(run)]


def _clock(run: Run, best_mhz: float | None, best_host: str, limits: Limits) -> Verdict | None:
    """What the clock alone says: None where it is as it should be."""
    clock = float(run["clock_mhz"])
    seen = f"{clock:.0f} MHz at {limits.loaded_percent} % utilisation or more"
    cap = cap_of(run)
    if cap is not None and cap * limits.share_of_best <= clock <= cap + limits.cap_slack_mhz:
        names = ", ".join(sorted({str(entry["unit"]) for entry in run["caps"]}))
        return Verdict(CAPPED, f"{seen}: {names} locks it to {cap:.0f} MHz at most")
    low = floor_known(run) and clock < limits.stuck_mhz
    behind = best_mhz is not None and clock < limits.share_of_best * best_mhz
    if not low and not behind:
        return None
    if locked(run):
        return Verdict(
            CAPPED,
            f"{seen}: the driver says that a setting holds it",
            "",
            "sudo nvidia-smi -rgc; sudo nvidia-smi -rac takes it away",
        )
    against = f"healthy is {limits.stuck_mhz} or more" if low else f"{best_host} reaches {best_mhz:.0f} MHz"
    causes = held_back(run)
    if any("thermal" in cause for cause in causes):
        remedy = f"It is too hot ({run.get('temperature_c')} °C): free its air ways, then measure again"
    elif "hw_power_brake_slowdown" in causes:
        remedy = "The power supply asks for less: use the original one, in its own socket, then measure again"
    else:
        remedy = REBOOT
        steady = (run.get("clock_max_mhz") or 0) - (run.get("clock_min_mhz") or 0) <= limits.cap_slack_mhz
        if steady and not low:
            remedy = (
                f"Such a steady clock looks like somebody's lock: sudo nvidia-smi -rgc, then measure again. Otherwise: {REBOOT}"
            )
    why = f"{seen}, {against}; {run.get('power_w') or '?'} W, " + (
        f"throttled by {', '.join(causes)}" if causes else "no throttle reason"
    )
    return Verdict(LOW_CLOCK, why, remedy)


def _kernels(run: Run, peers: Mapping[str, Run], limits: Limits) -> Verdict | None:
    """What the kernels say at a clock that is as it should be."""
    clock = float(run["clock_mhz"])
    per_clock = float(run["matmul_tflops"]) / clock
    slower = []
    for what, key, mine, share in (
        ("matrix product per clock", "matmul", per_clock, limits.share_of_best),
        ("matrix-vector product", "gemv_gbs", float(run["gemv_gbs"]), limits.memory_share_of_best),
        ("copy", "copy_gbs", float(run["copy_gbs"]), limits.memory_share_of_best),
    ):
        rates = {
            name: float(peer["matmul_tflops"]) / float(peer["clock_mhz"]) if key == "matmul" else float(peer[key])
            for name, peer in peers.items()
        }
        best = max(rates, key=lambda name: rates[name], default="")
        if best and mine < share * rates[best]:
            slower.append(f"{what} at {100 * mine / rates[best]:.0f} % of {best}")
    flipping = [
        f"{phase}: {100 * share:.0f} % of the time below {100 * limits.slow_block:.0f} % of its own best"
        for phase, share in (run.get("slow_blocks") or {}).items()
        if share > limits.slow_blocks_share
    ]
    if slower or flipping:
        return Verdict(HIDDEN_SLOW, f"{clock:.0f} MHz is well, but {'; '.join([*slower, *flipping])}", SLOW_REMEDY)
    if floor_known(run):
        floor = limits.floor_tflops * min(1.0, clock / limits.healthy_mhz)
        found = float(run["matmul_tflops"])
        if found < floor * limits.floor_allowance:
            return Verdict(
                HIDDEN_SLOW,
                f"{found:.1f} bf16 TFLOPS at {clock:.0f} MHz; healthy Sparks reach {floor:.1f} there, {floor * limits.floor_allowance:.1f} is the floor",
                SLOW_REMEDY,
            )
        if found < floor:
            return Verdict(
                OK, f"{found:.1f} bf16 TFLOPS", "", f"less than any published healthy Spark ({floor:.1f} at this clock)"
            )
    return None


def judge(
    runs: Mapping[str, Run | None], earlier: Mapping[str, Sequence[Run]] | None = None, limits: Limits | None = None
) -> dict[str, Verdict]:
    """A verdict for every host. `earlier` are each Spark's own past runs; the good ones of this image are compared with, too."""
    limits = limits or Limits()
    usable = {host: run for host, run in runs.items() if run and not unusable(run, limits)[0]}
    made: dict[str, Verdict] = {}
    for host, run in runs.items():
        why, remedy = unusable(run, limits)
        if why or not run:
            made[host] = Verdict(INCONCLUSIVE, why, remedy)
            continue
        peers: dict[str, Run] = {
            name: peer for name, peer in usable.items() if name != host and peer.get("gpu") == run.get("gpu")
        }
        past = [
            old
            for old in (earlier or {}).get(host, [])
            if old.get("verdict") in (OK, CAPPED) and old.get("image") == run.get("image") and not unusable(old, limits)[0]
        ]
        if past:
            peers["its own past"] = max(past, key=lambda old: float(old["matmul_tflops"]))
        if not peers and not floor_known(run):
            made[host] = Verdict(
                INCONCLUSIVE,
                f"nothing to compare with: no other {run.get('gpu') or 'GPU'}, no earlier run, no published numbers of it",
                "Measure it again later, or beside another one of its kind",
            )
            continue
        best = max(peers, key=lambda name: float(peers[name]["clock_mhz"]), default="")
        clock = _clock(run, float(peers[best]["clock_mhz"]) if best else None, best, limits)
        kernels = _kernels(run, peers, limits) if clock is None or clock.verdict == CAPPED else None
        if clock is not None and (kernels is None or kernels.verdict == OK):
            made[host] = clock
        else:
            made[host] = kernels or Verdict(OK, f"{run['matmul_tflops']:.1f} bf16 TFLOPS at {run['clock_mhz']:.0f} MHz")
    return made


# --- for people ----------------------------------------------------------------------------------------------

EXPECTED = "as fast as the other Sparks, and as published"


def check(host: str, verdict: Verdict) -> Check:
    status = PASS if verdict.verdict in (OK, CAPPED) else FAIL
    if status == PASS and verdict.note:
        status = WARN
    return Check("GPU.HEALTH", host, status, f"{verdict.verdict}: {verdict.why}", EXPECTED, verdict.remedy or verdict.note)


def table(runs: Mapping[str, Run | None], verdicts: Mapping[str, Verdict]) -> list[str]:
    """One row a Spark, the numbers side by side."""
    head = ("spark", "verdict", "bf16 TFLOPS", "GEMV GB/s", "copy GB/s", "MHz", "W", "°C", "held back by")
    rows = [head]
    for host, run in runs.items():
        known = run or {}
        cells = [
            "-" if _number(known, key) is None else f"{_number(known, key):.{digits}f}"
            for key, digits in (
                ("matmul_tflops", 1),
                ("gemv_gbs", 0),
                ("copy_gbs", 0),
                ("clock_mhz", 0),
                ("power_w", 0),
                ("temperature_c", 0),
            )
        ]
        rows.append((host, verdicts[host].verdict, *cells, ", ".join(known.get("reasons") or {}) or "-"))  # type: ignore[arg-type]
    return columns(rows, right=range(2, 8))


def remembered(host: str, runs: Sequence[Run], boot: str) -> Check:
    """The last verdict that a Spark remembers, as a check. One of an earlier boot proves little: reboots mend and crashes break."""
    verdict = str(runs[-1].get("verdict") or "") if runs else ""
    again = "Measure it: playbooks/gpu_health.yml, while no lane serves"
    if not verdict:
        return Check("GPU.HEALTH", host, WARN, "never measured and judged", EXPECTED, again)
    numbers = [
        f"{_number(runs[-1], key):g} {unit}"
        for key, unit in (("matmul_tflops", "bf16 TFLOPS"), ("clock_mhz", "MHz"))
        if _number(runs[-1], key)
    ]
    found = f"{verdict}: {str(runs[-1].get('error') or '') or ', '.join(numbers) or 'nothing measured'}"
    if runs[-1].get("boot_id") != boot:
        return Check("GPU.HEALTH", host, WARN, f"{found}, before the last reboot", EXPECTED, again)
    return Check("GPU.HEALTH", host, PASS if verdict in (OK, CAPPED) else FAIL, found, EXPECTED, again)


def assess(registered: Mapping[str, Any], known: Mapping[str, Any], limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What playbooks/gpu_health.yml shows and keeps. registered, known: host → result of gpu_health, of gpu_health_info."""
    unknown = sorted(set(limits or {}) - set(Limits.__dataclass_fields__))
    if unknown:
        raise ValueError(f"gpu_health_limits: {', '.join(unknown)} is none of {', '.join(Limits.__dataclass_fields__)}")
    odd = {
        name: value
        for name, value in (limits or {}).items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
    }
    if odd:
        said = ", ".join(f"{name} {value!r}" for name, value in odd.items())
        raise ValueError(f"gpu_health_limits: {said}; expected numbers of 0 and more. Give them as YAML or JSON, not as text")
    chosen = Limits(**dict(limits or {}))
    runs: dict[str, Run | None] = {}
    for host, result in registered.items():
        seen = look(result)
        run = (seen.facts or {}).get("run")
        if isinstance(run, Mapping):
            # Samples are judged again with the limits of today, so that a site's own count.
            runs[host] = {
                **run,
                **summarise(
                    [
                        {"gpu": run.get("gpu"), "torch": run.get("torch")},
                        *run.get("blocks", []),
                        {"phase": "end", "correct": run.get("correct")},
                    ],
                    run.get("samples", []),
                    chosen,
                ),
            }
        else:
            problem = seen.problem or words(seen.facts or {})
            runs[host] = {"error": problem} if problem else None
    earlier = {host: past if isinstance(past := (look(known.get(host)).facts or {}).get("runs"), list) else [] for host in runs}
    verdicts = judge(runs, earlier, chosen)
    return {
        "checks": [check(host, verdict).to_dict() for host, verdict in verdicts.items()],
        "table": table(runs, verdicts),
        "verdicts": {host: verdict.verdict for host, verdict in verdicts.items()},
        "at": {host: int(run["at"]) for host, run in runs.items() if run and run.get("at")},
    }


def health(hostvars: HostVars, hosts: Sequence[str], limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`assess`, from what role gpu_health registered."""
    return assess(results(hostvars, hosts, "gpu_health_result"), results(hostvars, hosts, "gpu_health_known"), limits)


def measured_before(hostvars: HostVars, hosts: Sequence[str]) -> bool:
    """Whether each of these hosts has a run of its own to be compared with."""
    return all((seen.facts or {}).get("runs") for seen in looks(hostvars, hosts, "gpu_health_known").values())
