# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The gates of a launch, each one function: what the roles registered on its hosts in, checks out.

`hostvars` are Ansible's, `hosts` the ranks of the deployment in order. `specs` and `lanes`: host → its rendered rank spec and its lane.
A host that did not answer, and one whose look failed, count as hosts of which nothing is known (`common.registered`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, Check, verdict
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, Look, answered, check_rows, look, looks, results
from ansible.module_utils.sparklanes.docker import container_stack, gpu_access
from ansible.module_utils.sparklanes.docker import images as docker_images
from ansible.module_utils.sparklanes.fabric import cluster as fabric_cluster
from ansible.module_utils.sparklanes.fabric import nccl_conf
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric.fact import fabrics_of
from ansible.module_utils.sparklanes.gates import exposure, readiness
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gates import image as gates_image
from ansible.module_utils.sparklanes.gates.preflight import CONTROLLER
from ansible.module_utils.sparklanes.gpu import rules as gpu_rules
from ansible.module_utils.sparklanes.host import room
from ansible.module_utils.sparklanes.lane import budget
from ansible.module_utils.sparklanes.lane.schema import Schema
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.quality import generation
from ansible.module_utils.sparklanes.traps import rules as traps_rules

# Check id → the variable in which a staging role registered its look.
STAGING = {"WEIGHTS.STAGED": "model_weights_result", "OVERLAYS.STAGED": "kernel_overlays_result"}


def reach(hostvars: HostVars, hosts: Sequence[str]) -> list[Check]:
    """The first look of a launch: every rank answers, and their fabrics belong together. Those of some of the ranks are not compared."""
    found = {host: _fabric_look(result) for host, result in results(hostvars, hosts, "__roce_found").items()}
    made = readiness.reachable(hosts, found)
    if all(seen.facts is not None for seen in found.values()):
        made += fabric_cluster.cluster_checks(fabrics_of(hostvars, hosts))
    return made


def _fabric_look(result: Any) -> Look:
    """A rank without need of a fabric was not asked; readiness_info will tell whether it is there."""
    if isinstance(result, Mapping) and result.get("skipped") and not result.get("unreachable"):
        return Look({})
    return look(result)


def reach_plans(hostvars: HostVars, hosts: Sequence[str], specs: Facts) -> dict[str, dict[str, Any]]:
    """Host → what its readiness_info is to try over the fabric."""
    return fabric_reach.plans(specs, fabrics_of(hostvars, hosts))


def gate_a(
    hostvars: HostVars,
    hosts: Sequence[str],
    specs: Facts,
    lanes: Facts,
    transaction: str,
    received: float,
    fatal: Sequence[str] = gates_hosts.FATAL,
    break_lock: str = "",
    forget_deaths: bool = False,
    receipts: str | None = None,
    schema: Schema | None = None,
) -> list[Check]:
    """Everything that can be known before the stop.

    transaction: the id under which this controller works; it may hold the lock already. received: when the hosts' facts were
    there, in seconds since the epoch. fatal: properties whose difference stops a launch. break_lock (the id of a lock), forget_deaths: a
    person's decisions.
    receipts: folder of this controller that logs and receipts are fetched to; where it is given, it is measured now.
    schema: the definition of a lane, by which the conditions of its traps are read; without it none is judged here.
    """
    found = looks(hostvars, hosts, "gates_readiness", "readiness")
    facts = {host: seen.facts for host, seen in found.items()}
    plans = reach_plans(hostvars, hosts, specs)
    kept = looks(hostvars, hosts, "gates_host", "host")
    made = readiness.reachable(hosts, found)
    if receipts is not None:
        made.append(room.check(CONTROLLER, room.measure({"receipts": receipts})))
    for host in hosts:
        known, spec = facts[host], specs[host]
        if known is None:
            continue
        deployment = str(spec["deployment"])
        made.append(readiness.docker(host, known))
        made.append(room.check(host, known.get("disk")))
        made.append(readiness.lock(host, known, transaction, break_lock))
        made.append(readiness.strangers(host, known, deployment))
        made.append(readiness.name_free(host, known, spec))
        made.append(readiness.nodes_kept(host, known, hosts))
        made += readiness.ports(host, known, readiness.wanted_ports(spec), deployment, stopped=False)
        made.append(readiness.image(host, known, str(spec["image"])))
        made += [readiness.staged(host, id_, hostvars[host].get(name)) for id_, name in STAGING.items()]
        made += exposure.remote_code(host, lanes.get(host) or {}, hostvars[host].get(STAGING["WEIGHTS.STAGED"]))
        if known.get("image"):
            made.append(nccl_conf.image_conf_check(host, known.get("image_conf"), spec))
        made += fabric_reach.gate_checks(host, plans.get(host) or {}, known, facts[hosts[0]])
        made += readiness.shared_memory(host, known, spec.get("options") or {})
        stack = (kept[host].facts or {}).get("docker") or {}
        options = spec.get("options") or {}
        made += container_stack.gpu_check(host, options, stack)
        made += container_stack.device_check(host, list(map(str, options.get("devices") or [])), known.get("devices"), stack)
        if gpu_access.of_options(options):
            made += gpu_rules.gate(host, known.get("gpu") or {})
    made += readiness.deaths(facts, str(specs[hosts[0]]["deployment"]), forget_deaths)
    images = {host: (known or {}).get("image") for host, known in facts.items()}
    if schema is not None:
        made += traps(hostvars, hosts, lanes, images, schema)
    made += docker_images.parity(images)
    made += budgets(facts, lanes)
    made += image_checks(images, lanes, specs)
    made += gates_hosts.hosts_kept(results(hostvars, hosts, "gates_host"), lanes, received, fatal, launch=True)
    return made


def budgets(facts: Mapping[str, Facts | None], lanes: Facts) -> list[Check]:
    """Whether the lane fits each Spark as it is now. A host that did not answer is a failed row of gate A already."""
    made = []
    for host, known in facts.items():
        lane = lanes.get(host)
        if known is None or not lane:
            continue
        idle = not readiness.serving(known).holder()
        made += budget.checks(lane, host, budget.Node.of(known.get("memory"), idle, readiness.returns_gib(known)))
    return made


def traps(
    hostvars: HostVars, hosts: Sequence[str], lanes: Facts, images: Mapping[str, Facts | None], options: Schema
) -> list[Check]:
    """The traps that only the files of a model and the libraries of an image show, each once with the hosts that walk into it."""
    versions = gates_image.measured(next((image["probe"] for image in images.values() if image and image.get("probe")), None))
    made: list[Check] = []
    for host in hosts:
        models = (look(hostvars[host].get(STAGING["WEIGHTS.STAGED"])).facts or {}).get("models") or []
        staged = {str(model.get("name")): model["gist"] for model in models if model.get("gist")} or None
        if lanes.get(host):
            made += traps_rules.measured_checks(lanes[host], host, options, staged, versions)
    return made


def image_checks(images: Mapping[str, Facts | None], lanes: Facts, specs: Facts) -> list[Check]:
    """Whether the image holds what the lane says. One Spark is asked for all, as IMAGE.PARITY makes sure that they hold one image."""
    if not any(images.values()):
        return []  # IMAGE.DIGEST says so
    host = next((host for host, image in images.items() if image and image.get("probe")), next(iter(specs)))
    return gates_image.checks(host, (images[host] or {}).get("probe"), lanes.get(host) or {}, specs[host])


def gate_b(hostvars: HostVars, hosts: Sequence[str], specs: Facts, lanes: Facts) -> list[Check]:
    """After the stop: nothing of the old ranks left, ports and GPU free, memory there."""
    found = looks(hostvars, hosts, "gates_readiness", "readiness")
    settled = results(hostvars, hosts, "gates_settled")
    made = readiness.reachable(hosts, found)
    for host in hosts:
        known, spec = found[host].facts, specs[host]
        if known is None:
            continue
        made.append(readiness.stopped(host, known, str(spec["deployment"])))
        made += readiness.ports(host, known, readiness.wanted_ports(spec), str(spec["deployment"]), stopped=True)
        if gpu_access.of_options(spec.get("options") or {}):
            made.append(readiness.gpu_idle(host, known))
        made += check_rows(settled[host], "MEM.SETTLED", host, "memory settled and touched", f"Look at /proc/meminfo of {host}.")
        if lanes.get(host):
            # Nothing runs any more: what the engine will ask for at its start can be compared.
            made += budget.check_utilization(lanes[host], host, budget.Node.of(known.get("memory"), idle=True))
    return made


def ranks_alive(hostvars: HostVars, hosts: Sequence[str], release: str) -> list[Check]:
    """Whether every rank's container runs this release, and none is paused."""
    return readiness.ranks_alive(hosts, looks(hostvars, hosts, "gates_rank"), release)


def alive(hostvars: HostVars, hosts: Sequence[str], release: str, lanes: Facts | None = None) -> list[Check]:
    """Every rank's container runs this release, and rank 0 gave a real generation: text, drafts and sizes as its lane says, where given."""
    head = hosts[0]
    remedy = f"Ask it by hand on {head}, and read the log of each rank."
    made = ranks_alive(hostvars, hosts, release)
    probe = hostvars[head].get("gates_probe")
    if verdict(made) == FAIL and (not isinstance(probe, Mapping) or probe.get("skipped")):
        return made  # an engine without one of its ranks is not asked: it would hang until each question has timed out
    made += check_rows(probe, "ENGINE.HEALTH", head, "a real generation", remedy)
    told = (answered(probe) or {}).get("facts")
    lane = (lanes or {}).get(head)
    if told and lane:
        logs = {host: (answered(hostvars[host].get("gates_rank")) or {}).get("log") for host in hosts}
        made += generation.checks(head, told, logs, lane, View(lane).speculation)
    return made


def serves(hostvars: HostVars, hosts: Sequence[str], release: str, name: str) -> bool:
    """Whether every rank already runs this release. `name`: of the variable in which readiness_info was registered."""
    facts = {host: seen.facts for host, seen in looks(hostvars, hosts, name, "readiness").items()}
    return readiness.serves(list(facts), facts, release)


def idle(hostvars: HostVars, hosts: Sequence[str], name: str) -> list[Check]:
    """Whether nothing runs on any of these hosts. `name`: of the variable in which readiness_info was registered."""
    return [readiness.idle(host, seen) for host, seen in looks(hostvars, hosts, name, "readiness").items()]


def other_lane(result: Any, lane: str | None) -> str:
    """The lane that serves on a host, if it is another one. `result`: of readiness_info."""
    known = look(result, "readiness").facts
    return readiness.other_lane(known, lane or "") if known else ""
