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
  - Reads C(/proc/meminfo), C(/proc/buddyinfo), C(/proc/vmstat), C(/proc/pressure/memory) and the status of processes, and returns
    figures in bytes, the largest processes, what no process accounts for, checks and a verdict.
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
  sample_seconds:
    description:
      - How long the kernel's reclaim is watched for distress. V(0) takes one look, which tells pressure but no rates.
      - A O(root) other than the running system is looked at once.
    type: float
    default: 1
  compacted:
    description: Memory was compacted just now; large blocks that still lack then ask for a reboot.
    type: bool
    default: false
  root:
    description: Root of the file tree, for tests and recorded trees.
    type: path
    default: /
  page_size:
    description: Size of a page in bytes; that of the running kernel when left out.
    type: int
extends_documentation_fragment: [sparklanes, sparklanes.info]
attributes:
  check_mode:
    details: Reads in check mode as it does otherwise; it waits O(sample_seconds) then too.
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
    C(mem_total), C(mem_free), C(mem_available), C(cached), C(dirty), C(shmem), C(swap_total), C(swap_free), C(swap_used), C(cma_total),
    C(cma_free), C(unaccounted), C(droppable) in bytes (V(null) where the kernel does not say) and C(blocks) with C(equivalent), C(largest_bytes),
    C(biggest_free_bytes), C(exact).
  returned: always
  type: dict
page_size:
  description: Bytes of a page.
  returned: always
  type: int
checks:
  description: The checks MEM.CMA and MEM.DISTRESS, and as asked MEM.FREE, MEM.BLOCKS, MEM.SWAP.
  returned: always
  type: list
  elements: dict
status:
  description: Of all checks, V(pass), V(warn) or V(fail).
  returned: always
  type: str
verdict:
  description: V(ready), V(flush), V(compact), V(held), V(distress), V(reboot_required), V(kernel_fault) or V(unknown).
  returned: always
  type: str
figures:
  description: What the verdict rests on, as a sentence.
  returned: always
  type: str
remedy:
  description: The next step for a person; empty where the verdict is V(ready).
  returned: always
  type: str
reclaim:
  description: >-
    C(pressure) (V(null) without PSI), C(counters) since boot (direct reclaim, swap, compaction) and C(rates) a second over the sample.
  returned: always
  type: dict
largest:
  description: The processes that hold the most, with C(pid), C(name), C(resident), C(swapped). GPU memory is not among it.
  returned: always
  type: list
  elements: dict
"""

import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import checks
from ansible.module_utils.sparklanes.memory import facts as memory_facts
from ansible.module_utils.sparklanes.memory import pressure as memory_pressure
from ansible.module_utils.sparklanes.memory import processes as memory_processes
from ansible.module_utils.sparklanes.memory import verdict as memory_verdict


def text(path: Path) -> str:
    """The content; empty where it can't be read: what is not measured counts as failed in its check."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "min_free_gib": {"type": "float"},
            "min_blocks": {"type": "int", "default": memory_facts.ENOUGH_BLOCKS},
            "strict_blocks": {"type": "bool", "default": False},
            "swap": {"type": "bool"},
            "sample_seconds": {"type": "float", "default": 1},
            "compacted": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
            "page_size": {"type": "int"},
        },
        supports_check_mode=True,
    )
    wish, proc = module.params, Path(module.params["root"]) / "proc"
    page_size: int = wish["page_size"] or os.sysconf("SC_PAGE_SIZE")
    # Nothing moves in a recorded tree: two looks at it would show a calm that nobody measured.
    seconds = wish["sample_seconds"] if proc == Path("/proc") else 0.0
    if not 0 <= seconds <= 60:
        module.fail_json(msg=f"sample_seconds: found {seconds:g}, expected 0 to 60")
    before = text(proc / "vmstat")
    if seconds:
        time.sleep(seconds)
    struggle = memory_pressure.seen(text(proc / "pressure/memory"), before, text(proc / "vmstat"), seconds)
    found = memory_facts.facts(text(proc / "meminfo"), text(proc / "buddyinfo"), page_size)
    largest = memory_processes.read(proc)
    min_blocks = wish["min_blocks"] if wish["min_blocks"] > 0 else None
    distress = memory_pressure.check_distress(wish["host"], struggle)
    made = [
        *memory_facts.judge(
            wish["host"],
            found,
            min_free_gib=wish["min_free_gib"],
            min_blocks=min_blocks,
            strict_blocks=wish["strict_blocks"],
            swap=wish["swap"],
        ),
        distress,
    ]
    verdict = memory_verdict.verdict(
        wish["host"],
        found,
        distress,
        largest,
        wish["min_free_gib"],
        min_blocks,
        memory_verdict.Done(compacted=wish["compacted"]),
    )
    module.exit_json(
        changed=False,
        actions=[],
        memory=found.to_dict(),
        page_size=page_size,
        checks=[check.to_dict() for check in made],
        status=checks.verdict(made),
        verdict=verdict.name,
        figures=verdict.figures,
        remedy=verdict.remedy,
        reclaim=struggle.to_dict(),
        largest=[process.to_dict() for process in largest],
    )


if __name__ == "__main__":
    main()
