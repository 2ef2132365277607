"""No task's failure is hidden from who judges its result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from conftest import ROOT

# Task → why nobody misses its failure. A result that anybody judges is kept by block and rescue: there it stays `failed`.
NOBODY_JUDGES = {
    ("roles/reboot/tasks/links.yml", "Wait for the addresses of the fabric"): "only waits; role roce looks at them afterwards",
    ("roles/reboot/tasks/main.yml", "Wait until the boot is over"): "only waits; reboot_checks ask what counts",
}


def files() -> list[Path]:
    return [ROOT / "site.yml", *sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml"))]


def mappings(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for one in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from mappings(one)


def tasks_with(keyword: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in files():
        for one in mappings(yaml.safe_load(path.read_text(encoding="utf-8"))):
            if keyword in one and "meta" not in path.parts:
                found.append((str(path.relative_to(ROOT)), one))
    return found


def is_never(condition: Any) -> bool:
    return any(
        one is False or str(one).strip().lower() in ("false", "no")
        for one in (condition if isinstance(condition, list) else [condition])
    )


def test_no_failure_is_hidden_but_where_nobody_judges_it() -> None:
    hidden = {(path, task["name"]): task for path, task in tasks_with("failed_when") if is_never(task["failed_when"])}
    more = sorted(set(hidden) - set(NOBODY_JUDGES))
    assert not more, (
        f"failed_when: false hides the failures of {more}; keep the result by block and rescue, where it stays failed"
    )
    assert set(hidden) == set(NOBODY_JUDGES), "the list holds tasks that are not there any more"


def test_what_nobody_judges_is_read_nowhere_else() -> None:
    """Its own `until` may read it."""
    for path, name in NOBODY_JUDGES:
        task = next(one for where, one in tasks_with("failed_when") if (where, one["name"]) == (path, name))
        register = task.get("register")
        if register:
            readers = [file for file in files() if register in file.read_text(encoding="utf-8")]
            assert readers == [ROOT / path], f"{register} is read in {readers}"
            assert (ROOT / path).read_text(encoding="utf-8").count(register) == 2, (
                f"{path}: {register} is read outside of its own task"
            )


def test_errors_are_ignored_nowhere() -> None:
    """It leaves the result failed, and nobody has to look at it."""
    assert tasks_with("ignore_errors") == []
