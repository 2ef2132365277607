"""What a role needs is what its entry points say, and whoever includes one gives it.

Ansible validates the arguments of an entry point only where meta/argument_specs.yml has one of that name; it converts nothing and applies no default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from conftest import ROOT
from inventories import Inventory, ansible_globals
from jinja2 import nodes

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = {path.stem for path in (ROOT / "library").glob("*.py")}
CONDITIONS = ("when", "that", "until", "failed_when", "changed_when")
INCLUDES = ("include_role", "import_role", "ansible.builtin.include_role", "ansible.builtin.import_role")
TASK_FILES = ("include_tasks", "import_tasks", "ansible.builtin.include_tasks", "ansible.builtin.import_tasks")
# Of the inventory: places on the controller, the deployment of a host, its lane.
FLEET = {"this_lane", "deployment", "project_directory", "cache_directory", "artifacts_directory"}


@cache
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


def mappings(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for one in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from mappings(one)


def entries(role: str) -> dict[str, dict[str, Any]]:
    """Entry point → its options."""
    specs = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    return {name: spec.get("options") or {} for name, spec in specs.items()}


def facts(role: str) -> set[str]:
    """What tasks of a role leave behind for others."""
    found = set()
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        for task in mappings(load(path)):
            found |= {task["register"]} if isinstance(task.get("register"), str) else set()
            found |= set(task.get("ansible.builtin.set_fact") or {})
    return {name for name in found if not name.startswith("__")}


@dataclass(frozen=True)
class Use:
    file: Path
    role: str
    entry: str
    given: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}-{self.role}-{self.entry}"


def uses() -> list[Use]:
    found = []
    files = [*(ROOT / "roles").rglob("tasks/*.yml"), *(ROOT / "playbooks").glob("*.yml")]
    for file in sorted(files):
        for task in mappings(load(file)):
            for keyword in INCLUDES:
                if keyword in task:
                    role = task[keyword]
                    found.append(Use(file, role["name"], role.get("tasks_from", "main"), frozenset(task.get("vars") or {})))
    return found


USES = uses()


@pytest.mark.parametrize("use", USES, ids=str)
def test_an_entry_point_that_others_use_says_what_it_takes(use: Use) -> None:
    assert use.entry in entries(use.role), (
        f"roles/{use.role}/meta/argument_specs.yml has no entry point {use.entry}, so nothing of it is validated"
    )


@pytest.mark.parametrize("use", USES, ids=str)
def test_who_includes_a_role_gives_what_it_needs_and_nothing_else(use: Use) -> None:
    options = entries(use.role).get(use.entry) or {}
    given = {name for name in use.given if not name.startswith("__")}
    assert given <= set(options), f"{use}: {sorted(given - set(options))} is no option of this entry point"
    made = set().union(*(facts(role) for role in ROLES))
    required = {name for name, option in options.items() if option.get("required")}
    lacking = required - given - made - FLEET
    assert not lacking, f"{use}: {sorted(lacking)} is required, not given here, and no role leaves it behind"


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_is_there_and_used(role: str) -> None:
    for entry in entries(role):
        assert (ROOT / "roles" / role / "tasks" / f"{entry}.yml").exists(), f"{role}: there is no tasks/{entry}.yml"
        assert entry == "main" or any((use.role, use.entry) == (role, entry) for use in USES), f"{role}: nobody includes {entry}"


# What a role reads


def strings(data: Any, condition: bool = False) -> Iterator[str]:
    """Jinja in YAML: whole conditions, and text with braces."""
    if isinstance(data, str):
        if condition:
            yield "{{ " + data + " }}"
        elif "{{" in data or "{%" in data:
            yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from strings(value, condition or key in CONDITIONS)
    elif isinstance(data, list):
        for value in data:
            yield from strings(value, condition)


def root(node: nodes.Node) -> nodes.Node:
    """`a` of `a.b['c']`: Ansible takes a default for the whole of it."""
    return root(node.node) if isinstance(node, nodes.Getattr | nodes.Getitem) else node


def names(text: str, needed: bool = True) -> set[str]:
    """Variables that a template reads; `needed`: not those with a default beside them, nor those that it asks for being there."""
    tree = jinja2.Environment(extensions=["jinja2.ext.do"]).parse(text)
    guarded = {
        id(root(node.node))
        for kind in (nodes.Filter, nodes.Test)
        for node in tree.find_all(kind)
        if node.name in ("default", "d", "defined", "undefined") and node.node is not None
    }
    return {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load" and not (needed and id(node) in guarded)}


def reached(role: str, entry: str) -> list[Path]:
    """The task files of an entry point: its own and what they include of their own role."""
    folder = ROOT / "roles" / role / "tasks"
    found, waiting = [], [folder / f"{entry}.yml"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        for task in mappings(load(path)):
            for keyword in TASK_FILES:
                if keyword in task:
                    value = task[keyword]
                    waiting.append(folder / (value if isinstance(value, str) else value["file"]))
    return found


def reads(role: str, entry: str, needed: bool) -> set[str]:
    """Variables that an entry point reads (or needs), through the role's own defaults and vars too."""
    home = ROOT / "roles" / role
    derived = {**(load(home / "defaults" / "main.yml") or {}), **(load(home / "vars" / "main.yml") or {})}
    found: set[str] = set()
    local: set[str] = set()
    waiting: set[str] = set()
    for path in reached(role, entry):
        for task in mappings(load(path)):
            local |= set(task.get("vars") or {}) | set(task.get("ansible.builtin.set_fact") or {})
            local |= {task["register"]} if isinstance(task.get("register"), str) else set()
        for text in strings(load(path)):
            waiting |= names(text, needed)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in strings(derived.get(name)):
            waiting |= names(text, needed)
    return found - (local if needed else set()) - MODULES


def owner(name: str) -> str:
    """The role whose prefix a name has, the longest first."""
    return next((role for role in sorted(ROLES, key=len, reverse=True) if name.startswith(f"{role}_")), "")


# Each entry point of rank judges all that a site may set of it, and who tries: a wrong value fails at the first, while all still serves.
JUDGES_ALL = {"rank"}
CONTRACTS = [(role, entry) for role in ROLES for entry in entries(role) if role != "lane"]


@pytest.mark.parametrize(("role", "entry"), CONTRACTS, ids=lambda part: str(part))
def test_an_entry_point_names_each_variable_of_a_role_that_it_needs(role: str, entry: str) -> None:
    hidden = {name for name in reads(role, entry, needed=True) if owner(name) not in ("", "lane")} - set(entries(role)[entry])
    assert not hidden, f"{role}, entry point {entry}: reads {sorted(hidden)}, which its argument spec doesn't name"


@pytest.mark.parametrize(("role", "entry"), [one for one in CONTRACTS if one[0] not in JUDGES_ALL], ids=lambda part: str(part))
def test_an_entry_point_names_no_variable_that_it_doesnt_read(role: str, entry: str) -> None:
    unread = set(entries(role)[entry]) - reads(role, entry, needed=False)
    assert not unread, f"{role}, entry point {entry}: {sorted(unread)} is read nowhere"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_doesnt_reach_out_of_its_folder(role: str) -> None:
    """Files of others come by variables of inventory/shipped: project_directory, cache_directory, artifacts_directory."""
    for path in (ROOT / "roles" / role).rglob("*.yml"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert "playbook_dir" not in line, f"{path.relative_to(ROOT)}:{number}: a role knows no playbook's place"
            assert not re.search(r"role_path[^/\n]*/\.\.", line), (
                f"{path.relative_to(ROOT)}:{number}: this leaves the role's folder"
            )


def test_places_on_the_controller_are_defined_once() -> None:
    shipped = load(ROOT / "inventory" / "shipped" / "00-groups.yml")["all"]["vars"]
    assert shipped["project_directory"] == "{{ playbook_dir | dirname }}"
    assert {name: shipped[name] for name in FLEET if name.endswith("_directory") and name != "project_directory"} == {
        "cache_directory": "{{ project_directory }}/.cache", "artifacts_directory": "{{ project_directory }}/artifacts"
    }  # fmt: skip


# What a role says by itself passes its own validation


FLEET_FILE = {"all": {"children": {"sparks": {"hosts": {"s1": {"lane": "sandbox_tiny"}, "s2": {}}}}}}


def refused(role: str, entry: str, variables: dict[str, Any], loader: DataLoader) -> list[str]:
    """What Ansible says of the role's defaults and derived variables at the start of an entry point."""
    home = ROOT / "roles" / role

    def read(*parts: str) -> Any:
        path = home.joinpath(*parts)
        return (loader.load_from_file(str(path), trusted_as_template=True) if path.exists() else None) or {}

    known = {**read("defaults", "main.yml"), **variables, **read("vars", "main.yml"), "role_path": str(home)}
    templar = Templar(loader=loader, variables=known)
    spec = templar.template(read("meta", "argument_specs.yml")["argument_specs"][entry].get("options") or {})
    options = {name: {**option, "required": False} for name, option in spec.items() if owner(name) in ("", role)}
    values = {name: templar.template(known[name]) for name in options if name in known}
    return [str(text) for text in ArgumentSpecValidator(options).validate(values).error_messages]


@pytest.mark.parametrize("host", ["s1", "s2"], ids=["with a lane", "without a lane"])
def test_the_defaults_of_every_role_pass_its_own_specs(tmp_path: Path, host: str) -> None:
    """A none is refused wherever the spec has a default, were it only words for people."""
    (tmp_path / "fleet.yml").write_text(yaml.safe_dump(FLEET_FILE), encoding="utf-8")
    with ansible_globals():
        made = Inventory([ROOT / "inventory/shipped", tmp_path / "fleet.yml", ROOT / "inventory/lanes"])
        there = {
            **made.variables(host),
            "hostvars": made.hostvars,
            "groups": made.groups(),
            "playbook_dir": str(ROOT / "playbooks"),
        }
        there |= {"ansible_play_hosts": ["s1", "s2"], "ansible_play_hosts_all": ["s1", "s2"]}
        # The values of a lane are judged by preflight.
        wanted = [(role, entry) for role in ROLES for entry in entries(role) if (role, entry) != ("lane", "main")]
        found = {f"{role} {entry}": wrong for role, entry in wanted if (wrong := refused(role, entry, there, DataLoader()))}
    assert len(wanted) > 20
    assert found == {}
