"""script/init: a fleet's first inventory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import fleet_file
import pytest
import yaml
from conftest import ROOT
from inventories import Inventory, ansible_globals

TWO = ("192.168.1.11", "192.168.1.12")
LANES = {"alpha": 2, "beta": 4, "gamma": None}


def request(*addresses: str, **more: Any) -> fleet_file.Request:
    return fleet_file.Request(addresses=addresses or TWO, known_lanes=LANES, **more)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "script" / "init"), "--directory", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_smallest_fleet() -> None:
    made = yaml.safe_load(fleet_file.fleet_file(request()))
    assert made == {
        "all": {"children": {"sparks": {"hosts": {f"spark-{n}": {"ansible_host": address} for n, address in enumerate(TWO, 1)}}}}
    }


def test_everything_that_can_be_said() -> None:
    text = fleet_file.fleet_file(request(user="nvidia", become=True, lane="alpha", name="pair_a", controller_is=TWO[1]))
    group = yaml.safe_load(text)["all"]["children"]["sparks"]["children"]["pair_a"]
    assert group["vars"] == {
        "deployment": "pair_a",
        "ansible_group_priority": 10,
        "ansible_user": "nvidia",
        "ansible_become": True,
        "lane": "alpha",
    }
    assert list(group["hosts"]) == ["pair-a-1", "pair-a-2"]
    assert group["hosts"]["pair-a-2"] == {"ansible_host": TWO[1], "ansible_connection": "local"}


@pytest.mark.parametrize(
    "more", [{}, {"user": "nvidia", "become": True, "lane": "beta", "name": "four", "controller_is": "10.0.0.2"}]
)
def test_a_node_takes_few_lines(more: dict[str, Any]) -> None:
    few, many = (fleet_file.fleet_file(request(*(f"10.0.0.{n}" for n in range(1, count + 1)), **more)) for count in (2, 10))
    assert (len(many.splitlines()) - len(few.splitlines())) / 8 <= 5
    assert max(len(line) for line in many.splitlines()) <= 160


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (request("192.168.1.11", "192.168.1.11"), "given 2 times"),
        (request("192.168.1.300", "a"), "192.168.1.300 is no IP address"),
        (request("1.2.3", "a"), "1.2.3 is no IP address"),
        (request("fe80::zz", "a"), "no IP address"),
        (request("127.0.0.1", "a"), "no address under which other Sparks"),
        (request("169.254.3.4", "a"), "link-local"),
        (request("10.0.0.0/24", "a"), "leave out /24"),
        (request("nvidia@10.0.0.1", "a"), "by --user"),
        (request("-x", "a"), "neither an address nor a host name"),
        (request(lane="alhpa"), "Did you mean alpha? Known: alpha, beta, gamma."),
        (request(lane="beta"), "Lane beta needs 4 Sparks, and 2 addresses were given"),
        (request(name="Pair A"), "can't be an inventory group"),
        (request(name="pair-a"), "can't be an inventory group"),
        (request(name="sparks"), "has a meaning of its own"),
        (request(name="lane_x"), "has a meaning of its own"),
        (request(controller_is="192.168.1.13"), "Did you mean 192.168.1.11?"),
        (request(taken={"192.168.1.12": "10-fleet.yml"}), "192.168.1.12 already stands in 10-fleet.yml"),
        (request(user="root; rm"), "no name of a Linux user"),
        (fleet_file.Request(addresses=()), "No address was given"),
    ],
)
def test_what_makes_no_sense_is_said(given: fleet_file.Request, words: str) -> None:
    assert len(fleet_file.faults(given)) == 1
    assert words in fleet_file.faults(given)[0]


@pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::1", "spark-1", "spark-1.lab.example"])
def test_addresses_and_names_are_fine(address: str) -> None:
    assert fleet_file.faults(request(address, lane="gamma")) == []


def test_the_script_writes_and_says_what_comes_next(tmp_path: Path) -> None:
    done = run(tmp_path, *TWO, "--user", "nvidia", "--become", "--lane", "sandbox_tiny")
    assert done.returncode == 0, done.stderr
    assert "rank 0  spark-1  192.168.1.11  the head" in done.stdout
    assert (
        "Next: ansible-playbook playbooks/preflight.yml -e preflight_needs=launch   (what lane sandbox_tiny still needs"
        in done.stdout
    )
    assert "Then: ansible-playbook site.yml -K" in done.stdout
    assert (
        yaml.safe_load((tmp_path / "10-fleet.yml").read_text(encoding="utf-8"))["all"]["children"]["sparks"]["vars"]["lane"]
        == "sandbox_tiny"
    )
    # Ansible reads every .yml in that folder: the example must say nothing.
    assert yaml.safe_load((tmp_path / "group_vars/all/vault.example.yml").read_text(encoding="utf-8")) is None
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_the_script_overwrites_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "10-fleet.yml").write_text("mine\n", encoding="utf-8")
    refused = run(tmp_path, *TWO, "--lane", "sandbox_tinny")
    assert refused.returncode == 2
    assert "Nothing was written" in refused.stderr
    assert "--force" in refused.stderr
    assert "Did you mean sandbox_tiny?" in refused.stderr
    assert (tmp_path / "10-fleet.yml").read_text(encoding="utf-8") == "mine\n"
    assert run(tmp_path, *TWO, "--force").returncode == 0
    assert "spark-2" in (tmp_path / "10-fleet.yml").read_text(encoding="utf-8")


def test_a_second_deployment_gets_a_file_of_its_own(tmp_path: Path) -> None:
    assert run(tmp_path, *TWO, "--name", "pair_a").returncode == 0
    assert run(tmp_path, "192.168.1.13", "192.168.1.14", "--name", "pair_b").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.yml")) == ["10-fleet.yml", "20-pair_b.yml"]
    again = run(tmp_path, "192.168.1.13", "192.168.1.12", "--name", "pair_b")
    assert again.returncode == 2
    assert "192.168.1.12 already stands in 10-fleet.yml." in again.stderr
    assert "20-pair_b.yml exists" in again.stderr
    with ansible_globals():
        made = Inventory([ROOT / "inventory/shipped", tmp_path, ROOT / "inventory/lanes"])
        assert made.groups()["sparks"] == ["pair-a-1", "pair-a-2", "pair-b-1", "pair-b-2"]
        assert {host: made.variables(host)["deployment"] for host in made.hosts("sparks")} == {
            "pair-a-1": "pair_a",
            "pair-a-2": "pair_a",
            "pair-b-1": "pair_b",
            "pair-b-2": "pair_b",
        }


def test_what_stands_in_an_inventory() -> None:
    tree = yaml.safe_load(
        "all: {children: {sparks: {children: {a: {hosts: {s1: {ansible_host: 10.0.0.1}, s2: }}}}}, hosts: {x: }}"
    )
    assert fleet_file.groups_and_addresses(tree) == ({"all", "sparks", "a"}, {"10.0.0.1", "s2", "x"})
    assert fleet_file.groups_and_addresses(None) == (set(), set())
