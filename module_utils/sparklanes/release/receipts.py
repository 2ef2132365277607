# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The receipt of an attempt on the controller: there from its beginning, so that one that was refused or interrupted leaves one too.

The folder is `artifacts/<deployment>/<transaction>/`; role rank replaces the receipt by a whole one where the attempt ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.release import controller

BEGUN = "begun"
REFUSED = "refused"  # it ended before a lock was taken: nothing was stopped
FAILED = "failed"
INTERRUPTED = "interrupted"
DONE = "done"


def begin(folder: Path, attempt: Mapping[str, Any]) -> bool:
    """Leave a receipt that says begun. Whether the attempt is a new one: a launch that goes on after ctrl-C has its receipt already."""
    path = folder / "receipt.json"
    known = read_json(path)
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_json(path, {**(known or {}), **attempt, "outcome": {"status": BEGUN}})
    return known is None


def end(folder: Path, status: str, reason: str, more: Mapping[str, Any]) -> None:
    """Say how the attempt ended, where nothing better was said. more: what else is known by now (gates)."""
    path = folder / "receipt.json"
    known = read_json(path) or {}
    if (known.get("outcome") or {}).get("status") == BEGUN:
        write_json(path, {**known, **more, "outcome": {"status": status, "reason": reason}})


def forget(folder: Path, transaction: str, where: str = "") -> None:
    """An attempt that took no lock is none that a later run could go on with. folder: of the deployment. where: as `release.controller`."""
    note = controller.forgettable(folder, transaction, where)
    if note:
        Path(note).unlink(missing_ok=True)
