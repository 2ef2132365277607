#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Measure the rails of the fabric with perftest, one end at a time."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_bandwidth
short_description: Measure the rails of the fabric with perftest, one end at a time
description:
  - V(serving) starts an C(ib_write_bw) for each end that this Spark answers for, as transient units, and returns when all of them listen.
    Each answers one client and ends; systemd ends it after O(seconds) in any case.
  - V(measured) runs the clients, each rail alone, then those marked together at once, and returns what they measured.
  - V(absent) ends what V(serving) left.
  - It loads the fabric to its limit. The caller makes sure that nothing serves there.
options:
  state:
    description: What to do.
    type: str
    choices: [serving, measured, absent]
    required: true
  tests:
    description: The ends of this Spark, of the filter C(sparklanes_bandwidth_plan).
    type: list
    elements: dict
    default: []
    suboptions:
      peer:
        description: Name of the other Spark.
        type: str
        required: true
      rail:
        description: Number of the rail.
        type: str
        required: true
      mode:
        description: V(alone), or V(together) with the other rails.
        type: str
        choices: [alone, together]
        required: true
      hca:
        description: RDMA device of this Spark.
        type: str
        required: true
      ib_port:
        description: Its port.
        type: int
        default: 1
      gid_index:
        description: Index of the GID of the fabric's address.
        type: int
        required: true
      port:
        description: TCP port over which the two ends meet.
        type: int
        required: true
      address:
        description: Address of the server on that rail. Clients only.
        type: str
      link_gbps:
        description: Gb/s of the slower end of the link, where an end tells. It says what the result is held against.
        type: float
  size:
    description: Bytes of a message.
    type: int
    default: 65536
  iterations:
    description: Messages of one run.
    type: int
    default: 100000
  seconds:
    description: Longest time of one client's run, and with V(serving) of a server's life.
    type: int
    default: 60
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    support: none
    details: It starts and ends transient units, and measures; there is no file to compare.
  idempotent:
    support: partial
    details: >-
      V(absent) is. V(serving) starts servers at each run, and fails where those of an earlier run still listen. V(measured)
      measures at each run and reports no change.
"""

EXAMPLES = r"""
- name: Answer the neighbour
  fabric_bandwidth:
    state: serving
    tests: "{{ plan[inventory_hostname].serve }}"
    seconds: 300
"""

RETURN = r"""
actions:
  description: What was done, in sentences.
  returned: always
  type: list
  elements: str
measured:
  description: For each client its C(port), C(peer), C(rail), C(mode), C(gbps) (null without a result), C(mtu) of RDMA in bytes, C(error).
  returned: with O(state=measured)
  type: list
  elements: dict
"""

import time
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.fabric import bandwidth
from ansible.module_utils.sparklanes.host.listeners import parse_ss

LISTEN_SECONDS = 15.0


class Bandwidth:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.tests: list[dict[str, Any]] = module.params["tests"]
        self.size, self.iterations = module.params["size"], module.params["iterations"]
        self.actions: list[str] = []

    def program(self) -> str:
        found = self.module.get_bin_path("ib_write_bw")
        if not found:
            self.fail("ib_write_bw is not installed on this Spark. The package perftest brings it: apt-get install perftest")
        return str(found)

    def fail(self, message: str) -> NoReturn:
        self.module.fail_json(msg=message, actions=self.actions)
        raise SystemExit(1)

    def serve(self) -> None:
        program = self.program()
        for test in self.tests:
            self.actions.append(f"Answer {test['peer']} on rail {test['rail']} ({test['hca']}) at port {test['port']}")
            if self.module.check_mode:
                continue
            command = bandwidth.server_argv(program, test, self.size, self.iterations, self.module.params["seconds"])
            rc, _, err = commands.run(command)
            if rc != 0:
                self.stop()
                self.fail(f"systemd-run failed for {test['hca']}: {err.strip()}")
        if not self.module.check_mode:
            self.wait()

    def wait(self) -> None:
        """Until every server listens; one that ended by itself says why in its journal."""
        wanted = {int(test["port"]) for test in self.tests}
        end = time.monotonic() + LISTEN_SECONDS
        while time.monotonic() < end:
            _, text, _ = commands.run(["ss", "-Hltn"])
            missing = wanted - {listener.port for listener in parse_ss(text)}
            if not missing:
                return
            time.sleep(0.2)
        unit = f"{bandwidth.UNIT}{min(missing)}"
        _, said, _ = commands.run(["journalctl", "--unit", unit, "--lines", "10", "--no-pager", "--output", "cat"])
        self.stop()
        self.fail(f"ib_write_bw does not listen at port {min(missing)}: {bandwidth.complaint(said)}")

    def measure(self) -> list[dict[str, Any]]:
        program = self.program()
        alone = [[test] for test in self.tests if test["mode"] != bandwidth.TOGETHER]
        together = [test for test in self.tests if test["mode"] == bandwidth.TOGETHER]
        found: list[dict[str, Any]] = []
        for group in [*alone, *([together] if together else [])]:
            self.actions.append(f"Measure {', '.join(test['hca'] for test in group)} to {group[0]['peer']}")
            if self.module.check_mode:
                continue
            programs = [bandwidth.argv(program, test, self.size, self.iterations) for test in group]
            results = bandwidth.run(programs, self.module.params["seconds"])
            for test, result in zip(group, results, strict=True):
                told = {name: test[name] for name in ("port", "peer", "rail", "mode")}
                found.append({**told, "gbps": result.gbps, "mtu": result.mtu, "error": result.error})
        return found

    def units(self) -> list[str]:
        pattern = f"{bandwidth.UNIT}*.service"
        _, text, _ = commands.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", pattern])
        return [line.split()[0] for line in text.splitlines() if line.startswith(bandwidth.UNIT)]

    def stop(self) -> None:
        left = self.units()
        self.actions += [f"End {unit}" for unit in left]
        if left and not self.module.check_mode:
            commands.run(["systemctl", "stop", *left])
            # One that failed would stay listed; those that are gone by now are not missed.
            commands.run(["systemctl", "reset-failed", *left])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["serving", "measured", "absent"], "required": True},
            "tests": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "peer": {"type": "str", "required": True},
                    "rail": {"type": "str", "required": True},
                    "mode": {"type": "str", "choices": ["alone", "together"], "required": True},
                    "hca": {"type": "str", "required": True},
                    "ib_port": {"type": "int", "default": 1},
                    "gid_index": {"type": "int", "required": True},
                    "port": {"type": "int", "required": True},
                    "address": {"type": "str"},
                    "link_gbps": {"type": "float"},
                },
            },
            "size": {"type": "int", "default": 65536},
            "iterations": {"type": "int", "default": 100000},
            "seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    limits = {"size": (2, GIB), "iterations": (5, 10**9), "seconds": (1, 86400)}
    wrong = [
        f"{name}: found {module.params[name]}, expected {least} to {most}"
        for name, (least, most) in limits.items()
        if not least <= module.params[name] <= most
    ]
    if wrong:
        module.fail_json(msg="; ".join(wrong) + ". Nothing was started")
    work = Bandwidth(module)
    state = module.params["state"]
    if state == "serving":
        work.serve()
        module.exit_json(changed=bool(work.actions), actions=work.actions)
    if state == "absent":
        work.stop()
        module.exit_json(changed=bool(work.actions), actions=work.actions)
    module.exit_json(changed=False, actions=work.actions, measured=work.measure())


if __name__ == "__main__":
    main()
