"""docs/lane-reference.md is what the definition of a lane says: UPDATE_DOCS=1 writes it again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import yaml
from conftest import ROOT

PAGE = ROOT / "docs" / "lane-reference.md"
SPEC = ROOT / "roles" / "lane" / "meta" / "argument_specs.yml"
HEAD = """\
# Variables of a lane

Made from `roles/lane/meta/argument_specs.yml` by `UPDATE_DOCS=1 pytest tests/unit/lane/test_lanes_reference.py`; change it there.
What they are for: [concepts](concepts.md); the lanes that there are: [lanes](lanes.md). A default of `–` means none: a required variable is bold, any other is then left to the engine.

| variable | type | default | meaning |
|---|---|---|---|
"""


def prose(description: str | list[str]) -> str:
    text = " ".join(description) if isinstance(description, list) else description
    return re.sub(r"C\((.*?[^\\])\)", lambda match: f"`{match[1]}`", text).replace("\\ ", " ").replace("|", "\\|")


def rows(options: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, option in options.items():
        full = f"{prefix}{name}"
        kind = option.get("type", "str")
        if kind == "str" and name.endswith("_bytes"):
            kind = "size"
        if option.get("choices"):
            kind = ", ".join(f"`{choice}`" for choice in option["choices"])
        if kind == "list":
            kind = f"list of {option.get('elements', 'values')}"
        default = option.get("default")
        shown = "–" if default is None else f"`{yaml.safe_dump(default, default_flow_style=True).split(chr(10))[0]}`"
        yield f"| {'**' if option.get('required') else ''}`{full}`{'**' if option.get('required') else ''} | {kind} | {shown} | {prose(option['description'])} |"
        yield from rows(option.get("options") or {}, f"{full}.0." if option.get("type") == "list" else f"{full}.")


def page() -> str:
    options = yaml.safe_load(SPEC.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    return HEAD + "\n".join(rows(options)) + "\n"


def test_the_page_is_what_the_definition_says() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/lane-reference.md is stale: UPDATE_DOCS=1 pytest tests/unit/lane/test_lanes_reference.py"
    )


def test_every_check_of_preflight_is_explained() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    for name in ("lane", "gates/deployments", "gates/preflight"):
        here = ROOT / "module_utils" / "sparklanes" / name
        files = here.glob("*.py") if here.is_dir() else [here.with_suffix(".py")]
        for id_ in (
            found for file in files for found in re.findall(r'"((?:LANE|DEPLOYMENT|INVENTORY)\.[A-Z]+)"', file.read_text())
        ):
            assert f"`{id_}`" in text, id_
