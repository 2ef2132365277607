#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Lend what this Spark has of its models to the next ones for the time of staging."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_lend
short_description: Lend what this Spark has of its models to the next ones for the time of staging
description:
  - Runs an rsync daemon as a detached job (a transient unit), bound to one address, read-only, for the given
    addresses only, with a password made for this staging. It ends by itself when nobody has asked for anything for
    O(idle_seconds), whatever became of the controller.
  - Beside the files it shows which of them are verified here, so that the next Spark takes each as soon as it is. A model
    may be lent before a byte of it has come.
options:
  state:
    description: Whether the models are lent.
    type: str
    choices: [lent, kept]
    default: lent
  models:
    description: The models, as C(model_stage) takes them.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: A word, such as V(model) or V(drafter).
        type: str
        required: true
      path:
        description: Its folder on this Spark.
        type: str
        required: true
      repo:
        description: Its name on the Hub.
        type: str
        default: ''
      revision:
        description: The commit.
        type: str
        default: ''
  address:
    description: The addresses to listen on, those of the fabric. Without a switch each cable has its own.
    type: list
    elements: str
  management_address:
    description: A second address to listen on, where the management network may be used.
    type: str
  shared:
    description: Lend files on a network file system, too. Otherwise each Spark reads them from its server itself.
    type: bool
    default: false
  port:
    description: The port to listen on.
    type: int
    default: 18730
  allow:
    description: Addresses or networks that may connect.
    type: list
    elements: str
    default: []
  secret:
    description: The password for this staging.
    type: str
  rate_mib:
    description: Limit in MiB/s of all that is given. V(0) is none.
    type: int
    default: 0
  serving_rate_mib:
    description: The limit while a rank or another GPU process runs on this Spark.
    type: int
    default: 256
  connections:
    description: How many transfers may run at once. They share the limit.
    type: int
    default: 8
  idle_seconds:
    description: End after so long without a transfer.
    type: int
    default: 900
  staged_dir:
    description: Where manifests and markers lie.
    type: path
    default: /var/lib/sparklanes/staged
extends_documentation_fragment: [sparklanes, sparklanes.change, sparklanes.jobs]
attributes:
  check_mode:
    support: partial
    details: With V(lent) it always predicts a change, also where the daemon runs and would be joined.
  diff_mode:
    support: none
    details: A daemon that lends is no file to compare.
"""

EXAMPLES = r"""
- name: The head lends its models
  model_lend:
    models:
      - {name: model, path: /var/lib/sparklanes/models/tiny, repo: sparklanes/tiny, revision: '{{ revision }}'}
    address: 10.93.2.11
    allow: [10.93.2.11, 10.93.2.12]
    secret: "{{ once }}"

- name: The head lends no more
  model_lend:
    state: kept
    models: []
"""

RETURN = r"""
urls:
  description: Where the next ones take the models, C(rsync://USER@ADDRESS:PORT); one each for the addresses of the fabric, the last one that of the management network.
  type: list
  elements: str
  returned: when lent
actions:
  description: What was done, in sentences.
  type: list
  elements: str
  returned: always
"""

import ipaddress
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights.chain.lend import JOB, RUNTIME, add_secret, answers, lend_models, where_lent
from ansible.module_utils.sparklanes.weights.chain.offer import SCHEMA, user_of
from ansible.module_utils.sparklanes.weights.model import Model, StagingError
from ansible.module_utils.sparklanes.weights.pace import rate_limit

OPTIONS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["lent", "kept"], "default": "lent"},
    "models": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "path": {"type": "str", "required": True},
            "repo": {"type": "str", "default": ""},
            "revision": {"type": "str", "default": ""},
        },
    },
    "address": {"type": "list", "elements": "str"},
    "management_address": {"type": "str"},
    "shared": {"type": "bool", "default": False},
    "port": {"type": "int", "default": 18730},
    "allow": {"type": "list", "elements": "str", "default": []},
    "secret": {"type": "str", "no_log": True},
    "rate_mib": {"type": "int", "default": 0},
    "serving_rate_mib": {"type": "int", "default": 256},
    "connections": {"type": "int", "default": 8},
    "idle_seconds": {"type": "int", "default": 900},
    "staged_dir": {"type": "path", "default": "/var/lib/sparklanes/staged"},
    "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
}
START_TIMEOUT = 20.0


def joins(wanted: dict[str, Any], running: Mapping[str, Any]) -> bool:
    """Whether a running daemon gives what is wanted to all who want it."""
    equal = all(wanted[key] == running.get(key) for key in ("offers", "models", "addresses", "port", "staged_dir", "shared"))
    return equal and set(wanted["allow"]) <= set(running.get("allow", []))


def lend(module: AnsibleModule, jobs: Jobs) -> dict[str, Any]:
    params = module.params
    addresses = list(dict.fromkeys(address for address in (*(params["address"] or []), params["management_address"]) if address))
    if not addresses:
        raise StagingError("there is no address to lend at; role roce finds those of the fabric")
    for address in [*addresses, *params["allow"]]:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise StagingError(f"{address!r} is no IP address; role roce finds those of the fabric") from None
    names = sorted(Model.from_dict(model).name for model in params["models"])
    user = user_of(params["secret"])
    answer = {"urls": [f"rsync://{user}@{address}:{params['port']}" for address in addresses]}
    if module.check_mode:
        return {"changed": True, "actions": ["would lend"], **answer}
    keys = ("models", "port", "allow", "idle_seconds", "staged_dir", "shared")
    args = {key: params[key] for key in keys} | {"addresses": addresses, "offers": SCHEMA}
    limit = rate_limit(bool(occupied.look().holder()), params["rate_mib"], params["serving_rate_mib"])
    args["rate_kib"] = max(1, limit * 1024 // max(1, params["connections"])) if limit else 0
    if jobs.status(JOB).running and not joins(args, (jobs.spec(JOB) or {}).get("args") or {}):
        jobs.stop(JOB)  # Left by another staging, of other models or for other Sparks, or it can't be known for whom.
    began = jobs.start(
        JOB,
        lend_models,
        args,
        {"secret": params["secret"]},
        # rsyncd has a process for each connection, also for those that never say who they are.
        {"RuntimeDirectory": RUNTIME, "RuntimeDirectoryMode": "0700", "MemoryMax": "2G", "TasksMax": "1024"},
        same=lambda running: joins(args, running),
    )
    folder = jobs.folder(JOB)
    deadline = time.monotonic() + START_TIMEOUT
    while (place := where_lent(folder)) is None:
        status = jobs.status(JOB)
        if status.finished or time.monotonic() > deadline:
            raise JobError(status.error or f"the rsync daemon did not start in {START_TIMEOUT:.0f} s: see {folder}/log")
        time.sleep(0.1)
    run, address, port = place
    while not answers(address, port):
        if jobs.status(JOB).finished or time.monotonic() > deadline:
            raise JobError(f"the rsync daemon on {address} port {port} does not answer: see {folder}/rsync.log")
        time.sleep(0.1)
    if not began:
        add_secret(run, params["secret"])
    done = "lends" if began else "already lent"
    return {"changed": bool(began), "actions": [f"{done} {', '.join(names)} on {address} port {port}"], **answer}


def main() -> None:
    needed = [("state", "lent", ["address", "allow", "secret"])]
    module = AnsibleModule(OPTIONS, supports_check_mode=True, required_if=needed)
    jobs = Jobs(ask_systemd, Path(module.params["jobs_dir"]))
    try:
        if module.params["state"] == "lent":
            result = lend(module, jobs)
        elif module.check_mode:
            result = {"changed": jobs.status(JOB).running, "actions": []}
        else:
            stopped = jobs.stop(JOB)
            result = {"changed": stopped, "actions": ["stopped lending"] if stopped else []}
    except (StagingError, JobError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
