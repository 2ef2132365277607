# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Room on the disks that models go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.disk import device, free_bytes
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.weights.model import Model, StagingError


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
        total = sum(needed for _, _, needed in here)
        try:
            room = free(here[0][1])
        except OSError as error:
            raise StagingError(f"{host}: how much room {here[0][1]} has can't be measured ({error.strerror or error})") from error
        if total + reserve > room:
            names = " and ".join(name for name, _, _ in here)
            raise StagingError(
                f"{host}: {names} {'needs' if len(here) == 1 else 'need'} {human_bytes(total)} more in"
                f" {' and '.join(path for _, path, _ in here)}, and {human_bytes(reserve)} are to stay free;"
                f" {human_bytes(room)} are free. Remove models that no lane uses, or stage elsewhere"
            )
