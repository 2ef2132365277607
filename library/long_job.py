#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name, action_plugins/long_job.py, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: long_job
short_description: Start long work on a Spark, follow it, and show a line a host while it runs
description:
  - Runs O(module) once. Where its result names a C(job), polls O(status_module) until that says C(finished),
    shows each new C(progress) line, and returns the result of the job. Where it names none (nothing was to be
    done), its result is the task's.
  - The work is detached. Ctrl-C, a lost connection or a dead controller leave it running; the same task attaches
    to it again, because O(module) does.
  - "For work that is started elsewhere, such as an engine that boots, leave O(module) out and give O(status_args).
    A status module returns C(finished) (bool), C(progress) (a line), C(heartbeat_age) (seconds since the work
    last gave a sign of life) and, where it can, C(progress_age) (seconds since it got on). C(failed) or
    C(job_failed) with C(error) or C(msg) end it. C(result) (a dict), if there is one, is merged into the task's."
options:
  module:
    description: The module that starts the work or attaches to it.
    type: str
  args:
    description: Its arguments.
    type: dict
    default: {}
  status_module:
    description: The module that says where the work stands.
    type: str
    default: job_status
  status_args:
    description: Its arguments. C(job_status) gets the job's name, and which run of it is meant, by itself.
    type: dict
    default: {}
  poll:
    description: Seconds between two looks.
    type: float
    default: 5
  stall:
    description: Fail when the work has not got on for so many seconds. V(0) is never.
    type: float
    default: 600
  silence:
    description: Fail when it has given no sign of life for so many seconds. V(0) is never.
    type: float
    default: 60
  deadline:
    description: Fail when it is not finished after so many seconds. V(0) is never.
    type: float
    default: 0
  reconnect:
    description:
      - Seconds to go on trying when the connection is lost, or when O(status_module) fails. One failed look is not the
        end of the work.
    type: float
    default: 300
  label:
    description: What to call the work in its lines; the job's name by default.
    type: str
    default: ''
  board:
    description:
      - A folder on the controller through which the hosts of this task know of each other, for work that only
        succeeds together, such as the ranks of one engine. Where one host's part fails, the others stop waiting.
      - It must be new for each attempt.
    type: path
    default: ''
  leader:
    description: With O(board), the host whose end is the end of all; the others are done when it is.
    type: str
    default: ''
extends_documentation_fragment: [sparklanes, sparklanes.job]
attributes:
  check_mode:
    details: Runs O(module) in check mode, as far as that supports it, and returns its result. Nothing is followed.
  diff_mode:
    support: partial
    details: Shows what O(module) shows.
  idempotent:
    details: As O(module) is. While the work runs, the same task attaches to it.
"""

EXAMPLES = r"""
- name: The weights are complete
  long_job:
    module: model_stage
    args: {models: '{{ models }}'}

- name: The engine answers
  long_job:
    status_module: readiness_info
    status_args: {deployment: sparks}
    label: boot
    deadline: 1800
"""

RETURN = r"""
progress:
  description: The last line.
  type: str
  returned: when a job was followed
peer_failed:
  description: Whether it was another host of the board that failed.
  type: bool
  returned: when it is so
stalled:
  description: Whether patience ended before the work did. The work was not stopped.
  type: bool
  returned: when it is so
actions:
  description: What was done, in sentences.
  type: list
  elements: str
  returned: always
"""
