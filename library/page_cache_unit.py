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
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import as_json, read_json, write_atomically
from ansible.module_utils.sparklanes.host import units as host_units
from ansible.module_utils.sparklanes.memory import page_cache

UNIT = "sparklanes-page-cache.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
SCRIPT_PATH = "/usr/local/lib/sparklanes/page_cache.py"
CONFIG_PATH = "/etc/sparklanes/page-cache.json"
PROOF_SECONDS = 15.0


class PageCacheUnit:
    """The unit as asked and as found on one host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.root = Path(self.params["root"])
        self.settings = page_cache.Settings(
            policy="off" if self.params["policy"] in (None, "absent") else self.params["policy"],
            interval_seconds=self.params["interval_seconds"],
            duration_seconds=self.params["duration_seconds"],
            floor_gib=self.params["floor_gib"],
            drop=self.params["drop"],
        )
        self.script = inspect.getsource(page_cache)
        known = {
            "policy": self.settings.policy,
            "interval_seconds": self.settings.interval_seconds,
            "duration_seconds": self.settings.duration_seconds,
            "floor_gib": self.settings.floor_gib,
            "drop": self.settings.drop,
            "serving_flag": self.settings.serving_flag,
        }
        self.identity = hashlib.sha256((as_json(known) + self.script).encode()).hexdigest()[:16]
        self.config: str = as_json({**known, "identity": self.identity})
        self.actions: list[str] = []
        self.waiting: list[str] = []
        self.changed = False
        self.before: list[str] = []
        self.after: list[str] = []

    # What the host has

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def systemctl(self, *args: str) -> tuple[int, str, str]:
        answer: tuple[int, str, str] = self.module.run_command(["systemctl", *args])
        return answer

    def show(self) -> dict[str, str]:
        rc, out, err = self.systemctl("show", UNIT, "--property=LoadState,ActiveState,NeedDaemonReload")
        if rc != 0:
            self.fail(f"systemd does not answer: {err.strip()}. This role needs a Spark that runs systemd")
        found: dict[str, str] = host_units.parse_show(out)
        return found

    @property
    def enabled(self) -> bool:
        """By the links on the disk. `show` tells UnitFileState as it was before --no-reload, until the next reload."""
        return self.systemctl("is-enabled", UNIT)[1].strip() == "enabled"

    @property
    def active(self) -> bool:
        return self.show().get("ActiveState") in ("active", "activating", "reloading")

    def state(self) -> dict[str, Any]:
        return read_json(self.at(page_cache.STATE_FILE)) or {}

    @property
    def serving(self) -> bool:
        return self.at(page_cache.SERVING_FLAG).exists()

    # What is done

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=problem, actions=self.actions, waiting=self.waiting)
        raise SystemExit(1)

    def note(self, action: str, before: str = "", after: str = "") -> None:
        self.changed = True
        self.actions.append(action)
        self.before.append(before)
        self.after.append(after)

    def must(self, *args: str) -> None:
        rc, _, err = self.systemctl(*args)
        if rc != 0:
            self.fail(f"systemctl {' '.join(args)} failed: {err.strip()}\n{self.journal()}")

    def journal(self) -> str:
        _, out, _ = self.module.run_command(["journalctl", "--unit", UNIT, "--lines", "15", "--no-pager", "--output", "cat"])
        return f"The journal of {UNIT} ends with:\n{out.strip() or '(nothing)'}"

    def write(self, path: str, text: str) -> bool:
        old = self.text(path)
        if old == text:
            return False
        # The script is shown by name only: its text says nothing to a person who reads a diff.
        shown = path != SCRIPT_PATH
        self.note(
            f"Write {path}",
            f"{path}:\n{old}" if old is not None and shown else "",
            f"{path}:\n{text}" if shown else f"{path}\n",
        )
        if not self.module.check_mode:
            write_atomically(self.at(path), text, 0o644)
        return True

    def drop_staged(self) -> None:
        path = f"{self.params['staged']}/page-cache.json"
        if self.text(path) is not None:
            self.note(f"Remove {path}: it is live now", f"{path}:\n{self.text(path)}")
            if not self.module.check_mode:
                self.at(path).unlink()

    def run(self) -> None:
        if self.params["policy"] is None:
            self.set_phase()
            return
        if self.params["policy"] == "absent":
            self.remove()
            return
        wrong = self.settings.problems(page_cache.mem_total(self.root))
        if wrong:
            self.fail("; ".join(wrong))
        if not self.params["live"]:
            self.stage()
            return
        self.set_phase()
        self.drop_staged()
        if self.settings.policy == "off":
            self.turn_off()
            return
        self.write(SCRIPT_PATH, self.script)
        self.write(CONFIG_PATH, self.config)
        self.place_unit()
        self.enable_and_start()

    def stage(self) -> None:
        path = f"{self.params['staged']}/page-cache.json"
        if self.text(CONFIG_PATH) == self.config:
            self.drop_staged()
        elif not self.write(path, self.config):
            self.actions.append(f"{path} waits until the lane that serves here has stopped")

    def set_phase(self) -> None:
        phase, flag = self.params["phase"], self.at(page_cache.SERVING_FLAG)
        if phase == "serving" and not self.serving:
            self.note("Note that the lane serves", "", f"{page_cache.SERVING_FLAG}\n")
            if not self.module.check_mode:
                flag.parent.mkdir(parents=True, exist_ok=True)
                flag.touch(mode=0o644)
        elif phase == "booting" and self.serving:
            self.note("Note that a lane boots", f"{page_cache.SERVING_FLAG}\n")
            if not self.module.check_mode:
                flag.unlink()

    def turn_off(self) -> None:
        """On a Spark that never had the unit there is nothing to do, and nothing is laid down."""
        if self.text(UNIT_PATH) is None:
            return
        self.write(CONFIG_PATH, self.config)
        if self.enabled:
            self.note(f"Disable {UNIT}")
            if not self.module.check_mode:
                self.must("disable", "--no-reload", UNIT)
        self.stop()

    def remove(self) -> None:
        """As if there never had been a unit. systemd forgets a unit that is stopped and gone by itself."""
        staged = f"{self.params['staged']}/page-cache.json"
        there = [
            path for path in (UNIT_PATH, SCRIPT_PATH, CONFIG_PATH, page_cache.STATE_FILE, staged) if self.text(path) is not None
        ]
        if there and not self.params["live"]:
            self.actions.append(f"{UNIT} stays while a lane serves on this Spark; a later run removes it")
            return
        if UNIT_PATH in there:
            self.stop()
            if self.enabled:
                self.note(f"Disable {UNIT}")
                if not self.module.check_mode:
                    self.must("disable", "--no-reload", UNIT)
        for path in there:
            self.note(f"Remove {path}: asked for", f"{path}\n" if path == SCRIPT_PATH else f"{path}:\n{self.text(path)}")
            if not self.module.check_mode:
                self.at(path).unlink()

    def stop(self) -> None:
        if self.active:
            self.note(f"Stop {UNIT}")
            if not self.module.check_mode:
                self.must("stop", UNIT)

    def place_unit(self) -> None:
        old, wanted = self.text(UNIT_PATH), self.params["unit"]
        if old is None:
            self.write(UNIT_PATH, wanted)
            if self.module.check_mode or self.show().get("LoadState") == "loaded":
                return
        elif old == wanted and self.show().get("NeedDaemonReload") != "yes":
            return
        # systemd knows an older text of the unit (or, before release 246, has not seen the new file).
        risk = host_units.reload_risk_here(self.module.run_command, self.at("/dev"))
        if risk:
            self.waiting.append(f"{UNIT} keeps its old text for now: {risk}")
            return
        self.write(UNIT_PATH, wanted)
        self.note("Make systemd read its unit files again")
        if not self.module.check_mode:
            self.must("daemon-reload")

    def enable_and_start(self) -> None:
        found = {"ActiveState": ""} if self.text(UNIT_PATH) is None else self.show()
        if not self.enabled:
            self.note(f"Enable {UNIT}")
            if not self.module.check_mode:
                self.must("enable", "--no-reload", UNIT)
        if self.settings.policy == "boot_only" and self.serving:
            self.stop()
            self.actions.append("The lane serves: boot_only flushes again when the next one boots")
            return
        active, state = found.get("ActiveState") == "active", self.state()
        anew = self.params["phase"] == "booting" and self.settings.policy == "interval" and self.settings.duration_seconds > 0
        if state.get("identity") == self.identity and (active or state.get("ended")) and not anew:
            return
        self.note(f"{'Restart' if active else 'Start'} {UNIT}")
        if not self.module.check_mode:
            self.must("restart", UNIT)
            self.prove()

    def prove(self) -> None:
        """A unit that started is one that says so itself, with the settings that were asked for."""
        end = time.monotonic() + PROOF_SECONDS
        while time.monotonic() < end:
            if self.state().get("identity") == self.identity and self.active:
                return
            time.sleep(0.2)
        self.fail(
            f"{UNIT} was started and does not report the settings {self.identity} in {page_cache.STATE_FILE}. {self.journal()}"
        )

    def result(self) -> dict[str, Any]:
        staged = f"{self.params['staged']}/page-cache.json"
        return {
            "changed": self.changed,
            "actions": self.actions,
            "waiting": self.waiting,
            "diff": {"before": "".join(self.before), "after": "".join(self.after)},
            "active": self.active,
            "state": self.state(),
            "staged": staged if self.text(staged) is not None else "",
        }


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
    try:
        unit.run()
        result = unit.result()
    except OSError as error:
        module.fail_json(msg=f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), actions=unit.actions)
    for sentence in unit.waiting:
        module.warn(sentence)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
