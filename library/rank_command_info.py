#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Tell what a rank on this Spark, or any container, was started with."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rank_command_info
short_description: Tell what a rank on this Spark, or any container, was started with
description:
  - Reads the command, environment, mounts and limits of a container, in the form in which a lane renders a rank, so that the two can be compared.
  - Values whose name says that they are secrets (key, token, password) are blanked on the Spark already.
  - What the image itself sets is no choice of who started the container and stands apart, in C(image_env).
options:
  deployment:
    description: Name of the deployment whose rank is looked at.
    type: str
    required: true
  container:
    description: Name of a container to look at instead, as one that was started by hand.
    type: str
  secret_env:
    description: Names of environment variables whose values are secrets although their names don't say so.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: What does the rank run?
  rank_command_info:
    deployment: sparks
  register: rank_runs

- name: What does the container run that somebody started by hand?
  rank_command_info:
    deployment: sparks
    container: vllm_glm53
  register: by_hand
"""

RETURN = r"""
found:
  description: Whether there is such a container.
  returned: always
  type: bool
spec:
  description:
    - What it was started with. C(container), C(running), C(image), C(image_digests), C(command), C(env), C(image_env), C(mounts), C(options). Empty where there is none.
  returned: always
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker.containers import LABEL_DEPLOYMENT, Docker, DockerError
from ansible.module_utils.sparklanes.rank.drift import spec_of_inspect


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "container": {"type": "str"},
            # Names, no values.
            "secret_env": {"type": "list", "elements": "str", "default": [], "no_log": False},
        },
        supports_check_mode=True,
    )
    docker = Docker(commands.run)
    try:
        if module.params["container"]:
            box = docker.named(module.params["container"])
        else:
            ranks = docker.containers(f"label={LABEL_DEPLOYMENT}={module.params['deployment']}")
            ranks = [one for one in ranks if one.deployment == module.params["deployment"]]
            box = next((one for one in ranks if one.running), ranks[0] if ranks else None)
        if box is None:
            module.exit_json(changed=False, found=False, spec={})
            return
        entry = json.loads(docker.call("inspect", "--type", "container", box.id))[0]
        # An image may be gone while its container runs; then its own environment is not told from the rest.
        rc, out, _ = commands.run(["docker", "image", "inspect", str(entry.get("Image") or box.image)])
        image = json.loads(out)[0] if rc == 0 else None
    except (DockerError, json.JSONDecodeError, IndexError) as error:
        module.fail_json(msg=f"what runs here could not be read: {error}")
    module.exit_json(changed=False, found=True, spec=spec_of_inspect(entry, image, module.params["secret_env"]))


if __name__ == "__main__":
    main()
