# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the node and its container: memory and ports."""

from __future__ import annotations

from collections.abc import Iterator

from ansible.module_utils.sparklanes.common.sizes import GIB, size_or_none
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.memory.facts import SPARK_GIB
from ansible.module_utils.sparklanes.traps.frame import ADVISE, REFUSE, Rules

RULES = Rules()

# Outgoing connections take their ports from here (Linux, net.ipv4.ip_local_port_range).
EPHEMERAL = range(32768, 61000)


@RULES.add(
    "MEMORY_SIZES",
    REFUSE,
    want="sizes as 112g, memory_swap not below memory and not without it",
    remedy="Correct lane_container: memory and memory_swap are equal where the rank shall not swap.",
    source="Docker reference",
)
def sizes(view: View) -> Iterator[str]:
    """The memory limits of a container are sizes that Docker takes.

    It refuses others when the rank starts, after the old one was stopped.
    """
    container = view.lane["lane_container"]
    memory, swap = size_or_none(container["memory"]), size_or_none(container["memory_swap"])
    for key in ("memory", "memory_swap", "shm_size"):
        found = size_or_none(container[key])
        if container[key] is not None and (not found or (found < 0 and key == "shm_size")):
            yield f"lane_container.{key} {container[key]!r} is no size"
    if container["memory_swap"] is not None and container["memory"] is None:
        yield "lane_container.memory_swap without memory"
    elif swap and memory and 0 < swap < memory:
        yield f"lane_container.memory_swap {container['memory_swap']} is less than memory {container['memory']}"


@RULES.add(
    "MEMORY_CAP",
    ADVISE,
    want=f"less than {SPARK_GIB} GiB, all that a Spark has",
    remedy="Set lane_container.memory to 112g (118g on the W4A16 lanes), or leave it out.",
    source="Flash 2x notes; W4A16 card: launcher; AEON-7/vllm-ultimate-dgx-spark 9",
)
def cap(view: View) -> Iterator[str]:
    """A memory cap is below what a Spark has, or there is none.

    Above it, it never acts. It bounds host memory only: what the GPU allocates of the same memory is not counted.
    """
    memory = size_or_none(view.lane["lane_container"]["memory"])
    if view.spark and memory and memory >= SPARK_GIB * GIB:
        yield f"lane_container.memory {view.lane['lane_container']['memory']}"


@RULES.add(
    "PORT_RANGE",
    ADVISE,
    want="1024 to 32767",
    remedy="Set lane_port and lane_master_port to ports below 32768 that nothing else uses.",
    source="Linux: net.ipv4.ip_local_port_range",
)
def ports(view: View) -> Iterator[str]:
    """Ports of a lane are neither the system's nor those of outgoing connections.

    An ssh session or a download may hold such a port at the moment of the start: "address already in use", sometimes.
    """
    for name in ("lane_port", "lane_master_port"):
        if view.lane[name] < 1024 or view.lane[name] in EPHEMERAL:
            yield f"{name} {view.lane[name]}"
