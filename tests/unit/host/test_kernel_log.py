# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The kernel log, memory killers, clock limits and link errors: what a launch finds before it stops anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, SKIP, WARN
from ansible.module_utils.sparklanes.host import hardware, kernel_log, killers
from conftest import FIXTURES

LOG = (FIXTURES / "host/kernel-events.SYNTHETIC.log").read_text()
REAL = [
    FIXTURES / "gpu/h200-kernel.log",  # a healthy boot
    FIXTURES / "gpu/dmesg-nvrm-oom.log",  # thousands of NV_ERR_NO_MEMORY, as in healthy boots
]


def told(text: str) -> dict[str, Any]:
    return {"error": "", **kernel_log.told(kernel_log.parse(text))}


def test_each_kind_of_line_is_a_row_with_a_remedy() -> None:
    rows = {check.found.partition(" ×")[0]: check for check in kernel_log.checks("s1", told(LOG))}
    status = {name: rows[kernel_log.BY_NAME[name].what].status for name in told(LOG)["counts"]}
    assert status == {
        "gpu_init": FAIL, "driver_mismatch": WARN, "pcie": WARN, "pcie_fatal": FAIL, "nic_recovery": WARN, "nic_link_down": WARN,
        "lockup": WARN, "oom": WARN, "disk": WARN, "hardware": FAIL,
    }  # fmt: skip
    assert all(check.remedy and check.id == "HOST.KERNEL_LOG" and check.host == "s1" for check in rows.values())
    assert "×2" in rows[kernel_log.BY_NAME["lockup"].what].found


def test_a_line_tells_when_and_what() -> None:
    found = {event.kind: event for event in kernel_log.parse(LOG)}
    assert found["gpu_init"].when == "2026-09-27T11:00:00+00:00"
    assert found["gpu_init"].text == "NVRM: GPU 000f:01:00.0: RmInitAdapter failed! (0x24:0x65:1638)"
    assert found["pcie"].when == "7201.123456"
    assert found["oom"].when == "Sep 27 12:00:03"


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_healthy_boots_raise_no_alarm(path: Path) -> None:
    assert [
        (check.status, check.found) for check in kernel_log.checks("s1", told(path.read_text())) if check.status != PASS
    ] == []


def test_a_port_without_a_cable_never_went_down() -> None:
    assert kernel_log.parse("mlx5_core 0000:01:00.1 enp1s0f1np1: Link down\n" * 3) == []
    flap = "mlx5_core 0000:01:00.1 x: Link up\nmlx5_core 0000:01:00.1 x: Link down\n"
    assert [event.kind for event in kernel_log.parse(flap * 2)] == ["nic_link_down"] * 2


def test_a_line_without_end_is_cut() -> None:
    event = kernel_log.parse("NVRM: RmInitAdapter failed" + "x" * 10**6)[0]
    assert len(event.text) <= 300


HIDDEN = "Hint: You are currently not seeing messages from other users and the system.\n"


def played(*answers: tuple[int, str, str]) -> Any:
    left = list(answers)
    return lambda argv, **_: left.pop(0)


@pytest.mark.parametrize(
    ("answers", "status", "words"),
    [
        ([(0, LOG, "")], FAIL, "could not initialise the GPU"),
        ([(1, "", "")], PASS, "no error"),  # nothing matches
        ([(1, "", "Compiled without pattern matching support"), (0, "", "")], PASS, "no error"),
        ([(127, "", "journalctl: not there"), (1, "", "dmesg: Operation not permitted")], FAIL, "Operation not permitted"),
        ([(124, "", "journalctl did not answer"), (124, "", "")], FAIL, "did not answer"),
        ([(0, "-- No entries --\n", HIDDEN), (1, "", "dmesg: Operation not permitted")], FAIL, "Operation not permitted"),
        ([(0, "", HIDDEN), (0, LOG, "")], FAIL, "could not initialise the GPU"),
    ],
)
def test_a_log_that_can_not_be_read_fails(answers: Any, status: str, words: str, tmp_path: Path) -> None:
    rows = kernel_log.checks("s1", kernel_log.read(played(*answers), tmp_path))
    assert rows[0].status == status
    assert words in rows[0].found


@pytest.mark.parametrize("facts", [None, {}, {"error": "x"}])
def test_what_nobody_asked_fails(facts: Any) -> None:
    assert [check.status for check in kernel_log.checks("s1", facts)] == [FAIL]


def test_a_container_has_no_kernel_log_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run/systemd").mkdir(parents=True)
    (tmp_path / "run/systemd/container").write_text("podman")
    facts = kernel_log.read(played(), tmp_path)
    assert [check.status for check in kernel_log.checks("s1", facts)] == [SKIP]


# Memory killers

SHOW = (
    "Id=earlyoom.service\nActiveState={}\n\nId=systemd-oomd.service\nActiveState={}\n\nId=nohang.service\nActiveState=inactive\n"
)


@pytest.mark.parametrize(
    ("text", "percent", "kib"),
    [
        ('EARLYOOM_ARGS="-m 5 -r 3600 --avoid x"\n', 5.0, None),
        ("EARLYOOM_ARGS='-m4,2 -M 2097152,1048576'\n", 4.0, 2097152.0),
        ("# EARLYOOM_ARGS=-m 1\n", 10.0, None),
        ('EARLYOOM_ARGS="-m 5\n', 10.0, None),  # an open quote: systemd refuses it too, so the defaults hold
        ("", 10.0, None),
    ],
)
def test_the_limit_of_earlyoom(text: str, percent: float, kib: float | None) -> None:
    found = killers.earlyoom_limits(text)
    assert (found["percent"], found["kib"]) == (percent, kib)


def test_an_active_killer_is_a_warning_with_its_limit(tmp_path: Path) -> None:
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/earlyoom").write_text('EARLYOOM_ARGS="-m 5"\n')
    facts = killers.facts(tmp_path, played((0, SHOW.format("active", "inactive"), "")))
    check = killers.check("s1", facts, 3.1, 121.69)
    assert (check.id, check.status) == ("HOST.MEMORY_KILLER", WARN)
    assert "acts below 6.1 GiB" in check.found
    assert "designed to leave 3.1 GiB" in check.found
    assert "earlyoom" in check.remedy
    assert "designed" not in killers.check("s1", facts, None, 121.69).found
    oomd = killers.check("s1", killers.facts(tmp_path, played((0, SHOW.format("inactive", "active"), ""))))
    assert (oomd.status, oomd.found) == (WARN, "systemd-oomd")
    none = killers.facts(tmp_path, played((0, SHOW.format("inactive", "inactive"), "")))
    assert killers.check("s1", none).status == PASS


def test_killers_that_nobody_could_ask_for_fail(tmp_path: Path) -> None:
    for facts in (None, {}, killers.facts(tmp_path, played((1, "", "Failed to connect to bus")))):
        assert killers.check("s1", facts).status == FAIL


# Clocks and links


@pytest.mark.parametrize(
    ("clocks", "status", "words"),
    [
        ([{"name": "policy0", "max_khz": 3900000, "limit_khz": 3900000}], PASS, "3.90 GHz"),
        ([{"name": "policy0", "max_khz": 3900000, "limit_khz": 1500000}], WARN, "policy0: 1.50 of 3.90 GHz"),
        ([{"name": "policy0", "max_khz": 3900000, "limit_khz": None}], WARN, "not told"),
    ],
)
def test_a_limit_of_the_clock_is_a_warning(clocks: Any, status: str, words: str) -> None:
    check = hardware.clock_check("s1", clocks)
    assert check is not None
    assert (check.id, check.status, words in check.found) == ("HOST.CPU_CLOCK", status, True)
    assert hardware.clock_check("s1", []) is None


def test_damaged_frames_are_a_warning() -> None:
    check = hardware.link_check("s1", {"enp1s0f0np0": {"rx_crc_errors": 1700}})
    assert check is not None
    assert (check.id, check.status, check.found) == ("HOST.LINK_ERRORS", WARN, "enp1s0f0np0: rx_crc_errors 1,700")
    assert hardware.link_check("s1", {}).status == PASS  # type: ignore[union-attr]
    assert hardware.link_check("s1", None) is None


def test_a_log_that_begins_after_the_boot_knows_of_no_link_that_was_up_before() -> None:
    down = "mlx5_core 0000:01:00.1 enp1s0f1np1: Link down\n"
    assert [event.kind for event in kernel_log.parse(down, since_boot=False)] == ["nic_link_down"]


def test_a_port_that_loses_its_cable_is_seen() -> None:
    assert [event.kind for event in kernel_log.parse("mlx5_core 0002:01:00.1: Port module event: module 1, Cable unplugged")] == [
        "nic_cable"
    ]
