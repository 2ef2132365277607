#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Bring the memory of a Spark to what a lane needs, prove it by touching it, or say why not."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: memory_settle
short_description: Bring the memory of a Spark to what a lane needs and prove it
description:
  - For the moment between the stop of the old ranks and the start of the new ones. Waits, bounded, until enough memory is free, flushes
    the page cache where that helps, compacts torn memory where no rank runs, then touches pages in a child process, since memory can be
    promised and die on first touch.
  - A fault of the kernel, and torn memory that compaction does not mend, stop at once.
  - A bad ending does not fail the module; the gate judges its checks.
options:
  host:
    description: Name of the Spark in the checks.
    type: str
    required: true
  min_free_gib:
    description: MemFree in GiB that is needed.
    type: float
    default: 0
  min_blocks:
    description: Free blocks of 32 MiB that are needed; V(0) only warns where there are few.
    type: int
    default: 0
  seconds:
    description: How long to wait for them, at most 3600.
    type: float
    default: 300
  flush:
    description: Whether the page cache may be dropped.
    type: bool
    default: true
  compact:
    description: Whether memory may be compacted. It never is while a rank, a container with a GPU or a GPU process runs.
    type: bool
    default: true
  touch_gib:
    description:
      - GiB to touch, at most MemFree less O(touch_margin_gib). O(min_free_gib) when left out; V(0) turns the probe off.
      - Nothing is touched while a rank, a container with a GPU or a GPU process runs; the check MEM.TOUCH then fails.
    type: float
  touch_margin_gib:
    description: GiB of free memory that the probe leaves alone.
    type: float
    default: 8
  touch_seconds:
    description: How long the probe may take. One x86 core touched 2.8 GiB a second; nobody measured a Spark.
    type: float
    default: 300
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    support: partial
    details: >-
      Looks once, and says what settling would begin with. Whether that is enough, and whether memory can be touched, shows only
      in a real run.
  diff_mode:
    support: none
    details: Free memory is a figure of a moment. RV(actions) says what came free.
  idempotent:
    support: partial
    details: >-
      Memory that is ready is neither flushed nor compacted. But it is touched at each run, unless O(touch_gib=0), which counts as
      a change.
"""

EXAMPLES = r"""
- name: Have 110 GiB that are really there
  memory_settle:
    host: "{{ inventory_hostname }}"
    min_free_gib: 110
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode, as sentences.
  returned: always
  type: list
  elements: str
verdict:
  description: As of module memory_info, after all that was done.
  returned: always
  type: str
sentence:
  description: Go or stop, and why.
  returned: always
  type: str
go:
  description: Whether ranks may start as far as memory is concerned.
  returned: always
  type: bool
waited_seconds:
  description: How long it took until the verdict.
  returned: always
  type: float
memory:
  description: As of module memory_info.
  returned: always
  type: dict
touch:
  description: >-
    C(wanted) and C(touched) bytes, C(seconds), C(died) and C(stopped) as sentences (empty where it went well) and C(ok); V(null) where nothing was
    touched.
  returned: always
  type: dict
checks:
  description: MEM.CMA, MEM.SETTLED, MEM.BLOCKS, and MEM.TOUCH where the probe is on.
  returned: always
  type: list
  elements: dict
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.memory import facts as memory_facts
from ansible.module_utils.sparklanes.memory import page_cache, settle, touch
from ansible.module_utils.sparklanes.memory import processes as memory_processes


class Spark:
    """This machine, as settle.Machine."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.root = Path(module.params["root"])

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def text(self, name: str) -> str:
        try:
            return (self.root / "proc" / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""

    def look(self) -> tuple[memory_facts.MemoryFacts, Sequence[memory_processes.Process]]:
        found = memory_facts.facts(self.text("meminfo"), self.text("buddyinfo"), os.sysconf("SC_PAGE_SIZE"))
        return found, memory_processes.read(self.root / "proc", 3)

    def flush(self) -> int:
        freed: int = page_cache.drop_caches(root=self.root).freed
        return freed

    def compact(self) -> None:
        (self.root / "proc/sys/vm/compact_memory").write_text("1\n", encoding="ascii")

    def busy(self) -> str:
        found: str = occupied.look().holder()
        return found

    def touch(self, wanted: int, margin: int) -> touch.Touch:
        def free() -> int | None:
            found: int | None = page_cache.Memory.of(self.text("meminfo")).mem_free
            return found

        probed: touch.Touch = touch.probe(wanted, margin, self.module.params["touch_seconds"], free)
        return probed


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "min_free_gib": {"type": "float", "default": 0},
            "min_blocks": {"type": "int", "default": 0},
            "seconds": {"type": "float", "default": 300},
            "flush": {"type": "bool", "default": True},
            "compact": {"type": "bool", "default": True},
            "touch_gib": {"type": "float"},
            "touch_margin_gib": {"type": "float", "default": 8},
            "touch_seconds": {"type": "float", "default": 300},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    request = settle.Request(
        min_free_gib=params["min_free_gib"],
        min_blocks=params["min_blocks"],
        seconds=params["seconds"],
        may_flush=params["flush"],
        may_compact=params["compact"],
        touch_gib=params["min_free_gib"] if params["touch_gib"] is None else params["touch_gib"],
        margin_gib=params["touch_margin_gib"],
    )
    wrong = request.problems()
    if not 0 < params["touch_seconds"] <= 600:
        wrong.append(f"touch_seconds: found {params['touch_seconds']:g}, expected more than 0 and 600 or less")
    if wrong:
        module.fail_json(msg="; ".join(wrong) + ". Nothing was done", actions=[])
    spark = Spark(module)
    try:
        outcome = (settle.preview if module.check_mode else settle.settle)(params["host"], request, spark)
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'memory'}: {error.strerror or error}. Run with become", actions=[])
    module.exit_json(**settle.to_dict(params["host"], outcome))


if __name__ == "__main__":
    main()
