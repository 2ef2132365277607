#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Put all that a lane needs into one place, with hashes."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: lane_archive
short_description: Put all that a lane needs into one place, with hashes
description:
  - Starts (or attaches to) a detached job which writes image, overlays, extras, drafter and manifests of a lane below
    C(DIRECTORY/LANE), each file aside and hashed on the way, and C(SHA256SUMS) of all. Made for the action C(long_job).
options:
  directory:
    description: A folder on this Spark, usually a mount of other storage.
    type: path
    required: true
  lane:
    description: The resolved lane.
    type: dict
    required: true
  files:
    description: Overlays and extras with C(name) in the archive, C(path) on this Spark and C(sha256).
    type: list
    elements: dict
    default: []
  models:
    description: The models, as C(model_stage) takes them.
    type: list
    elements: dict
    default: []
  whole:
    description: Names of the models whose files are archived too; of the others the manifest.
    type: list
    elements: str
    default: [drafter]
  image:
    description: Digest reference of the image, or its ID.
    type: str
    required: true
  image_ids:
    description: IDs that mean this image too.
    type: list
    elements: str
    default: []
  reserve_gib:
    description: GiB that stay free where the archive lies.
    type: int
    default: 10
  host:
    description: Name of the Spark in messages.
    type: str
    required: true
  staged_dir:
    description: Where manifests and markers lie.
    type: path
    default: /var/lib/sparklanes/staged
extends_documentation_fragment: [sparklanes, sparklanes.job, sparklanes.jobs]
attributes:
  idempotent:
    details: >-
      While the job runs, a second run attaches to it. Once it has ended, the job looks again and writes what the folder lacks, so
      that C(long_job) reports no change where nothing did.
"""

EXAMPLES = r"""
- name: Archive the lane
  long_job:
    module: lane_archive
    args: {directory: /mnt/nas/lanes, lane: '{{ this_lane }}', image: '{{ engine_image_reference }}', host: spark-1}
"""

RETURN = r"""
job:
  description: Name of the job.
  returned: when it was started or attached to
  type: str
job_run:
  description: Which run of that job it is, as option C(run) of C(job_status) wants it.
  returned: when it was started or attached to
  type: str
attached:
  description: Whether the job ran already.
  returned: when it was started or attached to
  type: bool
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.release.archive import JOB, archive_lane


def start(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    host = params["host"]
    parent = Path(params["directory"])
    if not parent.is_dir():
        raise JobError(f"{host}: {parent} is no folder. Make it, or mount the storage that it is to lie on")
    missing = [entry["path"] for entry in params["files"] if not Path(entry["path"]).is_file()]
    if missing:
        raise JobError(f"{host}: {', '.join(missing)} is not staged here. Run site.yml, then archive")
    found = ImageStore(commands.run).find(params["image"], params["image_ids"])
    if found is None:
        raise JobError(f"{host}: {params['image']} is not here. Run site.yml, then archive")
    action = f"Archive lane {params['lane']['lane_id']} to {parent}/{params['lane']['lane_id']}"
    if module.check_mode:
        return {"changed": True, "actions": [action]}
    keys = ("directory", "lane", "files", "models", "whole", "host", "staged_dir")
    args = {key: params[key] for key in keys}
    args |= {
        "lane_id": str(params["lane"]["lane_id"]),
        "reserve": params["reserve_gib"] * GIB,
        "image": {
            "name": found.name,
            "id": found.image.id,
            "repo_digests": list(found.image.repo_digests),
            "size_bytes": found.image.size_bytes,
        },
    }
    jobs = Jobs(ask_systemd, Path(params["jobs_dir"]))
    began = jobs.start(JOB, archive_lane, args, writes=[parent])
    return {"changed": True, **began.told(), "actions": [action], "image": args["image"]}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "lane": {"type": "dict", "required": True},
            "files": {"type": "list", "elements": "dict", "default": []},
            "models": {"type": "list", "elements": "dict", "default": []},
            "whole": {"type": "list", "elements": "str", "default": ["drafter"]},
            "image": {"type": "str", "required": True},
            "image_ids": {"type": "list", "elements": "str", "default": []},
            "reserve_gib": {"type": "int", "default": 10},
            "host": {"type": "str", "required": True},
            "staged_dir": {"type": "path", "default": "/var/lib/sparklanes/staged"},
            "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
        },
        supports_check_mode=True,
    )
    try:
        result = start(module)
    except KeyError as error:
        module.fail_json(msg=f"an entry of lane or files has no {error}")
    except (JobError, DockerError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
