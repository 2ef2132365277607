#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Load the GPU of a Spark for a bounded time and keep how fast it was."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_health
short_description: Load the GPU of a Spark for a bounded time and keep how fast it was
description:
  - Starts a job that runs a matrix product, a matrix-vector product and a copy in bfloat16 on the GPU, while C(nvidia-smi) is asked once a
    second for clocks, power, utilisation and throttle reasons. Use it through C(long_job).
  - The load runs in a container of O(image), without network, with one read-only mount, and ends by itself. Where the job is stopped, the
    container is stopped as a rank is (C(docker stop)), never killed late.
  - Refuses while a process uses the GPU, a GPU container or a rank runs, a transaction is open, or the driver does not answer.
  - It judges nothing, since that takes the other Sparks; with O(verdict) it keeps the judgement beside the run of O(at).
options:
  image:
    description: Image (C(REPOSITORY@sha256:DIGEST), or an ID) that has torch for this GPU, as a lane's has. It must be on the Spark.
    type: str
  image_ids:
    description: IDs that mean this image too.
    type: list
    elements: str
    default: []
  python:
    description: A Python of this Spark that has torch, in the place of O(image).
    type: path
  seconds:
    description: How long the load runs, 10 to 300. Loading the libraries of the image comes on top.
    type: float
    default: 40
  at:
    description: Which run a verdict is of.
    type: int
  verdict:
    description: Keep this judgement beside the run; nothing is measured.
    type: str
    choices: [ok, capped, low_clock, hidden_slow, inconclusive]
  folder:
    description: Where the history lies.
    type: path
    default: /var/lib/sparklanes/health
extends_documentation_fragment: [sparklanes, sparklanes.job, sparklanes.jobs]
attributes:
  diff_mode:
    details: A load leaves figures and no state to compare. With O(verdict), RV(actions) says what is kept.
  idempotent:
    details: >-
      With O(verdict) a second run changes nothing. Otherwise it attaches to a load that runs, and loads the GPU anew once that
      has ended.
"""

EXAMPLES = r"""
- name: Measure the GPU in the lane's image
  long_job:
    module: gpu_health
    args:
      image: "{{ this_lane.lane_image.repository }}@{{ this_lane.lane_image.digest }}"
  register: measured
"""

RETURN = r"""
job:
  description: The job that was started or attached to. Its result has C(run), with the numbers, the samples and the blocks.
  type: str
  returned: when it measures
job_run:
  description: Which run of that job it is, as option C(run) of C(job_status) wants it.
  type: str
  returned: when it measures
attached:
  description: Whether the job ran already.
  type: bool
  returned: when it measures
actions:
  description: What was done, or would be done in check mode, as sentences.
  type: list
  elements: str
  returned: always
"""

import re
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.gpu import measure as gpu_measure
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError

PINNED = re.compile(r"(?:[^\s@]+@)?sha256:[0-9a-f]{64}")
# What a burn fills on the GPU is the Spark's own memory.
RUNS = {"MemoryMax": "infinity"}


def note(module: AnsibleModule) -> None:
    """Keep a verdict beside its run."""
    folder, at = Path(module.params["folder"]), module.params["at"]
    runs = gpu_measure.history(folder)
    run = next((one for one in runs if one.get("at") == at), None)
    if run is None:
        module.fail_json(
            msg=f"{folder}/gpu.json has no run of {at}; it has {', '.join(str(one.get('at')) for one in runs) or 'none'}"
        )
        raise AssertionError
    changed = run.get("verdict") != module.params["verdict"]
    if changed and not module.check_mode:
        run["verdict"] = module.params["verdict"]
        gpu_measure.keep(folder, runs)
    module.exit_json(changed=changed, actions=[f"Keep the verdict {module.params['verdict']}"] if changed else [])


def wrong(module: AnsibleModule) -> str:
    """What is wrong with the wish, before anything is looked at."""
    params = module.params
    if not 10 <= params["seconds"] <= 300:
        return f"seconds is {params['seconds']:g}: expected 10 to 300. Shorter proves nothing, longer only heats"
    if params["image"] == "":
        return "there is no image to load the GPU in. Choose a lane (-e lane=ID), or set gpu_health_image or gpu_health_python"
    if params["image"] and not PINNED.fullmatch(params["image"]):
        return f"image is {params['image']!r}: expected REPOSITORY@sha256:DIGEST or an ID, since a tag moves"
    return ""


def missing(module: AnsibleModule, docker: bool) -> str:
    """Why there is nothing to load the GPU with."""
    params = module.params
    if params["python"]:
        return "" if shutil.which(params["python"]) else f"{params['python']} is no program of this Spark"
    try:
        found = ImageStore(commands.run).find(params["image"], params["image_ids"]) if docker else None
    except DockerError as error:
        return str(error)
    return "" if found else f"{params['image']} is not on this Spark. Run site.yml, which brings the lane's image"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str"},
            "image_ids": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "path"},
            "seconds": {"type": "float", "default": 40},
            "at": {"type": "int"},
            "verdict": {"type": "str", "choices": list(gpu_health.VERDICTS)},
            "folder": {"type": "path", "default": gpu_measure.FOLDER},
            "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
        },
        supports_check_mode=True,
        required_one_of=[("image", "python", "verdict")],
        mutually_exclusive=[("image", "python", "verdict")],
        required_by={"verdict": ["at"]},
    )
    params = module.params
    if params["verdict"]:
        note(module)
        return
    problem = wrong(module)
    if problem:
        module.fail_json(msg=problem)
    jobs = Jobs(ask_systemd, Path(params["jobs_dir"]))
    docker = shutil.which("docker") is not None
    args = {name: params[name] for name in ("image", "image_ids", "python", "seconds", "folder")}
    try:
        running = jobs.status(gpu_measure.JOB).running
    except JobError as error:
        module.fail_json(msg=f"The GPU was not loaded: {error}")
    if not running:
        problem = gpu_measure.may_start()[0] or missing(module, docker)
        if problem:
            module.fail_json(msg=f"The GPU was not loaded: {problem}")
    if module.check_mode:
        module.exit_json(changed=True, actions=[f"Load the GPU for {params['seconds']:g} s"])
    try:
        started = jobs.start(
            gpu_measure.JOB, gpu_measure.burn, args, properties=RUNS, writes=[params["folder"] or gpu_measure.FOLDER]
        )
    except (JobError, OSError) as error:
        module.fail_json(msg=str(error))
    did = f"{'Started' if started else 'Attached to'} job {gpu_measure.JOB}"
    module.exit_json(changed=bool(started), actions=[did], **started.told())


if __name__ == "__main__":
    main()
