# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Pins in a site's file of a lane: what it would hold, how that differs, and why it can't."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, Check
from ansible.module_utils.sparklanes.lane import site_file
from ansible.module_utils.sparklanes.lane.site_file import Setting
from ansible.module_utils.sparklanes.lane.unknowns import site_line

# How a site's file begins that pins are the first to be written into.
HEAD = '---\n# What this site changes of lane {lane}: docs/concepts.md, "Layers".\n'


def written(
    lane: Mapping[str, Any], settings: Sequence[Setting], folder: Path, has: Callable[[str], Any]
) -> tuple[dict[str, Any], Check | None]:
    """The site's file of the lane with these settings: `path`, `content`, `diff`, and `was`, the sha256 of what it holds (empty: not there).

    folder: the site's group_vars. has: what a Spark has of a variable. With a check where the file can't say it; its content stays then.
    """
    name = str(lane["lane_id"])
    path, text = folder / f"lane_{name}.yml", ""
    try:
        path = site_file.lane_file(folder, name, [setting.variable for setting in settings])
        text = site_file.read(path)
        if not settings:
            return {"path": str(path), "content": text, "was": _sum(text, path), "diff": []}, None
        for variable in dict.fromkeys(site_file.variable_of(text, setting) for setting in settings):
            _refuse_elsewhere(path, text, variable, has(variable), folder)
        content = site_file.edited(text, settings, HEAD.format(lane=name))
    except site_file.CannotEdit as error:
        found = str(error) if str(error).startswith(str(path)) else f"{path}: {error}"
        remedy = f"Mend it and run this again, or write there yourself: {'; '.join(lines(settings))}"
        check = Check("PIN.SITE_FILE", name, FAIL, found, "a file in which the pins can be set", remedy)
        return {"path": str(path), "content": text, "was": _sum(text, path), "diff": []}, check
    return {"path": str(path), "content": content, "was": _sum(text, path), "diff": difference(path.name, text, content)}, None


def _refuse_elsewhere(path: Path, text: str, variable: str, here: Any, folder: Path) -> None:
    """Ansible takes a variable whole from the last file that has it: of two files one would have no effect."""
    own = site_file.value_of(text, variable)
    if here is None or own == (here,) or (own is not None and ("{{" in str(own) or own == ())):
        return
    files = [
        str(file) for file in sorted([*folder.rglob("*.y*ml"), *folder.with_name("host_vars").rglob("*.y*ml")]) if file != path
    ]
    holders = [file for file in files if site_file.names(file, variable)]
    where = ", ".join(holders) or "another place than the site's files (-e?)"
    raise site_file.CannotEdit(f"{variable} is set in {where}; a second one in {path} would replace it or have no effect")


def lines(settings: Sequence[Setting]) -> list[str]:
    """The lines that say the same, one a variable, for who writes them by hand."""
    trees: dict[str, Any] = {}
    for setting in settings:
        tree = trees.setdefault(setting.variable, {})
        for key in setting.keys[:-1]:
            tree = tree.setdefault(key, {})
        tree[setting.keys[-1]] = f'"{setting.value}"'
    return [site_line(variable, tree) for variable, tree in trees.items()]


def _sum(text: str, path: Path) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if path.exists() else ""


def difference(path: str, before: str, after: str) -> list[str]:
    """How a file changes, as lines."""
    return [
        line.rstrip("\r\n")
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=2)
    ]


def unreadable(folder: Path) -> list[str]:
    """The site's files of lanes that can't be read, as sentences. Of one that is no YAML Ansible ends without its name."""
    found = []
    for path in sorted(folder.glob("lane_*")):
        for file in [path] if path.is_file() else sorted(path.rglob("*.y*ml")):
            try:
                text = "" if file.suffix not in (".yml", ".yaml", "") else file.read_bytes().decode()
                site_file.parse("" if text.startswith("$ANSIBLE_VAULT;") else text)
            except OSError as error:
                found.append(f"{file} can't be read: {error.strerror or error}")
            except UnicodeDecodeError:
                found.append(f"{file} is no text of UTF-8")
            except site_file.CannotEdit as error:
                if "no YAML" in str(error):
                    found.append(f"{file}: {error}")
    return found
