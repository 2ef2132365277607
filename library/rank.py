#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Start or gracefully stop the rank of a deployment on this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rank
short_description: Start or gracefully stop the rank of a deployment on this Spark
description:
  - Starts one engine process group (a rank) in a container, from the spec that a release froze on this Spark,
    and stops it with its logs saved first. It never renders anything and never removes a running container.
  - A mount whose source does not exist is refused, so that a missing host path never becomes an empty directory.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  state:
    description:
      - V(started) creates and starts the container of O(release), unless that release already runs.
      - V(logged) saves log and inspect record of each and leaves it running. It reports no change.
      - V(stopped) asks every rank container of the deployment on this Spark to end, saves log and
        inspect record of each as far as there is room, and removes it once it has ended.
    type: str
    choices: [started, stopped, logged]
    required: true
  transaction:
    description:
      - Id of the transaction under which the controller works. It is compared with the one that is open on this Spark, and where it has
        lost its lock nothing is touched. Needed for V(started) and V(stopped).
    type: str
  release:
    description: The release to start, 12 hex digits. Needed for V(started).
    type: str
  secret_env:
    description:
      - Values of the environment variables that the spec lists under C(secret_env).
        They are handed to Docker by name through the environment and written to no file of ours.
    type: dict
    default: {}
  stop_timeout_seconds:
    description:
      - How long a rank may take to end after SIGTERM before Docker kills it.
        A worker was measured to need 11 to 15 s; the default leaves room.
    type: int
    default: 30
  stamp:
    description: Name of the log folder of this transaction (UTC, C(YYYYMMDDTHHMMSSZ)); now, when left out.
    type: str
  root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
  log_root:
    description:
      - Where logs are saved, in C(DEPLOYMENT/STAMP/rankN.log). The user who became root by sudo may read them, who fetches them.
      - Where there is no room, the end of a log goes to C(/run/sparklanes/logs).
    type: path
    default: /var/log/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    details: Shows which release ran before and which one runs after.
"""

EXAMPLES = r"""
- name: Stop whatever the deployment runs here, logs first
  rank:
    deployment: sparks
    transaction: "{{ rank_transaction }}"
    state: stopped

- name: Start the rank of a frozen release
  rank:
    deployment: sparks
    transaction: "{{ rank_transaction }}"
    state: started
    release: 0123456789ab
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
cold:
  description: Whether the rank started without compiled kernels, where its lane keeps them (C(lane_jit_caches)).
  returned: when state=started
  type: bool
container:
  description: Name and id of the started container.
  returned: when a container runs afterwards
  type: dict
logs:
  description: Log files that were saved on this Spark.
  returned: always
  type: list
  elements: str
saved:
  description: >-
    What became of the log of each container that ended, C(container), C(path) (empty where nothing was saved), C(bytes), C(whole), and
    C(problem), what is missing and why. A log that is too long for the room on the disk keeps its head and its tail.
  returned: always
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.rank.run import Rank, RankError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "logged"], "required": True},
            "transaction": {"type": "str"},
            "release": {"type": "str"},
            "secret_env": {"type": "dict", "default": {}, "no_log": True},
            "stop_timeout_seconds": {"type": "int", "default": 30},
            "stamp": {"type": "str"},
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
            "log_root": {"type": "path", "default": "/var/log/sparklanes"},
        },
        required_if=[("state", "started", ["release", "transaction"]), ("state", "stopped", ["transaction"])],
        supports_check_mode=True,
    )
    wish = module.params
    try:
        rank = Rank(
            commands.run,
            wish["deployment"],
            wish["root"],
            wish["log_root"],
            wish["stamp"],
            module.check_mode,
            wish["transaction"] or "",
        )
    except ValueError as error:
        module.fail_json(msg=str(error))
    try:
        if wish["state"] == "started":
            result = rank.start(wish["release"], wish["secret_env"])
        elif wish["state"] == "logged":
            result = rank.save()
        else:
            result = rank.stop(wish["stop_timeout_seconds"])
    except (RankError, DockerError, OSError, ValueError) as error:
        module.fail_json(msg=str(error), actions=rank.actions, **kept(rank))
    for one in rank.saved:
        if one.problem:
            module.warn(f"log of {one.container}: {one.problem}")
    module.exit_json(actions=rank.actions, **kept(rank), **result)


def kept(rank: Rank) -> dict[str, Any]:
    """What became of the logs, also where the rest failed."""
    return {"logs": rank.logs, "saved": [one.to_dict() for one in rank.saved]}


if __name__ == "__main__":
    main()
