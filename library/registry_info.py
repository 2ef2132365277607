#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Ask a registry what a tag of an image means, without a pull."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: registry_info
short_description: Ask a registry what a tag of an image means, without a pull
description:
  - Says which manifest a tag means for machines of an architecture, when the image was made, by which ID Docker knows it, and what its configuration
    tells (ENTRYPOINT, labels, versions in its environment). Of a digest that is pinned, whether the registry still has it.
  - A tag may name an index of several platforms. C(digest) is that of the manifest which a machine of O(architecture) pulls, C(index) the other.
  - Which Python packages an image holds stands nowhere in it; C(engine_image_info) asks the image itself once it is there.
  - It speaks the registry's own protocol and needs no Docker where it runs. Every answer is hashed and compared with its name.
  - The login is O(logins), else what C(docker login) left on this machine, also with one of Docker's programs that keep passwords. It goes to the
    registry and to who gives tokens for it, never along a redirect, and not without TLS unless that is allowed.
options:
  repository:
    description: Name of the image without tag and digest.
    type: str
    required: true
  tag:
    description: The tag to ask for; empty asks for none.
    type: str
    default: ''
  pinned:
    description: The digest that is pinned; empty where none is.
    type: str
    default: ''
  architecture:
    description: Of the machines that are to run it, as Docker calls it.
    type: str
    default: arm64
  logins:
    description: >-
      Registry to C(username) and C(password); C(realm) is the host that gives tokens for it where that is no part of its domain, C(over_http)
      allows to send the password without TLS.
    type: dict
    default: {}
  insecure:
    description: Registries without TLS, as C(insecure-registries) of Docker names them.
    type: list
    elements: str
    default: []
  docker_config:
    description: Folder of Docker's configuration of this user.
    type: path
  certificates:
    description: Folder in which Docker looks for the CA of a registry, C(HOST:PORT/ca.crt).
    type: path
    default: /etc/docker/certs.d
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: Ask what the tag means on a Spark
  delegate_to: localhost
  registry_info:
    repository: "{{ lane_image.repository }}"
    tag: "{{ lane_image.tag }}"
  register: registry
"""

RETURN = r"""
image:
  description: >-
    C(source) (the registry), C(now) (what C(asked) means) and C(pinned), each with C(digest), C(index), C(id), C(date), C(bytes), C(entrypoint),
    C(labels), C(versions); C(error) of C(pinned) where the registry has it no more. C(error) is empty where the registry answered.
  returned: always
  type: dict
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker import logins, remote
from ansible.module_utils.sparklanes.docker.images import canonical

OPTIONS: dict[str, Any] = {
    "repository": {"type": "str", "required": True},
    "tag": {"type": "str", "default": ""},
    "pinned": {"type": "str", "default": ""},
    "architecture": {"type": "str", "default": "arm64"},
    "logins": {"type": "dict", "default": {}, "no_log": True},
    "insecure": {"type": "list", "elements": "str", "default": []},
    "docker_config": {"type": "path"},
    "certificates": {"type": "path", "default": "/etc/docker/certs.d"},
}
HELPER_SECONDS = 20


def docker_config(folder: str | None) -> dict[str, Any]:
    """What Docker's client keeps of this user; nothing where it keeps nothing that can be read."""
    home = folder or os.environ.get("DOCKER_CONFIG") or str(Path("~/.docker").expanduser())
    try:
        told = json.loads(Path(home, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def login(params: dict[str, Any], host: str) -> logins.Login | None:
    kept = docker_config(params["docker_config"])
    found = logins.login_of(host, params["logins"], kept)
    program, name = logins.helper_of(host, kept)
    if found is None and program and shutil.which(program):
        # It reads the registry's name.
        argv = ["sh", "-c", 'printf "%s" "$1" | "$2" get', "sh", name, program]
        rc, out, _ = commands.run(argv, seconds=HELPER_SECONDS)
        found = logins.helped(out) if rc == 0 else None
    return found


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    params = module.params
    host = canonical(params["repository"]).partition("/")[0]
    ca = Path(params["certificates"], host, "ca.crt")
    try:
        registry = remote.Registry(
            params["repository"], login(params, host), host in params["insecure"], str(ca) if ca.is_file() else ""
        )
        answer = {**remote.of_registry(registry, params["tag"], params["pinned"], params["architecture"]), "error": ""}
    except remote.RegistryError as error:
        answer = {"source": host, "asked": params["tag"], "now": {}, "pinned": {}, "error": str(error)}
    module.exit_json(changed=False, image=answer)


if __name__ == "__main__":
    main()
