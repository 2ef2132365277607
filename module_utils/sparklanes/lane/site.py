# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where a site's own variables lie: a folder with group_vars and host_vars, one for each inventory in use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.sparklanes.common.checks import Check

FLEET = "inventory/fleet"
# What a site has in each of its folders. Its hosts stand elsewhere in an inventory that stands for itself.
_USUAL = re.compile(rf"(?<![\w./-]){FLEET}/(?=(?:group_vars|host_vars)/)")
OURS = ("inventory/shipped", "inventory/lanes")


def site_folder(sources: Sequence[str], root: Path) -> Path:
    """The folder that a site writes to under these inventory sources; inventory/fleet where none of them has one.

    Of an inventory that stands for itself, as the sandbox's (its group_vars are the project's, by a link), it is `site/` in it.
    """
    ours = [(root / name).resolve() for name in OURS]
    for source in sources:
        path = Path(source)
        folder = path if path.is_dir() else path.parent
        if "," in source or not folder.is_dir() or folder.resolve() in ours:
            continue
        return folder / "site" if (folder / "group_vars").resolve() == (root / "group_vars").resolve() else folder
    return root / FLEET


def group_vars_folders(sources: Sequence[str], root: Path) -> list[Path]:
    """Every group_vars folder that these sources read, and the project's own."""
    folders = [root / "group_vars"]
    for source in map(Path, sources):
        folder = source if source.is_dir() else source.parent
        folders += [folder / "group_vars", folder / "site" / "group_vars"]
    return folders


def unread(sources: Sequence[str], root: Path, lanes: Sequence[str]) -> list[Path]:
    """Files of these lanes in another site folder of this project, which these sources don't read."""
    read = [folder.resolve() for folder in group_vars_folders(sources, root)]
    others = [
        folder
        for folder in (root / FLEET / "group_vars", root / "inventory/sandbox/site/group_vars")
        if folder.resolve() not in read
    ]
    return [path for folder in others for lane in lanes for path in sorted(folder.glob(f"lane_{lane}.y*ml"))]


def in_this_site(checks: Sequence[Check], site: str) -> list[Check]:
    """The checks as `told` tells them."""
    return [replace(check, found=told(check.found, site), remedy=told(check.remedy, site)) for check in checks]


def told(text: str, site: str) -> str:
    """A text with the folder of this inventory where it names the usual one: rules, and modules on a Spark, know no inventory."""
    return _USUAL.sub(lambda _: f"{site}/", text)


def shown(folder: Path, root: Path) -> str:
    """As a person would write it in the project's folder."""
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else str(folder)
