# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A lane from a file or a container: the one way in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.lane import schema
from ansible.module_utils.sparklanes.lane.importers import command, compare, container, lane, recipe, report
from ansible.module_utils.sparklanes.lane.importers.launch import Launch
from ansible.module_utils.sparklanes.lane.importers.source import COMMAND, RECIPE, Refused, Source, kind_and_data, read

# container:NAME@HOST
_CONTAINER = re.compile(r"container:(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)@(?P<host>[^\s@]+)")


def is_file(given: str) -> bool:
    """Whether a text names a file rather than a lane: a lane's name has no dot and no slash."""
    return bool(re.search(r"[/.]", given)) or Path(given).is_file()


def container_of(given: str) -> dict[str, str]:
    """Name and host of `container:NAME@HOST`; empty for what is none."""
    found = _CONTAINER.fullmatch(given)
    if not found and given.startswith("container:"):
        raise Refused(f"{given!r:.80} names no container: write container:NAME@HOST, HOST as in the inventory")
    return found.groupdict() if found else {}


def launch_of(source: Source) -> Launch:
    """How the engine of a source is started."""
    kind, data = kind_and_data(source)
    if kind == RECIPE:
        return recipe.launch(data, source.name)
    return command.launch(data, source.name) if kind == COMMAND else container.launch(data, source.name)


def of_file(path: str, name: str) -> lane.Imported:
    source = read(path)
    return lane.lane_of(launch_of(source), name, source.name, source.sha256)


def runs(path: str) -> Mapping[str, Any]:
    """What a file would run, as the spec of a rank to compare with."""
    return compare.as_mapping(of_file(path, "compared"))


def of_container(spec: Mapping[str, Any], name: str, origin: str) -> lane.Imported:
    """Of what rank_command_info tells."""
    if not spec:
        raise Refused("there is no such container on that Spark: docker ps --all shows their names")
    return lane.lane_of(container.of_spec(spec, whole=bool(spec.get("image_env"))), name, origin)


def written(imported: lane.Imported, origin: str, options: schema.Schema) -> dict[str, Any]:
    """The file of the lane, and the lines that tell of it."""
    unlike = compare.differences(imported, options)
    return {"text": report.text(imported, origin), "report": report.summary(imported, unlike, origin)}
