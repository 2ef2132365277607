"""The fabric's network in netplan on two nodes with the real netplan and systemd-networkd: tried, proven, kept, taken back.

Nodes have no netplan, as Debian hasn't: it is fetched here from the machine's own apt sources. A macvlan over the nodes' fabric
stands in for the network device of a rail.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NODES, OTHER, ROOT, Fleet, Outcome, eventually

pytestmark = pytest.mark.slow
DEVICE = "enp1s0f0np0"
FILE = "/etc/netplan/40-cx7.yaml"
PLAN: dict[str, Any] = {
    "fabric_network_rails": [{"interface": DEVICE, "network": "192.168.100.0/24"}],
    "fabric_network_mtu": 1400,
    "fabric_network_prove_seconds": 15,
    "fabric_network_revert_seconds": 90,
}


def packages(fleet: Fleet, folder: Path) -> list[Path]:
    """netplan.io and what a node lacks for it, as the machine's apt would install it there."""
    folder.mkdir(parents=True)
    (folder / "partial").mkdir()
    (folder / "status").write_text(fleet.on("spark-1", "cat /var/lib/dpkg/status") + "\n")
    where = {
        "Dir::State::status": folder / "status",
        "Dir::Cache::archives": folder,
        "Dir::State::extended_states": folder / "extended",
    }
    options = [f"-o{key}={value}" for key, value in where.items()]
    command = [
        "apt-get",
        "-qq",
        "-oAPT::Sandbox::User=root",
        *options,
        "--no-install-recommends",
        "-d",
        "-y",
        "install",
        "netplan.io",
        "udev",
    ]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    return sorted(folder.glob("*.deb"))


@pytest.fixture(scope="module")
def netplan(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    missing = [node for node in NODES if not fleet.on(node, "command -v netplan || true")]
    found = packages(fleet, tmp_path_factory.mktemp("apt") / "archives") if missing else []
    for node in missing:
        tar = subprocess.run(
            ["tar", "-C", str(found[0].parent), "-cf", "-", *(path.name for path in found)], check=True, capture_output=True
        )
        unpack = "mkdir -p /root/debs && tar -C /root/debs -xf - && dpkg -i /root/debs/*.deb > /root/debs/log 2>&1 && rm -rf /root/debs"
        subprocess.run(["script/sandbox", "ssh", node, unpack], cwd=ROOT, input=tar.stdout, check=True)
    for node in NODES:
        fleet.on(node, "mkdir -p /etc/netplan && rm -f /etc/netplan/* /run/netplan/* && netplan apply")
        fleet.on(
            node,
            f"ip link del {DEVICE} 2>/dev/null; ip link add link fab0 name {DEVICE} type macvlan mode bridge && ip link set {DEVICE} up",
        )
    yield
    for node in NODES:
        fleet.on(
            node,
            f"rm -f /etc/netplan/* /run/netplan/*; netplan apply; ip link del {DEVICE}; systemctl stop systemd-networkd",
            check=False,
        )
    for node in missing:  # the nodes of other tests have neither
        fleet.on(
            node,
            "systemctl stop systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket; dpkg --purge netplan.io udev",
        )


def play(fleet: Fleet, *more: str, **changed: Any) -> Outcome:
    return fleet.play("playbooks/fabric_network.yml", "-e", json.dumps({**PLAN, **changed}), *more)


def addresses(fleet: Fleet) -> list[str]:
    found = []
    for node in NODES:
        found.append(" ".join(fleet.on(node, f"ip -br -4 addr show {DEVICE}").split()[2:]))
    return found


def settled(fleet: Fleet) -> None:
    """No trial, no timer, no transient unit."""
    for node in NODES:
        # The folder fabric beside it is the watch's, of launches.
        assert fleet.on(node, "ls /run/netplan; ls /run/sparklanes | grep fabric-revert || true") == ""
        assert fleet.on(node, "systemctl list-units --all --plain --no-legend 'sparklanes-fabric-*'") == ""


def test_a_look_writes_nothing_and_shows_the_file(netplan: None, fleet: Fleet) -> None:
    outcome = play(fleet, "--check", "--diff").ok()
    assert "+      addresses: [192.168.100.12/24]" in outcome.out
    assert addresses(fleet) == ["", ""]
    assert fleet.on("spark-1", "ls /etc/netplan /run/netplan 2>/dev/null | grep yaml || true") == ""


def test_it_is_kept_once_all_answer_and_then_nothing_changes(netplan: None, fleet: Fleet) -> None:
    outcome = play(fleet).ok()
    assert "1 peer(s) answer 1372 bytes unfragmented" in outcome.out
    assert addresses(fleet) == ["192.168.100.11/24", "192.168.100.12/24"]
    assert fleet.on("spark-1", f"stat -c %a {FILE}") == "600"
    settled(fleet)
    assert play(fleet).ok().changed == 0


def test_a_network_that_does_not_carry_is_taken_back_everywhere(netplan: None, fleet: Fleet) -> None:
    fleet.on("spark-2", f"iptables -I INPUT -i {DEVICE} -p icmp -j DROP")
    try:
        play(fleet, fabric_network_first=51).failed(
            "The new network was not kept", "FABRIC.PEER", "no answer at all", "It was taken back"
        )
    finally:
        fleet.on("spark-2", f"iptables -D INPUT -i {DEVICE} -p icmp -j DROP")
    assert addresses(fleet) == ["192.168.100.11/24", "192.168.100.12/24"]
    assert "192.168.100.11/24" in fleet.on("spark-1", f"cat {FILE}")
    settled(fleet)


def test_a_trial_that_nobody_keeps_takes_itself_back(netplan: None, fleet: Fleet) -> None:
    """As after ctrl-C, or where the controller doesn't reach the Spark any more."""
    args = {
        "state": "present",
        "interfaces": [{"name": DEVICE, "address": "192.168.100.77/24"}],
        "mtu": 1300,
        "revert_seconds": 12,
    }
    command = ["ansible", "-i", "inventory/sandbox", "spark-2", "-m", "fabric_network", "-a", json.dumps(args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert addresses(fleet)[1] == "192.168.100.77/24"
    play(fleet).failed("NETPLAN.PENDING", "another trial is armed")
    journal = "journalctl -u sparklanes-fabric-revert --no-pager | tail -20"
    eventually(lambda: addresses(fleet)[1] == "192.168.100.12/24", 90, 1, lambda: fleet.on("spark-2", journal))
    assert fleet.on("spark-2", f"cat /sys/class/net/{DEVICE}/mtu") == "1400"
    assert play(fleet).ok().changed == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fabric_network_rails": [{"interface": "eth0", "network": "192.168.100.0/24"}]}, ["NETPLAN.MANAGEMENT", "carries this ssh connection"]),
        ({"fabric_network_rails": [{"interface": DEVICE, "network": "172.17.0.0/24"}]}, ["NETPLAN.MANAGEMENT", "on docker0"]),
        ({"fabric_network_addresses": {DEVICE: "192.168.100.50/24"}}, ["NETPLAN.ADDRESS", "spark-1 enp1s0f0np0 and spark-2 enp1s0f0np0"]),
        ({"fabric_network_rails": [{"interface": "enp9s9", "network": "192.168.100.0/24"}]}, ["NETPLAN.INTERFACE", "enp9s9 is not there"]),
        ({"fabric_network_group": "nobody"}, ["no group of the inventory"]),
    ],
    ids=["ssh", "overlap", "twice", "absent", "group"],
)  # fmt: skip
def test_a_bad_plan_is_refused_before_anything_is_written(
    netplan: None, fleet: Fleet, changed: dict[str, Any], words: list[str]
) -> None:
    before = fleet.on("spark-1", f"cat {FILE}")
    play(fleet, **changed).failed(*words)
    assert fleet.on("spark-1", f"cat {FILE}") == before
    settled(fleet)


def test_a_part_of_the_fabric_is_refused(netplan: None, fleet: Fleet) -> None:
    fleet.play("playbooks/fabric_network.yml", "-e", json.dumps(PLAN), limit="spark-1").failed(
        "One Spark's restart moves its neighbours' GIDs"
    )


def test_another_file_that_has_the_interface_is_named(netplan: None, fleet: Fleet) -> None:
    text = f"network: {{version: 2, ethernets: {{{DEVICE}: {{dhcp4: true}}}}}}"
    fleet.on("spark-2", f"echo '{text}' > /etc/netplan/90-nm.yaml; chmod 600 /etc/netplan/90-nm.yaml")
    try:
        play(fleet).failed("NETPLAN.OWNER", "netplan /etc/netplan/90-nm.yaml", "Take the interface out of")
    finally:
        fleet.on("spark-2", "rm /etc/netplan/90-nm.yaml")


def test_files_that_netplan_does_not_accept_are_found_before_anything_is_written(netplan: None, fleet: Fleet) -> None:
    fleet.on("spark-2", "printf 'network:\\n  ethernets:\\n    other0:\\n      mtuu: 1\\n' > /etc/netplan/10-other.yaml")
    try:
        play(fleet, fabric_network_first=61).failed(
            "netplan does not accept its files", "unknown key 'mtuu'", "It was taken back"
        )
    finally:
        fleet.on("spark-2", "rm /etc/netplan/10-other.yaml")
    assert addresses(fleet) == ["192.168.100.11/24", "192.168.100.12/24"]
    settled(fleet)


def test_it_refuses_while_something_runs_on_any_node(netplan: None, fleet: Fleet) -> None:
    with fleet.container("spark-2", *OTHER):
        play(fleet, fabric_network_first=71).failed("NODE.IDLE", f"container {OTHER[0]}", "Nothing was written")


def test_the_file_goes_away_again(netplan: None, fleet: Fleet) -> None:
    play(fleet, fabric_network_state="absent").ok()
    assert addresses(fleet) == ["", ""]
    assert fleet.on("spark-1", "ls /etc/netplan") == ""
    settled(fleet)
    assert play(fleet, fabric_network_state="absent").ok().changed == 0
