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
      - V(stopped) asks every rank container of the deployment on this Spark to end, saves log and
        inspect record of each, and removes it once it has ended.
    type: str
    choices: [started, stopped]
    required: true
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
    description: Where logs are saved, in C(DEPLOYMENT/STAMP/rankN.log).
    type: path
    default: /var/log/sparklanes
attributes:
  check_mode:
    description: Says what it would start or stop.
    support: full
  diff_mode:
    description: Shows which release ran before and which runs after.
    support: full
author:
  - Contributors to the sparklanes project (@sparklanes)
"""

EXAMPLES = r"""
- name: Stop whatever the deployment runs here, logs first
  rank:
    deployment: sparks
    state: stopped

- name: Start the rank of a frozen release
  rank:
    deployment: sparks
    state: started
    release: 0123456789ab
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
container:
  description: Name and id of the started container.
  returned: when a container runs afterwards
  type: dict
logs:
  description: Log files that were saved on this Spark.
  returned: always
  type: list
  elements: str
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes import engine_boots
from ansible.module_utils.sparklanes.containers import LABEL_DEPLOYMENT, Container, Docker, DockerError
from ansible.module_utils.sparklanes.image_store import ImageStore
from ansible.module_utils.sparklanes.lanes import docker_create_argv
from ansible.module_utils.sparklanes.releases import Store


class Rank:
    """The rank of one deployment on this Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.docker = Docker(module.run_command)
        self.store = Store(self.params["deployment"], self.params["root"])
        self.actions: list[str] = []
        self.logs: list[str] = []

    def fail(self, message: str) -> None:
        self.module.fail_json(msg=message, actions=self.actions, logs=self.logs)

    def ours(self) -> list[Container]:
        return self.docker.containers(f"label={LABEL_DEPLOYMENT}={self.store.deployment}")

    def start(self) -> dict[str, Any]:
        release = self.params["release"]
        spec = self.store.spec(release)
        if spec is None:
            self.fail(
                f"release {release} is not frozen on this Spark ({self.store.release_folder(release)}/rank.json is missing). "
                "Run playbooks/launch.yml, which freezes it on every rank before anything is stopped"
            )
            raise AssertionError
        name = spec["container"]
        for box in self.ours():
            if box.running and (box.name != name or box.release != release):
                self.fail(
                    f"container {box.name} already runs release {box.release or 'unknown'} of deployment {self.store.deployment}; "
                    f"expected none or release {release}. Stop it first: playbooks/stop.yml"
                )
            if box.running:
                return {"changed": False, "container": {"name": box.name, "id": box.id[:12]}}
        stranger = self.docker.named(name)
        if stranger is not None and stranger.deployment != self.store.deployment:
            self.fail(
                f"a container named {name} exists that sparklanes did not make (image {stranger.image}, {stranger.status}). "
                f"Remove or rename it by hand; it is never touched from here"
            )
        local = self.refuse_missing(spec)
        self.actions.append(f"Start {name} from {spec['image']}")
        if not self.module.check_mode:
            for box in self.ours():
                self.remove(box)
            argv = docker_create_argv({**spec, "image": local})
            self.docker.call(*argv[1:], environ=self.secrets(spec))
            engine_boots.add(self.params["root"])
            self.docker.call("start", name)
        started = None if self.module.check_mode else self.docker.named(name)
        return {
            "changed": True,
            "container": {"name": name, "id": started.id[:12] if started else ""},
            "diff": {"before": "no rank runs\n", "after": f"{name} runs release {release}\n"},
        }

    def secrets(self, spec: dict[str, Any]) -> dict[str, str]:
        given = {str(key): str(value) for key, value in self.params["secret_env"].items()}
        missing = [name for name in spec.get("secret_env") or [] if not given.get(name)]
        if missing:
            self.fail(
                f"the spec needs {', '.join(missing)} and no value was given. Put it into the site's vault "
                "(inventory/fleet/group_vars/all/vault.yml) or remove the API key of the lane"
            )
        return {name: given[name] for name in spec.get("secret_env") or []}

    def refuse_missing(self, spec: dict[str, Any]) -> str:
        """The name of the image on this Spark, once all that the rank needs is there."""
        absent = [
            mount["source"] for mount in spec.get("mounts") or [] if not (mount.get("create") or Path(mount["source"]).exists())
        ]
        if absent:
            self.fail(f"{', '.join(absent)}: to be mounted into the rank, and missing on this Spark. Run site.yml to stage it")
        found = ImageStore(self.module.run_command, Path(self.params["root"], "images")).find(
            spec["image"], spec.get("image_ids") or []
        )
        if found is None:
            self.fail(f"image {spec['image']} is not on this Spark. Run site.yml to pull it")
            raise AssertionError
        return str(found.name)

    def stop(self) -> dict[str, Any]:
        boxes = self.ours()
        for box in boxes:
            if box.running:
                self.actions.append(f"Stop {box.name} (release {box.release}), {self.params['stop_timeout_seconds']} s to end")
            self.actions.append(f"Save the log of {box.name} and remove it")
            if self.module.check_mode:
                continue
            if box.running:
                self.docker.call("stop", "--time", str(self.params["stop_timeout_seconds"]), box.id)
            self.remove(box)
        before = "".join(f"{box.name} ({box.status}) of release {box.release}\n" for box in boxes)
        return {"changed": bool(boxes), "diff": {"before": before, "after": ""}}

    def remove(self, box: Container) -> None:
        """Save the log of an ended container, then remove it. Docker itself refuses a running one."""
        spec = self.store.spec(box.release) if box.release else None
        stamp = self.params["stamp"] or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        folder = Path(self.params["log_root"], self.store.deployment, stamp)
        label = f"rank{box.labels.get('sparklanes.rank', '')}"
        path = folder / f"{label}.log"
        for again in range(2, 100):
            if not path.exists():
                break
            path = folder / f"{label}.{again}.log"
        # A release that was pruned names its secrets no more: then no value is written.
        self.docker.save_logs(box, path, redact=None if spec is None else list(spec.get("secret_env") or []))
        self.logs.append(str(path))
        self.docker.call("rm", box.id)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "required": True},
            "release": {"type": "str"},
            "secret_env": {"type": "dict", "default": {}, "no_log": True},
            "stop_timeout_seconds": {"type": "int", "default": 30},
            "stamp": {"type": "str"},
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
            "log_root": {"type": "path", "default": "/var/log/sparklanes"},
        },
        required_if=[("state", "started", ["release"])],
        supports_check_mode=True,
    )
    try:
        rank = Rank(module)
        result = rank.start() if module.params["state"] == "started" else rank.stop()
    except (DockerError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(actions=rank.actions, logs=rank.logs, **result)


if __name__ == "__main__":
    main()
