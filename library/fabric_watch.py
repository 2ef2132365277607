#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Watch the fabric while ranks boot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_watch
short_description: Watch the fabric while ranks boot
description:
  - Starts a job that sends bytes to and fro over TCP to every other rank, on each rail, every 2 seconds, and answers theirs. What does
    not come back stands in C(/run/sparklanes/fabric/DEPLOYMENT.json), which C(rank_info) reads.
  - The job ends by itself after O(seconds).
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  state:
    description: V(started) starts the watch anew, V(absent) ends it.
    type: str
    choices: [started, absent]
    required: true
  probes:
    description: The pairs, each with C(peer), C(rail), C(ifname), C(source) and C(address). Without any there is nothing to watch.
    type: list
    elements: dict
    default: []
  seconds:
    description: How long the boot may take.
    type: int
    default: 3600
extends_documentation_fragment: [sparklanes, sparklanes.change, sparklanes.jobs]
attributes:
  diff_mode:
    support: none
    details: It changes nothing that stays.
  idempotent:
    support: partial
    details: V(absent) is. V(started) ends what runs and starts anew.
"""

EXAMPLES = r"""
- name: Watch the fabric while the ranks wait for each other
  fabric_watch:
    deployment: sparks
    state: started
    probes:
      - {peer: spark-2, rail: "0", ifname: enp1s0f0np0, source: 192.168.100.11, address: 192.168.100.12}
    seconds: 1800
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.fabric import watch
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError

# Beside an engine that compiles on all cores a nice process would be late, which looks like a cut fabric.
RUNS = {"Nice": "0", "OOMScoreAdjust": "0", "MemoryMax": "1G", "TasksMax": "1024"}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "absent"], "required": True},
            "probes": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 3600},
            "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
        },
        supports_check_mode=True,
    )
    params = module.params
    jobs, name = Jobs(ask_systemd, Path(params["jobs_dir"])), watch.job(params["deployment"])
    actions: list[str] = []
    try:
        if jobs.status(name).running:
            actions.append("End the watch of the fabric")
            if not module.check_mode:
                jobs.stop(name)
        if params["state"] == "started" and params["probes"]:
            actions.append("Watch the fabric to " + ", ".join(sorted({str(probe["peer"]) for probe in params["probes"]})))
            if not module.check_mode:
                path = str(watch.record(params["deployment"]))
                jobs.start(
                    name,
                    watch.watch,
                    {"probes": params["probes"], "seconds": params["seconds"], "path": path},
                    properties=RUNS,
                    writes=[Path(path).parent],
                )
    except (JobError, OSError, KeyError) as error:
        module.fail_json(msg=f"the fabric is not watched: {error}", actions=actions)
    module.exit_json(changed=bool(actions), actions=actions)


if __name__ == "__main__":
    main()
