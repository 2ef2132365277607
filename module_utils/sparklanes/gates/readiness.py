# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Rules over what one Spark reported (`readiness_info`), or what its roles registered.

Gate A asks them while the old lane still serves, before anything is stopped; gate B after the stop (`gates.launch`).
A host that did not report, and one whose look failed, are failed rows, never gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import SKIP, Check, judged
from ansible.module_utils.sparklanes.common.registered import Look, look, look_again, words
from ansible.module_utils.sparklanes.common.sizes import GIB, size_bytes
from ansible.module_utils.sparklanes.docker.containers import serves as container_serves
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.release.transaction import (
    DEATHS_BEFORE_A_PERSON,
    DeploymentState,
    Transaction,
    refusal,
    unreadable,
)
from ansible.module_utils.sparklanes.release.transaction import deaths as transaction_deaths

Facts = Mapping[str, Any]


def reachable(hosts: Sequence[str], looks: Mapping[str, Look]) -> list[Check]:
    """Whether each host was reached, and whether the module that looked at it there came to its end."""
    made = []
    for host in hosts:
        seen = looks.get(host) or look(None)
        reached = seen.facts is not None or seen.broke
        made.append(
            judged(
                "NODE.REACHABLE",
                host,
                reached,
                "answers" if reached else seen.problem,
                "answers",
                f"Look at {host}: power, management network, ssh. Nothing was stopped or changed.",
            )
        )
        if seen.broke:
            made.append(judged("NODE.FACTS", host, None, seen.problem, "measured", look_again(host)))
    return made


def docker(host: str, facts: Facts) -> Check:
    engine = facts.get("docker") or {}
    error = engine.get("error") or ("" if engine.get("version") else "not measured")
    return judged(
        "NODE.DOCKER",
        host,
        not error,
        error or f"Docker {engine.get('version')}",
        "a daemon that answers",
        f"On {host}: systemctl status docker; journalctl -u docker.",
    )


def lock(host: str, facts: Facts, transaction: str, break_lock: str = "") -> Check:
    known = facts.get("transaction") or {}
    if known.get("unreadable"):
        why = "" if break_lock and break_lock == known.get("id") else str(known["unreadable"])
    else:
        # Its age is counted where it lies: the clock of a controller knows nothing of it.
        why = refusal(Transaction.from_dict(known), transaction, float(known.get("age_seconds") or 0), break_lock)
    # What to type belongs below the table: in a column it would be wrapped.
    found, _, remedy = why.partition(". ")
    return judged("LOCK.FREE", host, not why, found or "free", "free", remedy)


def deaths(facts: Mapping[str, Facts | None], deployment: str, forgotten: bool = False) -> list[Check]:
    """One count for a deployment: what any of its ranks tells, each death once. A host that told nothing is a row elsewhere."""
    made, states = [], []
    for host, known in facts.items():
        if why := unreadable(known):
            made.append(judged("DEATHS.EXPLAINED", host, None, why, "fewer than 2", "Nothing was stopped or changed."))
        elif known is not None:
            states.append(DeploymentState.from_dict(known.get("deployment_state")))
    if not states:
        return made
    died = transaction_deaths(states)
    many = len(died) >= DEATHS_BEFORE_A_PERSON
    found = f"{len(died)} unexplained" + (f": {'; '.join(died)}" if died else "")
    if forgotten and many:
        return [*made, Check("DEATHS.EXPLAINED", deployment, SKIP, f"{found}; forgotten by launch_forget_deaths=true")]
    remedy = "Read the saved logs, then launch with -e launch_forget_deaths=true."
    return [*made, judged("DEATHS.EXPLAINED", deployment, not many, found, "fewer than 2", remedy)]


def strangers(host: str, facts: Facts, deployment: str) -> Check:
    """What works on the GPU and is not ours, in a container or in none, and ranks of another deployment: named, refused, never stopped from here.

    What has the GPU counts, then what asked for it. Who does not tell may hide somebody.
    """
    boxes = {str(box.get("name")): box for box in facts.get("containers") or []}
    now = serving(facts)
    found: dict[str, None] = {}
    for process in now.processes:
        name = process.get("container")
        box = boxes.get(str(name)) if name else None
        if name is None:
            found[f"process {occupied.name_of(process)}, of which no container is known"] = None
        elif box is None:
            found[f"process {occupied.name_of(process)}" + (f" of container {name}" if name else "")] = None
        elif not _ours(box, deployment):
            found[_named(box)] = None
    for box in boxes.values():
        if container_serves(box) and not _ours(box, deployment):
            found[_named(box)] = None
    # A Spark whose look failed is a row of its own (NODE.DOCKER); whether somebody works here is not known then either.
    if now.unknown:
        found[f"not known: {now.unknown}"] = None
    return judged(
        "CONTAINER.FOREIGN",
        host,
        not found,
        ", ".join(found) or "none",
        "none",
        f"Stop it by hand if it may go (on {host}: docker stop -t 30 NAME, or end the process by its pid); a launch only stops what its deployment started."
        if not now.unknown
        else f"On {host}: docker ps; nvidia-smi. Both have to answer, so that a launch knows whom it would hurt.",
    )


def name_free(host: str, facts: Facts, spec: Facts) -> Check:
    """No container of somebody else has the name that this rank will have: it could not be made, after the stop."""
    name = str(spec.get("container") or "")
    taken = [box for box in facts.get("containers") or [] if box.get("name") == name and not _ours(box, str(spec["deployment"]))]
    found = "; ".join(
        f"{name} is a container that no launch started (image {box['image']}, {box.get('status')})" for box in taken
    )
    remedy = f"On {host}: docker rename {name} NAME, or remove it by hand; it is never touched from here."
    return judged("CONTAINER.NAME", host, not taken, found or "free", "free", remedy)


def nodes_kept(host: str, facts: Facts, hosts: Sequence[str]) -> Check:
    """Every Spark of the release that runs belongs to the deployment still: a rank on another one would be left running, unseen."""
    expected = "all Sparks of the release that serves"
    nodes = facts.get("current_nodes", [])  # nobody named any where nothing serves
    if nodes is None:
        release = (facts.get("deployment_state") or {}).get("current")
        remedy = (
            f"Bring release.json of release {release} back from another rank (it is the same on all), "
            if release
            else "Mend that, "
        ) + "or stop what serves first: playbooks/stop.yml with the inventory that it was launched with."
        return judged("DEPLOYMENT.NODES", host, None, f"not known: {facts.get('current_unread') or 'not read'}", expected, remedy)
    left = [node for node in nodes if node not in hosts]
    names = ", ".join(left)
    return judged(
        "DEPLOYMENT.NODES",
        host,
        not left,
        f"what serves runs on {names} too, which the deployment does not hold any more"
        if left
        else "the same Sparks as before, or more",
        expected,
        f"Stop it while {names} still belongs to the deployment: playbooks/stop.yml with the inventory as it was. Or on {names}: docker stop -t 30 "
        "CONTAINER, then here playbooks/stop.yml.",
    )


def _ours(box: Facts, deployment: str) -> bool:
    return bool(box.get("deployment")) and box.get("deployment") == deployment


def _named(box: Facts) -> str:
    owner = box.get("deployment")
    if owner:
        return f"{box['name']} (a rank of deployment {owner})"
    # Who has our label and not our name, or not the id that was noted at the start, was made by somebody else of what we made.
    return f"{box['name']} ({box['image']}{', a copy of a rank of ' + str(box['claims']) if box.get('claims') else ''})"


def serving(known: Facts) -> occupied.Seen:
    """What serves on a Spark, or may, from its `readiness_info`."""
    engine = known.get("docker") or {}
    if not engine.get("version"):
        engine = {"error": engine.get("error") or "it was not asked"}
    held = known.get("transaction") or {}
    open_ = [held.get("unreadable") or f"{held.get('id')} of {held.get('controller')}"] if held else []
    return occupied.of_facts(known.get("containers") or [], engine, known.get("gpu"), open_)


def returns_gib(known: Facts) -> float | None:
    """GiB that the ranks on a Spark give back when they stop, at most: what their processes hold on the GPU and their containers beside it.

    None where any of it is not told, or something else works on the GPU too, which stays.
    """
    ranks = {box["name"] for box in serving(known).containers if box.get("deployment")}
    processes = list((known.get("gpu") or {}).get("processes") or [])
    if not ranks or not processes or any(one.get("container") not in ranks for one in processes):
        return None
    on_gpu = [one.get("memory_bytes") for one in processes]
    beside = {one["container"]: one.get("container_bytes") for one in processes}
    if None in on_gpu or None in beside.values() or set(beside) != ranks:
        return None
    return float(sum(on_gpu) + sum(beside.values())) / GIB


def idle(host: str, seen: Look) -> Check:
    """Nothing that a test of the fabric or a new network would hurt: no rank, no container or process on the GPU, no open transaction."""
    now = occupied.Seen(unknown=seen.problem) if seen.facts is None else serving(seen.facts)
    found = [f"container {_named(box)}" for box in now.containers]
    found += [f"process {occupied.name_of(process)}" for process in now.processes]
    found += [f"transaction {transaction}" for transaction in now.transactions]
    found += [now.unknown] if now.unknown else []
    return judged(
        "NODE.IDLE",
        host,
        not found,
        ", ".join(found) or "nothing runs",
        "no rank, no GPU process, no open transaction",
        "Stop the deployment first: ansible-playbook playbooks/stop.yml. Nothing was touched.",
    )


def ports(host: str, facts: Facts, wanted: Sequence[Mapping[str, Any]], deployment: str, stopped: bool) -> list[Check]:
    """Each wanted port is free; before the stop it may still be held by a rank of this deployment itself."""
    made = []
    for want in wanted:
        holders = [
            entry
            for entry in facts.get("listeners") or []
            if int(entry["port"]) == int(want["port"]) and _meets(str(entry["address"]), str(want.get("address") or "*"))
        ]
        bad = [entry for entry in holders if stopped or entry.get("deployment") != deployment]
        names = ", ".join(
            f"container {entry['container']}"
            if entry.get("container")
            else f"process {entry.get('process') or '?'} (pid {entry.get('pid')})"
            for entry in bad
        )
        what = f"{want['purpose']} port {want['port']}"
        made.append(
            judged(
                "PORT.FREE",
                host,
                not bad,
                f"{what}: {'held by ' + names if bad else 'free'}",
                "free",
                f"End the holder on {host}, or choose another port for the lane (lane_port, lane_master_port).",
            )
        )
    return made


def _meets(held: str, wanted: str) -> bool:
    return "*" in (held, wanted) or wanted in ("0.0.0.0", "::") or held == wanted


def image(host: str, facts: Facts, reference: str) -> Check:
    """`facts["image"]` is what `ImageStore.find` recognised by the lane's digest or IDs."""
    found = facts.get("image")
    told = f"{reference.rpartition('@')[2][:19]} (by {found['how']})" if found else "not on this Spark"
    return judged("IMAGE.DIGEST", host, bool(found), told, reference, "Run site.yml, which brings the image and compares it.")


def staged(host: str, id_: str, result: Any) -> Check:
    """`result` is what a staging module that only looked registered: it passes where that says of itself that all is in place."""
    what, proof = STAGED[id_]
    seen = look(result)
    known = seen.facts or {}
    ok = seen.facts is not None and proof(known)
    pending = "; ".join(str(action) for action in known.get("actions") or [])
    found = what if ok else seen.problem or pending or words(known) or "the module does not say that all is in place"
    return judged(id_, host, ok, found, what, "Run site.yml, which stages it.")


def shared_memory(host: str, facts: Facts, options: Mapping[str, Any]) -> list[Check]:
    """With the host's IPC namespace a rank uses the Spark's /dev/shm; Docker's own shm size is ignored then."""
    if options.get("ipc") != "host":
        return []
    wanted = size_bytes(options.get("shm_size"))
    total = facts.get("shm_total_bytes")
    return [
        judged(
            "MEM.SHM",
            host,
            None if total is None else int(total) >= wanted,
            "not measured" if total is None else f"/dev/shm of {int(total) / GIB:.2f} GiB",
            f"≥ {wanted / GIB:.2f} GiB",
            f"On {host}: mount -o remount,size={options.get('shm_size')} /dev/shm, and the same in /etc/fstab.",
        )
    ]


def _weights_proof(facts: Facts) -> bool:
    return facts.get("staged") is True


def _overlays_proof(facts: Facts) -> bool:
    """overlay_stage names every mount only where it has read all files that are there, and what it lacks."""
    return isinstance(facts.get("mounts"), list) and facts.get("missing") == [] and facts.get("actions") == []


# Check id → what passes, and the proof of it in the module's result.
STAGED: dict[str, tuple[str, Callable[[Facts], bool]]] = {
    "WEIGHTS.STAGED": ("weights (and drafter) staged and verified", _weights_proof),
    "OVERLAYS.STAGED": ("overlays and extras staged and verified", _overlays_proof),
}


def wanted_ports(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ports that this rank's engine will bind: the API and the rendezvous, both on rank 0 alone."""
    if int(spec["rank"]) != 0:
        return []
    wanted = [{"purpose": "API", "address": spec["api"]["host"], "port": spec["api"]["port"]}]
    if int(spec["world_size"]) > 1 and spec.get("master"):
        # The rendezvous listens on every interface, whatever address it is given.
        wanted.append({"purpose": "rendezvous", "address": "*", "port": spec["master"]["port"]})
    return wanted


def stopped(host: str, facts: Facts, deployment: str) -> Check:
    left = [box["name"] for box in facts.get("containers") or [] if box.get("deployment") == deployment]
    return judged(
        "RANK.STOPPED", host, not left, ", ".join(left) or "no rank left", "no rank left", f"Look at {host}: docker ps -a."
    )


def gpu_idle(host: str, facts: Facts) -> Check:
    found = facts.get("gpu") or {}
    processes = found.get("processes")
    if found.get("error") or processes is None:
        return judged(
            "GPU.IDLE",
            host,
            None,
            found.get("error") or "not measured",
            "no compute process",
            f"On {host}: nvidia-smi. It has to answer.",
        )
    names = ", ".join(f"{entry['name']} (pid {entry['pid']})" for entry in processes)
    pids = " ".join(str(entry["pid"]) for entry in processes)
    return judged(
        "GPU.IDLE",
        host,
        not processes,
        names or "no compute process",
        "no compute process",
        f"On {host}, if they may go: sudo kill {pids}",
    )


def ranks_alive(hosts: Sequence[str], ranks: Mapping[str, Look], release: str) -> list[Check]:
    """Every rank's container runs this release. /health is no answer to this: it stays 200 over a dead worker."""
    made = []
    for host in hosts:
        seen = ranks.get(host) or look(None)
        if seen.facts is None:
            made.append(judged("RANK.ALIVE", host, None, seen.problem, f"runs release {release}", look_again(host)))
            continue
        rank, box = seen.facts, seen.facts.get("container") or {}
        if box.get("status") == "paused":  # Docker calls it running
            remedy = f"On {host}: docker unpause {box.get('name')}, by whom paused it."
            made.append(judged("RANK.ALIVE", host, False, f"{box.get('name')} is paused", f"runs release {release}", remedy))
            continue
        ok = bool(rank.get("running")) and rank.get("release") == release
        found = f"runs release {rank.get('release')}" if rank.get("running") else rank.get("progress") or "no container"
        name = box.get("name")
        remedy = (
            f"On {host}: docker logs --tail 100 {name}"
            if name
            else f"On {host}: docker ps -a; its saved logs: /var/log/sparklanes/"
        )
        made.append(judged("RANK.ALIVE", host, ok, found, f"runs release {release}", remedy))
    return made


def serves(hosts: Sequence[str], facts: Mapping[str, Facts | None], release: str) -> bool:
    """Whether every rank already runs this release, as a finished transaction left it.

    While one is open (an interrupted launch), the same release may well run, but in the middle of its boot.
    """
    return bool(hosts) and all(
        any(
            box.get("running") and box.get("deployment") and box.get("release") == release
            for box in (facts.get(host) or {}).get("containers") or []
        )
        and ((facts.get(host) or {}).get("deployment_state") or {}).get("current") == release
        and not (facts.get(host) or {}).get("transaction")
        for host in hosts
    )


def other_lane(facts: Facts, lane: str) -> str:
    """What serves on this Spark, or may, if it is something else than `lane`; empty where nothing does.

    A lane by its name; what a person started by hand has wishes that nobody knows.
    """
    now = serving(facts)
    names = [str(box.get("lane") or "") if box.get("deployment") else f"container {box.get('name')}" for box in now.containers]
    names += [f"process {occupied.name_of(process)}" for process in now.outside]
    names += [f"something unknown ({now.unknown})"] if now.unknown else []
    return next((name for name in names if name != lane), "")
