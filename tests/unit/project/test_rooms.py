"""The map of module_utils: which rooms there are, which may import which, and what never travels to a Spark."""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = "ansible.module_utils.sparklanes"
HOME = ROOT / "module_utils" / "sparklanes"
PAGE = ROOT / "docs" / "architecture.md"
# In the order in which they may import: each only from itself and from those before it.
ROOMS = (
    "common",
    "engine",
    "jobs",
    "memory",
    "fabric",
    "docker",
    "quality",
    "gpu",
    "host",
    "weights",
    "release",
    "rank",
    "lane",
    "traps",
    "gates",
    "screen",
)
# What a Spark never gets: recipes, what is known of models, the composition of gates, and what a person sees.
CONTROLLER = ("lane", "traps", "gates", "screen")
# One file runs inside the engine's image; the other reads what only netplan writes, which depends on this parser, and does without.
ALLOWED = {"gpu.burn": {"torch"}, "fabric.netplan": {"yaml"}}


@cache
def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name below it: `fabric.nccl`."""
    files = (path for path in sorted(HOME.rglob("*.py")) if path.name != "__init__.py")
    return {".".join(path.relative_to(HOME).with_suffix("").parts): path for path in files}


@cache
def imports(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The modules of this package that a file imports, and the other packages by their first name."""
    ours, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not f"{node.module}.".startswith(f"{PACKAGE}."):
            assert node.level == 0, f"{path}: imports are absolute, test_sanity's collection rewrites them by text"
            others.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.")
                ours.add(name if name in modules() else name.rpartition(".")[0])
    return frozenset(ours), frozenset(others)


def room(module: str) -> str:
    return module.partition(".")[0]


def shipped(path: Path) -> set[str]:
    """What Ansible carries to a Spark with a file of library/: all that it reaches."""
    found: set[str] = set()
    waiting = list(imports(path)[0])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports(modules()[module])[0]
    return found


LIBRARY = sorted((ROOT / "library").glob("*.py"))


def on_a_spark() -> set[str]:
    return set().union(*(shipped(path) for path in LIBRARY))


def summary(folder: Path) -> str:
    """What a room's `__init__.py` says, which is all that stands in it: a docstring, its lines as one."""
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    assert len(tree.body) == 1, (
        f"{folder}/__init__.py holds more than a docstring, and each module that enters the room would ship it"
    )
    text = ast.get_docstring(tree)
    assert text, f"{folder}/__init__.py says nothing"
    return " ".join(text.split())


def table() -> str:
    """The rows of docs/architecture.md."""
    there = on_a_spark()
    rows = ["| room | runs on | what it knows |", "|---|---|---|"]
    for name in ROOMS:
        mine = [module for module in modules() if room(module) == name]
        travel = sum(module in there for module in mine)
        where = "controller" if not travel else "Spark" if travel == len(mine) else "both"
        rows.append(f"| `{name}/` | {where} | {summary(HOME / name)} |")
    return "\n".join(rows)


def test_every_file_is_in_a_room_and_every_room_on_the_map() -> None:
    assert {path.name for path in HOME.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)
    assert [path.name for path in HOME.glob("*.py")] == ["__init__.py"], "a file lies outside of the rooms"
    for folder in {path.parent for path in modules().values()}:
        summary(folder)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_before_it(name: str) -> None:
    allowed = ROOMS[: ROOMS.index(name) + 1]
    for module, path in modules().items():
        if room(module) == name:
            wrong = {other for other in imports(path)[0] if room(other) not in allowed}
            assert not wrong, f"{module} imports {sorted(wrong)}; {name} stands before them"


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_no_module_ships_a_room_of_the_controller(path: Path) -> None:
    wrong = {module for module in shipped(path) if room(module) in CONTROLLER}
    assert not wrong, f"{path.name} would carry {sorted(wrong)} to a Spark"


def test_what_runs_on_a_spark_needs_the_standard_library_alone() -> None:
    for module in on_a_spark():
        foreign = imports(modules()[module])[1] - set(sys.stdlib_module_names) - {"ansible"} - ALLOWED.get(module, set())
        assert not foreign, f"{module} imports {sorted(foreign)}, which a Spark may not have"


def test_tests_and_fixtures_have_the_same_rooms() -> None:
    for folder, beside in ((ROOT / "tests/unit", {"project"}), (ROOT / "tests/fixtures", {"sandbox", "state-0.1"})):
        there = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
        assert there <= set(ROOMS) | beside, f"{folder}: {sorted(there - set(ROOMS) - beside)} is no room"


def test_the_map_in_the_docs_is_this_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, mark, rest = text.partition("from the __init__.py of each room -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    assert mark, "docs/architecture.md lost the mark of its map"
    assert end, "docs/architecture.md lost the end of its map"
    fresh = f"{head}{mark}{table()}\n{end}{tail}"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(fresh, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == fresh, (
        "the map in docs/architecture.md is stale: UPDATE_DOCS=1 pytest tests/unit/project/test_rooms.py"
    )
