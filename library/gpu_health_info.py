#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the GPU of a Spark did under load when it was last measured."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_health_info
short_description: What the GPU of a Spark did under load when it was last measured
description:
  - Returns the runs of the module C(gpu_health) that this Spark remembers. Measures nothing.
options:
  folder:
    description: Where the history lies.
    type: path
    default: /var/lib/sparklanes/health
  host:
    description: Name of the Spark in the check.
    type: str
    required: true
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: How fast was it last time
  gpu_health_info:
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
actions:
  description: Always empty, as nothing is changed.
  returned: always
  type: list
runs:
  description: The runs without their samples, oldest first, each with C(at) (s since the epoch), C(verdict), C(matmul_tflops), C(clock_mhz) ….
  returned: always
  type: list
  elements: dict
checks:
  description: The check GPU.HEALTH of the last run; a warning where there is none, or where it is of an earlier boot.
  returned: always
  type: list
  elements: dict
verdict:
  description: V(pass), V(warn) or V(fail).
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import checks
from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.gpu import measure as gpu_measure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "default": gpu_measure.FOLDER},
            "host": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    runs = gpu_measure.history(Path(module.params["folder"]))
    made = [gpu_health.remembered(module.params["host"], runs, boot_id())]
    module.exit_json(
        changed=False,
        actions=[],
        runs=[{key: value for key, value in run.items() if key not in ("samples", "blocks")} for run in runs],
        checks=[check.to_dict() for check in made],
        verdict=checks.verdict(made),
    )


if __name__ == "__main__":
    main()
