#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Install and run the unit that gives the page cache back, without costing a container its GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: page_cache_unit
short_description: Install and run the unit that gives the page cache back
description:
  - Lays down a small script, its settings and a systemd unit, and keeps the unit in the state that the policy asks for, in one go.
  - Only this unit is ever restarted. A new unit needs no C(daemon-reload); a changed one does, and waits while running
    containers could lose their GPU by it. The old unit then goes on with the new settings.
  - A running unit proves in its state file which script and settings it runs, so a run that was interrupted between
    writing and restarting is finished by the next one.
options:
  policy:
    description:
      - V(interval) flushes every O(interval_seconds), whatever the memory looks like.
      - V(floor) flushes when MemFree is below O(floor_gib), and waits longer and longer while that frees nothing. While no container runs
        it also compacts free memory.
      - V(boot_only) is V(interval) until it is told that the lane serves (O(phase=serving)).
      - V(off) stops and disables the unit. V(absent) removes it too, with its script, settings and state.
      - Without it nothing but O(phase) is noted, which a running unit sees within a second.
    type: str
    choices: [interval, floor, boot_only, 'off', absent]
  interval_seconds:
    description: Seconds between two flushes of V(interval) and V(boot_only).
    type: int
    default: 60
  duration_seconds:
    description:
      - How long V(interval) works after it was started, by the boot of the Spark or by O(phase=booting). V(0) for ever.
    type: int
    default: 0
  floor_gib:
    description: MemFree in GiB below which V(floor) flushes.
    type: float
    default: 8.0
  drop:
    description: What is written to C(/proc/sys/vm/drop_caches); 1 page cache, 2 dentries and inodes, 3 both.
    type: int
    choices: [1, 2, 3]
    default: 3
  phase:
    description:
      - V(booting) says that a lane boots; the time of V(boot_only) and of O(duration_seconds) begins anew.
      - V(serving) says that it serves, which ends V(boot_only). V(keep) leaves that as it is.
    type: str
    choices: [keep, booting, serving]
    default: keep
  live:
    description:
      - V(false) only lays the settings down in O(staged). For a Spark on which another lane serves.
    type: bool
    default: true
  unit:
    description: Text of the unit file. Needed with O(policy).
    type: str
  staged:
    description: Folder for settings that are not live yet.
    type: path
    default: /etc/sparklanes/staged
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    details: The script is shown by its name only.
  idempotent:
    support: partial
    details: With O(phase=booting) and O(duration_seconds) a unit that flushes at intervals begins its time anew at each run.
"""

EXAMPLES = r"""
- name: Flush every minute
  page_cache_unit:
    policy: interval
    interval_seconds: 60
    unit: "{{ lookup('ansible.builtin.file', 'sparklanes-page-cache.service', rstrip=false) }}"

- name: Say that the lane serves now
  page_cache_unit:
    phase: serving
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
waiting:
  description: What had to wait and why, as sentences. Empty where all is in place.
  returned: always
  type: list
  elements: str
active:
  description: Whether the unit runs.
  returned: always
  type: bool
state:
  description: What the running unit reports, flushes and bytes freed among it.
  returned: always
  type: dict
staged:
  description: Path of the settings that wait for their lane, or an empty text.
  returned: always
  type: str
"""

import hashlib
import inspect
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import as_json, read_json
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.own_unit import OwnUnit
from ansible.module_utils.sparklanes.memory import page_cache

UNIT = "sparklanes-page-cache.service"
SCRIPT_PATH = "/usr/local/lib/sparklanes/page_cache.py"
CONFIG_PATH = "/etc/sparklanes/page-cache.json"
PROOF_SECONDS = 15.0


class PageCacheUnit(HostEdits):
    """The unit as asked and as found on one host."""

    by = "page_cache_unit"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.params = module.params
        self.settings = page_cache.Settings(
            policy="off" if self.params["policy"] in (None, "absent") else self.params["policy"],
            interval_seconds=self.params["interval_seconds"],
            duration_seconds=self.params["duration_seconds"],
            floor_gib=self.params["floor_gib"],
            drop=self.params["drop"],
        )
        self.script = inspect.getsource(page_cache)
        known = asdict(self.settings)
        self.identity = hashlib.sha256((as_json(known) + self.script).encode()).hexdigest()[:16]
        self.config: str = as_json({**known, "identity": self.identity})
        self.staged = f"{self.params['staged']}/page-cache.json"
        self.unit = OwnUnit(self, UNIT, self.params["unit"] or "", self.unproven, PROOF_SECONDS)

    def state(self) -> dict[str, Any]:
        return read_json(self.at(page_cache.STATE_FILE)) or {}

    @property
    def serving(self) -> bool:
        return self.at(page_cache.SERVING_FLAG).exists()

    def run(self) -> dict[str, Any]:
        if self.params["policy"] is None:
            self.set_phase()
        elif self.params["policy"] == "absent":
            self.remove()
        else:
            self.take()
        return {
            "active": self.unit.runs,
            "state": self.state(),
            "staged": self.staged if self.text(self.staged) is not None else "",
        }

    def take(self) -> None:
        wrong = self.settings.problems(page_cache.mem_total(self.root))
        if wrong:
            self.fail("; ".join(wrong))
        if not self.params["live"]:
            self.stage()
            return
        self.set_phase()
        self.drop(self.staged, "it is live now")
        if self.settings.policy == "off":
            self.turn_off()
            return
        # The script is shown by name only: its text says nothing to a person who reads a diff.
        self.write(SCRIPT_PATH, self.script, shown=False)
        self.write(CONFIG_PATH, self.config)
        self.unit.place()
        self.unit.enable()
        self.start()

    def stage(self) -> None:
        if self.text(CONFIG_PATH) == self.config:
            self.drop(self.staged, "it is live now")
        elif not self.write(self.staged, self.config):
            self.actions.append(f"{self.staged} waits until the lane that serves here has stopped")

    def set_phase(self) -> None:
        phase, flag = self.params["phase"], page_cache.SERVING_FLAG
        if phase == "serving" and not self.serving and self.note("Note that the lane serves", "", f"{flag}\n"):
            self.lay(flag, "")
        elif phase == "booting" and self.serving and self.note("Note that a lane boots", f"{flag}\n"):
            self.lift(flag)

    def turn_off(self) -> None:
        """On a Spark that never had the unit there is nothing to do, and nothing is laid down."""
        if self.unit.there:
            self.write(CONFIG_PATH, self.config)
            self.unit.disable()
            self.unit.stop()

    def remove(self) -> None:
        """As if there never had been a unit."""
        paths = (SCRIPT_PATH, CONFIG_PATH, page_cache.STATE_FILE, self.staged)
        if not self.params["live"]:
            if self.unit.there or any(self.text(path) is not None for path in paths):
                self.actions.append(f"{UNIT} stays while a lane serves on this Spark; a later run removes it")
            return
        self.unit.stop()
        self.unit.remove()
        for path in paths:
            self.drop(path, shown=path != SCRIPT_PATH)

    def start(self) -> None:
        if self.settings.policy == "boot_only" and self.serving:
            self.unit.stop()
            self.actions.append("The lane serves: boot_only flushes again when the next one boots")
            return
        active, state = self.unit.state == "active", self.state()
        anew = self.params["phase"] == "booting" and self.settings.policy == "interval" and self.settings.duration_seconds > 0
        if state.get("identity") == self.identity and (active or state.get("ended")) and not anew:
            return
        self.unit.start(again=active)

    def unproven(self) -> str:
        """A unit that started is one that says so itself, with the settings that were asked for."""
        if self.state().get("identity") == self.identity and self.unit.runs:
            return ""
        return f"it does not report the settings {self.identity} in {page_cache.STATE_FILE}."


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": ["interval", "floor", "boot_only", "off", "absent"]},
            "interval_seconds": {"type": "int", "default": 60},
            "duration_seconds": {"type": "int", "default": 0},
            "floor_gib": {"type": "float", "default": 8.0},
            "drop": {"type": "int", "choices": [1, 2, 3], "default": 3},
            "phase": {"type": "str", "choices": ["keep", "booting", "serving"], "default": "keep"},
            "live": {"type": "bool", "default": True},
            "unit": {"type": "str"},
            "staged": {"type": "path", "default": "/etc/sparklanes/staged"},
            "root": {"type": "path", "default": "/"},
        },
        required_by={"policy": ["unit"]},
        supports_check_mode=True,
    )
    unit = PageCacheUnit(module)
    unit.finish(unit.run)


if __name__ == "__main__":
    main()
