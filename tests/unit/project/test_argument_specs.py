"""Every role says what it takes, and what it says is what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "bool": (bool,), "list": (list,), "dict": (dict,), "path": (str,),
}  # fmt: skip


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


def options_of(role: Path) -> dict[str, Any]:
    """The role's own options, of all entry points together."""
    return {name: option for name, option in all_options_of(role).items() if not of_others(role, name)}


def all_options_of(role: Path) -> dict[str, Any]:
    specs = (load(role / "meta" / "argument_specs.yml") or {}).get("argument_specs") or {}
    return {name: option for entry in specs.values() for name, option in (entry.get("options") or {}).items()}


def of_others(role: Path, name: str) -> bool:
    """What another role leaves behind, or the inventory says, goes by the name that it has there. It has no default here."""
    return name == "this_lane" or any(
        name.startswith(f"{other.name}_") for other in ROLES if other.name != role.name and not name.startswith(f"{role.name}_")
    )


def defaults_of(role: Path) -> dict[str, Any]:
    return load(role / "defaults" / "main.yml") or {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_is_complete(role: Path) -> None:
    for part in ("defaults/main.yml", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml", "README.md"):
        assert (role / part).exists(), f"roles/{role.name}/{part} is missing; roles/spark_boot is a small role to look at"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_is_specified_and_every_optional_option_has_a_default(role: Path) -> None:
    options, defaults = options_of(role), defaults_of(role)
    public = {name for name in defaults if not name.startswith("__")}
    assert public <= set(options), f"{role.name}: in defaults but not specified: {sorted(public - set(options))}"
    without = {name for name, option in options.items() if not option.get("required") and name not in defaults}
    allowed = {name for name in without if options[name].get("default") is None and role.name == "lane"}
    assert without == allowed, f"{role.name}: optional without a default: {sorted(without - allowed)}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_plain_defaults_are_the_specified_ones(role: Path) -> None:
    options = options_of(role)
    for name, value in defaults_of(role).items():
        if name.startswith("__") or "{{" in str(value):
            continue
        option = options[name]
        assert option.get("default") == value, (
            f"{role.name}: {name} is {value!r} in defaults, {option.get('default')!r} in the spec"
        )
        if value is not None:
            assert isinstance(value, TYPES[option.get("type", "str")]), f"{role.name}: {name} is no {option.get('type')}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_names_carry_their_role_and_are_described(role: Path) -> None:
    prefixes = (f"{role.name}_", "preflight_") if role.name == "lane" else (f"{role.name}_",)
    for name, option in all_options_of(role).items():
        assert name.startswith(prefixes) or of_others(role, name), f"{role.name}: {name} does not begin with the role's name"
        assert not (of_others(role, name) and "default" in option), f"{role.name}: {name} gets its default where it comes from"
        assert option.get("description"), f"{role.name}: {name} has no description"


# The variables of role lane are a page of their own, docs/lane-reference.md, which another test makes.
@pytest.mark.parametrize("role", [role for role in ROLES if role.name != "lane"], ids=lambda role: role.name)
def test_the_readme_names_every_option(role: Path) -> None:
    text = (role / "README.md").read_text(encoding="utf-8") if (role / "README.md").exists() else ""
    missing = [name for name in options_of(role) if name not in text]
    assert not missing, f"roles/{role.name}/README.md does not name {missing}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_is_used(role: Path) -> None:
    """By a playbook or another role; which playbook, and so when, is what a new role is asked first."""
    files = [path for folder in ("playbooks", "roles") for path in (ROOT / folder).rglob("*.yml") if role not in path.parents]
    users = [path for path in files if f"name: {role.name}\n" in path.read_text(encoding="utf-8")]
    assert users, (
        f"no playbook and no other role includes {role.name}; what keeps a host as it should be belongs to playbooks/configure.yml"
    )
