# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the node and its container: memory, ports, swap, page cache, compilers."""

from __future__ import annotations

from collections.abc import Iterator

from ansible.module_utils.sparklanes.common.sizes import GIB, size_or_none
from ansible.module_utils.sparklanes.lane.view import View, number
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


@RULES.add(
    "SWAPPINESS_743B",
    ADVISE,
    want="10",
    remedy="Set lane_swappiness: 10 for this lane.",
    source="743B README: memory, point 3. Flash lanes want 0: it is a matter of the stack",
)
def swappiness_big(view: View) -> Iterator[str]:
    """The 743B lanes run at a swappiness of 10.

    At 0 or 1 the node wedges with 16 GB of swap untouched.
    """
    if view.spark and view.big and view.lane["lane_swappiness"] < 10:
        yield f"lane_swappiness {view.lane['lane_swappiness']}"


@RULES.add(
    "SWAPPINESS_FLASH",
    ADVISE,
    want="0",
    remedy="Set lane_swappiness: 0 for this lane; swap itself stays on.",
    source="Flash 2x README: KV pool ceiling, operational note",
)
def swappiness_flash(view: View) -> Iterator[str]:
    """Flash in NVFP4 loads at a swappiness of 0.

    Paging the engine out in the middle of loading ends in a livelock of the driver that does not recover.
    """
    if view.spark and view.flash and view.nvfp4 and view.lane["lane_swappiness"] > 0:
        yield f"lane_swappiness {view.lane['lane_swappiness']}"


@RULES.add(
    "PAGE_CACHE",
    ADVISE,
    want="boot_only or interval",
    remedy="Set lane_page_cache_policy: interval (743B lanes) or boot_only.",
    source="743B README: memory, point 1; FP8 TP4 recipe: the memory wall",
)
def page_cache(view: View) -> Iterator[str]:
    """While a lane of GLM-5.3 loads, the page cache is dropped.

    The driver does not evict it to get memory: with 37 GiB of cache CUDA saw 74 of 122 GiB. On the 743B lanes a policy
    that waits for a threshold can wait until it is too late.
    """
    policy = view.lane["lane_page_cache_policy"]
    if view.spark and (view.big or view.flash) and (policy == "off" or (view.big and policy == "floor")):
        yield f"lane_page_cache_policy {policy}"


@RULES.add(
    "COMPILE_JOBS",
    ADVISE,
    want="2",
    remedy='Set MAX_JOBS: "2" in lane_engine_env.',
    source="Flash 2x notes: JIT storm",
)
def jobs(view: View) -> Iterator[str]:
    """At most two compilers run at once on a Spark.

    More run it out of memory while the model loads.
    """
    given = number(view.env.get("MAX_JOBS"))
    if view.spark and given and given > 2:
        yield f"MAX_JOBS {given:g}"


@RULES.add(
    "BOOT_STAGGER",
    ADVISE,
    want="25 seconds",
    remedy="Set lane_boot_stagger_seconds: 25.",
    source="W4A16 card: serving on SM121; Flash 2x README: quickstart",
)
def stagger(view: View) -> Iterator[str]:
    """On two Sparks, the head of Flash with a drafter starts 25 seconds after the worker.

    Both launchers call it mandatory; why is not said.
    """
    if view.spark and view.flash and view.dflash and view.nodes == 2 and view.lane["lane_boot_stagger_seconds"] < 25:
        yield f"lane_boot_stagger_seconds {view.lane['lane_boot_stagger_seconds']}"
