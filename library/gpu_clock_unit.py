#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Keep the unit that caps the GPU's clock at boot, judged by its effect."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_clock_unit
short_description: Keep the unit that caps the GPU's clock at boot, judged by its effect
description:
  - Lays down a systemd unit that runs C(nvidia-smi --lock-gpu-clocks), and where asked C(--power-limit), starts it, and reads back the
    clock and the limit that the GPU then has. Some drivers accept a lock and ignore it; that fails.
  - A clock below the cap proves nothing while the GPU idles; C(gpu_health) judges it under load.
  - The figures stand in an environment file. A new unit and new figures need no C(daemon-reload); a new text of the unit does, and waits
    while running containers could lose their GPU by it.
options:
  state:
    description: V(absent) takes the lock off (C(--reset-gpu-clocks), and the power limit that was the default) and removes unit and figures.
    type: str
    choices: [present, absent]
    default: present
  max_mhz:
    description: Highest clock. Needed with O(state=present).
    type: int
  min_mhz:
    description: Lowest clock; V(0) lets the GPU rest as it likes.
    type: int
    default: 0
  power_limit_w:
    description: Power limit in watts, for GPUs that have one. A GB10 has none.
    type: float
  unit:
    description: Text of the unit file. Needed with O(state=present).
    type: str
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Needs a GPU that answers, as a real run does. Whether the driver obeys shows only in a real run.
"""

EXAMPLES = r"""
- name: Hold the clock at 2100 MHz or less
  gpu_clock_unit:
    max_mhz: 2100
    unit: "{{ lookup('ansible.builtin.file', 'sparklanes-gpu-clock.service', rstrip=false) }}"
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
  description: Whether the unit is in effect.
  returned: always
  type: bool
sm_mhz:
  description: Clock of each GPU as read back; empty where nothing was read.
  returned: always
  type: list
  elements: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.gpu import cap as gpu_cap
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import nvidia_smi
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.own_unit import OwnUnit

UNIT = gpu_cap.CAP_UNIT
SETTINGS_PATH = f"/{gpu_cap.CAP_SETTINGS}"
# A lock takes effect at once; a GPU that is busy needs a moment to get there.
EFFECT_SECONDS = 5.0


class GpuClockUnit(HostEdits):
    """The unit as asked and as found on one host."""

    by = "gpu_clock_unit"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.params = module.params
        self.clocks: list[int | None] = []
        self.unit = OwnUnit(self, UNIT, self.params["unit"] or "", self.ignored, EFFECT_SECONDS)

    def gpus(self) -> list[nvidia_smi.Gpu]:
        report = gpu_facts.report(gpu_facts.ask)
        if report.error:
            self.fail(f"{report.error}. A cap that cannot be read back is not set")
        self.clocks = [one.sm_mhz for one in report.gpus]
        found: list[nvidia_smi.Gpu] = report.gpus
        return found

    def run(self) -> dict[str, Any]:
        if self.params["state"] == "absent":
            self.remove()
        else:
            self.take()
        return {"active": self.unit.state == "active", "sm_mhz": [clock for clock in self.clocks if clock is not None]}

    def take(self) -> None:
        gpus = self.gpus()
        wrong = gpu_cap.cap_problems(self.params["min_mhz"], self.params["max_mhz"], self.params["power_limit_w"], gpus)
        if wrong:
            self.fail("; ".join(wrong))
        settings = self.settings(gpus)
        active = self.unit.state == "active"
        if active and self.text(SETTINGS_PATH) != settings:
            # The way back from the old figures is in the old file.
            self.stop()
            active = False
        self.write(SETTINGS_PATH, settings)
        self.unit.place()
        self.unit.enable()
        ignored = self.contradiction(gpus) if active else ""
        if not active or ignored:
            self.unit.start(ignored, again=active)

    def settings(self, gpus: list[nvidia_smi.Gpu]) -> str:
        """What the unit reads. The default power limit is noted for the way back."""
        watts, default = self.params["power_limit_w"], ""
        if watts is not None:
            default = f"{min(one.default_power_limit_w or 0 for one in gpus):g}"
        text: str = gpu_cap.cap_settings(self.params["min_mhz"], self.params["max_mhz"], watts, default)
        return text

    def stop(self) -> None:
        self.unit.stop(", which takes the cap off")
        if self.unit.state == "failed":
            self.fail(
                f"{UNIT} stopped and could not take the cap off: journalctl -u {UNIT}. sudo nvidia-smi -rgc does it by hand"
            )

    def contradiction(self, gpus: list[nvidia_smi.Gpu]) -> str:
        """What the GPU shows that the cap forbids."""
        problem: str = gpu_cap.cap_contradiction(self.params["max_mhz"], self.params["power_limit_w"], gpus)
        return problem

    def ignored(self) -> str:
        problem = self.contradiction(self.gpus())
        return problem and (
            f"although nvidia-smi accepted it, {problem}: the driver ignores it. A GPU that is stuck does so; "
            "reboot the Spark and run this again, or take the cap away with gpu_clock_remove=true."
        )

    def remove(self) -> None:
        """Stop before the figures go: the way back is in them."""
        if self.unit.runs:
            self.stop()
        self.unit.remove()
        self.drop(SETTINGS_PATH)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "max_mhz": {"type": "int"},
            "min_mhz": {"type": "int", "default": 0},
            "power_limit_w": {"type": "float"},
            "unit": {"type": "str"},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "present", ["max_mhz", "unit"])],
        supports_check_mode=True,
    )
    unit = GpuClockUnit(module)
    unit.finish(unit.run)


if __name__ == "__main__":
    main()
