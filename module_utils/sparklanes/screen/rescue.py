# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a failure is the end: the blocks around a task, as Ansible keeps them."""

from __future__ import annotations

from typing import Any


def rescuers(task: Any) -> list[Any] | None:
    """The tasks that take over where this one fails, or None. Those of a rescue are themselves rescued only by a block around theirs."""
    child, parent = task, task._parent
    while parent is not None:
        rescue = getattr(parent, "rescue", None)
        if rescue and any(one._uuid == child._uuid for one in parent.block):
            return flat(rescue)
        child, parent = parent, parent._parent
    return None


def flat(tasks: list[Any]) -> list[Any]:
    """The tasks of a list of tasks and blocks."""
    return [found for one in tasks for found in (flat(one.block) if hasattr(one, "block") else [one])]


def left_to_others(task: Any) -> bool:
    """Whether the rescue of this task does nothing: then whoever judges what it registered says what failed."""
    found = rescuers(task)
    return found is not None and all(str(one.action).endswith("meta") for one in found)
