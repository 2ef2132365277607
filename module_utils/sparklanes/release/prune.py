# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What of the staged things on a Spark nobody needs any more: a rule over what is there and what refers to it.

Kept is what a release refers to (of those that run, would be restored, or are being moved to), what the chosen lane needs,
and what a container uses. Only what this project brought is ever named: images that it noted, and files below its own folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.common.tables import columns


@dataclass(frozen=True)
class Item:
    """Something staged: kind (release, image, overlay, jit_cache, model, leftover), its name or path, and its size."""

    kind: str
    name: str
    size: int = 0
    # Other names under which it may be referred to.
    also: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        del data["also"]
        return data


@dataclass
class Needed:
    """Names and paths that something refers to."""

    images: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)

    def add_spec(self, spec: Mapping[str, Any]) -> None:
        """A rank spec: its image under all names, what it mounts, its cache."""
        self.add_image(str(spec.get("image", "")), spec.get("image_ids") or [])
        self.paths |= {str(mount["source"]) for mount in spec.get("mounts") or []}
        if spec.get("jit_cache"):
            self.paths.add(str(spec["jit_cache"]))

    def add_image(self, reference: str, ids: Iterable[str] = ()) -> None:
        self.images |= {reference, reference.rpartition("@")[2], *ids} - {""}

    def refers_to(self, item: Item) -> bool:
        if item.kind == "image":
            return bool(self.images & {item.name, *item.also})
        # A mount below a folder needs the folder, and a mount of a folder needs what is below.
        return any(
            path == item.name or path.startswith(item.name + "/") or item.name.startswith(path.rstrip("/") + "/")
            for path in self.paths
        )


def unneeded(items: Sequence[Item], needed: Needed, releases: Iterable[str] = ()) -> list[Item]:
    """Items that may go; releases are judged by `releases.unreferenced` and given by name."""
    gone = set(releases)
    return [item for item in items if (item.name in gone if item.kind == "release" else not needed.refers_to(item))]


def table(items: Sequence[Mapping[str, Any]]) -> str:
    """For a person: kind, size, name, and the sum."""
    if not items:
        return "nothing to prune"
    rows = [(str(item["kind"]), f"{item['size'] / GIB:.2f} GiB", str(item["name"])) for item in items]
    total = sum(item["size"] for item in items) / GIB
    return "\n".join(columns([*rows, ("together", f"{total:.2f} GiB")], right={1}, least=(10, 12)))
