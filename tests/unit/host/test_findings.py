"""Lines of kernel and journal: what they mean for a rank that failed. In the words of Linux 6.x, mlx5_core, earlyoom 1.8 and systemd 255."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.host import findings
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

AT = "2026-12-01T04:00:00+00:00 spark-2 kernel: "
KERNEL = [
    ("NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "gpu_xid_fatal", "Xid 79 (the GPU has fallen off", True),
    ("NVRM: Xid (PCI:000f:01:00): 13, pid=77, name=VLLM::Worker, Graphics SM Warp Exception", "gpu_xid", "Xid 13 (it ends a program) for VLLM::Worker", False),
    ("NVRM: Xid (PCI:000f:01:00): 201, something new", "gpu_xid", "Xid 201 (of a kind we don't know)", False),
    ("NVRM: GPU 000f:01:00.0: RmInitAdapter failed! (0x24:0xffff:1482)", "gpu_init", "RmInitAdapter", True),
    ("NVRM: API mismatch: the client has the version 580.95.05, but this kernel module has the version 580.82.09.", "driver_mismatch", "API mismatch", False),
    ("Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB oom_score_adj:0", "oom_killed",
     "Killed process 4242 (VLLM::Worker_TP)", True),
    ("Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB", "oom_killed", "Killed process 4242 (python3)", True),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=docker-abc.scope,mems_allowed=0,global_oom,task=python3,pid=1,uid=0", "oom_killed",
     "killed a process", True),
    ("mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", "link_down", "enp1s0f0np0: Link down", True),
    ("mlx5_core 0002:01:00.1: Port module event: module 1, Cable unplugged", "link_down", "Cable unplugged", True),
    ("mlx5_core 0002:01:00.1: Port module event[error]: module 1, Cable error, Bus stuck (I2C or data shorted)", "link_down", "Cable error", True),
    ("mlx5_core 0000:01:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count", "nic_error", "health compromised", True),
    ("mlx5_core 0000:01:00.0: mlx5_error_sw_reset:250:(pid 5): start recovery flow", "nic_error", "recovery flow", True),
    ("pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0", "pcie_error", "PCIe", True),
    ("mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)", "pcie_error", "PCIe", True),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:99]", "lockup", "stood still", True),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "lockup", "stood still", True),
    ("{1}[Hardware Error]: event severity: fatal", "hardware_error", "hardware error", True),
    ("blk_update_request: I/O error, dev nvme0n1, sector 12345 op 0x1:(WRITE)", "disk_error", "disk failed", True),
    ("INFO: task python3:99 blocked for more than 122 seconds.", "lockup", "stood still", True),
    ("thermal thermal_zone0: soc: critical temperature reached, shutting down", "heat", "too hot", True),
]  # fmt: skip
NOTHING = [
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W).",
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) @ mem_desc.c:1359",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05",
    "pcieport 0000:00:00.0: AER: Corrected error message received from 0000:01:00.0",
    "docker0: port 1(veth12ab) entered disabled state",
    "mlx5_core 0000:01:00.0 enp1s0f0np0: Link up",
    "",
]
JOURNAL = [
    ("earlyoom[812]: sending SIGTERM to process 4242 uid 0 \"VLLM::Worker\": badness 1200, VmRSS 90000 MiB", "memory_killer", "earlyoom sent SIGTERM to 4242", True),
    ("systemd-oomd[700]: Killed /system.slice/docker-ab.scope due to memory pressure for /system.slice being 70.00% > 60.00%", "memory_killer",
     "docker-ab.scope due to memory pressure", True),
    ("systemd[1]: Stopping docker.service - Docker Application Container Engine...", "docker_restarted", "Docker was restarted", False),
    ("systemd[1]: docker.service: Main process exited, code=killed, status=9/KILL", "docker_restarted", "Docker was restarted", False),
    ('dockerd[600]: time="2026-12-01T04:00:00Z" level=info msg="Processing signal \'terminated\'"', "docker_restarted", "Docker was restarted", False),
]  # fmt: skip


@pytest.mark.parametrize(("line", "id", "words", "grave"), KERNEL)
@pytest.mark.parametrize("head", [AT, "[ 1234.567890] ", "Dec 01 04:00:00 spark-2 kernel: "])
def test_what_a_line_of_the_kernel_means(head: str, line: str, id: str, words: str, grave: bool) -> None:
    (one,) = findings.kernel_findings([head + line])
    assert (one["id"], one["hardware_or_memory"]) == (id, grave)
    assert words in one["message"]
    assert one["remedy"]


@pytest.mark.parametrize("line", NOTHING)
def test_lines_of_a_healthy_kernel_mean_nothing(line: str) -> None:
    assert findings.kernel_findings([AT + line]) == []


@pytest.mark.parametrize("name", ["gpu/h200-kernel.log", "gpu/dmesg-nvrm-oom.log"])
def test_recorded_logs_of_healthy_machines_mean_nothing(name: str) -> None:
    assert findings.kernel_findings((FIXTURES / name).read_text().splitlines()) == []


@pytest.mark.parametrize(("line", "id", "words", "grave"), JOURNAL)
def test_what_a_line_of_the_journal_means(line: str, id: str, words: str, grave: bool) -> None:
    (one,) = findings.journal_findings([f"2026-12-01T04:00:00+00:00 spark-2 {line}"])
    assert (one["id"], one["hardware_or_memory"], words in one["message"]) == (id, grave, True), one["message"]


def test_links_are_told_apart_and_not_many_of_a_kind_are_said() -> None:
    down = "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down"
    two = findings.kernel_findings([down, down, down.replace("f0np0", "f1np1")])
    assert ["f0np0" in one["message"] for one in two] == [True, False]
    many = [f"NVRM: Xid (PCI:000f:01:00): {code}, x" for code in range(200, 260)]
    assert len(findings.kernel_findings(many)) == findings.OF_A_KIND


# Known lines with whatever before, within and after them, and lines of nobody.
KNOWN = st.sampled_from([line for line, *_ in (*KERNEL, *JOURNAL)])
NOISE = st.text(max_size=200)
LINES = st.lists(NOISE | st.builds("{}{}{}".format, NOISE, KNOWN, NOISE), max_size=8)


@given(LINES)
def test_whatever_the_lines_each_finding_is_whole_and_they_are_few(lines: list[str]) -> None:
    kinds = {id for _, id, _, _ in (*KERNEL, *JOURNAL)}
    for made in (findings.kernel_findings(lines), findings.journal_findings(lines)):
        assert len(made) <= findings.FINDINGS
        assert all(sum(one["id"] == id for one in made) <= findings.OF_A_KIND for id in kinds)
        for one in made:
            assert one["id"] in kinds
            assert one["message"]
            assert one["remedy"]
            assert one["line"].isprintable()
            assert len(one["line"]) <= 300


@given(st.lists(NOISE, max_size=5), KNOWN, st.lists(NOISE, max_size=5))
def test_a_known_line_is_found_among_any_others(before: list[str], line: str, after: list[str]) -> None:
    lines = [*before, line, *after]
    assert findings.kernel_findings(lines) or findings.journal_findings(lines)


@pytest.mark.parametrize(("line", "id"), [(line, id) for line, id, _, _ in KERNEL])
def test_long_lines_of_the_kernel_are_cut(line: str, id: str) -> None:
    (one,) = findings.kernel_findings([line + " x" * 32768])
    assert (one["id"], len(one["line"]) <= 300) == (id, True)
    assert len(one["message"]) < 600


@pytest.mark.parametrize(("line", "id"), [(line, id) for line, id, _, _ in JOURNAL])
def test_long_lines_of_the_journal_are_cut(line: str, id: str) -> None:
    (one,) = findings.journal_findings([line + " x" * 32768])
    assert (one["id"], len(one["line"]) <= 300) == (id, True)
    assert findings.journal_findings(["x " * findings.LONGEST + line]) == [], "what stands beyond the cut is not looked for"


@pytest.mark.parametrize("token", ["mlx5_core ", "AER: ", "earlyoom: ", "NVRM: ", "dockerd: ", "EDAC "])
def test_long_lines_that_only_look_like_one_say_nothing(token: str) -> None:
    line = token * (65536 // len(token))
    assert findings.kernel_findings([line] * 20) == findings.journal_findings([line] * 20) == []
