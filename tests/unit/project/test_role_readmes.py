"""The tables of options in the READMEs of roles are what their argument specs say: UPDATE_DOCS=1 writes them again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
RENEW = "UPDATE_DOCS=1 pytest tests/unit/project/test_role_readmes.py"
BEGIN = f"<!-- options: made from meta/argument_specs.yml by {RENEW} -->\n"
END = "<!-- end -->\n"
HEAD = "| variable | type | default | |\n|---|---|---|---|\n"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def prose(description: str | list[str]) -> str:
    text = " ".join(description) if isinstance(description, list) else description
    return re.sub(r"C\((.*?)\)", r"`\1`", text).replace("|", "\\|")


def kind(option: Mapping[str, Any]) -> str:
    if option.get("choices"):
        return ", ".join(f"`{choice}`" for choice in option["choices"])
    name = str(option.get("type", "str"))
    return f"list of {option.get('elements', 'values')}" if name == "list" else name


def default(name: str, option: Mapping[str, Any], derived: Mapping[str, Any]) -> str:
    """A value as YAML. Where the role derives it from other variables, the words that its spec has for that."""
    if option.get("required"):
        return "**needed**"
    value = option.get("default")
    if "{{" in str(derived.get(name, "")) and isinstance(value, str):
        return value
    if value is None or value == "":
        return "none" if value is None else "empty"
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
    return f"`{text}`"


def rows(options: Mapping[str, Any], derived: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, option in options.items():
        yield f"| `{prefix}{name}` | {kind(option)} | {default(name, option, derived)} | {prose(option['description'])} |\n"
        inner = f"{prefix}{name}.0." if option.get("type") == "list" else f"{prefix}{name}."
        yield from rows(option.get("options") or {}, {}, inner)


def tables(role: str) -> str:
    """A table for each entry point; an option that an earlier table has in the same words is only named again."""
    home = ROOT / "roles" / role
    derived = load(home / "defaults" / "main.yml") or {}
    specs: dict[str, dict[str, Any]] = load(home / "meta" / "argument_specs.yml")["argument_specs"]
    if role == "lane":
        specs = {name: spec for name, spec in specs.items() if name != "main"}  # docs/lane-reference.md
    shown: dict[str, Any] = {}
    parts = []
    for entry, spec in specs.items():
        options = spec.get("options") or {}
        again = [name for name, option in options.items() if shown.get(name) == option]
        fresh = {name: option for name, option in options.items() if name not in again}
        shown |= options
        text = f"`tasks_from: {entry}`: {prose(spec['short_description'])}.\n\n" if len(specs) > 1 or entry != "main" else ""
        if fresh:
            text += HEAD + "".join(rows(fresh, derived))
        if again:
            text += ("\nAlso " if fresh else "It takes ") + ", ".join(f"`{name}`" for name in again) + " of above.\n"
        if not options:
            text += "It takes no variables.\n"
        parts.append(text)
    return "\n".join(parts)


@pytest.mark.parametrize("role", ROLES)
def test_the_tables_of_a_readme_are_what_the_argument_specs_say(role: str) -> None:
    page = ROOT / "roles" / role / "README.md"
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"{page} has lost the line {BEGIN}"
    assert end, f"{page} has lost the line {END} after it"
    fresh = f"{head}{BEGIN}\n{tables(role)}\n{END}{tail}"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(fresh, encoding="utf-8")
        return
    assert text == fresh, f"{page} is stale: {RENEW}"
