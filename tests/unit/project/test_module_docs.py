"""What a module's documentation says of check mode, differences and a second run is what its code does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

MODULES = sorted((ROOT / "library").glob("*.py"))
ATTRIBUTES = ("check_mode", "diff_mode", "idempotent")
every_module = pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def documentation() -> dict[str, Any]:
    """By module, as `ansible-doc` shows it to a person at the root of the project: fragments are merged in."""
    program = Path(sys.executable).with_name("ansible-doc")
    found = subprocess.run(
        [program, "--type", "module", "--json", *(path.stem for path in MODULES)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    pages: dict[str, Any] = json.loads(found.stdout)
    return pages


@pytest.fixture
def attributes(documentation: dict[str, Any], module: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = documentation[module.stem]["doc"].get("attributes", {})
    return found


def values(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """What a program gives to `name`, as an argument of a call or in a dict that it writes down."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == name:
            yield node.value
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value


def supports_check_mode(tree: ast.AST) -> bool | None:
    """As the call of AnsibleModule says; None where there is no such call."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "AnsibleModule"]
    if not calls:
        return None
    return any(ast.unparse(word.value) == "True" for word in calls[0].keywords if word.arg == "supports_check_mode")


def sources(module: Path) -> list[ast.Module]:
    """The module, and what it imports of module_utils by itself."""
    trees = [ast.parse(module.read_text(encoding="utf-8"))]
    for node in ast.walk(trees[0]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ansible.module_utils.sparklanes"):
            place = ROOT / (node.module or "").removeprefix("ansible.").replace(".", "/")
            files = [place.with_suffix(".py"), *(place / f"{name.name}.py" for name in node.names)]
            trees += [ast.parse(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return trees


@every_module
def test_a_module_states_its_attributes_and_gives_the_reason_of_a_no(
    module: Path, documentation: dict[str, Any], attributes: dict[str, dict[str, Any]]
) -> None:
    text = module.read_text(encoding="utf-8")
    assert "\nextends_documentation_fragment: [sparklanes, sparklanes." in text, (
        f"{module.name} uses no fragment of doc_fragments/sparklanes.py"
    )
    assert documentation[module.stem]["doc"]["author"] == ["Contributors to the sparklanes project (@sparklanes)"]
    for name in ATTRIBUTES:
        stated = attributes.get(name, {})
        assert stated.get("description"), f"{module.name} says nothing of {name}"
        assert stated.get("support") in ("full", "partial", "none", "N/A"), f"{module.name}: support of {name} is not stated"
        assert stated["support"] == "full" or stated.get("details"), (
            f"{module.name}: {name} is {stated['support']} and details don't say why"
        )


@every_module
def test_check_mode_is_supported_as_documented(module: Path, attributes: dict[str, dict[str, Any]]) -> None:
    told = supports_check_mode(ast.parse(module.read_text(encoding="utf-8")))
    if told is None:
        assert (ROOT / "action_plugins" / module.name).is_file(), f"{module.name} neither runs nor documents an action plugin"
        return
    stated = attributes["check_mode"]["support"] in ("full", "partial")
    assert told is stated, f"{module.name}: supports_check_mode is {told}, documented is {attributes['check_mode']['support']}"


@every_module
def test_a_difference_is_returned_where_one_is_promised(module: Path, attributes: dict[str, dict[str, Any]]) -> None:
    promised = attributes["diff_mode"]["support"] in ("full", "partial")
    if (ROOT / "action_plugins" / module.name).is_file():
        return  # it hands on the result of another module
    trees = sources(module)
    returned = any(True for tree in (trees if promised else trees[:1]) for _ in values(tree, "diff"))
    assert returned is promised, (
        f"{module.name}: diff_mode is {attributes['diff_mode']['support']}, diff in its result: {returned}"
    )


@every_module
def test_what_only_reads_never_reports_a_change(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    reads = "[sparklanes, sparklanes.info]" in text
    if module.stem.endswith(("_info", "_facts")):
        assert reads, f"{module.name} is named like a module that reads; it must use the fragment sparklanes.info"
    if reads:
        told = {ast.unparse(value) for value in values(ast.parse(text), "changed")}
        assert told == {"False"}, f"{module.name} uses the fragment sparklanes.info and returns changed={', '.join(sorted(told))}"
