#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Open, move on or close the transaction of a deployment on this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: transaction
short_description: Open, move on or close the transaction of a deployment on this Spark
description:
  - A transaction is one attempt to change what a deployment runs. Its file on each rank is the lock
    (a lease with a heartbeat) and the write-ahead journal (which phase began, from and to which release).
  - Only the same transaction goes on by itself; another one is refused with the reason and the way out.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  id:
    description: Id of the transaction.
    type: str
    required: true
  state:
    description:
      - V(open) takes the lock, or renews it, and journals O(phase).
      - V(closed) records O(outcome) as the state of the deployment and gives the lock back.
    type: str
    choices: [open, closed]
    required: true
  phase:
    description: The phase that begins now.
    type: str
    choices: [stop, settle, start, boot, judge, restore, reboot]
  controller:
    description: Who asks - a person reads it when the lock is refused to them.
    type: str
    default: unknown
  lane:
    description: The lane that the transaction moves to.
    type: str
    default: ''
  to_release:
    description: The release that the transaction moves to, empty for a stop.
    type: str
    default: ''
  lease_seconds:
    description: After how many seconds without a heartbeat the transaction counts as interrupted.
    type: int
    default: 900
  break_lock:
    description: Take the lock from another transaction. A person's decision, never a default.
    type: bool
    default: false
  outcome:
    description: What the transaction ended as; each key given replaces that key of the state.
    type: dict
    suboptions:
      status:
        description: What the deployment does now.
        type: str
        choices: [serving, serving-unbanked, restored, suspect, stopped, failed]
      lane:
        description: The lane that runs.
        type: str
      current:
        description: The release that runs, empty when nothing does.
        type: str
      last_good:
        description: The release that last passed all gates.
        type: str
      last_good_lane:
        description: The lane of that release.
        type: str
      reason:
        description: Why, as one sentence for a person.
        type: str
      death:
        description: A death that nobody explained; it is added to those counted.
        type: str
      forget_deaths:
        description: A person looked; counting starts again.
        type: bool
  root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Says whether the lock could be taken, and takes nothing.
  diff_mode:
    support: partial
    details: Shows the state of the deployment with O(state=closed). The lock is taken and renewed without a word.
  idempotent:
    support: partial
    details: >-
      V(open) renews the lease at each run and reports no change, as a lock is no state that a person keeps. C(death) of
      O(outcome) is counted at each run.
"""

EXAMPLES = r"""
- name: Journal that the ranks are about to be stopped
  transaction:
    deployment: sparks
    id: "{{ rank_transaction }}"
    state: open
    phase: stop
    to_release: "{{ rank_release }}"

- name: Give the lock back
  transaction:
    deployment: sparks
    id: "{{ rank_transaction }}"
    state: closed
    outcome: {status: serving, current: "{{ rank_release }}", last_good: "{{ rank_release }}"}
"""

RETURN = r"""
transaction:
  description: The transaction as it stands, empty once closed.
  returned: always
  type: dict
deployment_state:
  description: The state of the deployment on this Spark.
  returned: always
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import as_json
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import PHASES, STATUSES, Refused, Transaction


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "id": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["open", "closed"], "required": True},
            "phase": {"type": "str", "choices": list(PHASES)},
            "controller": {"type": "str", "default": "unknown"},
            "lane": {"type": "str", "default": ""},
            "to_release": {"type": "str", "default": ""},
            "lease_seconds": {"type": "int", "default": 900},
            "break_lock": {"type": "bool", "default": False},
            "outcome": {
                "type": "dict",
                "options": {
                    "status": {
                        "type": "str",
                        "choices": list(STATUSES),
                    },
                    "lane": {"type": "str"},
                    "current": {"type": "str"},
                    "last_good": {"type": "str"},
                    "last_good_lane": {"type": "str"},
                    "reason": {"type": "str"},
                    "death": {"type": "str"},
                    "forget_deaths": {"type": "bool"},
                },
            },
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        required_if=[("state", "open", ["phase"])],
        supports_check_mode=True,
    )
    params = module.params
    now, write = time.time(), not module.check_mode
    try:
        store = Store(params["deployment"], params["root"])
        if params["state"] == "open":
            asked = Transaction(
                id=params["id"],
                phase=params["phase"],
                controller=params["controller"],
                opened=now,
                heartbeat=now,
                lease_seconds=float(params["lease_seconds"]),
                lane=params["lane"],
                to_release=params["to_release"],
            )
            transaction, state = store.open(asked, params["break_lock"], write)
            module.exit_json(changed=False, transaction=transaction.to_dict(), deployment_state=state.to_dict())
        before, after = store.close(params["id"], now, params["outcome"] or {}, params["break_lock"], write)
    except Refused as error:
        module.fail_json(msg=f"deployment {params['deployment']}: {error}.", transaction=error.held.to_dict())
    except (OSError, ValueError, TypeError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=after != before,
        transaction={},
        deployment_state=after.to_dict(),
        diff={"before": as_json(before.to_dict()), "after": as_json(after.to_dict())},
    )


if __name__ == "__main__":
    main()
