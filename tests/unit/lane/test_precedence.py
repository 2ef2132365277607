"""What wins over what, asked of Ansible itself: our inventory sources around a small fleet and two small lanes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from inventories import Inventory, ansible_globals

FLEET = """
all:
  children:
    sparks:
      children:
        pair_a:
          vars: {lane: alpha, deployment: pair_a}
          hosts: {s2: {}, s1: {}}
        pair_b:
          vars: {lane: zeta, deployment: pair_b}
          hosts: {s3: {v_host: inventory}, s4: {}}
    others: {hosts: {ctl: {}}}
"""
SHIPPED = {
    "sparks": {"v": "shipped_sparks", "w": "shipped_sparks", "u": "shipped_sparks"},
    "family_f1": {"v": "shipped_family", "w": "shipped_family", "x": "shipped_family"},
    "kit_k1": {"k": "shipped_kit", "x": "shipped_kit", "y": "shipped_kit", "v": "shipped_kit"},
    "lane_alpha": {"lane_id": "alpha", "lane_family": "f1", "v": "shipped_alpha", "y": "shipped_alpha"},
    "lane_zeta": {"lane_id": "zeta", "lane_family": "f1", "lane_kit": "k1", "x": "shipped_zeta", "y": "shipped_zeta"},
}

Load = Callable[..., Inventory]


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project's own inventory files, linked as they are, with small group_vars and a small fleet."""
    shutil.copytree(ROOT / "inventory" / "shipped", tmp_path / "inventory" / "shipped", symlinks=True)
    shutil.copytree(ROOT / "inventory" / "lanes", tmp_path / "inventory" / "lanes")
    write(tmp_path / "inventory/fleet/00-empty.yml", (ROOT / "inventory/fleet/00-empty.yml").read_text(encoding="utf-8"))
    write(tmp_path / "inventory/fleet/10-fleet.yml", FLEET)
    for group, variables in SHIPPED.items():
        write(tmp_path / "group_vars" / f"{group}.yml", variables)
    return tmp_path


@pytest.fixture
def load(tree: Path) -> Iterator[Load]:
    """The project's sources around the fleet, under these -e and -l."""

    def loaded(extra: str = "", limit: str = "", sources: tuple[str, ...] = ("shipped", "fleet", "lanes")) -> Inventory:
        return Inventory([tree / "inventory" / source for source in sources], [extra] if extra else [], limit)

    with ansible_globals():
        yield loaded


def values(inventory: Inventory, host: str) -> dict[str, Any]:
    return inventory.variables(host)


def test_shipped_loses_to_deeper_shipped(load: Load) -> None:
    found = values(load(), "s1")
    assert (found["u"], found["w"], found["v"], found["x"], found["y"]) == (
        "shipped_sparks",
        "shipped_family",
        "shipped_alpha",
        "shipped_family",
        "shipped_alpha",
    )


def test_a_lane_beats_its_family(load: Load) -> None:
    assert values(load(), "s3")["x"] == "shipped_zeta"


def test_a_kit_beats_the_family_and_loses_to_the_lane(load: Load) -> None:
    found = values(load(), "s3")
    assert (found["k"], found["v"], found["w"], found["y"]) == ("shipped_kit", "shipped_kit", "shipped_family", "shipped_zeta")
    assert "k" not in values(load(), "s1")


def test_the_site_beats_what_we_ship_whatever_the_depth(load: Load, tree: Path) -> None:
    write(tree / "inventory/fleet/group_vars/lane_alpha.yml", {"y": "site_alpha"})
    write(tree / "inventory/fleet/group_vars/sparks.yml", {"v": "site_sparks"})
    found = values(load(), "s1")
    assert found["y"] == "site_alpha"
    assert found["v"] == "site_sparks"
    assert values(load(), "s3")["y"] == "shipped_zeta"


def test_a_host_beats_the_site_and_the_command_line_beats_all(load: Load, tree: Path) -> None:
    write(tree / "inventory/fleet/group_vars/lane_alpha.yml", {"y": "site_alpha"})
    write(tree / "inventory/fleet/host_vars/s1.yml", {"y": "host"})
    assert values(load(), "s1")["y"] == "host"
    assert values(load(), "s2")["y"] == "site_alpha"
    assert values(load("y=command"), "s1")["y"] == "command"


def test_variables_inside_an_inventory_file_beat_our_defaults_but_no_group_vars(load: Load, tree: Path) -> None:
    """Why 00-groups.yml holds the defaults, and why script/init writes only deployment, lane and addresses inline."""
    write(
        tree / "inventory/fleet/20-more.yml",
        {"all": {"children": {"sparks": {"vars": {"fabric_transport": "socket", "v": "inline"}}}}},
    )
    found = values(load(), "s1")
    assert found["fabric_transport"] == "socket"
    assert found["deployment"] == "pair_a"
    assert found["v"] == "shipped_alpha"
    assert values(load(), "s3")["v_host"] == "inventory"


def test_defaults_hold_where_nobody_says_otherwise(load: Load, tree: Path) -> None:
    write(tree / "inventory/fleet/10-fleet.yml", "all: {children: {sparks: {hosts: {s1: {}}}}}")
    found = values(load(), "s1")
    assert found["deployment"] == "sparks"
    assert found["fabric_transport"] == "roce"
    assert "lane_id" not in found


def test_a_deployments_own_file_beats_a_lanes_whatever_its_name(load: Load, tree: Path) -> None:
    """script/init gives a named deployment a priority; without it `big` would sort before `lane_alpha` and lose."""
    fleet = {"sparks": {"children": {"big": {"vars": {"lane": "alpha", "ansible_group_priority": 10}, "hosts": {"s1": {}}}}}}
    write(tree / "inventory/fleet/10-fleet.yml", fleet)
    write(tree / "inventory/fleet/group_vars/lane_alpha.yml", {"y": "site_alpha"})
    write(tree / "inventory/fleet/group_vars/big.yml", {"y": "site_big"})
    assert values(load(), "s1")["y"] == "site_big"


def test_the_graph_holds_the_lanes_and_families(load: Load) -> None:
    inventory = load()
    assert inventory.hosts("lane_alpha") == ["s2", "s1"]
    assert set(inventory.hosts("family_f1")) == {"s1", "s2", "s3", "s4"}
    assert {"lane_alpha", "lane_zeta"} <= {group.name for group in inventory.manager.groups["sparks"].child_groups}


def test_two_deployments_with_two_lanes_side_by_side(load: Load) -> None:
    both = load()
    assert {host: values(both, host)["lane_id"] for host in ("s1", "s2", "s3", "s4")} == {
        "s1": "alpha",
        "s2": "alpha",
        "s3": "zeta",
        "s4": "zeta",
    }


def test_a_lane_from_the_command_line_moves_all_sparks_and_nobody_else(load: Load) -> None:
    moved = load("lane=zeta")
    assert {values(moved, host)["lane_id"] for host in ("s1", "s2", "s3", "s4")} == {"zeta"}
    assert set(moved.hosts("sparks")) == {"s1", "s2", "s3", "s4"}
    assert "lane_id" not in values(moved, "ctl")


@pytest.mark.parametrize("limit", ["", "pair_a", "s1", "s1,s3", "pair_a:!s2", "sparks"])
def test_ranks_do_not_change_under_a_limit(load: Load, limit: str) -> None:
    groups = values(load(limit=limit), "s1")["groups"]
    assert groups["pair_a"] == ["s2", "s1"]
    assert groups["pair_b"] == ["s3", "s4"]
    assert groups["sparks"] == ["s2", "s1", "s3", "s4"]


def test_a_foreign_inventory_loads_no_lane(load: Load, tree: Path) -> None:
    foreign = load(sources=("fleet",))
    found = values(foreign, "s1")
    assert found["lane"] == "alpha"
    assert "lane_id" not in found
    assert foreign.hosts("lane_alpha") == []


def test_a_fleet_that_is_not_written_yet_parses(load: Load, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "inventory/fleet/10-fleet.yml").unlink()
    assert load().hosts("sparks") == []
    assert "Unable to parse" not in capsys.readouterr().err


def test_the_folder_of_a_fleet_holds_no_file_that_ansible_would_read_by_mistake() -> None:
    tracked = {"00-empty.yml", "README.md"}
    assert tracked <= {path.name for path in (ROOT / "inventory" / "fleet").iterdir()}
    assert not (ROOT / "playbooks" / "group_vars").exists(), "it would beat every site's group_vars"
