# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a launch makes of the results that its hosts registered: checks of the gates, what serves, why it failed, what to restore.

A host that did not answer, and one whose look failed, count as hosts of which nothing is known (`common.registered`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import failures, judged
from ansible.module_utils.sparklanes.common.registered import Look, answered, look
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.fabric import bandwidth
from ansible.module_utils.sparklanes.fabric import cluster as fabric_cluster
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.gates import image as gates_image
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.lane import budget
from ansible.module_utils.sparklanes.release import restore as release_restore
from ansible.module_utils.sparklanes.release import status as release_status
from ansible.module_utils.sparklanes.release import store as release_store

Facts = Mapping[str, Any]


def gate_a(
    registered: Facts,
    specs: Facts,
    staging: Facts,
    fabrics: Facts,
    transaction: str,
    now: float,
    break_lock: bool = False,
    forget_deaths: bool = False,
) -> list[dict[str, str]]:
    """Checks of gate A. `registered`: host → result of readiness_info; `fabrics`: host → roce_fabric."""
    hosts = list(specs)
    made = readiness.gate_a(
        hosts,
        {host: look(registered.get(host), "readiness") for host in hosts},
        specs,
        staging,
        transaction,
        now,
        fabric_reach.plans(specs, fabrics),
        bool(break_lock),
        bool(forget_deaths),
    )
    return [check.to_dict() for check in made]


def images(registered: Facts, lanes: Facts, specs: Facts) -> list[dict[str, str]]:
    """Whether the image holds what the lane says. One Spark is asked for all, as IMAGE.PARITY makes sure that they hold one image.

    registered: host → result of readiness_info; lanes: host → its lane; specs: host → its rank spec.
    """
    known = {host: (look(registered.get(host), "readiness").facts or {}).get("image") for host in specs}
    if not any(known.values()):
        return []  # IMAGE.DIGEST says so
    host = next((host for host, image in known.items() if image and image.get("probe")), next(iter(specs)))
    probe = (known[host] or {}).get("probe")
    return [check.to_dict() for check in gates_image.checks(host, probe, lanes.get(host) or {}, specs[host])]


def budgets(registered: Facts, lanes: Facts) -> list[dict[str, str]]:
    """Whether the lane fits each Spark as it is now. `registered`: host → result of readiness_info; `lanes`: host → its lane.

    A host that did not answer is a failed row of gate A already.
    """
    made = []
    for host, lane in lanes.items():
        facts = look(registered.get(host), "readiness").facts
        if facts is None or not lane:
            continue
        now = readiness.serving(facts)
        idle = not now.containers and not now.processes  # memory that is short for no known reason counts as short
        made += budget.checks(lane, host, budget.Node.of(facts.get("memory"), idle))
    return [check.to_dict() for check in made]


def reach(registered: Facts, fabrics: Facts) -> list[dict[str, str]]:
    """The first look of a launch: every rank answers, and their fabrics belong together.

    registered: host → result of roce_facts, in rank order. Fabrics of some of the ranks are not compared.
    """
    hosts = list(registered)
    there = {host: _fabric_look(registered.get(host)) for host in hosts}
    made = readiness.reachable(hosts, there)
    if all(seen.facts is not None for seen in there.values()):
        made += fabric_cluster.cluster_checks({host: dict(fabrics.get(host) or {}) for host in hosts})
    return [check.to_dict() for check in made]


def _fabric_look(result: Any) -> Look:
    """A rank without need of a fabric was not asked; readiness_info will tell whether it is there."""
    if isinstance(result, Mapping) and result.get("skipped") and not result.get("unreachable"):
        return Look({})
    return look(result)


def identities(specs: Facts, hostvars: Facts) -> list[dict[str, Any]]:
    """What each rank runs and reads, for the gate that compares them: {rank, node, image, overlays, weights}."""
    return [
        {
            "rank": spec["rank"],
            "node": host,
            "image": str(spec["image"]).rpartition("@")[2],
            "overlays": sorted(str(mount["source"]) for mount in spec["mounts"] if "/overlays/" in str(mount["source"])),
            "weights": weights_of(answered(hostvars[host].get("model_weights_result")) or {}),
        }
        for host, spec in specs.items()
    ]


def weights_of(result: Facts) -> list[Any]:
    """What names the models that a staging result found complete."""
    return [[model.get("name"), model.get("revision"), model.get("manifest_sha256")] for model in result.get("models") or []]


def staging_of(variables: Facts) -> dict[str, Any]:
    """What the looks of the staging roles registered for one host, by check id."""
    return {"WEIGHTS.STAGED": variables.get("model_weights_result"), "OVERLAYS.STAGED": variables.get("kernel_overlays_result")}


def gate_b(registered: Facts, specs: Facts, settled: Facts, lanes: Facts | None = None) -> list[dict[str, str]]:
    """Checks of gate B. `registered`, `settled`: host → result of readiness_info and of memory_settle; `lanes`: host → its lane."""
    hosts = list(specs)
    looks = {host: look(registered.get(host), "readiness") for host in hosts}
    made = readiness.gate_b(hosts, looks, specs, settled)
    for host, seen in looks.items():
        lane = (lanes or {}).get(host)
        if seen.facts is not None and lane:
            # Nothing runs any more: what the engine will ask for at its start can be compared.
            made += budget.check_utilization(lane, host, budget.Node.of(seen.facts.get("memory"), idle=True))
    return [check.to_dict() for check in made]


def idle(registered: Facts, hosts: Sequence[str]) -> list[dict[str, str]]:
    """Whether nothing runs on any of these hosts. `registered`: host → result of readiness_info; a missing one counts as busy."""
    return [readiness.idle(host, look(registered.get(host), "readiness")).to_dict() for host in hosts]


def bandwidth_checks(registered: Facts, fabrics: Facts) -> list[dict[str, str]]:
    """`registered`: host → result of fabric_bandwidth; `fabrics`: host → roce_fabric, in rank order."""
    made = []
    for host, mine in bandwidth.plan(fabrics).items():
        seen = look(registered.get(host))
        measured = (seen.facts or {}).get("measured")
        if not isinstance(measured, list):
            why = seen.problem or "the module gave no measured"
            measured = [{"port": test["port"], "error": why} for test in mine["measure"]]
        made += bandwidth.checks(host, mine["measure"], measured)
    return [check.to_dict() for check in made]


def network_plan(settings: Facts, registered: Facts, present: bool = True) -> dict[str, Any]:
    """Rails of each host and all checks of them. `registered`: host → result of fabric_network_info."""
    infos = {host: look(registered.get(host)) for host in settings}
    rails, made = fabric_addresses.judge(settings, infos, bool(present))
    return {"rails": rails, "checks": [check.to_dict() for check in made]}


def network_probes(rails: Facts, mtu: int) -> dict[str, list[dict[str, Any]]]:
    """Host → pings that prove the new addresses."""
    return fabric_reach.plan(fabric_addresses.as_fabrics(rails, int(mtu)))


def network_proof(tried: Facts, pinged: Facts, rails: Facts, mtu: int) -> list[dict[str, str]]:
    """Whether every host took the new network and its peers answer. `tried`, `pinged`: host → results of fabric_network."""
    made = []
    probes = network_probes(rails, mtu)
    for host, result in tried.items():
        seen = look(result)
        remedy = "" if seen.broke else "Its timer takes the network back by itself."
        made.append(judged("NETPLAN.APPLIED", host, seen.facts is not None, seen.problem or "applied", "applied", remedy))
        asked = look(pinged.get(host))
        if pinged.get(host) and probes.get(host):
            made += failures(readiness.reachable([host], {host: asked}))
        made += fabric_reach.peer_checks(host, probes.get(host) or [], (asked.facts or {}).get("probes"))
    return [check.to_dict() for check in made]


def ranks_alive(registered: Facts, hosts: Sequence[str], release: str) -> list[dict[str, str]]:
    looks = {host: look(registered.get(host)) for host in hosts}
    return [check.to_dict() for check in readiness.ranks_alive(hosts, looks, release)]


def serves(registered: Facts, release: str) -> bool:
    """Whether every rank already runs this release. `registered`: host → result of readiness_info."""
    facts = {host: look(result, "readiness").facts for host, result in registered.items()}
    return readiness.serves(list(facts), facts, release)


def other_lane(result: Facts, lane: str | None) -> str:
    """The lane that serves on a host, if it is another one. `result`: of readiness_info."""
    known = look(result, "readiness").facts
    return readiness.other_lane(known, lane or "") if known else ""


def status_lines(hostvars: Facts, hosts: Sequence[str]) -> list[str]:
    """What playbooks/status.yml shows for one deployment."""
    rows = []
    for host in hosts:
        known = hostvars[host]
        looked, rank = look(known.get("status_readiness"), "readiness"), look(known.get("status_rank"))
        rows.append(release_status.Row(host, looked, rank, dict(known.get("roce_fabric") or {})))
    return release_status.lines(rows)


def reason(registered: Facts, failure: Facts) -> dict[str, Any]:
    """Why a launch failed. `registered`: host → result of rank_info."""
    return release_restore.reason({host: look(result) for host, result in registered.items()}, failure)


def what_to_restore(registered: Facts, why: Facts, failed_release: str, forget_deaths: bool = False) -> dict[str, Any]:
    """`registered`: host → result of readiness_info."""
    now = {host: look(one, "readiness") for host, one in registered.items()}
    return release_restore.restore(now, why, failed_release, bool(forget_deaths))


def release_id(specs: Facts, identity: Facts) -> str:
    """The id of the release that these rank specs (host → spec) and this identity make."""
    return release_store.release_id([specs[host] for host in specs], identity)
