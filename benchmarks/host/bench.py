#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the host part costs on four Sparks that are as they should be.

    script/bench host [--cache DIR] [--folder DIR]

`modules`  module executions of the roles spark_kernel and page_cache, a node.
`gate`     seconds of gate A of a launch, without the look at weights and overlays: fabric, readiness, judgement.

Four light nodes of a sandbox, in a clone of HEAD, as benchmarks/converge does it; both are removed however it ends.
What the page cache unit costs in an hour is another benchmark.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.converge import bench as converge  # noqa: E402
from benchmarks.converge import reading  # noqa: E402
from benchmarks.figures import Figure  # noqa: E402

NODES = 4
AIM_MODULES, AIM_GATE = 4, 10
ROLES = ("spark_kernel", "page_cache")
# Roles whose tasks are the host part of the gate; those of model_weights and kernel_overlays look at what a lane brought.
GATE_ROLES = ("roce", "gates")
# One deployment of all four. No rank starts: a check of a launch ends after gate A, which finds one fault, the missing vLLM.
LIGHT_FAULTS = {"IMAGE.PINS"}
WISH = {"lane_nodes": NODES, "lane_tensor_parallel_size": NODES}


def task_seconds(output: str, roles: tuple[str, ...]) -> list[tuple[str, float]]:
    """Tasks of these roles with their seconds, from the recap that ansible.posix.profile_tasks prints."""
    found = re.findall(r"^(\S+) : (.+?) -{2,} +([\d.]+)s$", reading.COLOUR.sub("", output), re.M)
    return [(f"{role} : {name}", float(seconds)) for role, name, seconds in found if role in roles]


def faults(output: str) -> set[str]:
    """Ids of the checks that failed, from the tables of the gates."""
    return set(re.findall(r"^\s*FAIL +([A-Z_]+\.[A-Z_]+) ", reading.COLOUR.sub("", output), re.M))


def measure(bench: converge.Bench, cached: bool) -> Iterator[Figure]:
    converge.say(f"script/sandbox up --nodes {NODES} --light")
    bench.run("script/sandbox", "up", "--nodes", str(NODES), "--light")
    addresses = bench.nodes()
    (bench.clone / "inventory/sandbox/20-benchmark.yml").write_text(
        reading.inventory(converge.COUNTING_PYTHON, addresses, pairs=False)
    )
    for node in addresses:
        counting = reading.counting_python(converge.COUNT)
        bench.ssh(node, f"cat > {converge.COUNTING_PYTHON} && chmod 755 {converge.COUNTING_PYTHON}", counting)
    wish = ("-e", json.dumps(WISH))
    ansible = ("-i", "inventory/sandbox")
    converge.say("site.yml, to converge the nodes")
    bench.run("ansible-playbook", *ansible, "site.yml", "-l", "sparks", *wish, environment=bench.ansible("cp"))

    for node in addresses:
        bench.ssh(node, f"test -s {converge.COUNT} && : > {converge.COUNT}")  # it counted, so it is what Ansible uses
    outputs = [
        bench.run(
            "ansible", *ansible, "sparks", "-m", "include_role", "-a", f"name={role}", *wish, environment=bench.ansible("cp")
        )
        for role in ROLES
    ]
    counts = {node: len(bench.ssh(node, f"cat {converge.COUNT}").splitlines()) for node in addresses}
    changed = sum(output.count("| CHANGED") for output in outputs)
    note = " ".join(f"{node}:{count}" for node, count in counts.items())
    # 0 would mean that nothing was counted, not that nothing ran.
    yield Figure("host.modules", max(counts.values()) if all(counts.values()) else None, "a node", AIM_MODULES, note)
    yield Figure("host.changed", changed, "tasks", 0)

    converge.say("a check of a launch, measured")
    more = {
        "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.profile_tasks",
        "PROFILE_TASKS_TASK_OUTPUT_LIMIT": "all",
        "PROFILE_TASKS_SORT_ORDER": "none",
    }
    launch = ("ansible-playbook", *ansible, "playbooks/launch.yml", "-l", "sparks", "--check", *wish)
    output = bench.run(*launch, environment=bench.ansible("cp") | more, codes=(0, 2))
    if faults(output) != LIGHT_FAULTS:
        found = ", ".join(sorted(faults(output))) or "none"
        raise converge.BenchError(
            f"the gates found the faults {found}; expected {', '.join(LIGHT_FAULTS)}, as light nodes have no vLLM"
        )
    tasks = task_seconds(output, GATE_ROLES)
    if not any(task == "gates : Judge gate A" for task, _ in tasks):
        raise converge.BenchError("gate A was not reached")
    seconds = round(sum(seconds for _, seconds in tasks), 1)
    slowest = max(tasks, key=lambda task: task[1])
    yield Figure("host.gate", seconds, "s", AIM_GATE, f"{len(tasks)} tasks, {slowest[0]} {slowest[1]:.1f} s; {converge.load()}")


if __name__ == "__main__":
    sys.exit(converge.main("host", __doc__, {"nodes": measure}))
