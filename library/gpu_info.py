#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is known of the GPU of a Spark without loading it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_info
short_description: What is known of the GPU of a Spark without loading it
description:
  - Reads C(nvidia-smi -q -x), C(/proc/driver/nvidia/version), the driver's lines in the kernel log of this boot, and the units that
    lock clocks. Returns figures and checks.
  - What the driver does not tell is V(null), whatever its release calls it (C([N/A]), C([Not Supported]), C(Insufficient Permissions)).
  - An C(nvidia-smi) that does not answer within 20 s is left behind and said so. A bad check does not fail the module.
options:
  host:
    description: Name of the Spark in the checks.
    type: str
    required: true
  root:
    description:
      - Root of the file tree. With another one than V(/) nothing is run; C(nvidia_smi_q_x.xml) and C(kernel.log) there stand in.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: What GPU and driver there are, and whether they are well
  gpu_info:
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
actions:
  description: Always empty, as nothing is changed.
  returned: always
  type: list
gpu:
  description: >-
    C(present), C(error), C(driver) (C(version), C(cuda_version), C(module_version), C(flavour) open or proprietary), C(gpus) (name, bus_id,
    vbios, power_w, power_limit_w, default_power_limit_w, sm_mhz, max_sm_mhz, memory_mhz, application_mhz, utilization_percent,
    temperature_c, memory_total_bytes, memory_used_bytes, throttle_reasons, recovery_action, processes …), C(processes) (those that compute,
    each pid once; null where not told), C(kernel_log) (C(xids), C(xid_counts), C(fatal), C(no_memory_lines), C(error)), C(caps) (unit,
    min_mhz, max_mhz).
  returned: always
  type: dict
checks:
  description: The checks GPU.DRIVER, GPU.XID, and where a lock is declared GPU.CLOCK_CAP.
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
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import rules as gpu_rules


def main() -> None:
    module = AnsibleModule(
        argument_spec={"host": {"type": "str", "required": True}, "root": {"type": "path", "default": "/"}},
        supports_check_mode=True,
    )
    found = gpu_facts.facts(Path(module.params["root"]))
    made = gpu_rules.gate(module.params["host"], found)
    module.exit_json(
        changed=False, actions=[], gpu=found, checks=[check.to_dict() for check in made], verdict=checks.verdict(made)
    )


if __name__ == "__main__":
    main()
