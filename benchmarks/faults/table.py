# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The table of faults: table.yml, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults import injectors
from benchmarks.faults.injectors import files, network, processes, strangers  # noqa: F401 (each registers what it knows)
from benchmarks.faults.plays import MOMENTS

NODES = ("spark-1", "spark-2")
VERBS = ("launch", "status", "stop")
# What may follow once the first run was ended or put to sleep by its `controller`.
THEN = ("", "recover", "recover-twice", "launch")
CONTROLLER = ("", "kill", "sleep", "twin", "twin-elsewhere")
FROM = ("serving", "stopped")
SERVES = ("same", "last-good", "new", "nothing", "any")
NOTICE_SECONDS, SLOW_SECONDS = 5, 30


@dataclass(frozen=True)
class Fault:
    """One line of the table.

    from_state: what is there before: last good serves, or was stopped by its verb.
    at: the moment of the fault; `before`: before the run begins. controller: what happens to the run itself at that moment.
    then_arguments: {held} in them becomes the id of the transaction that is open then.
    new: the run launches another release of the lane, so that there is something to come back to.
    ends: whether the (last) run ends well. node: whom it must name (any: some node; controller: no node), empty where nothing is amiss. ids: any of these causes or checks.
    words: what its lines must hold where no row and no receipt has an id. serves: what serves afterwards, any of these.
    short: one of each kind, what `script/test full` has the time for.
    logs: nodes whose log of after the fault must be on the controller. seconds: from the fault to a line that tells.
    """

    id: str
    title: str
    fault: Sequence[Mapping[str, Mapping[str, Any] | None]] = ()
    from_state: str = "serving"
    at: str = "before"
    run: str = "launch"
    arguments: Sequence[str] = ()
    inventory: str = ""
    new: bool = False
    controller: str = ""
    then: str = ""
    then_arguments: Sequence[str] = ()
    ends: bool = False
    node: str = ""
    ids: Sequence[str] = ()
    words: str = ""
    serves: Sequence[str] = ("same",)
    logs: Sequence[str] = ()
    seconds: int = SLOW_SECONDS
    site: bool = False
    short: bool = False
    cut: bool = False

    def injectors(self) -> list[injectors.Injector]:
        """What injects it, in the order of the table."""
        return [injectors.KNOWN[name](**(words or {})) for one in self.fault for name, words in one.items()]


def problems(fault: Fault) -> list[str]:
    """What a line of the table can't mean."""
    found = []
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fault.id):
        found.append(f"id {fault.id!r}")
    for value, known in (
        (fault.from_state, FROM),
        (fault.at, ("before", *MOMENTS)),
        (fault.run, VERBS),
        (fault.controller, CONTROLLER),
        (fault.then, THEN),
        (fault.node, ("", "any", "controller", *NODES)),
        *((serves, SERVES) for serves in fault.serves),
        *((node, NODES) for node in fault.logs),
        *((name, tuple(injectors.KNOWN)) for one in fault.fault for name in one),
    ):
        if value not in known:
            found.append(f"{value!r} is none of {', '.join(filter(None, known))}")
    if not fault.serves:
        found.append("serves: what serves afterwards?")
    if not fault.ends and not (fault.ids or fault.words):
        found.append("a run that fails names something: ids or words")
    if fault.controller in ("kill", "sleep") and (fault.at == "before" or not fault.then):
        found.append("a run that is killed or sleeps needs a moment and what follows")
    if fault.seconds not in (NOTICE_SECONDS, SLOW_SECONDS):
        found.append(f"seconds {fault.seconds}")
    return found


def read(text: str) -> list[Fault]:
    """Faults of the table in their order. ValueError: what is wrong in which line."""
    faults = []
    for entry in yaml.safe_load(text):
        words = {"from_state" if key == "from" else str(key): value for key, value in entry.items()}
        if isinstance(words.get("fault"), dict):
            words["fault"] = [words["fault"]]
        if unknown := set(words) - {one.name for one in fields(Fault)}:
            raise ValueError(f"{entry.get('id')}: no such key: {', '.join(sorted(unknown))}")
        fault = Fault(**words)
        if wrong := problems(fault):
            raise ValueError(f"{fault.id}: {'; '.join(wrong)}")
        faults.append(fault)
    if len({fault.id for fault in faults}) != len(faults):
        raise ValueError("an id is there twice")
    return faults


def table() -> list[Fault]:
    return read((Path(__file__).parent / "table.yml").read_text(encoding="utf-8"))
