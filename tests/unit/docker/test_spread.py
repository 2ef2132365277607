"""Who gives an image and compiled kernels to whom: nobody gives what he is not known to have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import spread
from conftest import ROOT
from hostvars import registered
from roce_trees import spark
from test_cables import ring as ring_of
from test_roce_cases import look

UNKNOWN = [None, {}, {"unreachable": True}, {"failed": True, "msg": "x", "here": True, "files": 3}, {"skipped": True}]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_who_has_the_image(unknown: Any) -> None:
    found = {"s1": {"here": False}, "s2": {"here": True}, "s3": unknown, "s4": {"here": True}}
    assert spread.with_image(registered(found, engine_image_result=found), list(found)) == ["s2", "s4"]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_who_has_kernels_and_who_has_none(unknown: Any) -> None:
    found = {"s1": {"files": 0}, "s2": {"files": 7}, "s3": unknown}
    assert spread.kernels(registered(found, engine_image_jit=found), list(found)) == {"compiled": ["s2"], "empty": ["s1"]}


def fabric(*addresses: str, ring: bool = False) -> dict[str, Any]:
    rails = [{"ipv4": address, "network": address.rpartition(".")[0] + ".0/24"} for address in addresses]
    return {"host_ip": "192.168.0.1", "rails": rails, "env": {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"} if ring else {}}


def behind_a_switch(*numbers: int) -> dict[str, Any]:
    return {f"s{n}": fabric(f"10.0.0.{n}", f"10.1.0.{n}") for n in numbers}


def plan(fabrics: dict[str, Any], here: list[str]) -> dict[str, Any]:
    """`lenders`, proven to be one that can be carried out: who lends has it by then, and a cable or switch joins each taker with that address."""
    hostvars = {host: {"roce_fabric": fabric} for host, fabric in fabrics.items()}
    made = spread.lenders(hostvars, list(fabrics), here)
    have = [*here, *made["sources"]]
    for wave in made["waves"]:
        assert wave
        assert len({part["lender"] for part in wave}) == len(wave), "a registry listens at one address"
        for part in wave:
            assert part["lender"] in have
            networks = {rail["network"] for rail in fabrics[part["lender"]]["rails"] if part["address"] == rail["ipv4"]}
            for taker in part["takers"]:
                assert taker not in have
                assert made["from"][taker] == part["lender"]
                assert networks & {rail["network"] for rail in fabrics[taker]["rails"]}, "no cable joins them"
        have += [taker for part in wave for taker in part["takers"]]
    assert sorted(have) == sorted(fabrics)
    return made


def test_behind_a_switch_one_lends_to_all_at_once() -> None:
    fabrics = behind_a_switch(1, 2, 3)
    for here, lender, source in ((["s2"], "s2", []), (["s2", "s3"], "s2", []), ([], "s1", ["s1"])):
        made = plan(fabrics, here)
        takers = [host for host in fabrics if host not in [*here, lender]]
        assert made["sources"] == source
        assert made["waves"] == [[{"lender": lender, "address": f"10.0.0.{lender[1]}", "takers": takers}]]
    assert plan(fabrics, list(fabrics)) == {"sources": [], "waves": [], "from": {}}


def cabled(tmp_path: Path, sparks: int, closed: bool = True) -> dict[str, Any]:
    """Sparks whose first ports lead to the next one's second port, as role roce sees their trees. closed: the last is joined with the first."""
    made = {}
    for n in range(1, sparks + 1):
        before = n - 1 if n > 1 else (sparks if closed else 99)
        networks = (f"10.{n}.0", f"10.{n}.1", f"10.{before}.0", f"10.{before}.1")
        tree = spark(host=n, ports="01", networks=networks).write(tmp_path / f"s{n}")
        found = look(tree, topology="ring", control_ifname="enP7s7")
        assert not found["errors"]
        made[f"s{n}"] = found["fabric"]
    return made


@pytest.mark.parametrize(
    ("sparks", "closed", "here", "waves"),
    [
        (3, True, ["s1"], [[("s1", "s2")], [("s1", "s3")]]),
        (3, True, ["s1", "s2"], [[("s1", "s3")]]),
        (4, True, ["s1"], [[("s1", "s2")], [("s1", "s4"), ("s2", "s3")]]),
        (4, True, ["s3"], [[("s3", "s2")], [("s2", "s1"), ("s3", "s4")]]),
        (4, True, ["s1", "s3"], [[("s1", "s2"), ("s3", "s4")]]),
        (4, False, ["s4"], [[("s4", "s3")], [("s3", "s2")], [("s2", "s1")]]),
        (6, True, ["s1"], [[("s1", "s2")], [("s1", "s6"), ("s2", "s3")], [("s3", "s4"), ("s6", "s5")]]),
        (4, True, [], [[("s1", "s2")], [("s1", "s4"), ("s2", "s3")]]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_in_a_ring_it_goes_from_neighbour_to_neighbour(
    tmp_path: Path, sparks: int, closed: bool, here: list[str], waves: list[list[tuple[str, str]]]
) -> None:
    fabrics = cabled(tmp_path, sparks, closed)
    made = plan(fabrics, here)
    assert made["sources"] == ([] if here else ["s1"])
    lent = [[(part["lender"], taker) for part in wave for taker in part["takers"]] for wave in made["waves"]]
    assert [sorted(wave) for wave in lent] == [sorted(wave) for wave in waves]
    assert spread.spreads({host: {"roce_fabric": one} for host, one in fabrics.items()}, list(fabrics))


def test_whom_no_cable_joins_takes_it_from_its_source() -> None:
    """Not over the management network, though every control address is there."""
    made = plan({**behind_a_switch(1, 2), "s3": {}, "s4": fabric()}, ["s2"])
    assert made["sources"] == ["s3", "s4"]
    assert made["from"] == {"s1": "s2"}
    two = {"a1": fabric("10.0.0.1", ring=True), "a2": fabric("10.0.0.2", ring=True)}
    two |= {"b1": fabric("10.5.0.1", ring=True), "b2": fabric("10.5.0.2", ring=True)}
    made = plan(two, ["a2"])
    assert (made["sources"], made["from"]) == (["b1"], {"a1": "a2", "b2": "b1"})


def test_without_a_second_spark_on_the_fabric_each_takes_it_from_its_source() -> None:
    for fabrics in ({}, {"s1": fabric("10.0.0.1")}, {"s1": fabric("10.0.0.1"), "s2": {}}, {"s1": {}, "s2": {}}):
        assert not spread.spreads({host: {"roce_fabric": one} for host, one in fabrics.items()}, list(fabrics))


PULL = """
import json, sys, pathlib
arguments = json.loads(pathlib.Path(sys.argv[1]).read_text())
home = pathlib.Path(arguments["repository"])
host, through = arguments["host"], arguments.get("through") or {}
image = home / host
took = ""
if arguments["pull"] != "look" and not image.exists():
    with (home / "log").open("a") as log:
        log.write(f"{host} takes from {through.get('lender', 'its source')}\\n")
    if not through and (home / "no source").exists():
        print(json.dumps({"failed": True, "msg": f"{host}: the registry is out of reach"}))
        sys.exit(1)
    image.touch()
    took = host
print(json.dumps({"changed": bool(took), "here": image.exists(), "reference": "engine@x", "image": {"name": host}, "actions": []}))
"""
LEND = """
import json, sys, pathlib
arguments = json.loads(pathlib.Path(sys.argv[1]).read_text())
if arguments.get("state") == "kept":
    print(json.dumps({"changed": False, "actions": []}))
elif pathlib.Path(arguments["program"]).exists() and arguments["image"] in pathlib.Path(arguments["program"]).read_text():
    print(json.dumps({"failed": True, "msg": "no room"}))
else:
    print(json.dumps({"changed": True, "actions": [], "lent": {"lender": f"{arguments['image']} at {arguments['address']}"}}))
"""
PLAY = """
- hosts: sparks
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: engine_image}
"""


class Staged:
    """The role itself over a ring of four, with stand-ins for Docker and its registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ring = ring_of(("s1", "s2"), ("s2", "s3"), ("s3", "s4"), ("s4", "s1"))
        common = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "deployment": "sparks",
            "engine_image_repository": str(folder),
            "engine_image_digest": "sha256:x",
            "engine_image_probe": False,
            "engine_image_jit_cache": "",
            "engine_image_registry_program": str(folder / "can not lend"),
        }
        hosts = {host: {"roce_fabric": one} for host, one in ring.items()}
        (folder / "inventory.json").write_text(json.dumps({"all": {"children": {"sparks": {"hosts": hosts, "vars": common}}}}))
        (folder / "play.yml").write_text(PLAY)
        (folder / "library").mkdir()
        for name, text in (("engine_image_pull", PULL), ("image_registry", LEND), ("engine_image_info", "")):
            (folder / "library" / f"{name}.py").write_text(f"#!/usr/bin/python\n# WANT_JSON\n{text}")

    def play(self) -> tuple[int, str, list[str]]:
        environ = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LIBRARY": str(self.folder / "library")}
        command = ["ansible-playbook", "-v", "-i", str(self.folder / "inventory.json"), str(self.folder / "play.yml")]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        log = self.folder / "log"
        return (
            done.returncode,
            " ".join((done.stdout + done.stderr).replace("''", "'").split()),
            log.read_text().splitlines() if log.exists() else [],
        )


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    return Staged(tmp_path)


def test_the_role_carries_it_round_the_ring_and_then_has_nothing_to_do(staged: Staged) -> None:
    code, said, log = staged.play()
    assert code == 0, said
    assert log[:2] == ["s1 takes from its source", "s2 takes from s1 at 10.0.0.1"]
    assert sorted(log[2:]) == ["s3 takes from s2 at 10.1.0.1", "s4 takes from s1 at 10.3.0.2"]
    assert staged.play()[2] == log


def test_who_cannot_lend_leaves_its_neighbour_the_source(staged: Staged) -> None:
    (staged.folder / "can not lend").write_text("s2")
    code, said, log = staged.play()
    assert code == 0, said
    assert "s2 can't lend its image, so each Spark takes it from its source: no room" in said
    assert sorted(log[2:]) == ["s3 takes from its source", "s4 takes from s1 at 10.3.0.2"]


def test_whose_lender_failed_asks_no_source_and_says_who_it_was(staged: Staged) -> None:
    (staged.folder / "no source").touch()
    code, said, log = staged.play()
    assert code != 0
    assert log == ["s1 takes from its source"]
    for host, lender in (("s2", "s1"), ("s3", "s2"), ("s4", "s1")):
        assert f"{host} lacks engine@x: {lender}, which was to have it first and lend it, failed." in said
