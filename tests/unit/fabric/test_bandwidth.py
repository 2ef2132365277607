"""Who measures whom, perftest's words as data, and the verdicts at their borders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fabric_bandwidth
import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.fabric import bandwidth
from conftest import FIXTURES, RunModule
from hostvars import registered
from hypothesis import given
from hypothesis import strategies as st

A, B = "rocep1s0f0", "roceP2p1s0f0"


def fabric(number: int, halves: int = 2, **more: Any) -> dict[str, Any]:
    rails = [
        {"hca": hca, "port": 1, "netdev": f"n{index}", "ipv4": f"10.{index}.0.{number}", "network": f"10.{index}.0.0/24",
         "mtu": 9000, "gid_index": 3 + number}
        for index, hca in enumerate((A, B)[:halves])
    ]  # fmt: skip
    return {"transport": "roce", "rails": rails, "env": {}, **more}


def fleet(count: int, halves: int = 2) -> dict[str, dict[str, Any]]:
    return {f"s{number}": fabric(number, halves) for number in range(1, count + 1)}


# The plan


def test_each_spark_writes_to_the_next_one_each_rail_alone_then_all() -> None:
    made = bandwidth.plan(fleet(2))
    assert [(t["rail"], t["mode"], t["hca"], t["address"], t["gid_index"]) for t in made["s1"]["measure"]] == [
        ("0", "alone", A, "10.0.0.2", 4),
        ("1", "alone", B, "10.1.0.2", 4),
        ("0", "together", A, "10.0.0.2", 4),
        ("1", "together", B, "10.1.0.2", 4),
    ]
    assert [(t["peer"], t["rail"], t["gid_index"]) for t in made["s2"]["serve"]] == [
        ("s1", "0", 5), ("s1", "1", 5), ("s1", "0", 5), ("s1", "1", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_client_has_a_server_of_its_own(count: int) -> None:
    made = bandwidth.plan(fleet(count))
    served = [test["port"] for ends in made.values() for test in ends["serve"]]
    asked = [test["port"] for ends in made.values() for test in ends["measure"]]
    assert sorted(served) == sorted(asked) == list(range(bandwidth.FIRST_PORT, bandwidth.FIRST_PORT + 4 * count))
    for host, ends in made.items():
        assert {test["peer"] for test in ends["measure"]} == {f"s{int(host[1:]) % count + 1}"}


def test_one_rail_is_measured_once_and_one_spark_never() -> None:
    assert [test["mode"] for test in bandwidth.plan(fleet(2, halves=1))["s1"]["measure"]] == ["alone"]
    assert bandwidth.plan(fleet(1)) == {"s1": {"serve": [], "measure": []}}


def test_in_a_ring_the_rails_of_one_network_meet() -> None:
    ring = fleet(2)
    for host in ring.values():
        host["env"] = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}
    ring["s2"]["rails"].reverse()
    assert [test["address"] for test in bandwidth.plan(ring)["s1"]["measure"][:2]] == ["10.0.0.2", "10.1.0.2"]


def test_what_can_not_be_measured_is_told() -> None:
    assert "nobody to measure with" in bandwidth.unfit(fleet(1))
    socket = {"transport": "socket", "rails": [{"hca": None, "netdev": "fab0"}]}
    assert "s2 has no RDMA rail (transport socket)" in bandwidth.unfit({**fleet(1), "s2": socket})
    assert "s2 has no RDMA rail" in bandwidth.unfit({**fleet(1), "s2": {}})
    assert bandwidth.unfit(fleet(2)) == ""


# perftest's words


def sample(name: str) -> str:
    return (FIXTURES / "fabric" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "gbps", "mtu"),
    [
        ("ib_write_bw-good.txt", 92.57, 1024),
        ("ib_write_bw-rxe-client.txt", 0.012686, 1024),
        ("ib_write_bw-rxe-server.txt", 0.012686, 1024),
    ],
)
def test_recorded_output(name: str, gbps: float, mtu: int) -> None:
    found = bandwidth.parse(sample(name))
    assert found == bandwidth.Measured(gbps, mtu)


HEAD = " #bytes     #iterations    BW peak[{u}]    BW average[{u}]   MsgRate[Mpps]\n"


def output(gbps: float, mtu: int = 4096) -> str:
    return f" Mtu             : {mtu}[B]\n{HEAD.format(u='Gb/sec')} 65536      100000           0.00               {gbps:.2f}  0.18\n"


def test_other_units_are_converted_and_unknown_ones_refused() -> None:
    row = " 65536 100000 11000.00 11034.00 0.17\n"
    assert bandwidth.parse(HEAD.format(u="MB/sec") + row).gbps == pytest.approx(92.56, abs=0.01)
    assert bandwidth.parse(HEAD.format(u="MiB/sec") + row).gbps == pytest.approx(92.56, abs=0.01)
    assert bandwidth.parse(HEAD.format(u="pigeons") + row).gbps is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no output"),
        ("----\n\n", "no output"),
        ("Couldn't connect to 10.0.0.2:18600\nUnable to open file descriptor for socket connection\n", "Unable to open"),
        (HEAD.format(u="Gb/sec"), "#bytes"),
        (HEAD.format(u="Gb/sec") + " 65536 100000 0.00 inf 0.1\n Failed to complete\n", "Failed to complete"),
        (HEAD.format(u="Gb/sec") + " 65536 100000 0.00 nan 0.1\n", "nan"),
        (" Mtu : 4096[B]\n mlx5: got completion with error\n", "got completion with error"),
    ],
)
def test_output_without_a_result_says_why(text: str, error: str) -> None:
    found = bandwidth.parse(text)
    assert found.gbps is None
    assert error in found.error


@given(st.text() | st.lists(st.sampled_from([HEAD, "65536 1 2 3 4\n", "x", " Mtu : 99999[B]\n", "é\x00\n"])).map("".join))
def test_whatever_perftest_prints_there_is_an_answer(text: str) -> None:
    found = bandwidth.parse(text)
    assert (found.gbps is None) == bool(found.error)
    assert found.gbps is None or 0 <= found.gbps < 1e5


# Verdicts


def judge(alone: list[Any], together: list[Any], mtu: int = 4096, halves: int = 2) -> dict[str, Check]:
    planned = bandwidth.plan(fleet(2, halves))["s1"]["measure"]
    values = [*alone, *together]
    results = [
        {"port": test["port"], "gbps": value, "mtu": mtu, "error": "" if value is not None else "Couldn't connect"}
        for test, value in zip(planned, values, strict=True)
    ]
    return {
        f"{check.id.removeprefix('FABRIC.')} {index}": check
        for index, check in enumerate(bandwidth.checks("s1", planned, results))
    }


def told(checks: dict[str, Check]) -> list[tuple[str, str]]:
    return [(name.split()[0], check.status) for name, check in checks.items()]


def test_a_healthy_pair_as_the_guide_measures_it() -> None:
    made = judge([108.0, 111.7], [92.6, 97.3])
    assert told(made) == [("BANDWIDTH", "pass"), ("BANDWIDTH", "pass"), ("BANDWIDTH_TOTAL", "pass")]
    assert (made["BANDWIDTH_TOTAL 2"].id, made["BANDWIDTH_TOTAL 2"].found) == (
        "FABRIC.BANDWIDTH_TOTAL",
        "2 rails at once to s2: 189.9 Gb/s",
    )


@pytest.mark.parametrize(
    ("gbps", "status", "stale"),
    [
        (80.0, "pass", False),
        (79.9, "fail", False),
        (25.1, "fail", False),
        (25.0, "fail", True),
        (13.0, "fail", True),
        (8.0, "fail", True),
        (7.9, "fail", False),
        (0.0, "fail", False),
    ],
)
def test_borders_of_one_rail(gbps: float, status: str, stale: bool) -> None:
    check = judge([gbps, 90.0], [92.6, 97.3])["BANDWIDTH 0"]
    assert check.status == status
    assert ("stale initialisation" in check.found) is stale
    assert ("AC power for 60 s" in check.remedy) is stale


@pytest.mark.parametrize(
    ("together", "status", "words"),
    [
        ([80.0, 80.0], "pass", "160.0 Gb/s"),
        ([80.0, 79.9], "fail", "159.9 Gb/s"),
        ([49.0, 49.0], "fail", "98.0 Gb/s: no more than one half carries alone"),
        ([60.0, 60.0], "fail", "120.0 Gb/s"),
        ([13.0, 12.0], "fail", "25.0 Gb/s"),
        ([98.0, None], "fail", f"one half only to s2: 98.0 Gb/s, nothing over {B}"),
        ([None, None], "fail", "not measured"),
    ],
)
def test_borders_of_both_halves(together: list[Any], status: str, words: str) -> None:
    check = judge([100.0, 100.0], together)["BANDWIDTH_TOTAL 2"]
    assert (check.status, words in check.found) == (status, True), check.found


def test_one_half_is_said_and_not_refused() -> None:
    made = judge([98.0], [], halves=1)
    assert told(made) == [("BANDWIDTH", "pass"), ("BANDWIDTH_TOTAL", "warn")]
    assert "one half only to s2: 98.0 Gb/s of about 190" in made["BANDWIDTH_TOTAL 1"].found
    assert judge([None], [], halves=1)["BANDWIDTH_TOTAL 1"].status == "fail"


@pytest.mark.parametrize(("mtu", "count"), [(1024, 1), (4095, 1), (4096, 0)])
def test_a_small_mtu_is_told_though_the_rate_is_good(mtu: int, count: int) -> None:
    made = [check for check in judge([92.57, 92.57], [92.6, 97.3], mtu=mtu).values() if check.id == "FABRIC.BANDWIDTH_MTU"]
    assert [check.status for check in made] == ["warn"] * count


@pytest.mark.parametrize("results", [None, [], [{"port": 1, "gbps": 90.0}]])
def test_what_was_not_measured_fails(results: Any) -> None:
    made = bandwidth.checks("s1", bandwidth.plan(fleet(2))["s1"]["measure"], results)
    assert {check.status for check in made} == {"fail"}
    assert all("not measured" in check.found for check in made)


def test_a_silent_host_fails_in_the_table_of_the_playbook() -> None:
    known = registered(["s1", "s2"], fabric_bandwidth_result={"s1": {"unreachable": True}}, roce_fabric=fleet(2))
    made = bandwidth.judge(known, ["s1", "s2"])
    assert {(check.host, check.status) for check in made} == {("s1", "fail"), ("s2", "fail")}


# The module, with programs that stand in for perftest and systemd


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ib_write_bw answers by the file `says`; systemd-run and systemctl write down what they were told; ss shows all ports."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "ib_write_bw": 'cat "$HERE/says"; exit "$(cat "$HERE/code")"',
        "systemd-run": "exit 0",
        "systemctl": 'case $1 in list-units) cat "$HERE/units" ;; esac',
        "journalctl": "echo 'Failed to open device'",
        "ss": 'cat "$HERE/listening"',
    }
    for name, body in texts.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nHERE={tmp_path}\nprintf "%s\\n" "{name} $*" >> "$HERE/calls"\n{body}\n')
        path.chmod(0o755)
    for name, text in {"says": output(97.3), "code": "0", "units": "", "listening": "", "calls": ""}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def calls(programs: Path, name: str) -> list[str]:
    return [line for line in (programs / "calls").read_text().splitlines() if line.startswith(f"{name} ")]


PLAN = bandwidth.plan(fleet(2))


def test_servers_start_as_units_that_end_by_themselves(run_module: RunModule, programs: Path) -> None:
    ports = [test["port"] for test in PLAN["s2"]["serve"]]
    (programs / "listening").write_text("".join(f"LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:*\n" for port in ports))
    result = run_module(fabric_bandwidth, {"state": "serving", "tests": PLAN["s2"]["serve"], "seconds": 360})
    assert result["changed"] is True
    started = calls(programs, "systemd-run")
    assert len(started) == 4
    assert f"--unit=sparklanes-bandwidth-{ports[0]} --property=RuntimeMaxSec=360" in started[0]
    assert started[0].endswith(f"-d {A} -i 1 -x 5 -p {ports[0]} -s 65536 -n 100000 -F --report_gbits")


def test_a_server_that_does_not_listen_fails_with_its_words_and_leaves_nothing(
    run_module: RunModule, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_bandwidth, "LISTEN_SECONDS", 0.3)
    (programs / "units").write_text("sparklanes-bandwidth-18600.service loaded active running x\n")
    result = run_module(fabric_bandwidth, {"state": "serving", "tests": PLAN["s2"]["serve"]})
    assert result["failed"] is True
    assert "does not listen at port" in result["msg"]
    assert "Failed to open device" in result["msg"]
    assert "systemctl stop sparklanes-bandwidth-18600.service" in calls(programs, "systemctl")


def test_clients_bring_numbers(run_module: RunModule, programs: Path) -> None:
    result = run_module(fabric_bandwidth, {"state": "measured", "tests": PLAN["s1"]["measure"]})
    assert result["changed"] is False
    assert [(one["rail"], one["mode"], one["gbps"], one["mtu"]) for one in result["measured"]] == [
        ("0", "alone", 97.3, 4096), ("1", "alone", 97.3, 4096), ("0", "together", 97.3, 4096), ("1", "together", 97.3, 4096),
    ]  # fmt: skip
    assert calls(programs, "ib_write_bw")[0].endswith("--report_gbits 10.0.0.2")


def test_a_client_that_fails_has_no_number_even_if_it_printed_one(run_module: RunModule, programs: Path) -> None:
    (programs / "code").write_text("1")
    result = run_module(fabric_bandwidth, {"state": "measured", "tests": PLAN["s1"]["measure"][:1]})
    assert result["measured"][0]["gbps"] is None
    assert result["measured"][0]["error"].startswith("exit 1")


def test_a_client_that_hangs_is_ended(programs: Path) -> None:
    (found,) = bandwidth.run([["sh", "-c", "echo waiting; exec sleep 60"]], 0.5)
    assert found.gbps is None
    assert found.error == "no result within 0.5 s: waiting"


def test_nothing_left_is_no_change_and_ours_is_ended(run_module: RunModule, programs: Path) -> None:
    assert run_module(fabric_bandwidth, {"state": "absent"})["changed"] is False
    (programs / "units").write_text("sparklanes-bandwidth-18600.service loaded failed failed x\nother.service loaded\n")
    result = run_module(fabric_bandwidth, {"state": "absent"})
    assert result["actions"] == ["End sparklanes-bandwidth-18600.service"]
    assert "systemctl reset-failed sparklanes-bandwidth-18600.service" in calls(programs, "systemctl")


def test_check_mode_starts_nothing(run_module: RunModule, programs: Path) -> None:
    for state, tests in (("serving", PLAN["s2"]["serve"]), ("measured", PLAN["s1"]["measure"])):
        result = run_module(fabric_bandwidth, {"state": state, "tests": tests}, check=True)
        assert len(result["actions"]) in (3, 4)
    assert calls(programs, "systemd-run") == calls(programs, "ib_write_bw") == []


@pytest.mark.parametrize("state", ["serving", "measured"])
def test_without_perftest_the_package_is_named(run_module: RunModule, programs: Path, state: str) -> None:
    (programs / "bin" / "ib_write_bw").unlink()
    result = run_module(fabric_bandwidth, {"state": state, "tests": PLAN["s1"]["measure"]})
    assert result["failed"] is True
    assert "apt-get install perftest" in result["msg"]


@pytest.mark.parametrize("wish", [{"seconds": -1}, {"seconds": 0}, {"size": 0}, {"iterations": 0}])
def test_a_run_without_bounds_is_refused(run_module: RunModule, programs: Path, wish: dict[str, int]) -> None:
    result = run_module(fabric_bandwidth, {"state": "serving", "tests": PLAN["s2"]["serve"], **wish})
    assert result["failed"]
    assert f"{next(iter(wish))}: found" in result["msg"]
    assert "Nothing was started" in result["msg"]
