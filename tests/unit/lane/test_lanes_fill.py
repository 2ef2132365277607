"""What a launch asks for can be filled in by the line that it prints: pasted as it is into the site's file, with a value."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from lane_files import SHIPPED, options, resolved, variables_of

VALUES = {
    "revision": "b" * 40,
    "digest": "sha256:" + "a" * 64,
    "sha256": "a" * 64,
}


def told(node: Any, key: str = "") -> Any:
    """The line with its placeholders replaced, as a person would; what is no placeholder stays."""
    if isinstance(node, dict):
        return {name: told(item, name) for name, item in node.items()}
    if isinstance(node, str) and re.search(r"<.*>", node):
        return VALUES.get(key, "known")
    return node


def lines_of(lane: str) -> list[str]:
    """The lines that are printed, each once, as the table prints a remedy once."""
    refused = [check for check in lane_unknowns.launch_refusals(resolved(lane)) if check.status == "fail"]
    marker = f"Add one line to inventory/fleet/group_vars/lane_{lane}.yml: "
    assert all(check.remedy.startswith(marker) for check in refused)
    return list(dict.fromkeys(check.remedy.removeprefix(marker) for check in refused))


@pytest.mark.parametrize("lane", SHIPPED)
def test_all_lines_in_one_file_fill_all_that_is_unknown(lane: str) -> None:
    lines = lines_of(lane)
    parts = [yaml.safe_load(line) for line in lines]
    assert all(isinstance(part, dict) and len(part) == 1 for part in parts)
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names)), "the second line of one variable would replace the first"
    site = yaml.safe_load("\n".join(["---", *lines]))
    made, checks = lane_schema.resolve({**variables_of(lane), **told(site)}, options(), "s1")
    assert [check for check in checks if check.status != "pass"] == []
    assert [check for check in lane_rules.lane_checks(made, "s1") if check.status != "pass"] == []
    assert [check.status for check in lane_unknowns.launch_refusals(made)] == ["pass"]


@pytest.mark.parametrize("lane", SHIPPED)
def test_each_line_alone_fills_its_part(lane: str) -> None:
    for line in lines_of(lane):
        before = {check.expected for check in lane_unknowns.launch_refusals(resolved(lane))}
        made, _ = lane_schema.resolve({**variables_of(lane), **told(yaml.safe_load(line))}, options(), "s1")
        after = {check.expected for check in lane_unknowns.launch_refusals(made)}
        assert after < before or after == {""}, line
