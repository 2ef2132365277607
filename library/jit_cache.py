#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Give a Spark the compiled kernels that another one has."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: jit_cache
short_description: Give a Spark the compiled kernels that another one has
description:
  - Measures, packs or unpacks the cache of compiled kernels of one lane and image. Only plain files are packed, and only an empty
    cache is filled, in one step, and none that a running container sees.
options:
  path:
    description: Folder of the cache.
    type: path
    required: true
  state:
    description: V(measured) only looks; V(packed) writes O(archive); V(filled) takes it from there and removes it.
    type: str
    choices: [measured, packed, filled]
    default: measured
  archive:
    description: The archive on this Spark.
    type: path
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    support: none
    details: Compiled kernels are nothing to read. RV(files) and RV(bytes) tell how much there is.
  idempotent:
    support: partial
    details: V(measured) and V(filled) are. V(packed) packs at each run.
"""

EXAMPLES = r"""
- name: See whether this Spark has compiled kernels
  jit_cache:
    path: /var/lib/sparklanes/jit/7010d9cf73a9/flash_nvfp4_mtp_tp2
"""

RETURN = r"""
files:
  description: Number of files in the cache.
  returned: always
  type: int
bytes:
  description: Their size.
  returned: always
  type: int
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.docker.jit_cache import CacheError, measure, pack, unpack


def users(module: AnsibleModule, folder: Path) -> list[str]:
    """Running containers that see the folder: it is replaced as a whole, and they would go on writing into the one before."""
    boxes = Docker(commands.run).running() if folder.is_dir() else []
    return [box.name for box in boxes if any(folder == Path(path) for path in box.mounts)]


def main() -> None:
    needed = [("state", "packed", ["archive"]), ("state", "filled", ["archive"])]
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["measured", "packed", "filled"], "default": "measured"},
            "archive": {"type": "path"},
        },
        required_if=needed,
        supports_check_mode=True,
    )
    folder, state = Path(module.params["path"]), module.params["state"]
    actions: list[str] = []
    try:
        before = measure(folder)
        if state == "packed":
            actions.append(f"Pack {folder}")
            if not module.check_mode:
                pack(folder, Path(module.params["archive"]))
        elif state == "filled" and not before[0] and not users(module, folder):
            actions.append(f"Fill {folder}")
            if not module.check_mode:
                unpack(Path(module.params["archive"]), folder)
        if state == "filled" and not module.check_mode:
            Path(module.params["archive"]).unlink(missing_ok=True)
        count, size = measure(folder)
    except (CacheError, DockerError, OSError) as error:
        module.fail_json(msg=str(error), actions=actions)
    module.exit_json(changed=bool(actions), actions=actions, files=count, bytes=size)


if __name__ == "__main__":
    main()
