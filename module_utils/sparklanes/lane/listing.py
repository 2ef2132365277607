# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The lanes that there are, for people to choose from: for how many Sparks, what state, how much context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.lane.catalogue import known_lanes
from ansible.module_utils.sparklanes.lane.schema import Schema, resolve
from ansible.module_utils.sparklanes.lane.state import state, why
from ansible.module_utils.sparklanes.lane.unknowns import launch_refusals

Read = Callable[[Path], Mapping[str, Any]]
# What a node has, real or of the sandbox; those of other hosts stand last.
SPARKS = ("sm_121", "cpu")
HEAD = ("lane", "Sparks", "context", "state", "open", "what")


def found(folders: Sequence[Path], read: Read, options: Schema) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Lane → resolved, of every lane that these group_vars folders define, and lane → why it can't be read.

    read: the variables of a file. A later folder's win, as those of a site; templates stay as they are written.
    """
    lanes: dict[str, dict[str, Any]] = {}
    unread: dict[str, str] = {}
    for name in known_lanes(folders):
        try:
            own = _group(f"lane_{name}", folders, read)
            shared = [
                _group(f"{kind}_{own[f'lane_{kind}']}", folders, read) for kind in ("family", "kit") if own.get(f"lane_{kind}")
            ]
            merged = {key: value for part in [*shared, own] for key, value in part.items()}
            lanes[name] = resolve(merged, options, name)[0]
        except ValueError as error:
            unread[name] = " ".join(str(error).split())
    return lanes, unread


def written(names: Sequence[str], folders: Sequence[Path], read: Read) -> dict[str, dict[str, Any]]:
    """Lane → what its own file says: of the first folder that has one, ours before those of a site. One that can't be read is left out."""
    made: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            found = (_group(f"lane_{name}", [folder], read) for folder in folders)
            made[name] = next((one for one in found if one), {})
        except ValueError:
            continue  # Ansible says so itself
    return made


def _group(name: str, folders: Sequence[Path], read: Read) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for folder in folders:
        for entry in sorted(folder.glob(f"{name}.*")) + sorted((folder / name).glob("*")):
            if entry.suffix in (".yml", ".yaml", ".json"):
                made.update(read(entry))
    return made


def text(lanes: Mapping[str, Mapping[str, Any]], unread: Mapping[str, str] | None = None) -> list[str]:
    """A table, those for few Sparks first, and below it what stands behind a state. `open`: what a launch asks for first."""
    ordered = sorted(lanes, key=lambda name: (lanes[name]["lane_gpu_arch"] not in SPARKS, lanes[name]["lane_nodes"] or 0, name))
    rows = [HEAD]
    for name in ordered:
        lane = lanes[name]
        context = f"{lane['lane_max_model_len']:,}" if lane["lane_max_model_len"] else "?"
        missing = sum(check.status == "fail" for check in launch_refusals(lane))
        hosts = str(lane["lane_nodes"] or "?") if lane["lane_gpu_arch"] in SPARKS else "no Spark"
        rows.append((name, hosts, context, state(lane), str(missing or "-"), str(lane["lane_title"])))
    lines = columns(rows, right={1, 2, 4})
    reasons = [f"{name} is {state(lanes[name])}: {why(lanes[name])}" for name in ordered if why(lanes[name])]
    broken = [f"{name} can't be read: {words}" for name, words in (unread or {}).items()]
    return [*lines, *(["", *reasons, *broken] if reasons or broken else [])]
