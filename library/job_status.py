#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Say where a detached job stands."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: job_status
short_description: Say where a detached job stands
description:
  - Reads the state of a job that another module started on this Spark. Starts, stops and changes nothing.
  - A job that ended without a word (killed, node rebooted) is reported as failed, with the last lines of its log. So is one whose
    result can't be read, and one in whose place another run of the same job was begun meanwhile.
  - The module itself fails where nobody can say whether the job runs; ask again.
options:
  job:
    description: The job's name, such as V(stage).
    type: str
    required: true
  run:
    description:
      - The run of that job which is meant, as the module that started it returned it in C(job_run). Without it, the last one.
    type: str
    default: ''
  wait:
    description: Seconds to wait for its end before answering. Saves connections when polling.
    type: float
    default: 0
extends_documentation_fragment: [sparklanes, sparklanes.info, sparklanes.jobs]
attributes:
  check_mode:
    details: Reads in check mode as it does otherwise; it waits up to O(wait) then too.
"""

EXAMPLES = r"""
- name: How far staging is
  job_status:
    job: stage
"""

RETURN = r"""
running:
  description: Whether it runs.
  type: bool
  returned: always
finished:
  description: Whether it ended, well or not.
  type: bool
  returned: always
job_failed:
  description: Whether it failed. The module itself does not.
  type: bool
  returned: always
error:
  description: Why.
  type: str
  returned: always
progress:
  description: "One line, such as C(model: fetch   41 %  155.2 GiB of 377.4 GiB  2.1 GiB/s  1 min 42 s to go)."
  type: str
  returned: always
heartbeat_age:
  description: Seconds since the job last wrote its state.
  type: float
  returned: always
progress_age:
  description: Seconds since it last got on.
  type: float
  returned: always
stopped_by:
  description: What a person types on that Spark to stop it.
  type: str
  returned: while it runs
log:
  description: Where its output lies on that Spark.
  type: str
  returned: always
state:
  description: All it says of itself (phase, file, done, total, rate, eta).
  type: dict
  returned: always
result:
  description: What it returned.
  type: dict
  returned: when it left one
actions:
  description: Empty.
  type: list
  elements: str
  returned: always
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError, Status

REPLACED = "another run of job {job} was begun in its place, and removed what it left: how it ended is not known. Run the same command again"


def answer(jobs: Jobs, status: Status, run: str) -> dict[str, Any]:
    """What is known of one run of a job. `run`: its name, empty for whichever was the last."""
    told = {
        "running": status.running,
        "finished": status.finished,
        "job_failed": status.failed,
        "error": status.error,
        "progress": status.progress,
        "heartbeat_age": status.heartbeat_age,
        "progress_age": status.progress_age,
        "state": dict(status.state),
        "log": str(jobs.folder(status.job) / "log"),
    }
    result = jobs.result(status.job) if status.finished else None
    if result is not None:
        told["result"] = result
    elif status.finished and not status.failed:
        gone = f"it ended well, and what it found out can't be read any more ({jobs.folder(status.job)}/result.json)"
        told |= {"job_failed": True, "error": f"{gone}. Run the same command again"}
    if status.running:
        told["stopped_by"] = jobs.stopped_by(status.job)
    # Asked last: a run that is the last one now was so all the time.
    if run and str((jobs.spec(status.job) or {}).get("run") or run) != run:
        told = {**told, "running": False, "finished": True, "job_failed": True, "error": REPLACED.format(job=status.job)}
        told.pop("result", None)
    return told


def main() -> None:
    module = AnsibleModule(
        {
            "job": {"type": "str", "required": True},
            "run": {"type": "str", "default": ""},
            "wait": {"type": "float", "default": 0},
            "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
        },
        supports_check_mode=True,
    )
    name = module.params["job"]
    if "/" in name or name.startswith("."):
        module.fail_json(msg=f"{name!r} is no job's name; it is a word such as stage")
    jobs = Jobs(ask_systemd, Path(module.params["jobs_dir"]))
    limit = time.monotonic() + module.params["wait"]
    try:
        status = jobs.status(name)
        while status.running and time.monotonic() < limit:
            time.sleep(0.2)
            status = jobs.status(name)
    except JobError as error:
        module.fail_json(msg=str(error))
    if not status.exists:
        module.fail_json(msg=f"there is no job {name} in {jobs.root}. Run the playbook that starts it")
    module.exit_json(changed=False, actions=[], **answer(jobs, status, module.params["run"]))


if __name__ == "__main__":
    main()
