#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the memory of a Spark can still give, as figures and as checks."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: memory_info
short_description: What the memory of a Spark can still give
description:
  - Reads C(/proc/meminfo) and C(/proc/buddyinfo) and returns figures in bytes, checks and a verdict.
  - Counts large free blocks with the real page size and the real number of orders, as free blocks of 32 MiB.
  - Finds the kernel fault in which more contiguous memory is free than there is.
  - A bad verdict does not fail the module; the caller decides what a check means at its place.
options:
  host:
    description: Name of the Spark in the checks.
    type: str
    required: true
  min_free_gib:
    description: MemFree in GiB that is needed. Not checked when left out.
    type: float
  min_blocks:
    description: Free blocks of 32 MiB that are needed. V(0) or less turns the check off.
    type: int
    default: 200
  strict_blocks:
    description: Whether too few blocks are a failure rather than a warning.
    type: bool
    default: false
  swap:
    description: Whether swap has to be on or off. Not checked when left out.
    type: bool
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
  page_size:
    description: Size of a page in bytes; that of the running kernel when left out.
    type: int
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - Contributors to the sparklanes project (@sparklanes)
"""

EXAMPLES = r"""
- name: Is there room for the lane
  memory_info:
    host: "{{ inventory_hostname }}"
    min_free_gib: "{{ lane_min_free_gib }}"
"""

RETURN = r"""
actions:
  description: Always empty, as nothing is changed.
  returned: always
  type: list
memory:
  description: >-
    C(mem_total), C(mem_free), C(mem_available), C(cached), C(dirty), C(shmem), C(swap_total), C(swap_free), C(cma_total), C(cma_free) in bytes
    (V(null) where the kernel does not say) and C(blocks) with C(equivalent), C(largest_bytes), C(biggest_free_bytes), C(exact).
  returned: always
  type: dict
page_size:
  description: Bytes of a page.
  returned: always
  type: int
checks:
  description: The checks MEM.CMA, and as asked MEM.FREE, MEM.BLOCKS, MEM.SWAP.
  returned: always
  type: list
  elements: dict
verdict:
  description: V(pass), V(warn) or V(fail).
  returned: always
  type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes import checks, memory


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "min_free_gib": {"type": "float"},
            "min_blocks": {"type": "int", "default": memory.ENOUGH_BLOCKS},
            "strict_blocks": {"type": "bool", "default": False},
            "swap": {"type": "bool"},
            "root": {"type": "path", "default": "/"},
            "page_size": {"type": "int"},
        },
        supports_check_mode=True,
    )
    wish, proc = module.params, Path(module.params["root"]) / "proc"
    page_size: int = wish["page_size"] or os.sysconf("SC_PAGE_SIZE")
    texts = {}
    for name in ("meminfo", "buddyinfo"):
        try:
            texts[name] = (proc / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            # What can't be read is not measured, and that the checks count as failed.
            texts[name] = ""
    found = memory.facts(texts["meminfo"], texts["buddyinfo"], page_size)
    made = memory.judge(
        wish["host"],
        found,
        min_free_gib=wish["min_free_gib"],
        min_blocks=wish["min_blocks"] if wish["min_blocks"] > 0 else None,
        strict_blocks=wish["strict_blocks"],
        swap=wish["swap"],
    )
    module.exit_json(
        changed=False,
        actions=[],
        memory=found.to_dict(),
        page_size=page_size,
        checks=[check.to_dict() for check in made],
        verdict=checks.verdict(made),
    )


if __name__ == "__main__":
    main()
