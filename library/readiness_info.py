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
    the deployment's state and lock, and whether the other ranks answer over the fabric.
  - It judges nothing. What could not be read is said in its place, so that a gate can fail on it.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  image:
    description: Reference (C(repository@digest)) of the image whose local digests are reported.
    type: str
  peers:
    description: Fabric addresses to ping, one echo each.
    type: list
    elements: str
    default: []
  interface:
    description: Fabric interface that the pings leave through.
    type: str
  root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - Contributors to the sparklanes project (@sparklanes)
"""

EXAMPLES = r"""
- name: Look at this Spark
  readiness_info:
    deployment: sparks
    peers: [192.168.100.11]
    interface: enp1s0f0np0
  register: gates_facts
"""

RETURN = r"""
readiness:
  description: >-
    C(time) (s since the epoch), C(docker) (version, cgroup_driver, storage_driver or error), C(containers) (running ones and all of
    ours), C(listeners) (address, port, process, pid, container, deployment), C(gpu) (as of the module C(gpu_info) returns it), C(memory) (bytes by
    the names of /proc/meminfo), C(shm_total_bytes), C(shm_free_bytes), C(image) (local RepoDigests, null where absent),
    C(peers) (address to true or false), C(transaction), C(deployment_state), C(releases),
    C(last_good) (manifest and api of the frozen release that last passed all gates).
  returned: always
  type: dict
"""

import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes import gpu
from ansible.module_utils.sparklanes.containers import Container, Docker, DockerError, container_of_cgroup
from ansible.module_utils.sparklanes.listeners import parse_ss
from ansible.module_utils.sparklanes.page_cache import parse_meminfo
from ansible.module_utils.sparklanes.releases import Store


def listener_facts(module: AnsibleModule, boxes: list[Container]) -> list[dict[str, Any]]:
    rc, out, err = module.run_command(["ss", "-Hltnp"], check_rc=False)
    if rc != 0:
        module.fail_json(msg=f"ss -Hltnp failed on this Spark (exit {rc}): {err.strip()}. The package iproute2 brings it")
    by_id = {box.id: box for box in boxes}
    found = []
    for listener in parse_ss(out):
        box = None
        if listener.pid:
            try:
                box = by_id.get(container_of_cgroup(Path(f"/proc/{listener.pid}/cgroup").read_text(encoding="utf-8")))
            except OSError:  # the process is gone; the listener goes with it
                box = None
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


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "image": {"type": "str"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "interface": {"type": "str"},
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        supports_check_mode=True,
    )
    params = module.params
    facts: dict[str, Any] = {"time": time.time()}
    docker = Docker(module.run_command)
    boxes: list[Container] = []
    try:
        store = Store(params["deployment"], params["root"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    try:
        facts["docker"] = docker.info()
        boxes = docker.containers()
        facts["image"] = docker.image_digests(params["image"]) if params["image"] else None
    except (DockerError, ValueError) as error:
        facts["docker"], facts["image"] = {"error": str(error)}, None
    facts["containers"] = [box.to_dict() for box in boxes if box.running or box.deployment]
    facts["listeners"] = listener_facts(module, boxes)
    facts["gpu"] = gpu.facts()
    facts["memory"] = parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8"))
    try:
        shm = os.statvfs("/dev/shm")
        facts["shm_total_bytes"], facts["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        facts["shm_total_bytes"] = facts["shm_free_bytes"] = None
    through = ["-I", params["interface"]] if params["interface"] else []
    facts["peers"] = {
        address: module.run_command(["ping", "-n", "-q", "-c", "1", "-W", "2", *through, address])[0] == 0
        for address in params["peers"]
    }
    transaction = store.transaction()
    facts["transaction"] = {**transaction.to_dict(), "expired": transaction.expired(facts["time"])} if transaction else {}
    facts["deployment_state"] = store.state().to_dict()
    facts["releases"] = store.releases()
    good = store.state().last_good
    kept = (store.spec(good), store.manifest(good)) if good else (None, None)
    facts["last_good"] = {"manifest": kept[1], "api": kept[0]["api"]} if kept[0] and kept[1] else {}
    module.exit_json(changed=False, readiness=facts)


if __name__ == "__main__":
    main()
