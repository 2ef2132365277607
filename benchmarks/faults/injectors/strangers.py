# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Containers of somebody else that look like the product's own. They must be alive, and the same, afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.faults.injectors import Injector
from benchmarks.faults.nodes import DEPLOYMENT, Fleet


@dataclass
class Foreign(Injector, name="foreign_container"):
    """A container with the name of the rank, or with the product's labels under another name (as `docker commit` passes them on)."""

    node: str
    like: str = "name"  # or: label
    id: str = ""

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        name, labels = (node.container, "") if self.like == "name" else ("my-experiment", _labels(node.rank))
        self.id = node.do(f"docker run --detach --name {name} {labels} --entrypoint sleep {fleet.image} 3600").splitlines()[-1]

    def undo(self, fleet: Fleet) -> None:
        if self.id:
            fleet.node(self.node).attempt(f"docker rm --force {self.id}")

    def touched(self, fleet: Fleet) -> str:
        code, out = fleet.node(self.node).attempt(f"docker inspect --format '{{{{.State.Running}}}}' {self.id}")
        return "" if code == 0 and out.strip() == "true" else f"the container of somebody else on {self.node} was ended"


def _labels(rank: int) -> str:
    labels = {"deployment": DEPLOYMENT, "rank": str(rank), "release": "0123456789ab", "lane": "sandbox_tiny"}
    return " ".join(f"--label sparklanes.{name}={value}" for name, value in labels.items())
