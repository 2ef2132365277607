"""nvidia-smi, the driver and the kernel log as data: real samples, and any mutation of them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import gpu_info
import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.gpu import cap as gpu_cap
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import nvidia_smi
from ansible.module_utils.sparklanes.gpu import rules as gpu_rules
from ansible.module_utils.sparklanes.gpu import xid as gpu_xid
from conftest import FIXTURES, RunModule
from hypothesis import given
from hypothesis import strategies as st

HERE = FIXTURES / "gpu"
XMLS = sorted(HERE.glob("*.xml"))
MIB = 1024**2
GB10 = (HERE / "nvidia-smi-q-x-gb10.xml").read_text()


def read(name: str) -> str:
    return (HERE / name).read_text()


def answers(name: str) -> dict[str, str]:
    """Command → output, of a file that holds `$ command` lines."""
    found: dict[str, str] = {}
    for part in read(name).split("$ ")[1:]:
        command, _, out = part.partition("\n")
        found[command] = out
    return found


# XML


def test_a_gb10_leaves_open_what_it_does_not_tell_and_lists_a_process_once() -> None:
    report = nvidia_smi.parse_xml(GB10)
    one = report.gpus[0]
    assert (one.name, one.bus_id, one.temperature_c, one.utilization_percent) == ("NVIDIA GB10", "0000000F:01:00.0", 38, 96)
    assert (one.memory_total_bytes, one.memory_used_bytes, one.power_w, one.sm_mhz, one.throttle_reasons) == (None,) * 5
    assert [(p.pid, p.types, p.memory_bytes) for p in report.processes or []] == [
        (2553, "G", 18 * MIB),
        (415592, "C+G", 69564 * MIB),
        (300, "C", None),
    ]
    assert [p.pid for p in report.processes or [] if p.computes] == [415592, 300]


def test_a_real_h200_is_read_whole() -> None:
    idle, busy = (nvidia_smi.parse_xml(read(f"h200-nvidia_smi_q_x{end}.xml")) for end in ("", "-burning"))
    assert (idle.driver_version, idle.cuda_version, idle.processes) == ("580.159.04", "13.0", [])
    one = busy.gpus[0]
    assert (one.name, one.sm_mhz, one.max_sm_mhz, one.application_mhz) == ("NVIDIA H200", 1470, 1980, 1980)
    assert (one.power_w, one.power_limit_w, one.default_power_limit_w) == (710.71, 700.0, 700.0)
    assert (one.utilization_percent, one.temperature_c, one.performance_state) == (99, 60, "P0")
    assert (one.throttle_reasons, one.recovery_action, one.persistence_mode) == (["sw_power_cap"], "None", True)
    assert (one.memory_total_bytes, one.vbios) == (143771 * MIB, "96.00.A5.00.1A")
    assert [(p.pid, p.types, p.memory_bytes) for p in busy.processes or []] == [(489, "C", 3564 * MIB)]
    assert idle.gpus[0].throttle_reasons == ["gpu_idle"]


def test_old_names_mean_the_same_and_a_list_that_is_not_told_is_not_empty() -> None:
    report = nvidia_smi.parse_xml(read("nvidia-smi-q-x-old.SYNTHETIC.xml"))
    one = report.gpus[0]
    assert one.throttle_reasons == ["sw_power_cap", "display_clocks_setting"]
    assert (one.power_w, one.power_limit_w, one.memory_used_bytes, one.application_mhz) == (139.41, 140.0, None, None)
    assert report.processes is None


def test_what_is_no_xml_is_an_error_with_what_was_there() -> None:
    assert (
        "Driver/library version mismatch"
        in nvidia_smi.parse_xml("Failed to initialize NVML: Driver/library version mismatch").error
    )
    assert nvidia_smi.parse_xml("<nvidia_smi_log/>").error == "nvidia-smi lists no GPU"


@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    assert nvidia_smi.parse_xml(text).error
    nvidia_smi.parse_csv(text)
    nvidia_smi.parse_compute_apps(text)
    gpu_xid.parse_kernel_log(text)
    gpu_facts.parse_driver_version(text)
    nvidia_smi.reasons(text)
    gpu_cap.parse_cap("u", text, {})
    assert nvidia_smi.number(text) is None or isinstance(nvidia_smi.number(text), float)


UNTOLD = (
    "N/A",
    "[N/A]",
    "[Not Supported]",
    "Insufficient Permissions",
    "",
    "ERR!",
    "[Unknown Error]",
    "9" * 400,
    "-",
    "٣",
    "NaN W",
)


@given(st.data())
def test_any_mutation_of_any_sample_is_survived_and_becomes_json(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(XMLS)).read_text().splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        where = data.draw(st.integers(0, len(lines) - 1))
        line, what = lines[where], data.draw(st.sampled_from(["drop", "untold", "double"]))
        if what == "drop":
            lines[where] = ""
        elif what == "double":
            lines.insert(where, line)
        elif line.count("<") == 2 and ">" in line:
            lines[where] = f"{line.partition('>')[0]}>{data.draw(st.sampled_from(UNTOLD))}<{line.rpartition('<')[2]}"
    report = nvidia_smi.parse_xml("\n".join(lines))
    found = {
        "present": True,
        "error": report.error,
        "driver": {"version": report.driver_version},
        "gpus": [one.to_dict() for one in report.gpus],
    }
    json.dumps(found, allow_nan=False)
    assert report.error or report.gpus
    checks = {check.id: check for check in gpu_rules.gate("s1", found)}
    assert checks["GPU.DRIVER"].status == ("pass" if report.gpus and report.driver_version else "fail")
    assert checks["GPU.XID"].status == "fail"  # the log was not read, whatever the XML says


@pytest.mark.parametrize("text", UNTOLD[:7])
def test_words_for_nothing_are_none(text: str) -> None:
    assert nvidia_smi.told(text) is None
    assert nvidia_smi.number(text) is None


# CSV


def test_csv_of_a_gb10_and_of_the_h200() -> None:
    shown = answers("nvidia-smi-csv-memory-na.txt")
    (row,) = nvidia_smi.parse_csv(
        next(out for command, out in shown.items() if "temperature.gpu --format=csv\n" in command + "\n")
    )
    assert (row["memory.total"], row["utilization.gpu"], nvidia_smi.number(row["power.draw"])) == (None, "0 %", 11.17)
    apps = nvidia_smi.parse_compute_apps(next(out for command, out in shown.items() if "compute-apps" in command))
    assert [(p.pid, p.name, p.memory_bytes) for p in apps] == [
        (3150, "python3", 218 * MIB),
        (6330, "sglang::scheduler", 96073 * MIB),
    ]
    h200 = answers("h200-csv.txt")
    (row,) = nvidia_smi.parse_csv(next(out for command, out in h200.items() if "clocks.max.sm" in command).rpartition("rc=")[0])
    assert (nvidia_smi.integer(row["clocks.current.sm"]), nvidia_smi.reasons(row["clocks_event_reasons.active"])) == (
        345,
        ["gpu_idle"],
    )
    none = next(out for command, out in h200.items() if "compute-apps" in command).rpartition("rc=")[0]
    assert nvidia_smi.parse_csv(none) == []


def test_the_row_of_a_gb10_under_load_without_names() -> None:
    (row,) = nvidia_smi.parse_csv(read("nvidia-smi-csv-clocks-row.txt"), [f"c{index}" for index in range(15)])
    assert (row["c0"], row["c1"], nvidia_smi.integer(row["c9"])) == ("NVIDIA GB10", None, 2405)


def test_a_name_with_a_comma_and_a_message_among_rows() -> None:
    apps = nvidia_smi.parse_compute_apps("7, /opt/my, odd, name, [N/A]\nNo running processes found\n7, again, 5 MiB\n")
    assert [(p.pid, p.name, p.memory_bytes) for p in apps] == [(7, "/opt/my, odd, name", 5 * MIB)]


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0x0", []),
        ("0x0000000000000004", ["sw_power_cap"]),
        (
            "0x00000000000000e9",
            ["gpu_idle", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"],
        ),
        ("0x8000000000000001", ["gpu_idle", "0x8000000000000000"]),
        ("[N/A]", None),
        ("", None),
    ],
)
def test_reasons_of_a_bit_mask(mask: str, names: list[str] | None) -> None:
    assert nvidia_smi.reasons(mask) == names


# Driver and kernel log


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs-builder@x)\n",
            "580.142",
            "open",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
            "535.104.05",
            "proprietary",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module  570.86.15  Release Build\n", "570.86.15", "open"),
        ("", None, None),
    ],
)
def test_driver_flavours(text: str, version: str | None, flavour: str | None) -> None:
    assert gpu_facts.parse_driver_version(text) == {"module_version": version, "flavour": flavour}


def test_the_real_driver_text() -> None:
    assert gpu_facts.parse_driver_version(read("h200-driver.txt")) == {"module_version": "580.159.04", "flavour": "open"}
    assert gpu_xid.parse_kernel_log(read("h200-kernel.log"))["xid_counts"] == {}


def test_xids_in_each_form_and_which_of_them_need_a_reset() -> None:
    found = gpu_xid.parse_kernel_log(read("xids.log"))
    assert found["xid_counts"] == {"13": 1, "31": 1, "32": 1, "43": 1, "79": 1, "119": 1, "120": 1, "154": 2}
    by_code = {xid["code"]: xid for xid in found["xids"]}
    assert (by_code[31]["pid"], by_code[31]["name"], by_code[31]["when"]) == (3003984, "python3", "812.337911")
    assert (by_code[79]["pid"], by_code[79]["name"], by_code[79]["text"]) == (None, None, "GPU has fallen off the bus.")
    assert (by_code[13]["when"], by_code[13]["bus_id"]) == ("2026-08-28T11:55:08+00:00", "000f:01:00")
    assert by_code[119]["name"] == "KMS thread"
    assert [text.partition(" (")[0] for text in found["fatal"]] == ["Xid 79", "Xid 119", "Xid 120", "Xid 154"]
    assert found["no_memory_lines"] == 1


def test_many_lines_are_counted_and_few_kept() -> None:
    found = gpu_xid.parse_kernel_log("NVRM: Xid (PCI:000f:01:00): 13, Graphics\n" * 91 + read("dmesg-nvrm-oom.log") * 5000)
    assert (found["xid_counts"], len(found["xids"]), found["fatal"], found["no_memory_lines"]) == ({"13": 91}, 20, [], 5000)


# The checks


def facts(**more: Any) -> dict[str, Any]:
    report = nvidia_smi.parse_xml(read("h200-nvidia_smi_q_x.xml"))
    return {
        "present": True,
        "error": "",
        "driver": {"version": report.driver_version, "cuda_version": report.cuda_version, "flavour": "open"},
        "gpus": [one.to_dict() for one in report.gpus],
        "processes": [],
        "kernel_log": {**gpu_xid.parse_kernel_log(""), "error": ""},
        "caps": [],
        **more,
    }


def gated(**more: Any) -> dict[str, Check]:
    return {check.id: check for check in gpu_rules.gate("s1", facts(**more))}


def test_a_well_gpu_passes_and_says_what_it_is() -> None:
    made = gated()
    assert {check.status for check in made.values()} == {"pass"}
    assert made["GPU.DRIVER"].found == "NVIDIA H200, driver 580.159.04 (open), CUDA 13.0"
    assert set(made) == {"GPU.DRIVER", "GPU.XID"}


@pytest.mark.parametrize(
    ("broken", "failing", "words"),
    [
        ({"error": "nvidia-smi did not answer within 20 s: the driver hangs"}, "GPU.DRIVER", "the driver hangs"),
        ({"driver": {}}, "GPU.DRIVER", "not measured"),
        ({"gpus": []}, "GPU.DRIVER", "not measured"),
        (
            {"kernel_log": gpu_xid.parse_kernel_log((HERE / "xids.log").read_text())},
            "GPU.XID",
            "Xid 79 (the GPU has fallen off the bus)",
        ),
        ({"kernel_log": {"error": "dmesg: read kernel buffer failed: Operation not permitted"}}, "GPU.XID", "not permitted"),
        ({"kernel_log": None}, "GPU.XID", "was not read"),
        ({"gpus": [{"name": "NVIDIA GB10", "recovery_action": "Reboot"}]}, "GPU.XID", "asks for: Reboot"),
        ({"caps": [{"unit": gpu_cap.CAP_UNIT, "min_mhz": 0, "max_mhz": 300}]}, "GPU.CLOCK_CAP", "345 MHz now"),
        (
            {"gpus": [{"name": "x", "sm_mhz": None}], "caps": [{"unit": gpu_cap.CAP_UNIT, "min_mhz": 0, "max_mhz": 300}]},
            "GPU.CLOCK_CAP",
            "not told",
        ),
    ],
)
def test_what_fails_a_gate(broken: dict[str, Any], failing: str, words: str) -> None:
    made = gated(**broken)
    assert made[failing].status == "fail"
    assert words in made[failing].found
    assert made[failing].remedy


@pytest.mark.parametrize("code", [13, 31, 43, 45, 66, 999])
def test_every_xid_is_a_finding_also_one_that_no_catalog_lists(code: int) -> None:
    made = gated(kernel_log=gpu_xid.parse_kernel_log(f"NVRM: Xid (PCI:000f:01:00): {code}, Graphics\n" * 4))
    assert (made["GPU.XID"].status, made["GPU.XID"].found) == ("warn", f"Xid {code} ×4")
    assert "grep Xid" in made["GPU.XID"].remedy


def test_a_lock_that_holds_passes_and_one_of_somebody_else_is_not_judged_here() -> None:
    ours = {"unit": gpu_cap.CAP_UNIT, "min_mhz": 0, "max_mhz": 340}
    assert gated(caps=[ours])["GPU.CLOCK_CAP"].status == "pass"  # 345 is within the slack
    assert "GPU.CLOCK_CAP" not in gated(caps=[{**ours, "unit": "mine.service"}])


def test_a_rank_without_a_gpu_has_no_such_checks_and_one_with_fails_where_nothing_is_known() -> None:
    made = gpu_rules.gate("s1", {})
    assert [(check.id, check.status) for check in made] == [("GPU.DRIVER", "fail")]
    idle = readiness.gpu_idle("s1", {"gpu": facts(processes=[{"pid": None, "name": ""}])})
    assert idle.status == "fail"


# Locks in unit files


@pytest.mark.parametrize(
    ("line", "cap"),
    [
        ("ExecStart=/usr/bin/nvidia-smi -lgc 0,2200", (0, 2200)),
        ("ExecStart=/usr/bin/nvidia-smi -i 0 --lock-gpu-clocks=300,2100", (300, 2100)),
        ("ExecStart=nvidia-smi -lgc 2000", (2000, 2000)),
        ("ExecStart=nvidia-smi --lock-gpu-clocks=${MIN_MHZ},${MAX_MHZ}", (0, 2100)),
        ("#ExecStart=nvidia-smi -lgc 0,2200", None),
        ("ExecStart=nvidia-smi -lgc ${OTHER}", None),
        ("ExecStart=nvidia-smi -pm 1", None),
    ],
)
def test_locks_of_units(line: str, cap: tuple[int, int] | None) -> None:
    found = gpu_cap.parse_cap("u.service", f"[Service]\n{line}\n", {"MIN_MHZ": "0", "MAX_MHZ": "2100"})
    assert (None if found is None else (found.min_mhz, found.max_mhz)) == cap


def test_only_enabled_units_count(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    for name in ("on.service", "off.service"):
        (units / name).write_text("[Service]\nExecStart=nvidia-smi -lgc 0,2200\n")
    (units / "multi-user.target.wants/on.service").symlink_to("/etc/systemd/system/on.service")
    assert gpu_facts.caps(tmp_path) == [gpu_cap.Cap("on.service", 0, 2200)]


# The system


def test_a_program_that_hangs_is_left_behind() -> None:
    began = time.monotonic()
    rc, _, err = gpu_facts.ask([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert (rc, "did not answer within 0.2 s" in err) == (124, True)
    assert time.monotonic() - began < 30
    assert gpu_facts.ask(["/no/such/program"])[0] == 127


def programs(**outputs: tuple[int, str, str]) -> gpu_facts.Ask:
    """Plays nvidia-smi -q -x (xml), its query of processes (apps), journalctl (journal) and dmesg."""

    def run(argv: Any) -> tuple[int, str, str]:
        name = {"-q": "xml", "--query-compute-apps=pid,process_name,used_memory": "apps"}.get(argv[1] if len(argv) > 1 else "")
        return outputs.get(name or str(argv[0]), (127, "", f"{argv[0]}: No such file or directory"))

    return run


def test_facts_of_a_live_spark() -> None:
    found = gpu_facts.facts(run=programs(xml=(0, GB10, ""), journalctl=(0, read("xids.log"), "")))
    assert [p["pid"] for p in found["processes"]] == [300, 415592]
    assert found["kernel_log"]["xid_counts"]["79"] == 1


def test_facts_where_things_are_missing() -> None:
    absent = gpu_facts.facts(run=programs())
    assert (absent["present"], absent["processes"], absent["error"]) == (False, None, "nvidia-smi is not installed")
    broken = gpu_facts.facts(run=programs(xml=(9, "", "NVIDIA-SMI has failed because it couldn't communicate with the driver")))
    assert (broken["present"], broken["processes"]) == (True, None)
    assert "exit 9" in broken["error"]
    assert broken["kernel_log"]["error"]
    nothing_logged = gpu_facts.facts(run=programs(xml=(0, GB10, ""), journalctl=(1, "", "")))
    assert nothing_logged["kernel_log"] == {**gpu_xid.parse_kernel_log(""), "error": ""}
    hidden = (0, "", "Hint: You are currently not seeing messages from other users and the system.")
    assert gpu_facts.facts(run=programs(xml=(0, GB10, ""), journalctl=hidden))["kernel_log"]["error"], (
        "nothing seen is not nothing"
    )
    old = read("nvidia-smi-q-x-old.SYNTHETIC.xml")
    second = gpu_facts.facts(run=programs(xml=(0, old, ""), apps=(0, "12, python3, 5\n", ""), dmesg=(0, "", "")))
    assert [p["pid"] for p in second["processes"]] == [12]
    assert gpu_facts.facts(run=programs(xml=(0, old, ""), dmesg=(0, "", "")))["processes"] is None


def test_the_module_on_a_recorded_tree(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(read("h200-driver.txt"))
    (tmp_path / "nvidia_smi_q_x.xml").write_text(read("h200-nvidia_smi_q_x-burning.xml"))
    result = run_module(gpu_info, {"host": "s1", "root": str(tmp_path)}, check=True)
    assert (result["verdict"], result["changed"]) == ("pass", False)
    assert (result["gpu"]["driver"]["flavour"], result["gpu"]["processes"][0]["pid"]) == ("open", 489)
    empty = run_module(gpu_info, {"host": "s1", "root": str(tmp_path / "none")})
    assert (empty["verdict"], [check["id"] for check in empty["checks"]]) == ("fail", ["GPU.DRIVER"])
