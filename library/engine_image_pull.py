#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Have an engine image on the Spark, by digest and by nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: engine_image_pull
short_description: Have an engine image on the Spark, by digest only
description:
  - Pulls C(REPOSITORY@DIGEST) where it is missing, and compares the digests of what is there with what was asked for, in one execution.
  - A missing or malformed digest, a tag, a digest that the registry does not know, another image under the same name, and an
    image for other machines are each refused with what was found and what to do, before anything changes.
  - It talks to Docker through its command line rather than through M(community.docker.docker_image_pull). That module needs the
    Python package requests on each Spark, passes Docker's errors on as they are, and needs further tasks to list what is there and to compare.
options:
  repository:
    description: Name of the image without tag and digest.
    type: str
    required: true
  digest:
    description: C(sha256:) and 64 hex digits.
    type: str
    required: true
  host:
    description: Name of the Spark in messages.
    type: str
    required: true
  pull:
    description: V(never) only looks; a missing image is then refused.
    type: str
    choices: [missing, never]
    default: missing
attributes:
  check_mode:
    description: Says whether it would pull. Whether the registry knows the digest shows only in a real run.
    support: full
  diff_mode:
    description: Shows the digests before and after.
    support: full
author:
  - Contributors to the sparklanes project (@sparklanes)
"""

EXAMPLES = r"""
- name: Have the image of the lane
  engine_image_pull:
    repository: "{{ lane_image.repository }}"
    digest: "{{ lane_image.digest }}"
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
reference:
  description: C(REPOSITORY@DIGEST).
  returned: always
  type: str
image:
  description: C(id), C(repo_digests), C(architecture), C(size_bytes) of the image, V(null) where it is not there yet (check mode).
  returned: always
  type: dict
store:
  description: Storage driver of Docker on this Spark. Image IDs of two Sparks only compare where it is the same.
  returned: always
  type: str
checks:
  description: IMAGE.DIGEST and IMAGE.ARCH.
  returned: when the image is there
  type: list
  elements: dict
"""

import os
import shutil
from dataclasses import asdict
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes import images
from ansible.module_utils.sparklanes.checks import failures, sentence
from ansible.module_utils.sparklanes.containers import Docker, DockerError


class EngineImage:
    """One image on one Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.host: str = module.params["host"]
        self.reference = images.Reference(module.params["repository"], module.params["digest"])
        self.docker = Docker(module.run_command)
        self.actions: list[str] = []

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=f"{self.host}: {problem}", reference=str(self.reference), actions=self.actions)
        raise SystemExit(1)

    def local(self) -> images.LocalImage | None:
        rc, out, err = self.module.run_command(["docker", "image", "inspect", str(self.reference)])
        if rc == 0:
            found: images.LocalImage = images.parse_inspect(out)
            return found
        if "no such image" not in err.lower():
            self.fail(f"docker image inspect {self.reference}: {err.strip()} → {images.explain(err)}")
        return None

    def instead(self) -> str:
        rows = self.docker.call("image", "ls", "--digests", "--no-trunc", "--format", "{{json .}}")
        return str(images.others(self.reference, images.parse_list(rows)))

    def pull(self) -> None:
        rc, out, err = self.module.run_command(["docker", "pull", "--quiet", str(self.reference)])
        if rc != 0:
            told = (err or out).strip()
            self.fail(f"{self.reference} could not be pulled: {told} → {images.explain(told)}. {self.instead()}".rstrip())

    def run(self) -> dict[str, Any]:
        wrong = images.problems(self.reference.repository, self.reference.digest)
        if wrong:
            self.fail("; ".join(wrong))
        if not shutil.which("docker"):
            self.fail(
                "there is no docker command. A Spark comes with Docker; install it again (apt install docker-ce) before anything else"
            )
        store = self.docker.info()["storage_driver"]
        before = image = self.local()
        if image is None:
            if self.module.params["pull"] == "never":
                self.fail(f"{self.reference} is not here. Run site.yml to pull it. {self.instead()}".rstrip())
            self.actions.append(f"Pull {self.reference}")
            if not self.module.check_mode:
                self.pull()
                image = self.local()
                if image is None:
                    self.fail(
                        f"{self.reference} was pulled and is not here; Docker's image store is damaged. Look at `journalctl -u docker`"
                    )
        made = images.judge(self.host, image, self.reference, os.uname().machine) if image else []
        bad = failures(made)
        if bad:
            self.fail("; ".join(sentence(check).removeprefix(f"{self.host} ") for check in bad))
        return {
            "changed": before is None,
            "reference": str(self.reference),
            "image": asdict(image) if image else None,
            "store": store,
            "checks": [check.to_dict() for check in made],
            "diff": {
                "before": "".join(f"{digest}\n" for digest in before.repo_digests) if before else "",
                "after": "".join(f"{digest}\n" for digest in image.repo_digests) if image else f"{self.reference}\n",
            },
        }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repository": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "pull": {"type": "str", "choices": ["missing", "never"], "default": "missing"},
        },
        supports_check_mode=True,
    )
    image = EngineImage(module)
    try:
        result = image.run()
    except (DockerError, ValueError) as error:
        module.fail_json(msg=f"{image.host}: {error} → {images.explain(str(error))}", actions=image.actions)
    module.exit_json(actions=image.actions, **result)


if __name__ == "__main__":
    main()
