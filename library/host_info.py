#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Report what a Spark is and how it is kept."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_info
short_description: Report what a Spark is and how it is kept
description:
  - Reads, in one execution, kernel, NVIDIA driver, firmware of the board and of the network cards, Docker, clock, swap, kernel settings
    and the files that decide them, what systemd-logind does with semaphores, the page cache unit, and how often an engine booted.
  - It judges nothing and never fails for something that is missing. What nobody told is V(null) or an empty text.
options:
  sent:
    description: When the controller asked, in seconds since the epoch by its own clock. Bounds how far this clock is ahead.
    type: float
  page_size:
    description: Size of a page in bytes; that of the running kernel when left out and O(root) is V(/).
    type: int
  root:
    description: Root of the file tree. With another one than V(/) no command is asked, only files are read.
    type: path
    default: /
  state_root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: Look at this Spark
  host_info:
    sent: "{{ now().timestamp() }}"
  register: found
"""

RETURN = r"""
actions:
  description: Always empty, as nothing is changed.
  returned: always
  type: list
host:
  description: >-
    C(kernel) (release, machine, kho, boot_id, uptime_seconds, kexec_crash_size, page_size), C(driver) (version, flavour; empty without one),
    C(firmware) (by the names of /sys/class/dmi/id), C(nics) (hca, firmware, board, type), C(docker) (version, drivers,
    containerd, runc, root, C(toolkit) of NVIDIA, or error), C(clock) (sent, read, synchronised), C(swap) (path, size, used), C(settings) (live, boot, file),
    C(remove_ipc) (says, error), C(page_cache) (settings, state, active), C(engine_boots) (boots, boot_id), C(after_boot) (settings, report),
    C(reboot_required) (packages, null where no reboot is asked for), C(kernel_log) (C(counts) of what counts in it since the boot, the last
    C(events), C(error)), C(memory_killers) (C(active) units, C(earlyoom), C(error)), C(cpu_clocks) (name, max_khz, limit_khz), C(link_errors)
    (per device its counters that are not zero; null without RDMA devices).
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import facts as host_facts


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sent": {"type": "float"},
            "page_size": {"type": "int"},
            "root": {"type": "path", "default": "/"},
            "state_root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        supports_check_mode=True,
    )
    wish = module.params
    try:
        found = host_facts.facts(Path(wish["root"]), commands.run, wish["sent"], wish["page_size"], wish["state_root"])
    except OSError as error:
        module.fail_json(msg=f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
    module.exit_json(changed=False, actions=[], host=found)


if __name__ == "__main__":
    main()
