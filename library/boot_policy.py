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
report:
  description: What the unit reported after the last boot, empty where it did not.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import as_json, read_json, write_atomically
from ansible.module_utils.sparklanes.host import boots as host_boots
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.jobs.payload import archive
from ansible.module_utils.sparklanes.rank import after_boot

UNIT = "sparklanes-boot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/local/lib/sparklanes/after_boot.pyz"


class BootPolicy(HostEdits):
    """The policy as asked and as found on one host."""

    def run(self) -> None:
        if self.module.params["policy"] == "absent":
            self.remove()
            return
        program = archive("rank.after_boot")
        place = self.at(PROGRAM)
        if (not place.exists() or place.read_bytes() != program) and self.note(f"Write {PROGRAM}", "", f"{PROGRAM}\n"):
            write_atomically(place, program, 0o644)
        known = read_json(self.at(after_boot.SETTINGS)) or {}
        # Until the next boot there is nothing that the unit could have reported.
        since = known.get("since") or host_boots.boot_id(self.root)
        self.write(after_boot.SETTINGS, as_json({"policy": self.module.params["policy"], "since": since}))
        self.write(UNIT_PATH, self.module.params["unit"])
        rc, out, _ = self.ask("systemctl", "is-enabled", UNIT)
        # In check mode there may be no unit yet to ask for.
        if (rc != 0 or out.strip() != "enabled") and self.note(f"Enable {UNIT}"):
            self.must("systemctl", "enable", "--no-reload", UNIT)

    def remove(self) -> None:
        if self.text(UNIT_PATH) is not None and self.note(f"Disable {UNIT}"):
            self.must("systemctl", "disable", "--no-reload", UNIT)
        for path in (UNIT_PATH, after_boot.SETTINGS, after_boot.REPORT):
            self.drop(path)
        if self.at(PROGRAM).exists() and self.note(f"Remove {PROGRAM}: asked for", f"{PROGRAM}\n"):
            self.at(PROGRAM).unlink()


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
    try:
        edits.run()
    except OSError as error:
        module.fail_json(msg=f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), actions=edits.actions)
    report = read_json(edits.at(after_boot.REPORT)) or {}
    module.exit_json(changed=edits.changed, actions=edits.actions, report=report, diff=edits.diff)


if __name__ == "__main__":
    main()
