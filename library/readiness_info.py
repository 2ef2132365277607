#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Report what a launch must know of this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: readiness_info
short_description: Report what a launch must know of this Spark
description:
  - Reads, in one execution, Docker, containers, listening ports, GPU processes, memory, /dev/shm, the local image,
    the deployment's state and lock, and whether the other ranks answer over each rail of the fabric.
  - With O(master_port) rank 0 listens for some seconds on the rendezvous port, and the other ranks connect to it. Where a rank of this
    Spark has a connection to that port already, that is the answer.
  - With O(image) it reads C(nccl.conf) out of the image, through a container that is created, never started and removed.
  - It judges nothing. What could not be read is said in its place, so that a gate can fail on it.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  image:
    description: Reference (C(repository@digest), or an ID) of the image that is looked for.
    type: str
  image_ids:
    description: IDs that mean this image too.
    type: list
    elements: str
    default: []
  devices:
    description: What the rank asks for by C(--device). Each is looked at, none is opened.
    type: list
    elements: str
    default: []
  probes:
    description: Pings over the rails, all at once. None may be fragmented; a small one follows where it fails.
    type: list
    elements: dict
    default: []
    suboptions:
      peer:
        description: Name of the other Spark.
        type: str
        required: true
      rail:
        description: Number of the rail.
        type: str
        required: true
      ifname:
        description: Network device that the ping is bound to.
        type: str
        required: true
      source:
        description: Address that the ping is bound to.
        type: str
        required: true
      address:
        description: Address of the other Spark on that rail.
        type: str
        required: true
      size:
        description: Bytes of data, the MTU less the headers.
        type: int
        required: true
  exchange:
    description:
      - Send bytes to and fro over TCP as well, by O(probes). The other ranks must do so at the same time; for some seconds a port of the
        fabric is listened on.
    type: bool
    default: false
  master_port:
    description: The end of the rendezvous port that this rank tries.
    type: dict
    suboptions:
      address:
        description: Fabric address of rank 0.
        type: str
        required: true
      port:
        description: The port.
        type: int
        required: true
      listen_for:
        description: Rank 0 listens, at most some seconds, until so many others have connected.
        type: int
      source:
        description: Address that another rank connects from.
        type: str
  root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.info]
attributes:
  check_mode:
    support: partial
    details: >-
      Does in check mode all that it does otherwise. With O(image) a container is created, never started, and removed. With
      O(master_port) a port is listened on, or connected to, for some seconds. With O(probes) the other ranks are pinged.
  diff_mode:
    details: Nothing of what it creates outlives the run.
  idempotent:
    details: C(changed) is always false.
"""

EXAMPLES = r"""
- name: Look at this Spark
  readiness_info:
    deployment: sparks
    probes:
      - {peer: spark-2, rail: "0", ifname: enp1s0f0np0, source: 192.168.100.11, address: 192.168.100.12, size: 8972}
    master_port: {address: 192.168.100.11, port: 29500, listen_for: 1}
  register: gates_facts
"""

RETURN = r"""
readiness:
  description: >-
    C(time) (s since the epoch), C(docker) (version, drivers, root, image_root, cdi_dirs, devices, or error), C(disk) (of each folder
    that a launch writes to: what, path, free_bytes, free_inodes, read_only, device, error), C(containers) (running ones and all of
    ours), C(listeners) (address, port, process, pid, container, deployment), C(gpu) (as of the module C(gpu_info) returns it, each process with its C(container) and C(container_bytes), what that holds outside of the GPU), C(memory) (bytes by
    the names of /proc/meminfo), C(shm_total_bytes), C(shm_free_bytes), C(image) (name, id, repo_digests, how it was recognised, store, what engine_image_info noted as probe; null where absent),
    C(image_conf) (path to text of the image's nccl.conf files, null where they could not be read),
    C(devices) (what is there of each: device, folder, cdi, missing, empty, other),
    C(probes) (each with C(ok), C(small), C(said)), C(exchange) (each with C(outcome) and C(error)), C(master_port) (C(outcome) and C(error), on rank 0 C(listened), C(error) and C(met)),
    C(transaction) (with C(age_seconds) and C(expired)), C(deployment_state), C(releases),
    C(current_nodes) (of the release that runs, as it was frozen; null where that is not known, C(current_unread) says why), C(last_good) (manifest, api and spec of the frozen release that last passed all gates, and on rank 0 in C(judged) the bank and limits that it passed). What of these is there and can't be read is
    C(unreadable) instead, a sentence for a person.
  returned: always
  type: dict
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import clock, commands
from ansible.module_utils.sparklanes.common.files import Unreadable
from ansible.module_utils.sparklanes.docker import container_stack
from ansible.module_utils.sparklanes.docker.containers import Container, Docker, DockerError, container_of_cgroup
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric.exchange import exchange
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.host import room
from ansible.module_utils.sparklanes.host.listeners import parse_ss
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo
from ansible.module_utils.sparklanes.memory.processes import charged
from ansible.module_utils.sparklanes.release import owned
from ansible.module_utils.sparklanes.release.store import Store, unreadable_lock, unreadable_state


def listener_facts(module: AnsibleModule, boxes: list[Container]) -> list[dict[str, Any]]:
    rc, out, err = commands.run(["ss", "-Hltnp"])
    if rc != 0:
        module.fail_json(msg=f"ss -Hltnp failed on this Spark (exit {rc}): {err.strip()}. The package iproute2 brings it")
    found = []
    for listener in parse_ss(out):
        if listener.pid == os.getpid():
            continue  # the end of the rendezvous port that this module holds for a moment
        box = holder(cgroup(listener.pid), boxes) if listener.pid else None
        found.append(
            {
                "address": listener.address,
                "port": listener.port,
                "process": listener.process,
                "pid": listener.pid,
                "container": box.name if box else "",
                "deployment": box.deployment if box else "",
            }
        )
    return found


def cgroup(pid: int | None) -> str:
    """Empty where the process is gone; a listener goes with it."""
    return "" if pid is None else str(gpu_facts.read(Path(f"/proc/{pid}/cgroup")))


def holder(text: str, boxes: list[Container]) -> Container | None:
    """The container of a process, by the text of its cgroup file."""
    id_ = container_of_cgroup(text)
    return next((box for box in boxes if box.id == id_), None)


def gpu_seen(boxes: list[Container] | None) -> dict[str, Any]:
    found: dict[str, Any] = gpu_facts.facts()
    if found["processes"]:
        found["processes"] = [
            {**one, "container_bytes": charged(one["pid"]) if one["container"] else None}
            for one in occupied.attributed(found["processes"], boxes)
        ]
    return found


def nodes_of(store: Store, state: dict[str, Any]) -> list[str]:
    """Who runs the release that serves, as it was frozen: the inventory may name fewer by now. ValueError where that is not known."""
    if state.get("unreadable"):
        raise ValueError(str(state["unreadable"]))
    release = str(state.get("current") or "")
    if not release:
        return []
    manifest = store.manifest(release)
    if manifest is None:
        raise ValueError(f"release {release}, which serves, is not frozen on this Spark any more")
    nodes = manifest.get("nodes") or []
    if not isinstance(nodes, list):
        raise Unreadable(store.release_folder(release) / "release.json", f"its nodes are {type(nodes).__name__}, not a list")
    return [str(node) for node in nodes]


def recorded(store: Store) -> dict[str, Any]:
    """Lock, state and last good release. What is there and can't be read says so in its place: it is never taken for absent."""
    facts: dict[str, Any] = {"transaction": {}, "releases": [], "last_good": {}}
    try:
        transaction = store.transaction()
        if transaction:
            age = transaction.age(clock.now())
            facts["transaction"] = {**transaction.to_dict(), "age_seconds": int(age), "expired": transaction.expired(age)}
    except Unreadable as error:
        facts["transaction"] = {"id": error.mark, "unreadable": unreadable_lock(error)}
    try:
        state = store.state()
        facts["deployment_state"], good = state.to_dict(), state.last_good
    except Unreadable as error:
        facts["deployment_state"], good = {"unreadable": unreadable_state(error)}, ""
    # Each in a try of its own: a damaged release that runs says nothing of the last good one, and the other way round.
    try:
        facts["current_nodes"] = nodes_of(store, facts["deployment_state"])
    except (OSError, ValueError) as error:
        facts |= {"current_nodes": None, "current_unread": str(error)}
    try:
        facts["releases"] = store.releases()
        kept = (store.spec(good), store.manifest(good)) if good else (None, None)
        if kept[0] and kept[1]:
            facts["last_good"] = {
                "manifest": kept[1],
                "api": kept[0].get("api") or {},
                "spec": kept[0],
                "judged": store.judged(good),
            }
    except (OSError, ValueError) as error:
        facts["last_good"] = {"unreadable": str(error)}
    return facts


KNOCK_SECONDS = 8.0  # modules of one task begin within a few seconds of each other
MEET_SECONDS = 10.0
CONF_FILES = ("/root/.nccl.conf", "/etc/nccl.conf")  # in the order in which NCCL reads them


def probe_facts(module: AnsibleModule) -> list[dict[str, Any]] | None:
    """None where there is no ping: nothing was measured."""
    program = module.get_bin_path("ping")
    return fabric_reach.run_pings(program, module.params["probes"]) if program else None


def connect(module: AnsibleModule, end: dict[str, Any]) -> dict[str, Any]:
    """A rank that runs holds a connection to that port for all its life: then rank 0's running engine is not bothered."""
    _, text, _ = commands.run(["ss", "-Htn", "state", "established"])
    if fabric_reach.established(text, end["address"], end["port"]):
        return {"outcome": "established", "error": ""}
    found: dict[str, Any] = fabric_reach.connect(end["address"], end["port"], end["source"] or "", KNOCK_SECONDS)
    return found


def image_conf(module: AnsibleModule, docker: Docker, reference: str) -> dict[str, str] | None:
    """The nccl.conf files of a local image: {path: text} of those that it has."""
    try:
        made = docker.call("create", "--network", "none", "--entrypoint", "/nothing", reference).split()
    except DockerError:
        return None
    found: dict[str, str] = {}
    try:
        for number, path in enumerate(CONF_FILES):
            copy = Path(module.tmpdir) / f"nccl-{number}.conf"
            try:
                docker.call("cp", "--follow-link", f"{made[-1]}:{path}", str(copy))
            except DockerError:
                continue  # the image has none, which is how it should be
            if copy.is_file():
                found[path] = copy.read_text(encoding="utf-8", errors="replace")[:65536]
    finally:
        docker.call("rm", made[-1])
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "image": {"type": "str"},
            "devices": {"type": "list", "elements": "str", "default": []},
            "image_ids": {"type": "list", "elements": "str", "default": []},
            "probes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **{name: {"type": "str", "required": True} for name in ("peer", "rail", "ifname", "source", "address")},
                    "size": {"type": "int", "required": True},
                },
            },
            "exchange": {"type": "bool", "default": False},
            "master_port": {
                "type": "dict",
                "options": {
                    "address": {"type": "str", "required": True},
                    "port": {"type": "int", "required": True},
                    "listen_for": {"type": "int"},
                    "source": {"type": "str"},
                },
            },
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        supports_check_mode=True,
    )
    params = module.params
    facts: dict[str, Any] = {"time": time.time()}
    end = params["master_port"]
    # Before anything that takes time: the others may come at any moment.
    listener = fabric_reach.Listener(end["address"], end["port"]) if end and end["listen_for"] else None
    pool = ThreadPoolExecutor(1)
    words = pool.submit(exchange, params["probes"]) if params["exchange"] else None
    docker, images = Docker(commands.run), ImageStore(commands.run, Path(params["root"], "images"))
    boxes: list[Container] = []
    try:
        store = Store(params["deployment"], params["root"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    try:
        facts["docker"] = docker.info()
        boxes = owned.told(docker.containers(), params["root"])
        found = images.find(params["image"], params["image_ids"]) if params["image"] else None
        facts["image"] = None
        if found:
            probe = (images.record(found.image.id) or {}).get("probe")
            facts["image"] = {**found.to_dict(), "store": facts["docker"]["storage_driver"], "probe": probe}
    except (DockerError, ValueError) as error:
        facts["docker"], facts["image"] = {"error": str(error)}, None
    facts["disk"] = room.measure(room.folders(facts["docker"], params["root"]))
    facts["containers"] = [box.to_dict() for box in boxes if box.running or box.claims or box.name.startswith("sparklanes-")]
    facts["listeners"] = listener_facts(module, boxes)
    if end and not listener:  # now, while rank 0 does what takes time
        facts["master_port"] = connect(module, end)
    facts["gpu"] = gpu_seen(None if "error" in facts["docker"] else boxes)
    facts["memory"] = parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8"))
    try:
        shm = os.statvfs("/dev/shm")
        facts["shm_total_bytes"], facts["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        facts["shm_total_bytes"] = facts["shm_free_bytes"] = None
    facts["devices"] = container_stack.device_facts(params["devices"])
    facts["probes"] = probe_facts(module)
    facts |= recorded(store)
    if words:
        facts["exchange"] = words.result()
    facts["image_conf"] = image_conf(module, docker, facts["image"]["name"]) if facts["image"] else None
    if listener:
        facts["master_port"] = listener.accept(end["listen_for"], MEET_SECONDS)
    module.exit_json(changed=False, readiness=facts)


if __name__ == "__main__":
    main()
