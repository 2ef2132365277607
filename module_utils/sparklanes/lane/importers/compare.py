# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A source and what a lane renders, put side by side by the parser that reads any command: flag by flag, variable by variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import failures, sentence
from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS, FLAT_FLAGS, canonical_flag, known
from ansible.module_utils.sparklanes.lane import render, schema
from ansible.module_utils.sparklanes.lane.importers import values
from ansible.module_utils.sparklanes.lane.importers.lane import Imported
from ansible.module_utils.sparklanes.lane.importers.source import Refused
from ansible.module_utils.sparklanes.rank import drift

# What a lane never says and each rank gets, with what a source has in its place: `lane.py` gives the reasons.
DONE_BY_US = frozenset({*DERIVED_FLAGS, "--download-dir", "--revision"})


@dataclass(frozen=True)
class Counts:
    """Flags of a source: all; those that sparklanes gives itself; of the others, those that are rendered with the same value, and those that nobody here knows."""

    flags: int
    ours: int
    same: int
    verbatim: int
    unlike: tuple[str, ...] = ()


def spec_of(imported: Imported) -> dict[str, Any]:
    """What the source runs, as the spec of a rank. Models and files stand where the lane has them."""
    launch, renamed = imported.launch, imported.renamed

    def told(value: str) -> str:
        for name in sorted(renamed, key=len, reverse=True):
            if value == name:
                return renamed[name]
            value = value.replace(f'"{name}"', f'"{renamed[name]}"')
        return value

    words = ["vllm", "serve", told(launch.model)]
    for name, given in launch.flags:
        variable = FLAT_FLAGS.get(canonical_flag(name), "")
        if variable == "lane_served_model_name":
            words += [name, *given]
        elif variable in values.COUNTS:
            words += [name, *values.counted(variable, given)]
        else:
            words += [name, *map(told, given)]
    return {
        "image": launch.image,
        "entrypoint": None,
        "command": words,
        "env": {name: told(value) for name, value in launch.env.items()},
        "secret_env": launch.secret_env,
        "mounts": launch.mounts,
        "options": launch.options,
    }


def rendered(imported: Imported, options: schema.Schema) -> dict[str, Any]:
    """What rank 0 of the lane would run, over a fabric that is made up."""
    lane, checks = schema.resolve(imported.variables, options, "localhost")
    wrong = failures(checks)
    if wrong:
        raise Refused("The source can't be a lane: " + "; ".join(sentence(check) for check in wrong))
    hosts = [f"spark-{number}" for number in range(1, lane["lane_nodes"] + 1)]
    fabrics = {host: {"host_ip": f"192.0.2.{number}"} for number, host in enumerate(hosts, 1)}
    return render.render_rank(lane, fabrics, "sparks", hosts, 0)


def differences(imported: Imported, options: schema.Schema) -> list[str]:
    """Where the command and the environment of the lane are not those of its source, but for what follows from the fleet."""
    ours, theirs = rendered(imported, options), spec_of(imported)
    of_the_fleet = {f"flag {name}" for name in DERIVED_FLAGS if name != "--data-parallel-size"} | {"env VLLM_HOST_IP"}
    dropped = {f"env {row.what.removeprefix('env ').partition('=')[0]}" for row in imported.rows if row.fate == "dropped"}
    return [
        one.sentence()
        for one in drift.differences(ours, theirs)
        if one.what.startswith(("flag ", "env ", "model"))
        and one.what not in of_the_fleet | dropped
        and not (one.ours == drift.ABSENT and _done(one.what.removeprefix("flag "), one.theirs))
    ]


def counts(imported: Imported, options: schema.Schema) -> Counts:
    _, theirs = drift.flags_of(spec_of(imported)["command"][1:])
    _, ours = drift.flags_of(["serve", *rendered(imported, options)["command"][1:]])
    done = {name for name, value in theirs.items() if _done(name, value)}
    rest = {name: value for name, value in theirs.items() if name not in done}
    unlike = tuple(name for name, value in rest.items() if ours.get(name, drift.ABSENT) != value)
    verbatim = sum(not known(name) for name in rest)
    return Counts(len(theirs), len(done), len(rest) - len(unlike), verbatim, unlike)


def _done(name: str, value: Any) -> bool:
    """Whether each rank gets it without a lane's word, or it is the engine's own default."""
    if name == "--distributed-executor-backend":
        return bool(value == "ray")
    if name == "--pipeline-parallel-size" or name.startswith("--data-parallel-"):
        return value in (1, drift.GIVEN)
    return name in DONE_BY_US


def as_mapping(imported: Imported) -> Mapping[str, Any]:
    """For `drift.report`: the source where a container would stand."""
    return {**spec_of(imported), "container": imported.launch.kind, "running": True}
