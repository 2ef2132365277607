#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Say what a Spark does by itself after a boot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: boot_policy
short_description: Say what a Spark does by itself after a boot
description:
  - Lays down a small program, its settings and a systemd unit that runs it once after each boot. Nothing is started now.
  - No C(daemon-reload) is needed, as the unit counts from the next boot on.
options:
  policy:
    description:
      - V(stay_down) starts nothing and reports what served before.
      - V(launch_last_good) starts this Spark's rank of the release that served, if it had passed all gates, no transaction is open and no
        death waits for a person. What a person stopped stays stopped.
      - V(absent) removes the unit. Then nothing starts and nothing is reported.
    type: str
    choices: [stay_down, launch_last_good, absent]
    required: true
  unit:
    description: Text of the unit file. Needed unless O(policy=absent).
    type: str
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    details: The program is shown by its name only.
"""

EXAMPLES = r"""
- name: After a power cut a person looks first
  boot_policy:
    policy: stay_down
    unit: "{{ lookup('ansible.builtin.file', 'sparklanes-boot.service', rstrip=false) }}"
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
waiting:
  description: What had to wait and why. Always empty, as nothing of this waits.
  returned: always
  type: list
  elements: str
report:
  description: What the unit reported after the last boot, empty where it did not.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import as_json, read_json
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.own_unit import OwnUnit
from ansible.module_utils.sparklanes.jobs.payload import archive
from ansible.module_utils.sparklanes.rank import after_boot

UNIT = "sparklanes-boot.service"
PROGRAM = "/usr/local/lib/sparklanes/after_boot.pyz"


class BootPolicy(HostEdits):
    """The policy as asked and as found on one host."""

    by = "boot_policy"

    def run(self) -> dict[str, Any]:
        unit = OwnUnit(self, UNIT, self.module.params["unit"] or "")
        if self.module.params["policy"] == "absent":
            # It is not stopped: it may be starting a rank just now.
            unit.remove()
            for path in (after_boot.SETTINGS, after_boot.REPORT):
                self.drop(path)
            self.drop(PROGRAM, shown=False)
        else:
            self.write(PROGRAM, archive("rank.after_boot"), shown=False)
            known = read_json(self.at(after_boot.SETTINGS)) or {}
            # Until the next boot there is nothing that the unit could have reported.
            since = known.get("since") or boot_id(self.root)
            self.write(after_boot.SETTINGS, as_json({"policy": self.module.params["policy"], "since": since}))
            # Another text counts from the next boot on, so it needs no reload.
            self.write(unit.path, unit.wanted)
            unit.enable()
        return {"report": read_json(self.at(after_boot.REPORT)) or {}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": [*after_boot.POLICIES, "absent"], "required": True},
            "unit": {"type": "str"},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("policy", policy, ["unit"]) for policy in after_boot.POLICIES],
        supports_check_mode=True,
    )
    edits = BootPolicy(module, module.params["root"])
    edits.finish(edits.run)


if __name__ == "__main__":
    main()
