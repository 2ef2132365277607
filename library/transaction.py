#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Acquire, renew, prove or close the transaction of a deployment on this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: transaction
short_description: Acquire, renew, prove or close the transaction of a deployment on this Spark
description:
  - A transaction is one attempt to change what a deployment runs. Its file on each rank is the lock
    (a lease with a heartbeat) and the write-ahead journal (which phase began, from and to which release).
  - It is acquired once. Whatever comes later must be of that very transaction, else it is refused as lost with the name of who holds
    the lock now, and nothing is changed.
  - A file that is there and can't be read counts as a lock of somebody, and as a state that nobody knows.
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
      - V(acquired) takes the lock and journals O(phase). Of several that come at once, one gets it.
      - V(renewed) journals O(phase) and holds the lock for another lease.
      - V(held) only tells, as RV(held) and RV(lost), whether the lock still is this transaction's.
      - V(closed) records O(outcome) as the state of the deployment and gives the lock back.
    type: str
    choices: [acquired, renewed, held, closed]
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
    description:
      - Id of the transaction whose lock is taken from it with O(state=acquired). A person's decision, never a default.
      - Where another one holds the lock by now, it is refused.
    type: str
    default: ''
  outcome:
    description: What the transaction ended as; each key given replaces that key of the state.
    type: dict
    suboptions:
      status:
        description: What the deployment does now.
        type: str
        choices: [serving, serving-unbanked, restored, restored-judged, suspect, stopped, failed]
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
      V(acquired) and V(renewed) renew the lease at each run and reports no change, as a lock is no state that a person keeps. C(death) of
      O(outcome) is counted at each run.
"""

EXAMPLES = r"""
- name: Journal that the ranks are about to be stopped
  transaction:
    deployment: sparks
    id: "{{ rank_transaction }}"
    state: acquired
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
  description: The state of the deployment on this Spark, empty where it was not read.
  returned: always
  type: dict
opened_now:
  description: Whether this very call opened the transaction. One that was open before was interrupted, and goes on.
  returned: when state=acquired
  type: bool
held:
  description: Whether this transaction holds the lock of this Spark. In check mode no lock was taken, and none is asked for.
  returned: when state=held
  type: bool
lost:
  description: How it was lost, as part of a sentence; empty where it is held.
  returned: when state=held
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import clock
from ansible.module_utils.sparklanes.common.files import as_json
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import PHASES, STATUSES, Refused, Transaction


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "id": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["acquired", "renewed", "held", "closed"], "required": True},
            "phase": {"type": "str", "choices": list(PHASES)},
            "controller": {"type": "str", "default": "unknown"},
            "lane": {"type": "str", "default": ""},
            "to_release": {"type": "str", "default": ""},
            "lease_seconds": {"type": "int", "default": 900},
            "break_lock": {"type": "str", "default": ""},
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
        required_if=[("state", "acquired", ["phase"]), ("state", "renewed", ["phase"])],
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = answer(params, clock.now(), not module.check_mode)
    except Refused as error:
        held = error.held.to_dict() if error.held else {}
        module.fail_json(msg=f"deployment {params['deployment']}: {error}.", transaction=held)
    except (OSError, ValueError, TypeError) as error:
        module.fail_json(msg=f"deployment {params['deployment']}: {error}")
    module.exit_json(**result)


def answer(params: dict[str, Any], now: clock.Moment, write: bool) -> dict[str, Any]:
    """What the module returns."""
    store = Store(params["deployment"], params["root"])
    if params["state"] == "held":
        why = store.lost(params["id"], now) if write else ""
        return {"changed": False, "transaction": {}, "deployment_state": {}, "held": not why, "lost": why}
    if params["state"] == "closed":
        # What was not given is None.
        outcome = {key: value for key, value in (params["outcome"] or {}).items() if value is not None}
        before, after = store.close(params["id"], now, outcome, write)
        shown = [state.to_dict() if state else {} for state in (before, after)]
        return {
            "changed": after != before,
            "transaction": {},
            "deployment_state": shown[1],
            "diff": {"before": as_json(shown[0]), "after": as_json(shown[1])},
        }
    asked = Transaction(
        id=params["id"],
        phase=params["phase"],
        controller=params["controller"],
        opened=now.wall,
        heartbeat=now.wall,
        lease_seconds=float(params["lease_seconds"]),
        lane=params["lane"],
        to_release=params["to_release"],
        boot=now.boot,
        beat=now.clock,
    )
    if params["state"] == "renewed" and write:
        return {"changed": False, "transaction": store.renew(asked, now).to_dict(), "deployment_state": {}}
    # A check took no lock that it could renew.
    transaction, state = store.acquire(asked, now, params["break_lock"], write)
    return {
        "changed": False,
        "transaction": transaction.to_dict(),
        "deployment_state": state.to_dict(),
        "opened_now": transaction.opened == asked.opened,
    }


if __name__ == "__main__":
    main()
