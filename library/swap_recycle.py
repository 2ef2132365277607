#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Empty swap by turning it off and on again."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: swap_recycle
short_description: Empty swap by turning it off and on again
description:
  - Some lanes want to start with empty swap and with swap on. Turning it off moves what it holds back into memory, so this is
    refused where memory would not hold it and while a rank, a container with a GPU or a GPU process runs. It belongs between the stop of
    the old ranks and the start of the new ones.
  - What was on is on again afterwards, whether C(/etc/fstab) names it or not, with its priority. Swap that is off stays off.
options:
  reserve_gib:
    description: GiB that must stay available beside what swap holds.
    type: float
    default: 4
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    support: none
    details: Swap that is empty is a figure of a moment. RV(before) and RV(after) tell it.
"""

EXAMPLES = r"""
- name: Start with empty swap
  swap_recycle:
"""

RETURN = r"""
before:
  description: Bytes of swap in use before.
  returned: always
  type: int
after:
  description: Bytes of swap in use afterwards.
  returned: always
  type: int
actions:
  description: What was done, or would be, as sentences.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.host.swap import parse_swaps
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo


def used_and_available() -> tuple[int, int]:
    """Bytes of swap in use, and of memory available."""
    memory = parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8"))
    return memory.get("SwapTotal", 0) - memory.get("SwapFree", 0), memory.get("MemAvailable", 0)


def swaps() -> dict[str, int]:
    """Files and devices that swap is on, with their priorities."""
    text = Path("/proc/swaps").read_text(encoding="utf-8", errors="surrogateescape")
    return {swap.path: swap.priority for swap in parse_swaps(text)}


# 16 GiB come back from an NVMe in minutes. Swap that is not empty by then stays on.
SWAPOFF_SECONDS = 1800.0


def main() -> None:
    module = AnsibleModule(argument_spec={"reserve_gib": {"type": "float", "default": 4}}, supports_check_mode=True)
    reserve = module.params["reserve_gib"]
    if not 0 <= reserve < float("inf"):
        module.fail_json(msg=f"reserve_gib: found {reserve:g}, expected 0 or more")
    used, available = used_and_available()
    if used == 0:
        module.exit_json(changed=False, before=0, after=0, actions=[])
    holder = occupied.look().holder()
    if holder:
        module.fail_json(msg=f"{holder}; swap is emptied only while nothing serves. Stop the lane first (playbooks/stop.yml)")
    if available < used + reserve * GIB:
        module.fail_json(
            msg=f"swap holds {used / GIB:.1f} GiB and only {available / GIB:.1f} GiB of memory are available; expected room for both "
            f"and {reserve:g} GiB more. End what uses the memory, or set lane_swap: keep"
        )
    actions = [f"Empty {used / GIB:.1f} GiB of swap"]
    if module.check_mode:
        module.exit_json(changed=True, before=used, after=used, actions=actions)
    wanted = swaps()
    failed, _, why = commands.run(["swapoff", "--all"], seconds=SWAPOFF_SECONDS)
    # Whatever came of it: swap goes on again, by name. `swapon --all` knows /etc/fstab only.
    still = swaps()
    lost = []
    for place, priority in wanted.items():
        if place not in still:
            # A negative priority is the kernel's own choice, and can't be asked for.
            given = ["--priority", str(priority)] if priority >= 0 else []
            off, _, error = commands.run(["swapon", *given, place])
            if off:
                lost.append(f"{place} ({error.strip()})")
    if lost:
        module.fail_json(msg=f"swap could not be turned on again: {', '.join(lost)}. See swapon --show")
    if failed:
        module.fail_json(msg=f"swap could not be emptied: {why.strip()}. It is on as before; see swapon --show")
    module.exit_json(changed=True, before=used, after=used_and_available()[0], actions=actions)


if __name__ == "__main__":
    main()
