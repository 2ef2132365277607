"""The lanes as Ansible itself merges them: family, kit and lane through our real inventory sources."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from conftest import ROOT
from inventories import Inventory, ansible_globals
from lane_files import SHIPPED, options, resolved

SOURCES = ("shipped", "FLEET", "lanes")


def loaded(tmp_path: Path, lane: str, site: dict[str, object] | None = None) -> Inventory:
    """A fleet of as many hosts as the lane wants, the lane chosen by -e."""
    fleet = tmp_path / "fleet"
    (fleet / "group_vars").mkdir(parents=True, exist_ok=True)
    hosts = {f"s{number}": {} for number in range(resolved(lane)["lane_nodes"])}
    (fleet / "10-fleet.yml").write_text(yaml.safe_dump({"all": {"children": {"sparks": {"hosts": hosts}}}}), encoding="utf-8")
    (fleet / "group_vars" / f"lane_{lane}.yml").write_text(yaml.safe_dump(site or {}), encoding="utf-8")
    paths = [fleet if source == "FLEET" else ROOT / "inventory" / source for source in SOURCES]
    return Inventory(paths, [f"lane={lane}"])


@pytest.mark.parametrize("lane", SHIPPED)
def test_ansible_merges_a_lane_as_the_golden_tests_do(tmp_path: Path, lane: str) -> None:
    """So what they compare with the sources is what a launch would run."""
    with ansible_globals():
        inventory = loaded(tmp_path, lane)
        made, checks = lane_schema.resolve(inventory.variables("s0"), options(), "s0")
        kit = resolved(lane)["lane_kit"]
        assert inventory.hosts(f"family_{resolved(lane)['lane_family']}")
        assert not kit or inventory.hosts(f"kit_{kit}")
    assert [check.found for check in checks if check.status != "pass"] == []
    assert {**made, "lane_secret_env": []} == resolved(lane)


def test_one_line_of_a_site_changes_one_overlay_of_many(tmp_path: Path) -> None:
    target = "/usr/local/lib/python3.12/dist-packages/vllm/v1/worker/cp_utils.py"
    with ansible_globals():
        site = {"lane_overlays_site": {target: {"sha256": "a" * 64}}, "lane_container_site": {"mounts": {"/etc/group": None}}}
        made, _ = lane_schema.resolve(loaded(tmp_path, "glm53_dcp4_fp8", site).variables("s3"), options(), "s3")
    before = resolved("glm53_dcp4_fp8")
    changed = [(one["target"], one["sha256"]) for one in made["lane_overlays"] if one not in before["lane_overlays"]]
    assert changed == [(target, "a" * 64)]
    assert len(made["lane_overlays"]) == len(before["lane_overlays"]) == 33
    gone = {one["target"] for one in before["lane_container"]["mounts"]} - {
        one["target"] for one in made["lane_container"]["mounts"]
    }
    assert gone == {"/etc/group"}
