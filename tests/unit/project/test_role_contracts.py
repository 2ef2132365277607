"""What roles take from one another: declared, given by whoever includes them, and never in a circle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sparklanes as plugin  # filter_plugins/sparklanes.py
import yaml
from conftest import ROOT

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = {path.stem for path in (ROOT / "library").glob("*.py")}
INCLUDES = ("ansible.builtin.include_role", "ansible.builtin.import_role")
# What an earlier entry point of the same role leaves as a fact, and no includer has to give.
LEFT = {
    "rank": {
        "rank_transaction", "rank_controller", "rank_stamp", "rank_receipts", "rank_release", "rank_identity", "rank_specs", "rank_lanes",
        "rank_spec",
    }
}  # fmt: skip


def files() -> list[Path]:
    return [ROOT / "site.yml", *sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml"))]


def mappings(data: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(data, Mapping):
        yield data
    for one in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from mappings(one)


@cache
def includes() -> tuple[tuple[str, str, str, frozenset[str]], ...]:
    """Who includes what: file (relative), role, entry point, names of the variables given."""
    found = []
    for path in files():
        for task in mappings(yaml.safe_load(path.read_text(encoding="utf-8"))):
            for keyword in INCLUDES:
                if keyword in task:
                    told = task[keyword]
                    given = frozenset(task.get("vars") or {})
                    found.append((str(path.relative_to(ROOT)), str(told["name"]), str(told.get("tasks_from", "main")), given))
    return tuple(found)


def role_of(file: str) -> str:
    """The role of a file, empty for a playbook."""
    return file.split("/")[1] if file.startswith("roles/") else ""


@cache
def specs(role: str) -> dict[str, Any]:
    text = (ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["argument_specs"]
    return found


def owner(word: str) -> str:
    """The role whose prefix a variable carries; none for a module, and for lanes, whose variables are the site's."""
    found = max((role for role in ROLES if word.startswith(f"{role}_")), key=len, default="")
    return "" if word in MODULES or found == "lane" else found


def reads(role: str) -> set[str]:
    """The roles whose variables this one reads."""
    words = set()
    for path in (ROOT / "roles" / role).rglob("*.yml"):
        if "meta" not in path.parts:
            code = "\n".join(
                line.partition(" #")[0]
                for line in path.read_text(encoding="utf-8").splitlines()
                if not line.lstrip().startswith("#")
            )
            words |= set(re.findall(r"\b[a-z][a-z0-9_]+\b", code))
    return {owner(word) for word in words} - {"", role}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One way back to where it began, empty where there is none."""
    done: set[str] = set()

    def walk(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for after in sorted(graph.get(node, set())):
            found = walk(after, [*way, node])
            if found:
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_roles_include_one_another_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for file, role, _, _ in includes():
        if role_of(file) not in ("", role):
            graph.setdefault(role_of(file), set()).add(role)
    assert graph["rank"] >= {"gates", "page_cache"}
    assert circle(graph) == []


def test_roles_read_one_another_s_variables_in_no_circle() -> None:
    """A role that reads a variable of another one leans on it as much as one that includes it."""
    graph = {role: reads(role) for role in ROLES}
    for file, role, _, _ in includes():
        if role_of(file) not in ("", role):
            graph[role_of(file)].add(role)
    assert "gates" in graph["rank"]
    assert circle(graph) == []


def test_role_gates_knows_nothing_of_role_rank() -> None:
    assert "rank" not in reads("gates")


def test_results_of_several_hosts_are_joined_in_no_yaml() -> None:
    """A filter takes hostvars and the hosts; what they registered is put together in tested Python."""
    joins = re.compile(r"\bzip\(|map\(\s*'extract'|\bhostvars\.values\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if joins.search(line)
    ]
    assert found == []


FILTERS = plugin.FilterModule().filters()


def test_filters_have_one_naming_scheme() -> None:
    assert [name for name in FILTERS if not name.startswith("sparklanes_")] == []


def test_every_filter_is_used_and_every_one_that_is_used_is_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in [*files(), *sorted((ROOT / "group_vars").rglob("*.yml"))]]
    used = {name for text in texts for name in re.findall(r"\|\s*(sparklanes_[a-z0-9_]+)", text)}
    assert used == set(FILTERS)
