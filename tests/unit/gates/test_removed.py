"""Names that are gone are refused with their successor; INVENTORY.REMOVED."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible.module_utils.sparklanes.gates.removed import REMOVED, removed_checks
from conftest import ROOT


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_removed_name_fails_with_its_successor_and_its_hosts(name: str) -> None:
    (check,) = removed_checks({"s1": {name: "pair_a"}, "s2": {name: ""}, "s3": {"deployment": "pair_a"}}, ["s1", "s2", "s3"])
    assert (check.id, check.status, check.host) == ("INVENTORY.REMOVED", "fail", "s1, s2")
    assert name in check.found
    assert REMOVED[name][0] in check.found
    assert f"Write {REMOVED[name][1]}" in check.remedy


def test_each_name_is_a_row_and_other_hosts_are_not_judged() -> None:
    hostvars = {"s1": dict.fromkeys(REMOVED, "x"), "s2": {}}
    assert len(removed_checks(hostvars, ["s1", "s2"])) == len(REMOVED)
    assert removed_checks(hostvars, ["s2"]) == []
    assert removed_checks({"s1": {"deployment": "sparks"}}, ["s1"]) == []


def test_nothing_that_is_gone_is_still_read_or_promised() -> None:
    for path in [
        *(ROOT / "roles").rglob("*.yml"),
        *(ROOT / "playbooks").rglob("*.yml"),
        *(ROOT / "inventory/shipped").rglob("*.yml"),
    ]:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in REMOVED if re.search(rf"\b{name}\b", text)], path
    for spec in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"].values():
            assert not REMOVED.keys() & set(entry.get("options") or {}), spec
