# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""No sentence of ours names a next command or a file of the site so that the screen can't make it the one of this run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import site
from ansible.module_utils.sparklanes.screen.command import completed
from conftest import ROOT

CODE = ("module_utils", "library", "filter_plugins", "action_plugins", "callback_plugins", "inventory_plugins", "vars_plugins")
SAID = ("msg", "fail_msg", "success_msg")
RUN = {"inventory": ["/x"], "subset": None, "extra_vars": (), "become_ask_pass": False}
# Documentation, not said in a run.
DOCUMENTATION = ("DOCUMENTATION", "EXAMPLES", "RETURN")
VERB = r"(?:playbooks/[a-z_]+|site)\.yml"
# What each site has once, whatever inventory a run is for.
OF_ALL = ("inventory/fleet/10-fleet.yml", "inventory/fleet where none", "inventory/fleet/banks")


def of_code(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a program, each with its line; what is filled in is an x."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            skipped.add(body[0].value)  # its docstring
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in DOCUMENTATION:
            skipped.add(node.value)
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)


def of_tasks(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key in SAID and isinstance(value, str):
                yield value
            else:
                yield from of_tasks(value)
    elif isinstance(data, list):
        for one in data:
            yield from of_tasks(one)


def texts() -> list[tuple[str, str]]:
    """(place, sentence) of all that a run may say."""
    found = []
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        found += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in of_code(path) if " " in text.strip()]
    for path in sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml")):
        if "meta" not in path.parts:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            found += [(str(path.relative_to(ROOT)), text) for text in of_tasks(data)]
    return found


@pytest.fixture(scope="module")
def said() -> list[tuple[str, str]]:
    found = texts()
    assert sum(bool(re.search(VERB, text)) for _, text in found) > 40, "the search finds what is there"
    return found


def test_each_verb_that_is_named_gets_the_inventory_of_the_run(said: list[tuple[str, str]]) -> None:
    left = {
        place: text
        for place, text in said
        if re.search(VERB, re.sub(rf"ansible-playbook -i /x {VERB}", "", completed(text, RUN, ("/usual",))))
    }
    assert not left, "write `playbooks/VERB.yml` or `Run site.yml`, with nothing that makes it a path"


def test_no_other_program_of_ansible_is_named(said: list[tuple[str, str]]) -> None:
    """Nobody would give it the inventory of the run."""
    assert not {place: text for place, text in said if re.search(r"\bansible(?:-inventory|-console)? [\w{*]+ +-", text)}


def test_each_file_of_the_site_is_that_of_the_inventory_in_use(said: list[tuple[str, str]]) -> None:
    left = {}
    for place, text in said:
        rest = site.told(text, "inventory/sandbox/site")
        for known in OF_ALL:
            rest = rest.replace(known, "")
        if "inventory/fleet" in rest:
            left[place] = text
    assert not left


EMPTY = re.compile(
    r"(?:Look at (?:x|\w+|nvidia-smi)|Correct the inventory|Set lane for the group|Read the rank's log on x)\.(?: Nothing was .*)?"
)


def test_no_remedy_leaves_open_what_to_type(said: list[tuple[str, str]]) -> None:
    assert not {place: text for place, text in said if EMPTY.fullmatch(text)}
