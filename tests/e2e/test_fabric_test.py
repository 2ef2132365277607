"""The bandwidth test on two nodes, with an emulated ib_write_bw: servers as units, clients one after the other, nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NODES, OTHER, ROOT, Fleet, Outcome

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests" / "fixtures" / "fabric" / "emulated-ib_write_bw"
HALVES = ("rocep1s0f0", "roceP2p1s0f0")


@pytest.fixture(scope="module")
def rails(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both nodes with the program, and a file of variables that gives them two RDMA rails (there is no such device here)."""
    for node in NODES:
        fleet.put(node, "/usr/local/bin/ib_write_bw", PROGRAM.read_bytes())
    fabrics = {
        node: {
            "transport": "roce",
            "errors": [],
            "warnings": [],
            "env": {},
            "rails": [{"hca": hca, "port": 1, "netdev": "fab0", "ipv4": address, "network": "x", "mtu": 9000, "gid_index": 3} for hca in HALVES],
        }
        for node in NODES
        for address in [fleet.on(node, "ip -j -4 addr show fab0 | python3 -c 'import json,sys; print(json.load(sys.stdin)[0][\"addr_info\"][0][\"local\"])'")]
    }  # fmt: skip
    path = tmp_path_factory.mktemp("rails") / "rails.json"
    path.write_text(json.dumps({"emulated": fabrics, "roce_fabric": "{{ emulated[inventory_hostname] }}"}))
    yield path
    for node in NODES:
        fleet.on(node, "rm -f /usr/local/bin/ib_write_bw /etc/emulated-ib_write_bw.json")


def measure(fleet: Fleet, rails: Path, *more: str, **rates: Any) -> Outcome:
    for node in NODES:
        fleet.on(node, f"echo '{json.dumps(rates)}' > /etc/emulated-ib_write_bw.json")
    outcome = fleet.play("playbooks/fabric_test.yml", "-e", f"@{rails}", *more)
    for node in NODES:
        assert fleet.on(node, "systemctl list-units --all --plain --no-legend 'sparklanes-bandwidth-*'") == ""
        assert fleet.on(node, "pgrep -f ib_write_bw -c || true") in ("0", "1")  # the shell that asks
    return outcome


def test_a_good_fabric(fleet: Fleet, rails: Path) -> None:
    outcome = measure(fleet, rails).ok()
    assert "2 rails at once to spark-2: 194.6 Gb/s" in outcome.out
    assert "rail 1 (roceP2p1s0f0) to spark-1: 97.3 Gb/s" in outcome.out


def test_a_stale_card_is_named_with_the_cure(fleet: Fleet, rails: Path) -> None:
    measure(fleet, rails, roceP2p1s0f0=13.1).failed(
        "FABRIC.BANDWIDTH", "13.1 Gb/s: stale initialisation", "cut their AC power for 60 s"
    )


def test_a_half_that_carries_nothing_is_named_and_nothing_is_left(fleet: Fleet, rails: Path) -> None:
    measure(fleet, rails, roceP2p1s0f0=None).failed(
        "one half only to spark-2: 97.3 Gb/s, nothing over roceP2p1s0f0", "Unable to Connect"
    )


def test_check_mode_measures_nothing(fleet: Fleet, rails: Path) -> None:
    assert "Gb/s" not in measure(fleet, rails, "--check").ok().out


def test_without_perftest_the_package_is_named_and_no_server_is_left(fleet: Fleet, rails: Path) -> None:
    fleet.on("spark-2", "mv /usr/local/bin/ib_write_bw /usr/local/bin/away")
    try:
        measure(fleet, rails).failed("apt-get install perftest")
    finally:
        fleet.on("spark-2", "mv /usr/local/bin/away /usr/local/bin/ib_write_bw")


def test_it_refuses_over_sockets(fleet: Fleet) -> None:
    fleet.play("playbooks/fabric_test.yml").failed("ib_write_bw measures RDMA only")


def test_it_refuses_while_a_rank_runs_on_any_node(fleet: Fleet, rails: Path) -> None:
    with fleet.container("spark-2", *OTHER):
        measure(fleet, rails).failed("NODE.IDLE", f"container {OTHER[0]} (a rank of deployment other)", "Nothing was touched")
