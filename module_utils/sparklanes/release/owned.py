# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which containers of a Spark are ours: by name, by label, and by the id that was noted when it was started.

A label alone proves nothing: a `docker commit` of a rank inherits it, and what a person makes of that is theirs. What version 0.1
started has no note; it is ours by name and label, until it is touched and its id noted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import record
from ansible.module_utils.sparklanes.common.files import Unreadable, read_state, write_json
from ansible.module_utils.sparklanes.docker.containers import LABEL_DEPLOYMENT, Container, Docker
from ansible.module_utils.sparklanes.release.store import Store


def _path(store: Store) -> Path:
    return store.folder / "container.json"


def noted(store: Store) -> Mapping[str, Any] | None:
    """`name` and `id` of the container that was started last; None where nothing ever was, Unreadable where that is not known."""
    try:
        data, mark = read_state(_path(store))
        if data is not None and not (record.text(data.get("id")) and record.text(data.get("name"))):
            raise Unreadable(_path(store), "it has no name and id", mark)
    except Unreadable as error:
        so = (
            f", so which container is the rank is not known. On that Spark: docker ps --all --filter label={LABEL_DEPLOYMENT}={store.deployment}; "
            f"where all of these are its ranks and no copies, mv {error.path} {error.path}.broken: then they count as ours"
        )
        raise Unreadable(error.path, error.why, error.mark, so) from error
    return data


def note(store: Store, name: str, id_: str) -> None:
    """Remember a container of ours. Before it is made its id is not known, and empty."""
    write_json(_path(store), {"name": name, "id": id_})


def is_ours(box: Container, known: Mapping[str, Any] | None) -> bool:
    """Whether a container with our name and label is the one that was noted.

    One that was never started may come from an attempt that ended before it could note the id.
    """
    if known is None or known["id"] == box.id:
        return True
    return not known["id"] and known["name"] == box.name and box.status == "created"


def ours(docker: Docker, store: Store, write: bool = True) -> list[Container]:
    """The containers of a deployment on this Spark. Unreadable where which they are is not known."""
    known = noted(store)
    found = [
        box
        for box in docker.containers(f"label={LABEL_DEPLOYMENT}={store.deployment}")
        if box.deployment == store.deployment and is_ours(box, known)
    ]
    if known is None and found and write:
        # It is ours all the same where the disk has no room for the note.
        with contextlib.suppress(OSError):
            note(store, found[0].name, found[0].id)
    return found


def told(boxes: Iterable[Container], root: str) -> list[Container]:
    """All containers, those marked as foreign that have our name and label and are not the one that was noted, or may not be."""
    made = []
    for box in boxes:
        foreign = False
        if box.deployment:
            try:
                foreign = not is_ours(box, noted(Store(box.deployment, root)))
            except ValueError:  # Unreadable, or a label that no deployment of ours can have
                foreign = True
        made.append(replace(box, foreign=foreign))
    return made
