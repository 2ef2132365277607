#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Lend this Spark's engine image to its peers for the time of staging."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_registry
short_description: Lend this Spark's engine image to its peers for the time of staging
description:
  - Runs docker-registry as a detached job (a transient unit) on one address, with TLS and for holders of a certificate made for this
    staging only, and pushes one local image into it. It ends by itself when nobody has asked for anything for O(idle_seconds),
    whatever became of the controller, and what it stored goes with it.
  - Docker's daemon is neither reloaded nor restarted, and its configuration is not touched. It reads certificates at each push and pull.
options:
  state:
    description: Whether the image is lent.
    type: str
    choices: [lent, kept]
    default: lent
  image:
    description: Name or ID under which Docker finds the image.
    type: str
  repository:
    description: Name of the image in the registry, without tag.
    type: str
    default: sparklanes/engine
  address:
    description: The address to listen on, that of the fabric.
    type: str
  port:
    description: The port to listen on.
    type: int
    default: 18731
  program:
    description: The registry's program. Where it is not there, it is unpacked from the distribution's package docker-registry.
    type: path
    default: /var/lib/sparklanes/tools/docker-registry
  idle_seconds:
    description: End after so long without a request.
    type: int
    default: 900
  reserve_gib:
    description: GiB of the disk that stay free beside a packed copy of the image.
    type: int
    default: 10
  registry_dir:
    description: >-
      Where the registry stores, for the time of the staging. It is made, and removed whole in the end; one that is there and does not carry
      our mark is neither used nor removed.
    type: path
    default: /var/lib/sparklanes/registry
extends_documentation_fragment: [sparklanes, sparklanes.change, sparklanes.jobs]
attributes:
  check_mode:
    details: Says what it would lend, where the image is here. Whether there is room shows only in a real run.
  diff_mode:
    support: none
    details: Certificates and the store of a registry are nothing to read.
  idempotent:
    support: partial
    details: >-
      V(kept) is. V(lent) makes certificates and pushes anew at each run, as those of an earlier staging are nobody's any more.
"""

EXAMPLES = r"""
- name: The first rank lends its image
  image_registry:
    image: "{{ engine_image_result.image.name }}"
    address: 10.93.2.11
  register: lent
  no_log: true

- name: It lends no more
  image_registry:
    state: kept
"""

RETURN = r"""
lent:
  description: >-
    What a peer needs, as C(through) of C(engine_image_pull) takes it: C(registry), C(repository), C(digest), C(id), C(store), C(ca),
    C(certificate), C(key). Keep it out of logs.
  type: dict
  returned: when lent
actions:
  description: What was done, in sentences.
  type: list
  elements: str
  returned: always
"""

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands, disk, ours
from ansible.module_utils.sparklanes.common.files import write_atomically
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker import moving
from ansible.module_utils.sparklanes.docker import registry as docker_registry
from ansible.module_utils.sparklanes.docker.containers import DEED_SECONDS, Docker, DockerError
from ansible.module_utils.sparklanes.docker.images import explain
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError

OPTIONS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["lent", "kept"], "default": "lent"},
    "image": {"type": "str"},
    "repository": {"type": "str", "default": "sparklanes/engine"},
    "address": {"type": "str"},
    "port": {"type": "int", "default": 18731},
    "program": {"type": "path", "default": "/var/lib/sparklanes/tools/docker-registry"},
    "idle_seconds": {"type": "int", "default": 900},
    "reserve_gib": {"type": "int", "default": 10},
    "registry_dir": {"type": "path", "default": "/var/lib/sparklanes/registry"},
    "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
}
TAG = "staged"


class Registry:
    """The registry of this Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.jobs = Jobs(ask_systemd, Path(self.params["jobs_dir"]))
        self.folder = Path(self.params["registry_dir"])
        self.docker = Docker(commands.run)

    def program(self) -> str:
        """The program, unpacked and not installed where it is missing: installing the package would start a service on every address."""
        wanted = Path(self.params["program"])
        for place in (wanted, Path("/usr/bin/docker-registry")):
            if place.is_file():
                return str(place)
        with tempfile.TemporaryDirectory(dir=self.module.tmpdir) as work:
            for command in (
                ["apt-get", "--quiet", "download", "docker-registry"],
                ["sh", "-c", "dpkg -x docker-registry_*.deb ."],
            ):
                rc, out, err = commands.run(command, seconds=DEED_SECONDS, cwd=work)
                if rc != 0:
                    raise JobError(
                        f"{wanted} is not here, and the package docker-registry could not be had: {(err or out).strip()[-300:]}. Put the "
                        "program there, or let every Spark pull for itself: engine_image_spread: never"
                    )
            wanted.parent.mkdir(parents=True, exist_ok=True)
            part = wanted.with_name(f".{wanted.name}.part")
            shutil.copyfile(Path(work, "usr/bin/docker-registry"), part)
            part.chmod(0o755)
            part.rename(wanted)
        return str(wanted)

    def lend(self) -> dict[str, Any]:
        address, port = str(self.params["address"]), int(self.params["port"])
        image = ImageStore(commands.run).inspect(self.params["image"])
        if image is None:
            raise JobError(f"{self.params['image']} is not on this Spark, so it can't be lent")
        at = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        if self.module.check_mode:
            return {"changed": True, "actions": [f"would lend {self.params['image']} at {at}"]}
        self.refuse_without_room(image.size_bytes)
        self.jobs.stop(docker_registry.JOB)  # Left by another staging: its certificates are not ours.
        ours.remove(self.folder, docker_registry.STORE)
        ours.claim(self.folder, docker_registry.STORE)
        write_atomically(self.folder / "openssl.cnf", docker_registry.openssl_config(self.folder, address))
        (self.folder / "index.txt").touch()
        for command in docker_registry.certificate_commands(self.folder, time.time()):
            rc, out, err = commands.run(command)
            if rc != 0:
                raise JobError(f"openssl could not make certificates: {(err or out).strip()[-300:]}")
        ca, certificate, key = (
            (self.folder / name).read_text(encoding="ascii") for name in ("server.pem", "client.pem", "client.key")
        )
        args: dict[str, Any] = {"folder": str(self.folder), "address": address, "port": port, "program": self.program()}
        args["idle_seconds"] = self.params["idle_seconds"]
        self.jobs.start(docker_registry.JOB, docker_registry.serve, args, writes=[self.folder.parent])
        self.wait(address, port)
        with docker_registry.client_certificates(at, ca, certificate, key):
            digest = self.push(f"{at}/{self.params['repository']}:{TAG}")
        store = self.docker.info()["image_store"]
        lent = {"registry": at, "repository": self.params["repository"], "digest": digest, "id": image.id, "store": store}
        return {
            "changed": True,
            "actions": [f"Lend {self.params['image']} at {at}"],
            "lent": {**lent, "size_bytes": image.size_bytes, "ca": ca, "certificate": certificate, "key": key},
        }

    def refuse_without_room(self, size: int) -> None:
        if problem := disk.lacking(self.folder, size, self.params["reserve_gib"] * GIB):
            raise JobError(
                f"{problem} for a copy of the image. playbooks/prune.yml shows what may go; engine_image_spread: never needs no copy"
            )

    def wait(self, address: str, port: int) -> None:
        limit = time.monotonic() + docker_registry.START_SECONDS + 5
        while not docker_registry.answers(address, port, self.folder):
            status = self.jobs.status(docker_registry.JOB)
            if status.finished or time.monotonic() > limit:
                raise JobError(status.error or f"the registry did not start: see {self.jobs.folder(docker_registry.JOB)}/log")
            time.sleep(0.2)

    def push(self, name: str) -> str:
        """The digest under which the image lies in the registry. The name is only for the push."""
        self.docker.call("tag", self.params["image"], name)
        try:
            rc, out, err = moving.run("push", name)
        finally:
            commands.run(["docker", "image", "rm", "--no-prune", name], seconds=DEED_SECONDS)
        if rc != 0:
            raise DockerError(
                f"docker push failed (exit {rc}): {(err or out).strip()[-600:]}" if rc != commands.TIMED_OUT else err
            )
        digest = docker_registry.pushed_digest(out)
        if not digest:
            raise JobError(f"docker push named no digest: {out.strip()[-300:]}")
        return str(digest)

    def keep(self) -> dict[str, Any]:
        if self.module.check_mode:
            return {"changed": self.jobs.status(docker_registry.JOB).running, "actions": []}
        actions = ["Stopped lending"] if self.jobs.stop(docker_registry.JOB) else []
        if ours.remove(self.folder, docker_registry.STORE):
            actions.append(f"Remove {self.folder}")
        return {"changed": bool(actions), "actions": actions}

    def give_up(self, problem: str) -> NoReturn:
        """Keys of a lending that did not come about are nobody's."""
        with contextlib.suppress(OSError, JobError, ours.NotOurs):
            self.keep()
        self.module.fail_json(msg=problem)
        raise SystemExit(1)


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True, required_if=[("state", "lent", ["image", "address"])])
    here = Registry(module)
    try:
        result = here.lend() if module.params["state"] == "lent" else here.keep()
    except (JobError, ValueError) as error:
        here.give_up(str(error))
    except DockerError as error:
        here.give_up(f"{error} → {explain(str(error))}")
    except OSError as error:
        here.give_up(f"{error.filename or here.folder}: {error.strerror or error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
