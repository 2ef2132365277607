# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a lane leaves open, and the lines that fill it in at a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check
from ansible.module_utils.sparklanes.lane.schema import SITE_FILE


def lookup(lane: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path such as `lane_image.digest` or `lane_overlays.0.sha256`; None where there is none."""
    value: Any = lane
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def site_line(variable: str, tree: Any) -> str:
    """The line of a site's file that fills parts of a variable: `lane_image_site: {digest: …}`, or `lane_max_model_len: …`."""
    return f"{variable}_site: {_flow(tree)}" if isinstance(tree, Mapping) else f"{variable}: {tree}"


def _flow(tree: Any) -> str:
    return (
        "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in tree.items()) + "}" if isinstance(tree, Mapping) else str(tree)
    )


@dataclass(frozen=True)
class OpenPart:
    """A part of a lane that is unknown: why, the variable and the keys in it, what to do where that is not one line, and the line.

    said: the lane's own word of it; else it is the general one.
    """

    what: str
    keys: tuple[str, ...]
    remedy: str = ""
    line: str = ""
    said: bool = False


@dataclass
class _Unknowns:
    """What is still unknown, and for each variable the one line that fills all its parts: a second line would replace the first."""

    where: str
    who: str
    parts: dict[str, OpenPart] = field(default_factory=dict)
    trees: dict[str, Any] = field(default_factory=dict)

    def add(self, path: str, what: str, keys: Sequence[str], value: str, remedy: str = "", said: bool = False) -> None:
        if path in self.parts:
            return
        alone: Any = value
        for key in reversed(keys[1:]):
            alone = {key: alone}
        self.parts[path] = OpenPart(what, tuple(keys), remedy, "" if remedy else site_line(keys[0], alone), said)
        if remedy:
            return
        tree: Any = self.trees
        for key in keys[:-1]:
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                return  # the whole is asked for already
        tree.setdefault(keys[-1], value)

    def checks(self) -> list[Check]:
        return [
            Check(
                "LANE.UNKNOWN",
                self.who,
                FAIL,
                part.what,
                f"{path} is known before launch",
                part.remedy or f"Add one line to {self.where}: {site_line(part.keys[0], self.trees[part.keys[0]])}",
            )
            for path, part in self.parts.items()
        ]


def open_parts(lane: Mapping[str, Any]) -> dict[str, OpenPart]:
    """What a lane leaves open, by its dotted path."""
    return _unknowns(lane, "").parts


def launch_refusals(lane: Mapping[str, Any], host: str = "") -> list[Check]:
    """What a lane must still be told before it may launch, each with the one line that fills it.

    Rendering works without: a person may look at the commands first.
    """
    who = host or str(lane["lane_id"])
    return _unknowns(lane, who).checks() or [Check("LANE.UNKNOWN", who, PASS, "nothing is unknown")]


def _unknowns(lane: Mapping[str, Any], who: str) -> _Unknowns:
    unknown = _Unknowns(SITE_FILE.format(lane=lane["lane_id"]), who)
    for item in lane["lane_unknowns"]:
        path, _, value = (part.strip() for part in item["fill"].partition(":"))
        if path == "lane_image.digest" and lookup(lane, "lane_image.ids"):
            continue  # An ID names the image as well, where no registry has it.
        if lookup(lane, path) in (None, "", [], {}):
            unknown.add(path, item["what"], path.split("."), value, item["remedy"] or "", said=True)
    if lookup(lane, "lane_image.digest") is None and not lookup(lane, "lane_image.ids"):
        unknown.add("lane_image.digest", "the image has no digest", ("lane_image", "digest"), '"sha256:<64 hex digits>"')
    for model in ("lane_model", "lane_drafter"):
        if lane[model] and lane[model].get("revision") is None:
            what = f"{lane[model]['repo']} has no revision"
            unknown.add(f"{model}.revision", what, (model, "revision"), '"<40 hex digits>"')
    for files in ("lane_overlays", "lane_extras"):
        for index, item in enumerate(lane[files] or []):
            if item.get("sha256") is None:
                value = f'"<64 hex digits: sha256sum {PurePosixPath(item["source"]).name}>"'
                what = f"{item['source']} has no sha256"
                unknown.add(f"{files}.{index}.sha256", what, (files, str(item["target"]), "sha256"), value)
    return unknown
