"""Who pings whom, what a ping that failed means, and whether rank 0's port can be reached."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import readiness_info
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric.devices import parse_rules
from ansible.module_utils.sparklanes.fabric.nccl_conf import image_conf_check
from conftest import free_port
from hypothesis import given
from hypothesis import strategies as st


def fabric(number: int, mtu: int = 9000, **more: Any) -> dict[str, Any]:
    rails = [
        {"netdev": f"fab{rail}", "ipv4": f"10.{rail}.0.{number}", "network": f"10.{rail}.0.0/24", "mtu": mtu} for rail in range(2)
    ]
    return {"host_ip": f"10.0.0.{number}", "ifname": "fab0", "rails": rails, "env": {}, **more}


def fleet(count: int) -> dict[str, dict[str, Any]]:
    return {f"s{number}": fabric(number) for number in range(1, count + 1)}


def test_two_nodes_ping_each_other_over_each_rail_bound_to_it() -> None:
    assert fabric_reach.plan(fleet(2))["s1"] == [
        {"peer": "s2", "rail": "0", "ifname": "fab0", "source": "10.0.0.1", "address": "10.0.0.2", "size": 8972},
        {"peer": "s2", "rail": "1", "ifname": "fab1", "source": "10.1.0.1", "address": "10.1.0.2", "size": 8972},
    ]


@pytest.mark.parametrize(("count", "peers"), [(2, 1), (3, 2), (8, 7), (9, 2), (16, 2)])
def test_all_pairs_up_to_eight_and_ring_neighbours_beyond(count: int, peers: int) -> None:
    made = fabric_reach.plan(fleet(count))
    for host, probes in made.items():
        assert len({probe["peer"] for probe in probes}) == peers
        assert host not in {probe["peer"] for probe in probes}
        assert len(probes) == peers * 2
    if count > 8:
        assert {probe["peer"] for probe in made["s1"]} == {"s2", f"s{count}"}
        assert {probe["peer"] for probe in made["s5"]} == {"s4", "s6"}


def test_ipv6_takes_its_larger_header_and_unknown_mtu_a_small_ping() -> None:
    six = {"netdev": "fab0", "ipv4": None, "ipv6": "fd00::1", "network": "fd00::/64", "mtu": 9000}
    there = {"s1": {"rails": [six], "ifname": "fab0"}, "s2": {"rails": [{**six, "ipv6": "fd00::2"}], "ifname": "fab0"}}
    assert [(probe["address"], probe["size"]) for probe in fabric_reach.plan(there)["s1"]] == [("fd00::2", 8952)]
    there["s1"]["rails"] = [{**six, "mtu": None}]
    assert fabric_reach.plan(there)["s1"][0]["size"] == fabric_reach.SMALL


def test_in_a_ring_the_ends_of_each_cable_meet() -> None:
    env = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"}

    def node(number: int, left: int, right: int) -> dict[str, Any]:
        rails = [
            {"netdev": f"p{cable}", "ipv4": f"10.9.{cable}.{number}", "network": f"10.9.{cable}.0/24", "mtu": 9000}
            for cable in (left, right)
        ]
        return {"host_ip": f"10.5.0.{number}", "ifname": "enP7s7", "rails": rails, "env": env}

    made = fabric_reach.plan({"s1": node(1, 1, 3), "s2": node(2, 2, 1), "s3": node(3, 3, 2)})
    assert [(p["peer"], p["rail"], p["ifname"], p["address"], p["size"]) for p in made["s1"]] == [
        ("s2", "0", "p1", "10.9.1.2", 8972),
        ("s2", "control", "enP7s7", "10.5.0.2", 56),
        ("s3", "1", "p3", "10.9.3.3", 8972),
        ("s3", "control", "enP7s7", "10.5.0.3", 56),
    ]


def test_one_node_tries_nothing() -> None:
    assert fabric_reach.plans({"s1": {"rank": 0, "world_size": 1}}, {}) == {"s1": {"probes": [], "master": {}}}
    assert fabric_reach.gate_checks("s1", {"probes": [], "master": {}}, {}, {}) == []


def specs(count: int) -> dict[str, dict[str, Any]]:
    master = {"host": "10.0.0.1", "port": 29500}
    return {f"s{rank + 1}": {"rank": rank, "world_size": count, "master": master} for rank in range(count)}


def test_rank_0_listens_for_the_others_who_come_from_their_fabric_address() -> None:
    made = fabric_reach.plans(specs(3), fleet(3))
    assert made["s1"]["master"] == {"address": "10.0.0.1", "port": 29500, "listen_for": 2}
    assert made["s3"]["master"] == {"address": "10.0.0.1", "port": 29500, "source": "10.0.0.3"}


# What came back


def results(**changed: Any) -> list[dict[str, Any]]:
    return [{**probe, "ok": True, "small": None, "said": "", **changed} for probe in fabric_reach.plan(fleet(3))["s1"]]


def test_rails_whose_peers_all_answer_are_one_row_each() -> None:
    made = fabric_reach.peer_checks("s1", fabric_reach.plan(fleet(3))["s1"], results())
    assert [(check.status, check.found) for check in made] == [
        ("pass", "rail 0 (fab0): 2 peer(s) answer 8972 bytes unfragmented"),
        ("pass", "rail 1 (fab1): 2 peer(s) answer 8972 bytes unfragmented"),
    ]


def test_the_failing_pair_and_rail_are_named_and_mtu_is_told_from_silence() -> None:
    found = results()
    found[1] |= {"ok": False, "small": True, "said": "ping: local error: message too long, mtu=1500"}  # s2, rail 1
    found[2] |= {"ok": False, "small": False}  # s3, rail 0
    bad = [check for check in fabric_reach.peer_checks("s1", fabric_reach.plan(fleet(3))["s1"], found) if check.status == "fail"]
    assert len(bad) == 2
    silent, mtu = bad
    assert "rail 0 (fab0 10.0.0.1) to s3 (10.0.0.3): no answer at all" in silent.found
    assert "firewall" in silent.remedy
    assert "rail 1 (fab1 10.1.0.1) to s2 (10.1.0.2): small packets pass, 8972 bytes don't (ping: local error" in mtu.found
    assert "set the same at s1, s2 and on the switch, then ping -M do -s 8972 -I fab1 10.1.0.2" in mtu.remedy


@pytest.mark.parametrize("found", [None, [], [{"peer": "s9", "rail": "0", "ok": True}]])
def test_a_ping_that_was_not_made_fails(found: Any) -> None:
    made = fabric_reach.peer_checks("s1", fabric_reach.plan(fleet(2))["s1"], found)
    assert [check.status for check in made] == ["fail", "fail"]
    assert all("not measured" in check.found for check in made)


@pytest.mark.parametrize(
    ("result", "head", "status", "found", "remedy"),
    [
        ({"outcome": "accepted"}, {"listened": True}, "pass", "10.0.0.1:29500: connected", ""),
        ({"outcome": "established"}, {"listened": False}, "pass", "a rank runs over it", ""),
        ({"outcome": "refused"}, {"listened": True}, "fail", "refused, though rank 0 listened", "firewall on rank 0 rejects"),
        ({"outcome": "refused"}, {"listened": False, "error": "in use"}, "fail", "could not listen (in use)", "ss -ltnp"),
        ({"outcome": "refused"}, None, "fail", "could not listen (unknown)", "ss -ltnp"),
        ({"outcome": "silent", "error": "timed out"}, {"listened": True}, "fail", "no answer", "drops it"),
        ({"outcome": "failed", "error": "No route to host"}, {"listened": True}, "fail", "No route to host", "route from s2"),
        (None, {"listened": True}, "fail", "not measured", "firewall"),
        ({}, {"listened": True}, "fail", "not measured", "firewall"),
    ],
)
def test_the_rendezvous_port(result: Any, head: Any, status: str, found: str, remedy: str) -> None:
    end = fabric_reach.plans(specs(2), fleet(2))["s2"]["master"]
    check = fabric_reach.master_check("s2", end, result, head)
    assert check is not None
    assert (check.id, check.host, check.status) == ("FABRIC.MASTER_PORT", "s2", status)
    assert found in check.found
    assert remedy in check.remedy


def test_rank_0_is_not_asked_whether_it_reaches_itself() -> None:
    assert fabric_reach.master_check("s1", fabric_reach.plans(specs(2), fleet(2))["s1"]["master"], None, None) is None


# Trying it


@pytest.fixture
def ping(tmp_path: Path) -> str:
    """A ping whose peers are: .1 well, .2 with a small MTU, .3 dead, .4 that never ends."""
    program = tmp_path / "ping"
    program.write_text(
        """#!/bin/sh
for last; do :; done
printf "%s\\n" "$*" >> "$(dirname "$0")/calls"
case $last in
    *.1) exit 0 ;;
    *.2) case "$*" in *" -s 56 "*) exit 0 ;; esac; echo "ping: local error: message too long, mtu=1500"; exit 1 ;;
    *.3) echo "2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 1ms"; exit 1 ;;
    *) exec sleep 60 ;;
esac
"""
    )
    program.chmod(0o755)
    return str(program)


def test_pings_of_all_kinds(ping: str) -> None:
    base = {"peer": "s2", "rail": "0", "ifname": "fab0", "source": "10.0.0.9", "size": 8972}
    found = fabric_reach.run_pings(ping, [{**base, "address": f"10.0.0.{number}"} for number in (1, 2, 3, 4)], seconds=1)
    assert [(result["ok"], result["small"]) for result in found] == [(True, None), (False, True), (False, False), (False, False)]
    assert found[1]["said"] == "ping: local error: message too long, mtu=1500"
    assert found[2]["said"] == ""
    assert found[3]["said"] == "ping did not answer within 1 s"
    calls = Path(ping).with_name("calls").read_text().splitlines()
    assert "-n -q -c 2 -i 0.3 -W 2 -M do -s 8972 -I fab0 -I 10.0.0.9 10.0.0.1" in calls
    assert sum(" -s 56 " in call for call in calls) == 3


def test_a_ping_that_can_not_be_started_is_no_answer() -> None:
    probe = {"peer": "s2", "rail": "0", "ifname": "f", "source": "1.1.1.1", "address": "1.1.1.2", "size": 100}
    (found,) = fabric_reach.run_pings("/nowhere/ping", [probe])
    assert (found["ok"], found["small"]) == (False, False)
    assert "No such file" in found["said"]


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_worker_meets_rank_0_and_leaves_the_port_free(port: int) -> None:
    listener = fabric_reach.Listener("127.0.0.1", port)
    assert fabric_reach.connect("127.0.0.1", port, "127.0.0.1", 5) == {"outcome": "accepted", "error": ""}
    assert listener.accept(1, 5) == {"listened": True, "error": "", "met": ["127.0.0.1"]}
    with socket.socket() as plain:  # even for an engine that would not reuse an address
        plain.bind(("127.0.0.1", port))


def test_a_worker_that_comes_before_rank_0_waits_for_it(port: int) -> None:
    found: dict[str, Any] = {}
    worker = threading.Thread(target=lambda: found.update(fabric_reach.connect("127.0.0.1", port, "", 10)))
    worker.start()
    assert fabric_reach.Listener("127.0.0.1", port).accept(1, 10)["met"] == ["127.0.0.1"]
    worker.join()
    assert found["outcome"] == "accepted"


def test_nobody_there(port: int) -> None:
    assert fabric_reach.connect("127.0.0.1", port, "", 0.1)["outcome"] == "refused"
    assert fabric_reach.Listener("127.0.0.1", port).accept(1, 0.1) == {"listened": True, "error": "", "met": []}
    assert fabric_reach.connect("127.0.0.1", port, "192.0.2.1", 0.1)["outcome"] == "failed", "an address that is not ours"


def test_a_held_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        told = fabric_reach.Listener("127.0.0.1", held.getsockname()[1]).accept(1, 1)
    assert told["listened"] is False
    assert "in use" in told["error"]


def test_connections_of_a_rank_that_runs() -> None:
    text = "0      0          10.1.0.2:41234      10.1.0.1:29500\n0 0 [::ffff:10.1.0.2]:5 [::ffff:10.1.0.1]:29501\n"
    assert fabric_reach.established(text, "10.1.0.1", 29500)
    assert fabric_reach.established(text, "10.1.0.1", 29501)
    assert not fabric_reach.established(text, "10.1.0.1", 2950)
    assert not fabric_reach.established("", "10.1.0.1", 29500)


@given(st.text(), st.text(), st.integers(0, 70000))
def test_whatever_ping_and_ss_print_there_is_an_answer(ping_says: str, ss_says: str, number: int) -> None:
    assert len(fabric_reach.complaint(ping_says)) <= 200
    assert fabric_reach.established(ss_says, "10.1.0.1", number) in (True, False)
    assert parse_rules(ss_says) == []


# An nccl.conf in the image


ROCE = {"world_size": 2, "env": {"NCCL_IB_HCA": "=rocep1s0f0", "NCCL_NET": "IB"}}


@pytest.mark.parametrize(
    ("texts", "status", "words"),
    [
        ({}, "pass", "no nccl.conf"),
        ({"/etc/nccl.conf": ""}, "pass", "no nccl.conf"),
        ({"/etc/nccl.conf": "# NCCL_IB_GID_INDEX=3\n"}, "pass", "no nccl.conf"),
        ({"/etc/nccl.conf": "NCCL_IB_HCA=mlx5_0\n"}, "pass", "no nccl.conf"),
        (
            {"/etc/nccl.conf": "NCCL_IB_GID_INDEX=3\nNCCL_IB_HCA=mlx5_0\n"},
            "fail",
            "/etc/nccl.conf in the image: NCCL_IB_GID_INDEX=3",
        ),
        ({"/root/.nccl.conf": "NCCL_CROSS_NIC=1\n"}, "fail", "/root/.nccl.conf in the image: NCCL_CROSS_NIC=1"),
        ({"/etc/nccl.conf": "NCCL_DEBUG=INFO\n"}, "warn", "NCCL_DEBUG=INFO"),
        (None, "fail", "not measured"),
    ],
)
def test_an_nccl_conf_in_the_image(texts: Any, status: str, words: str) -> None:
    check = image_conf_check("s1", texts, ROCE)
    assert (check.id, check.status) == ("FABRIC.IMAGE_CONF", status)
    assert words in check.found


def test_of_two_files_the_first_wins_and_one_spark_needs_no_fabric() -> None:
    texts = {"/root/.nccl.conf": "NCCL_IB_TC=1\n", "/etc/nccl.conf": "NCCL_IB_TC=2\n"}
    assert "NCCL_IB_TC=1" in image_conf_check("s1", texts, ROCE).found
    assert image_conf_check("s1", texts, {"world_size": 1, "env": {}}).status == "warn"


class FakeDocker:
    """An image with these files, and a memory of what was asked."""

    def __init__(self, files: dict[str, str], broken: bool = False) -> None:
        self.files, self.broken, self.calls = files, broken, list[str]()

    def call(self, *args: str) -> str:
        self.calls.append(args[0])
        if args[0] == "create":
            if self.broken:
                raise DockerError("no such image")
            return "WARNING: platform\nabc123\n"
        if args[0] == "cp":
            path = args[-2].partition(":")[2]
            assert args[-2].startswith("abc123:")
            if path not in self.files:
                raise DockerError("no such file")
            Path(args[-1]).write_text(self.files[path])
        return ""


@pytest.mark.parametrize("files", [{}, {"/etc/nccl.conf": "A=1\n"}, {"/root/.nccl.conf": "B=2\n", "/etc/nccl.conf": "A=1\n"}])
def test_the_image_is_looked_into_and_nothing_stays(tmp_path: Path, files: dict[str, str]) -> None:
    docker = FakeDocker(files)
    assert readiness_info.image_conf(SimpleNamespace(tmpdir=str(tmp_path)), docker, "engine@sha256:1") == files
    assert docker.calls == ["create", "cp", "cp", "rm"]


def test_an_image_that_can_not_be_looked_into_is_not_measured(tmp_path: Path) -> None:
    docker = FakeDocker({}, broken=True)
    assert readiness_info.image_conf(SimpleNamespace(tmpdir=str(tmp_path)), docker, "engine") is None
    assert docker.calls == ["create"]
