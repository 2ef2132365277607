# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The lane's file, and what a person is told of it: what became of every part, and how what runs differs from the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.lane.importers.lane import Imported
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, FATES, OPEN, OURS, SECRET, VERBATIM, Row

MEANING = {
    OURS: "in our variables",
    VERBATIM: "as it stood: nothing here knows what it does",
    DROPPED: "sparklanes does it itself, or it had no effect",
    OPEN: "for you to decide or to fill in",
    SECRET: "its name only; the value stands in no file of ours",
}
# The key of the API is the site's, for every lane: group_vars/sparks/main.yml. A lane that names secrets of its own keeps it.
_KEY = "(['VLLM_API_KEY'] if engine_api_key | default('', true) | string | length > 0 else [])"
HEAD = """\
---
# {name}: imported from {origin} ({kind}).
# What each name means: docs/lane-reference.md. What is wrong or missing: playbooks/preflight.yml -e lane={name} -e preflight_needs=launch
"""


class _Dumper(yaml.SafeDumper):
    """Lists indented, as the project's own files are; no references."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text(imported: Imported, origin: str) -> str:
    """The file of the lane."""
    name = imported.variables["lane_id"]
    lines = [HEAD.format(name=name, origin=said(origin, 100), kind=imported.launch.kind)]
    for fate in (VERBATIM, OPEN, SECRET, DROPPED):
        rows = [row for row in imported.rows if row.fate == fate]
        if rows:
            lines.append(f"# {fate} ({MEANING[fate]}):\n")
            lines += [f"#   {said(row.what, 100)}{f': {said(row.why, 200)}' if row.why else ''}\n" for row in rows]
    for variable, value in imported.variables.items():
        if variable == "lane_secret_env":
            lines.append(f'lane_secret_env: "{{{{ {value!r} + {_KEY} }}}}"\n')
            continue
        dumped = yaml.dump(
            {variable: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False
        )
        lines.append(dumped)
    return "".join(lines)


def table(rows: Sequence[Row], width: int = 130) -> list[str]:
    """What became of each part, by what it became."""
    made: list[str] = []
    for fate in FATES:
        there = [row for row in rows if row.fate == fate]
        if there:
            made.append(f"{fate}, {len(there)}: {MEANING[fate]}")
            cells = [[f"  {said(row.what, 70)}", row.where or "–", said(row.why, 200) or "–"] for row in there]
            made += columns(cells, width=width)
    return made


def summary(imported: Imported, unlike: Sequence[str], origin: str) -> list[str]:
    """The table, and below it the comparison."""
    made = table(imported.rows)
    if not unlike:
        return [*made, f"Rendered, its command and environment are those of {said(origin, 100)}."]
    places = "1 place" if len(unlike) == 1 else f"{len(unlike)} places"
    return [*made, f"Rendered, it differs from {said(origin, 100)} in {places}:", *(f"  {said(one, 300)}" for one in unlike)]
