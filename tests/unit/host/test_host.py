from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import host_info
import pytest
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.gates import health, reboot
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.host import boots as host_boots
from ansible.module_utils.sparklanes.host import parity
from ansible.module_utils.sparklanes.host import rules as host_rules
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from conftest import FIXTURES, ROOT, RunModule
from hypothesis import given
from hypothesis import strategies as st
from test_sysctl import lay

OPEN = (FIXTURES / "host/driver-open-gb10.txt").read_text()
BOOT = "5c01f417-1ae1-474c-ae88-7d6afab14beb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay(
        tmp_path,
        {
            "/proc/sys/kernel/osrelease": "6.17.0-1032-nvidia\n",
            "/proc/sys/kernel/arch": "aarch64\n",
            "/proc/sys/kernel/random/boot_id": f"{BOOT}\n",
            "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=UUID=1 kho=off luks.key=secret\n",
            "/proc/uptime": "120.50 400.00\n",
            "/proc/stat": "cpu  1 2 3\nbtime 1790000000\nprocesses 9\n",
            "/sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "3900000\n",
            "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1500000\n",
            "/sys/class/infiniband/rocep1s0f0/ports/1/counters/symbol_error": "0\n",
            "/sys/class/infiniband/rocep1s0f0/ports/1/counters/port_rcv_errors": "3\n",
            "/sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0/ifindex": "2\n",
            "/sys/class/net/enp1s0f0np0/statistics/rx_crc_errors": "17\n",
            "/sys/class/net/enp1s0f0np0/statistics/rx_errors": "0\n",
            "/proc/driver/nvidia/version": OPEN,
            "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777212\t1024\t-2\n",
            "/proc/sys/vm/swappiness": "10\n",
            "/proc/sys/vm/min_free_kbytes": "67584\n",
            "/etc/sysctl.d/99-zz-sparklanes.conf": "vm.swappiness = 10\n",
            "/sys/kernel/kexec_crash_size": "0\n",
            "/sys/class/dmi/id/bios_version": "5.36_0ACUM027\n",
            "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
            "/sys/class/infiniband/rocep1s0f0/fw_ver": "28.45.4028\n",
            "/sys/class/infiniband/rocep1s0f0/board_id": "NVD0000000087\n",
            "/var/lib/sparklanes/engine-boots.json": json.dumps({"boot_id": BOOT, "boots": 3}),
            "/etc/sparklanes/page-cache.json": json.dumps({"policy": "interval", "identity": "x"}),
            "/run/sparklanes/page-cache.json": json.dumps({"identity": "x", "flushes": 7}),
            "/run/reboot-required": "*** System restart required ***\n",
            "/run/reboot-required.pkgs": "linux-image-7.0.0-1019-nvidia\nlinux-base\nlinux-base\n",
        },
    )


def spark(**changes: Any) -> dict[str, Any]:
    """What host_info reports of a Spark on which all is well."""
    found: dict[str, Any] = {
        "kernel": {"release": "6.17.0-1032-nvidia", "machine": "aarch64", "kho": "", "boot_id": BOOT, "uptime_seconds": 60.0,
                   "kexec_crash_size": 0, "page_size": 4096},
        "driver": {"version": "580.173.02", "flavour": "open"},
        "firmware": {"bios_version": "5.36_0ACUM027", "sys_vendor": "NVIDIA", "product_name": "NVIDIA_DGX_Spark"},
        "nics": [{"hca": "rocep1s0f0", "firmware": "28.45.4028", "board": "NVD0000000087", "type": "MT4129"}],
        "docker": {"version": "28.3.3", "storage_driver": "overlay2", "cgroup_driver": "systemd", "runc": "v1.2",
                   "default_runtime": "runc", "toolkit": {"version": "1.17.8", "mode": "auto", "hook": "/usr/bin/x", "cdi": []}},
        "swap": [{"path": "/swap.img", "size": 16 * 1024**3 - 4096, "used": 0}],
        "settings": {"vm.swappiness": {"live": "10", "boot": "10", "file": "/etc/sysctl.d/99-zz-sparklanes.conf"},
                     "vm.min_free_kbytes": {"live": "67584", "boot": "", "file": ""}},
        "remove_ipc": {"says": "no", "error": ""},
        "page_cache": {"settings": {"policy": "interval", "identity": "x"}, "state": {"identity": "x", "flushes": 7}, "active": True},
        "engine_boots": {"boots": 1, "boot_id": BOOT},
        "after_boot": {"settings": {}, "report": {}},
        "reboot_required": None,
        "kernel_log": {"error": "", "counts": {}, "events": []},
        "memory_killers": {"active": [], "error": "", "earlyoom": {}},
        "cpu_clocks": [{"name": "policy0", "max_khz": 3900000, "limit_khz": 3900000}],
        "link_errors": {},
        "clock": {"sent": 1000.0, "read": 1000.5, "synchronised": True},
    }  # fmt: skip
    for path, value in changes.items():
        *way, last = path.split("__")
        place = found
        for step in way:
            place = place[step]
        place[last] = value
    return found


def of(checks: list[Check], id_: str, name: str = "s1") -> Check:
    return next(check for check in checks if check.id == id_ and check.host == name)


def test_a_tree_is_read(root: Path, run_module: RunModule) -> None:
    told = run_module(host_info, {"root": str(root), "page_size": 4096, "sent": 1.0})["host"]
    assert told["kernel"] == {
        "release": "6.17.0-1032-nvidia", "machine": "aarch64", "kho": "off", "boot_id": BOOT, "uptime_seconds": 120.5,
        "kexec_crash_size": 0, "page_size": 4096,
    }  # fmt: skip
    assert told["cpu_clocks"] == [{"name": "policy0", "max_khz": 3900000, "limit_khz": 1500000}]
    assert told["link_errors"] == {"rocep1s0f0": {"port_rcv_errors": 3}, "enp1s0f0np0": {"rx_crc_errors": 17}}
    assert told["driver"] == {"version": "580.126.09", "flavour": "open"}
    assert told["nics"] == [{"hca": "rocep1s0f0", "firmware": "28.45.4028", "board": "NVD0000000087", "type": ""}]
    assert told["swap"] == [{"path": "/swap.img", "size": 16777212 * 1024, "used": 1024 * 1024}]
    assert told["settings"]["vm.swappiness"] == {"live": "10", "boot": "10", "file": "/etc/sysctl.d/99-zz-sparklanes.conf"}
    assert told["reboot_required"] == ["linux-base", "linux-image-7.0.0-1019-nvidia"]
    assert told["engine_boots"]["boots"] == 3
    assert told["docker"] == {}
    assert "secret" not in json.dumps(told)


def test_an_empty_tree_is_unknown_and_no_error(tmp_path: Path, run_module: RunModule) -> None:
    told = run_module(host_info, {"root": str(tmp_path)})["host"]
    assert told["kernel"]["release"] == ""
    assert told["driver"] == {}
    failed = gates_hosts.hosts_kept({"s1": {"host": told}}, {}, 0.0)
    assert {check.id for check in failed if check.status == FAIL} == {
        "HOST.KERNEL", "HOST.SWAPPINESS", "HOST.REMOVE_IPC", "HOST.KERNEL_LOG", "HOST.MEMORY_KILLER",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "kho", "status"),
    [
        ("6.17.0-1032-nvidia", "", PASS),
        ("6.17.0-1021-nvidia", "", PASS),
        ("7.0.0-1019-nvidia", "", FAIL),
        ("7.0.0-1019-nvidia-64k", "", FAIL),
        ("7.0.0-31-generic", "", FAIL),
        ("7.0.0-1019-nvidia", "off", WARN),
        ("7.0.0-1018-nvidia", "", WARN),
        ("7.1.0-1001-nvidia", "", PASS),
        ("", "", FAIL),
    ],
)
def test_kernels_that_reports_call_bad(kernel: str, kho: str, status: str) -> None:
    made = of(parity.known("s1", spark(kernel__release=kernel, kernel__kho=kho)), "HOST.KERNEL")
    assert made.status == status
    assert bool(made.remedy) == (status != PASS)


def test_every_entry_of_the_list_has_a_source() -> None:
    for entry in parity.KNOWN:
        assert entry.source
        assert entry.kind in ("kernel", "driver")


def test_proprietary_modules_are_a_warning_and_no_driver_is_judged_elsewhere() -> None:
    assert of(parity.known("s1", spark(driver={"version": "580.173.02", "flavour": "proprietary"})), "HOST.DRIVER").status == WARN
    assert [check.id for check in parity.known("s1", spark(driver={}))] == ["HOST.KERNEL"]


@pytest.mark.parametrize(
    ("change", "id_", "words"),
    [
        ({"docker__toolkit": {"version": "1.18.0", "mode": "auto"}}, "PARITY.TOOLKIT", "1.18.0, mode auto"),
        ({"docker__toolkit": {"version": "1.17.8", "mode": "cdi"}}, "PARITY.TOOLKIT", "1.17.8, mode cdi"),
        ({"docker__toolkit": {"version": "", "mode": "", "hook": ""}}, "PARITY.TOOLKIT", "not measured"),
        ({"docker__default_runtime": "nvidia"}, "PARITY.RUNTIME", "nvidia"),
    ],
)
def test_another_container_stack_is_a_difference(change: dict[str, Any], id_: str, words: str) -> None:
    made = parity.alike({"s1": spark(), "s2": spark(**change)})
    assert (of(made, id_, "s2").status, words in of(made, id_, "s2").found) == (WARN, True)


def test_equal_ranks_are_alike() -> None:
    made = parity.alike({"s1": spark(), "s2": spark()})
    assert {check.status for check in made} == {PASS}
    assert {check.id for check in made} == {one.id for one in parity.PROPERTIES}


@pytest.mark.parametrize(
    ("change", "id_", "status"),
    [
        ({"kernel__release": "6.17.0-1029-nvidia"}, "PARITY.KERNEL", WARN),
        ({"kernel__machine": "x86_64"}, "PARITY.MACHINE", FAIL),
        ({"kernel__page_size": 65536}, "PARITY.PAGE_SIZE", WARN),
        ({"driver": {"version": "610.43.02", "flavour": "open"}}, "PARITY.DRIVER", WARN),
        ({"driver": {}}, "PARITY.DRIVER", WARN),
        ({"firmware__bios_version": "5.35"}, "PARITY.FIRMWARE", WARN),
        ({"nics": []}, "PARITY.NIC_FIRMWARE", WARN),
        ({"docker__storage_driver": "overlayfs"}, "PARITY.STORAGE_DRIVER", WARN),
        ({"docker": {"error": "no daemon"}}, "PARITY.DOCKER", WARN),
        ({"docker__runc": "v1.3"}, "PARITY.RUNC", WARN),
        ({"firmware__product_name": "another"}, "PARITY.MODEL", WARN),
        ({"settings__vm.min_free_kbytes": {"live": "1048576"}}, "PARITY.MIN_FREE", WARN),
    ],
)
def test_the_one_that_differs_is_named(change: dict[str, Any], id_: str, status: str) -> None:
    made = parity.alike({"s1": spark(), "s2": spark(), "s3": spark(**change)})
    assert of(made, id_, "s3").status == status
    assert "s1, s2" in of(made, id_, "s3").expected or "not measured" in of(made, id_, "s3").found
    assert of(made, id_, "s1").status == PASS


def test_a_site_can_make_a_difference_fatal_and_is_told_of_a_wrong_name() -> None:
    two: dict[str, Any] = {"s1": {"host": spark()}, "s2": {"host": spark(driver={"version": "1", "flavour": "open"})}}
    made = gates_hosts.hosts_kept(two, {}, 1001.0, ["driver"])
    assert of(made, "PARITY.DRIVER", "s2").status == FAIL
    with pytest.raises(ValueError, match="dirver is unknown; expected some of machine"):
        gates_hosts.hosts_kept(two, {}, 1001.0, ["dirver"])


def test_where_nobody_could_measure_it_fails() -> None:
    blank = spark(kernel__release="")
    assert of(parity.alike({"s1": blank, "s2": blank}), "PARITY.KERNEL").status == FAIL


@pytest.mark.parametrize(
    ("clock", "status", "words"),
    [
        ({"sent": 100.0, "read": 101.0, "synchronised": True}, PASS, "with the controller"),
        ({"sent": 100.0, "read": 104.0, "synchronised": True}, PASS, "with the controller"),  # the answer took until 105
        ({"sent": 100.0, "read": 165.0, "synchronised": True}, WARN, "60.0 s ahead"),
        ({"sent": 100.0, "read": 40.0, "synchronised": True}, WARN, "60.0 s behind"),
        ({"sent": 100.0, "read": 101.0, "synchronised": False}, WARN, "not synchronised"),
        ({"sent": 100.0, "read": 101.0, "synchronised": None}, WARN, "nobody says"),
        ({"sent": None, "read": 101.0, "synchronised": True}, WARN, "not read"),
    ],
)
def test_clocks_are_judged_by_what_is_certain(clock: dict[str, Any], status: str, words: str) -> None:
    (made,) = parity.clock({"s1": spark(clock=clock)}, 105.0)
    assert made.status == status
    assert words in made.found


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_the_time_of_the_question_is_right_wherever_the_controller_stands(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`now(utc=true)` carries no zone, so that its timestamp() would be hours off outside of UTC."""
    asked = {
        line.split("sent:", 1)[1].strip().strip('"')
        for path in [*(ROOT / "playbooks").glob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml"), ROOT / "library/host_info.py"]
        for line in path.read_text().splitlines()
        if line.strip().startswith("sent: ")
    }
    assert len(asked) == 1, asked
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        said = Templar(DataLoader()).template(trust_as_template(asked.pop()))
        assert abs(said - time.time()) < 60
    finally:
        monkeypatch.undo()
        time.tzset()


def judged(lane: dict[str, Any] | None = None, wanted: int | None = 10, **changes: Any) -> list[Check]:
    return host_rules.judge("s1", spark(**changes), lane, wanted)


def test_a_spark_that_is_well_kept_passes() -> None:
    assert {check.status for check in judged({"lane_swap": "recycle", "lane_swap_min_gib": 16})} == {PASS}


@pytest.mark.parametrize(
    ("change", "id_", "status", "words"),
    [
        (
            {"settings__vm.swappiness": {"live": "60", "boot": "10", "file": "/f"}},
            "HOST.SWAPPINESS",
            FAIL,
            "60, 10 after a boot (/f)",
        ),
        ({"settings__vm.swappiness": {"live": "10", "boot": "1", "file": "/f"}}, "HOST.SWAPPINESS", FAIL, "1 after a boot"),
        ({"settings__vm.swappiness": {}}, "HOST.SWAPPINESS", FAIL, "not measured"),
        ({"remove_ipc": {"says": "yes", "error": ""}}, "HOST.REMOVE_IPC", FAIL, "RemoveIPC=yes"),
        ({"remove_ipc": {"says": "not running", "error": ""}}, "HOST.REMOVE_IPC", PASS, "does not run"),
        ({"remove_ipc": {"says": "", "error": "no bus"}}, "HOST.REMOVE_IPC", FAIL, "no bus"),
        ({"page_cache__active": False}, "HOST.PAGE_CACHE", FAIL, "does not run"),
        ({"page_cache__active": None}, "HOST.PAGE_CACHE", FAIL, "not measured"),
        ({"page_cache__state": {"identity": "old"}}, "HOST.PAGE_CACHE", FAIL, "with older settings"),
        ({"page_cache__settings": {}}, "HOST.PAGE_CACHE", WARN, "no unit"),
        ({"page_cache__settings": {"policy": "off"}, "page_cache__active": False}, "HOST.PAGE_CACHE", PASS, "policy off"),
        (
            {"page_cache__state": {"identity": "x", "ended": "3600 s are over"}, "page_cache__active": False},
            "HOST.PAGE_CACHE",
            PASS,
            "ended",
        ),
        ({"engine_boots": {"boots": 19}}, "HOST.ENGINE_BOOTS", PASS, "19 boots"),
        ({"engine_boots": {"boots": 20}}, "HOST.ENGINE_BOOTS", WARN, "20 boots"),
        ({"reboot_required": ["linux-base"]}, "HOST.REBOOT_REQUIRED", WARN, "linux-base"),
        ({"after_boot": {"settings": {"policy": "stay_down"}, "report": {}}}, "HOST.AFTER_BOOT", FAIL, "did not report"),
        (
            {"after_boot": {"settings": {"policy": "stay_down"}, "report": {"boot_id": BOOT, "deployments": []}}},
            "HOST.AFTER_BOOT",
            PASS,
            "nothing",
        ),
    ],
)
def test_what_is_kept_otherwise_is_named(change: dict[str, Any], id_: str, status: str, words: str) -> None:
    made = of(judged(**change), id_)
    assert made.status == status
    assert words in made.found


def test_swap_is_judged_where_a_lane_needs_it() -> None:
    assert not [check for check in judged({"lane_swap": "keep"}) if check.id == "HOST.SWAP"]
    assert of(judged({"lane_swap": "recycle"}, swap=[]), "HOST.SWAP").status == FAIL
    small = [{"path": "/swap.img", "size": 4 * 1024**3, "used": 0}]
    assert of(judged({"lane_swap": "recycle"}, swap=small), "HOST.SWAP").status == PASS
    assert of(judged({"lane_swap_min_gib": 16}, swap=small), "HOST.SWAP").status == WARN
    assert of(judged({"lane_swap_min_gib": 16}, swap=[]), "HOST.SWAP").status == FAIL


def test_a_lane_says_from_how_many_boots_on_it_warns() -> None:
    assert of(judged({"lane_engine_boots_warn": 2}, engine_boots={"boots": 2}), "HOST.ENGINE_BOOTS").status == WARN
    assert of(judged({"lane_engine_boots_warn": 0}, engine_boots={"boots": 99}), "HOST.ENGINE_BOOTS").status == PASS


def test_without_a_wish_only_live_and_boot_have_to_agree() -> None:
    assert (
        of(judged(wanted=None, **{"settings__vm.swappiness": {"live": "60", "boot": "", "file": ""}}), "HOST.SWAPPINESS").status
        == PASS
    )
    assert (
        of(
            judged(wanted=None, **{"settings__vm.swappiness": {"live": "60", "boot": "1", "file": "/f"}}), "HOST.SWAPPINESS"
        ).status
        == FAIL
    )


@pytest.mark.parametrize(("live", "boot", "told"), [("60", "10", True), ("10", "10", False), ("60", "", False)])
def test_who_sets_swappiness_after_the_files_is_looked_for_where_it_shows(live: str, boot: str, told: bool) -> None:
    made = of(judged(wanted=20, **{"settings__vm.swappiness": {"live": live, "boot": boot, "file": "/f"}}), "HOST.SWAPPINESS")
    assert made.status == FAIL
    assert ("grep -rIl swappiness" in made.remedy) is told


def test_boots_count_within_a_boot_of_the_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = {"id": "one"}
    monkeypatch.setattr(host_boots, "boot_id", lambda *_: boot["id"])
    assert [host_boots.add(str(tmp_path)) for _ in range(3)] == [1, 2, 3]
    boot["id"] = "two"
    assert host_boots.add(str(tmp_path)) == 1
    for broken in ('{"boots": "x", "boot_id": "two"}', '{"boots": -4, "boot_id": "two"}', "[]", "{"):
        (tmp_path / host_boots.FILE).write_text(broken)
        assert host_boots.add(str(tmp_path)) == 1


FABRIC = {
    "rails": [{"hca": "rocep1s0f0", "netdev": "enp1s0f0np0", "ipv4": "192.168.100.11", "mtu": 9000, "gid_index": 3}],
    "env": {"NCCL_IB_HCA": "=rocep1s0f0:1"},
    "errors": [],
}


def rebooted(after: dict[str, Any], fabric: dict[str, Any] | None = None) -> list[Check]:
    return host_rules.rebooted("s1", spark(), after, FABRIC, fabric or FABRIC)


def test_a_reboot_that_changed_nothing_passes() -> None:
    made = rebooted(spark(kernel__boot_id="another"))
    assert {check.id: check.status for check in made} == dict.fromkeys(
        ["REBOOT.DONE", "REBOOT.KERNEL", "REBOOT.DRIVER", "REBOOT.RAILS"], PASS
    )


def test_what_a_reboot_changed_is_named() -> None:
    assert of(rebooted(spark()), "REBOOT.DONE").status == FAIL
    other = rebooted(spark(kernel__boot_id="b", kernel__release="7.0.0-1019-nvidia", driver={}))
    assert of(other, "REBOOT.KERNEL").status == WARN
    assert of(other, "REBOOT.DRIVER").status == FAIL
    moved = copy.deepcopy(FABRIC)
    moved["rails"][0].update(gid_index=4, mtu=1500)  # type: ignore[union-attr]
    found = of(rebooted(spark(kernel__boot_id="b"), moved), "REBOOT.RAILS")
    assert found.status == FAIL
    assert "gid_index 3 → 4" in found.found
    assert "mtu 9000 → 1500" in found.found
    gone = of(
        rebooted(spark(kernel__boot_id="b"), {"rails": [], "env": {}, "errors": [{"message": "no port is up"}]}), "REBOOT.RAILS"
    )
    assert "rail rocep1s0f0 is gone" in gone.found
    assert "no port is up" in gone.found


def looks(gpu: dict[str, Any], **changes: Any) -> dict[str, Any]:
    memory = {"checks": [Check("MEM.CMA", "s1", PASS, "fine").to_dict()]}
    readiness = {"gpu": gpu, "docker": {"version": "28"}}
    return {
        "host": {"host": spark(**changes)},
        "readiness": {"readiness": readiness},
        "memory": memory,
        "fabric": FABRIC,
        "swappiness": "10",
    }


GPU = {
    "present": True,
    "processes": [],
    "error": "",
    "driver": {"version": "580.173.02", "flavour": "open", "cuda_version": "13.0"},
    "gpus": [{"name": "NVIDIA GB10"}],
    "kernel_log": {"fatal": [], "xid_counts": {}, "error": ""},
}
NO_GPU = {"present": False, "processes": None, "error": "nvidia-smi is not installed"}


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (GPU, GPU, PASS),
        (NO_GPU, NO_GPU, "skip"),
        (GPU, NO_GPU, FAIL),
        (GPU, {"present": True, "processes": None, "error": "nvidia-smi: exit 9"}, FAIL),
    ],
)
def test_the_gpu_answers_as_before(before: dict[str, Any], after: dict[str, Any], status: str) -> None:
    checks = reboot.after_reboot("s1", looks(before), looks(after, kernel__boot_id="b"))
    assert of(checks, "GPU.DRIVER").status == status
    assert of(checks, "MEM.CMA").status == PASS


def test_a_spark_that_was_not_measured_after_its_reboot_fails() -> None:
    made = reboot.after_reboot("s1", looks(GPU), {"host": {"unreachable": True}, "readiness": {"unreachable": True}})
    failed = {check.id for check in made if check.status == FAIL}
    assert {"REBOOT.DONE", "REBOOT.DRIVER", "REBOOT.RAILS", "GPU.DRIVER", "NODE.DOCKER", "MEM.FREE"} <= failed


def test_what_a_reboot_would_hurt_is_named() -> None:
    stranger = {"name": "train", "image": "x", "running": True, "uses_gpu": True, "deployment": ""}
    facts = {"docker": {"version": "28"}, "containers": [stranger], "transaction": {}}
    seen = {"s1": {"readiness": facts}, "s2": {"unreachable": True}}
    known = {host: {"reboot_seen": {"before": {"readiness": result}}} for host, result in seen.items()}
    made = reboot.before_reboot(known, ["s1", "s2"], "sparks", "t1")
    failed = {(check.id, check.host) for check in made if check.status == FAIL}
    assert failed == {("CONTAINER.FOREIGN", "s1"), ("NODE.REACHABLE", "s2")}


def test_a_host_that_did_not_answer_is_a_row() -> None:
    made = gates_hosts.hosts_kept({"s1": {"host": spark()}, "s2": {"unreachable": True}}, {}, 1001.0)
    assert [check.id for check in made if check.host == "s2"] == ["HOST.FACTS"]


@given(st.sampled_from(sorted(spark())), st.data())
def test_rules_survive_what_is_missing(key: str, data: st.DataObject) -> None:
    """Each part absent or empty: no traceback, and nothing unknown passes unseen."""
    broken = spark()
    broken[key] = data.draw(st.sampled_from([None, {}])) if isinstance(broken[key], dict) else None
    made = gates_hosts.hosts_kept({"s1": {"host": broken}, "s2": {"host": spark()}}, {}, 1001.0)
    assert made
    host_rules.rebooted("s1", broken, broken, {}, {})


def health_of(**changes: Any) -> list[Check]:
    memory = {"checks": [Check("MEM.CMA", "s1", PASS, "fine").to_dict()]}
    variables = {
        "health_readiness": {"readiness": {"gpu": GPU, "docker": {"version": "28"}, "containers": [], "deployment_state": {}}},
        "health_host": {"host": spark()},
        "health_memory": memory,
        "__roce_found": {"fabric": {}},
        "roce_fabric": {"transport": "socket", "rails": [], "env": {}, "errors": [], "warnings": []},
        "lane": "tiny",
        "lane_swappiness": 10,
        "lane_swap": "keep",
        "lane_container_family": {"gpus": "all"},
        **changes,
    }
    return health.health({"s1": variables}, ["s1"], 1001.0)


def test_health_is_one_table_of_all_that_is_known() -> None:
    made = health_of()
    assert not [check for check in made if check.status == FAIL and not check.id.startswith("FABRIC.")], made
    assert {"NODE.DOCKER", "GPU.DRIVER", "MEM.CMA", "HOST.SWAPPINESS", "HOST.KERNEL", "PARITY.CLOCK"} <= {
        check.id for check in made
    }


def test_health_of_a_silent_host_is_a_failure() -> None:
    silent = {"unreachable": True}
    made = health_of(health_readiness=silent, health_host=silent, health_memory=silent, __roce_found=silent, roce_fabric={})
    assert {check.id for check in made if check.status == FAIL} == {"NODE.REACHABLE", "HOST.FACTS"}


def test_health_knows_that_another_lane_has_its_own_swappiness() -> None:
    other = spark(**{"settings__vm.swappiness": {"live": "0", "boot": "0", "file": "/f"}})
    flash = {"name": "r", "running": True, "deployment": "sparks", "lane": "flash"}
    serving = {"readiness": {"gpu": GPU, "docker": {"version": "28"}, "containers": [flash]}}
    assert of(health_of(health_host={"host": other}), "HOST.SWAPPINESS").status == FAIL
    assert of(health_of(health_host={"host": other}, health_readiness=serving), "HOST.SWAPPINESS").status == PASS


def test_a_gpu_is_missed_where_the_lane_asks_for_one() -> None:
    readiness = {"readiness": {"gpu": NO_GPU, "docker": {"version": "28"}}}
    assert of(health_of(health_readiness=readiness), "GPU.DRIVER").status == FAIL
    assert of(health_of(health_readiness=readiness, lane=""), "GPU.DRIVER").status == "skip"


@pytest.mark.parametrize(
    ("gpu", "status"),
    [
        ({"present": True, "processes": []}, PASS),
        ({"present": False, "processes": None, "error": "nvidia-smi is not installed"}, "skip"),
        ({"present": True, "processes": [{"name": "python3", "pid": 7}]}, FAIL),
        # A driver that hangs says nothing of what works there.
        ({"present": True, "processes": None, "error": "nvidia-smi did not answer in 20 s"}, FAIL),
        ({"present": True, "processes": None}, FAIL),
        ({}, FAIL),
    ],
)
def test_no_spark_is_rebooted_while_its_gpu_works_or_says_nothing(gpu: dict[str, Any], status: str) -> None:
    made = reboot.gpu_free({"s1": {"reboot_stopped": {"readiness": {"gpu": gpu}}}}, ["s1"])
    assert [check.status for check in made if check.id == "GPU.IDLE"] == [status]


def test_a_neighbour_that_moved_a_proven_gid_is_seen_after_the_last_reboot() -> None:
    before = {"rails": [{"hca": "rocep1s0f0", "gid_index": 3, "ipv4": "10.1.0.1"}], "env": {"NCCL_IB_GID_INDEX": "3"}}
    moved = {"rails": [{"hca": "rocep1s0f0", "gid_index": 5, "ipv4": "10.1.0.1"}], "env": {"NCCL_IB_GID_INDEX": "5"}}
    alone = {"rails": []}

    def rails_kept(*hosts: tuple[Any, Any]) -> list[Check]:
        names = [f"s{number}" for number, _ in enumerate(hosts, 1)]
        known = {
            name: {"reboot_seen": {"before": {"fabric": was}}, "roce_fabric": now}
            for name, (was, now) in zip(names, hosts, strict=True)
        }
        return reboot.rails_kept(known, names)

    made = rails_kept((before, moved), (before, before), (alone, alone))
    assert [check.status for check in made] == [FAIL, PASS, PASS]
    assert "rocep1s0f0: gid_index 3 → 5" in made[0].found
    for nothing in (None, {}):
        for known in (before, {}):
            assert rails_kept((known, nothing))[0].status == FAIL, "no answer is no proof"
    assert reboot.rails_kept({"s1": {}}, ["s1"])[0].status == FAIL


def test_a_program_that_is_not_installed_is_untold_not_an_abort(monkeypatch: pytest.MonkeyPatch, run_module: RunModule) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    said = run_module(host_info, {})
    assert "failed" not in said, said
    assert said["host"]["docker"] == {"error": "docker is not installed"}
    assert said["host"]["clock"]["synchronised"] is None
    assert said["host"]["page_cache"]["active"] is None


def test_a_part_of_a_deployment_is_not_judged(tmp_path: Path) -> None:
    """The table was shown by rank 0: a limit without it ended well and had looked at nothing."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("all: {children: {sparks: {hosts: {a: {ansible_connection: local}, b: {ansible_connection: local}}}}}")
    sources = ["-i", ROOT / "inventory/shipped", "-i", hosts]
    command = [Path(sys.executable).with_name("ansible-playbook"), *sources, ROOT / "playbooks/health.yml", "-l", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "COLUMNS": "400"})
    assert done.returncode != 0
    assert "take all of them: -l sparks" in done.stdout + done.stderr


def test_a_relative_place_of_the_state_is_read_below_the_root(root: Path) -> None:
    (root / "lib").mkdir()
    (root / "lib/engine-boots.json").write_text(json.dumps({"boots": 3, "boot_id": BOOT}))
    assert host_boots.read("lib", root)["boots"] == 3


@pytest.mark.parametrize(("env", "status"), [({"NCCL_NET": "IB"}, PASS), ({"NCCL_IB_GID_INDEX": "3"}, FAIL)])
def test_a_gid_that_only_moved_counts_where_it_is_pinned(env: dict[str, str], status: str) -> None:
    """Seen on a real kernel: an address that was added by hand kept a slot until the reboot."""
    before = {"rails": [{"hca": "rocep1s0f0", "netdev": "enp1s0f0np0", "gid_index": 3, "mtu": 9000}], "env": env}
    after = {"rails": [{"hca": "rocep1s0f0", "netdev": "enp1s0f0np0", "gid_index": 1, "mtu": 9000}], "env": env}
    found = host_rules.rails("spark-1", before, after)
    assert (found.status, found.found) == (status, "rocep1s0f0: gid_index 3 → 1")
