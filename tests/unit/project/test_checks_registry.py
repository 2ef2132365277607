"""Every check is registered in docs/checks.yml, once, and the pages made from it are fresh: UPDATE_DOCS=1 writes them again."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

REGISTRY = ROOT / "docs" / "checks.yml"
PAGE = ROOT / "docs" / "checks.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
ROOMS = "module_utils/sparklanes"
ID = re.compile(r"[A-Z][A-Z0-9]*\.[A-Z][A-Z0-9_]*")
# Their ids are made from the rules of traps, and docs/traps.md is made from these.
TRAP = "TRAP"
RENEW = "UPDATE_DOCS=1 pytest tests/unit/project/test_checks_registry.py"

HEAD = f"""\
# Checks

Made from `docs/checks.yml` by `{RENEW}`; change it there.

What the tables of preflight, the gates, `playbooks/health.yml` and the other playbooks show, by the id in their second column. A check passes, warns,
fails, or is skipped with the reason that a person gave; what could not be measured fails. The page named below a heading says more: thresholds, their
sources, and what to do. Folders are rooms of `module_utils/sparklanes/`.

"""
BEGIN, END = f"<!-- made from docs/checks.yml: {RENEW} -->\n", "<!-- end of what is made from docs/checks.yml -->\n"


@dataclass(frozen=True)
class Entry:
    """One registered check. `place` is a room below module_utils/sparklanes, or a file from the root of the project."""

    id: str
    passes: str
    why: str
    place: str


@cache
def families() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))
    return found


@cache
def entries() -> dict[str, Entry]:
    made = {}
    for family in families().values():
        for id_, told in family["checks"].items():
            own = told if isinstance(told, dict) else {"passes": told}
            made[id_] = Entry(id_, own["passes"], own.get("why", ""), own.get("in", family["in"]))
    return made


def sources() -> Iterator[Path]:
    for folder in ("module_utils", "library", "filter_plugins", "action_plugins"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def used() -> dict[str, set[str]]:
    """Id → the files in which it stands as a text of its own: where a check is made, or another one is looked for."""
    found: dict[str, set[str]] = {}
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ID.fullmatch(node.value):
                found.setdefault(node.value, set()).add(str(file.relative_to(ROOT)))
    for file in [*ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/**/*.yml")]:
        for id_ in re.findall(rf"['\"]({ID.pattern})['\"]", file.read_text(encoding="utf-8")):
            found.setdefault(id_, set()).add(str(file.relative_to(ROOT)))
    return {id_: files for id_, files in found.items() if not id_.startswith(f"{TRAP}.")}


def repeated(node: yaml.Node) -> Iterator[str]:
    """Keys that stand twice in one mapping: of these YAML keeps the last without a word."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        yield from sorted({key for key in keys if keys.count(key) > 1})
        for _, value in node.value:
            yield from repeated(value)


def test_the_registry_has_its_form() -> None:
    node = yaml.compose(REGISTRY.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert node is not None
    twice = list(repeated(node))
    assert not twice, f"docs/checks.yml registers {', '.join(twice)} twice"
    for name, family in families().items():
        assert {"in", "why", "checks"} <= set(family) <= {"in", "why", "page", "checks"}, (
            f"docs/checks.yml: {name} has {sorted(family)}"
        )
        assert (ROOT / "docs" / family.get("page", "checks.yml")).is_file(), (
            f"docs/checks.yml: {name} names a page that is not there"
        )
        for id_, told in family["checks"].items():
            assert ID.fullmatch(id_), f"docs/checks.yml: {id_} is no id of the form FAMILY.NAME"
            assert id_.startswith(f"{name}."), f"docs/checks.yml: {id_} stands in family {name}"
            extra = set(told) - {"passes", "in", "why"} if isinstance(told, dict) else set()
            assert not extra, f"docs/checks.yml: {id_} has {sorted(extra)}; passes, in and why are known"


def test_every_check_of_the_code_is_registered() -> None:
    known = entries()
    missing = [f"{id_} ({', '.join(sorted(files))})" for id_, files in sorted(used().items()) if id_ not in known]
    assert not missing, f"not in docs/checks.yml: {'; '.join(missing)}. Add a line that says when it passes, then {RENEW}"


def test_every_registered_check_is_made_in_the_room_that_is_named() -> None:
    found = used()
    unused = sorted(set(entries()) - set(found))
    assert not unused, (
        f"registered in docs/checks.yml and nowhere in the code: {', '.join(unused)}. Remove the line, and name it in CHANGELOG.md"
    )
    for entry in entries().values():
        place = entry.place if entry.place.endswith(".py") else f"{ROOMS}/{entry.place}/"
        files = sorted(found[entry.id])
        assert any(file.startswith(place) for file in files), (
            f"docs/checks.yml: {entry.id} is in {entry.place}; found in {', '.join(files)}"
        )


def test_every_check_is_named_in_a_test() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.*") if path.suffix in (".py", ".yml") and path != Path(__file__)]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(rf"\b{ID.pattern}\b", tests))
    missing = [id_ for id_ in entries() if id_ not in named]
    assert not missing, f"no test below tests/ names {', '.join(missing)}: show with what it passes, fails, and was not measured"


def test_every_function_that_makes_a_check_is_called() -> None:
    """A rule that no gate, playbook or other rule asks can't fail."""
    rules: dict[str, str] = {}
    named: dict[str, int] = {}
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(part, ast.Constant) and isinstance(part.value, str) and ID.fullmatch(part.value)
                for part in ast.walk(node)
            ):
                rules[node.name] = f"{file.relative_to(ROOT)}:{node.lineno}"
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                named[name] = named.get(name, 0) + 1
    unused = [f"{name} ({place})" for name, place in sorted(rules.items()) if name not in named]
    assert not unused, f"makes a check and is called from nowhere in the code: {', '.join(unused)}. Call it where its room judges"


def test_the_reason_of_every_check_stands_somewhere() -> None:
    """With the check, or on its family's page, which names it."""
    by_id = entries()
    for name, family in families().items():
        text = (ROOT / "docs" / family["page"]).read_text(encoding="utf-8") if "page" in family else ""
        for id_ in family["checks"] if text else ():
            assert by_id[id_].why or re.search(rf"\b{id_}\b", text), (
                f"docs/{family['page']} says nothing of {id_}: say there when it fails and what to do, or give it a why in docs/checks.yml"
            )
        assert name == TRAP or family["checks"], f"docs/checks.yml: {name} has no checks"


def test_no_id_is_put_together() -> None:
    """An id that stands whole can be looked for. Those of traps are made in one place."""
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and isinstance(first := node.values[0], ast.Constant):
                text = str(first.value)
                assert not re.fullmatch(r"[A-Z][A-Z0-9]*\.", text) or text == f"{TRAP}.", (
                    f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)} puts an id together; write each id whole, so that it can be found"
                )


def pages() -> list[Path]:
    others = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "AGENTS.md",
        *ROOT.glob("roles/*/README.md"),
        *ROOT.glob("sandbox/*.md"),
    ]
    return [*sorted((ROOT / "docs").glob("*.md")), *others]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_id_on_a_page_exists(page: Path) -> None:
    traps = set(re.findall(rf"{TRAP}\.[A-Z][A-Z0-9_]*", (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")))
    known = {*entries(), *traps}
    names = "|".join(families())
    named = set(re.findall(rf"\b(?:{names})\.[A-Z][A-Z0-9_]*\b(?!\.)", page.read_text(encoding="utf-8")))
    unknown = sorted(named - known)
    assert not unknown, f"{page.relative_to(ROOT)} names {', '.join(unknown)}, which docs/checks.yml does not know"


def places_of(name: str, family: dict[str, Any]) -> str:
    """The rooms and files that make checks of a family, most of them first."""
    found = [family["in"], *(entry.place for entry in entries().values() if entry.id.startswith(f"{name}."))]
    return ", ".join(f"`{place}`" if place.endswith(".py") else f"`{place}/`" for place in dict.fromkeys(found))


def page_of_checks() -> str:
    parts = [HEAD]
    by_id = entries()
    for name, family in families().items():
        more = f" More: [{family['page']}]({family['page']})." if "page" in family else ""
        parts.append(f"## {name}\n\n{family['why'][:1].upper()}{family['why'][1:]}. Made in {places_of(name, family)}.{more}\n\n")
        if family["checks"]:
            parts.append("| id | passes when | why |\n|---|---|---|\n")
            parts += [f"| `{id_}` | {by_id[id_].passes} | {by_id[id_].why} |\n" for id_ in family["checks"]]
            parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def block_of_architecture() -> str:
    lines = ["| family | checks | made in | why |\n|---|---|---|---|\n"]
    for name, family in families().items():
        names = " ".join(id_.partition(".")[2] for id_ in family["checks"]) or "[traps](traps.md)"
        more = f" ([{family['page']}]({family['page']}))" if "page" in family else ""
        lines.append(f"| `{name}.` | {names} | {places_of(name, family)} | {family['why']}{more} |\n")
    return BEGIN + "".join(lines) + END


def with_block(text: str) -> str:
    """The page with the block as it should be, between its two markers."""
    head, _, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert end, "docs/architecture.md has lost the markers of the table of checks"
    return head + block_of_architecture() + tail


def test_the_pages_are_what_the_registry_says() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page_of_checks(), encoding="utf-8")
        ARCHITECTURE.write_text(with_block(text), encoding="utf-8")
        return
    assert PAGE.read_text(encoding="utf-8") == page_of_checks(), f"docs/checks.md is stale: {RENEW}"
    assert text == with_block(text), f"the table of checks in docs/architecture.md is stale: {RENEW}"
