# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on the disks that models go to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.weights.model import Model, StagingError


def free_bytes(path: str) -> int:
    """Free space where a path is or will be."""
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    stat = os.statvfs(folder)
    return int(stat.f_bavail * stat.f_frsize)


def device(path: str) -> int:
    """The file system where a path is or will be."""
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


def check_room(
    host: str,
    needs: Sequence[tuple[Model, int]],
    reserve: int,
    also: Sequence[Mapping[str, Any]] = (),
    free: Callable[[str], int] = free_bytes,
    disk: Callable[[str], int] = device,
) -> None:
    """Refuse before the first byte what can't end well. What goes to one disk shares what is free there.

    `also`: what else is to come, as the image: {what, path, bytes}.
    """
    wanted = [(model.name, model.path, needed) for model, needed in needs if needed]
    if not wanted:
        return
    wanted += [(str(one["what"]), str(one["path"]), int(one["bytes"])) for one in also if int(one["bytes"]) > 0]
    for number in {disk(path) for _, path, _ in wanted}:
        here = [one for one in wanted if disk(one[1]) == number]
        total, room = sum(needed for _, _, needed in here), free(here[0][1])
        if total + reserve > room:
            names = " and ".join(name for name, _, _ in here)
            raise StagingError(
                f"{host}: {names} {'needs' if len(here) == 1 else 'need'} {human_bytes(total)} more in"
                f" {' and '.join(path for _, path, _ in here)}, and {human_bytes(reserve)} are to stay free;"
                f" {human_bytes(room)} are free. Remove models that no lane uses, or stage elsewhere"
            )
