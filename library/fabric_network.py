#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Put a netplan file for the fabric on trial, prove it, keep it or take it back."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_network
short_description: Put a netplan file for the fabric on trial, prove it, keep it or take it back
description:
  - V(present) and V(absent) put the file, or its absence, on trial. The trial lies in C(/run/netplan), where it hides the file of its name in C(/etc).
    A timer that is armed before C(netplan apply) takes it back after O(revert_seconds); so does a reboot.
  - V(proven) pings the others over the new addresses and says who answered. V(kept) moves the trial to C(/etc) and disarms the timer.
    V(reverted) takes it back at once.
  - The file is validated by C(netplan generate) beside all others below a temporary root before anything is written.
  - What another author's file of that name said is kept in C(/var/lib/sparklanes/fabric_network), and V(absent) brings it back. A file that is not
    ours is never removed.
  - Other Sparks notice C(netplan apply); their GIDs move. The caller makes sure that nothing runs on any of them.
options:
  state:
    description: What to do.
    type: str
    choices: [present, absent, proven, kept, reverted]
    required: true
  interfaces:
    description: Interfaces with their addresses. Needed with V(present).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the network device.
        type: str
        required: true
      address:
        description: Address with prefix length.
        type: str
        required: true
  mtu:
    description: MTU of these interfaces.
    type: int
    default: 9000
  renderer:
    description: V(networkd) or V(NetworkManager) for these interfaces; empty leaves it to the other files.
    type: str
    choices: ['', networkd, NetworkManager]
    default: ''
  file:
    description: Name of the netplan file.
    type: str
    default: 40-cx7.yaml
  revert_seconds:
    description: How long a trial may stay unproven.
    type: int
    default: 180
  probes:
    description: What V(proven) pings, of the filter C(sparklanes_network_probes).
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
      ifname:
        description: Network device of this Spark.
        type: str
        required: true
      source:
        description: Address of this Spark.
        type: str
        required: true
      address:
        description: Address of the other one.
        type: str
        required: true
      size:
        description: Bytes of data.
        type: int
        required: true
  prove_seconds:
    description: How long V(proven) waits for links and answers.
    type: int
    default: 45
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: >-
      V(present) and V(absent) are validated as in a real run, V(proven) pings as in a real run, V(kept) and V(reverted) need a
      trial that is in force.
  diff_mode:
    support: partial
    details: >-
      V(present) and V(absent) show the file in C(/etc) as it is and as it would be kept. The other states only end or prove what
      these began.
"""

EXAMPLES = r"""
- name: Try the addresses of the fabric
  fabric_network:
    state: present
    interfaces:
      - {name: enp1s0f0np0, address: 192.168.100.11/24}
      - {name: enP2p1s0f0np0, address: 192.168.101.11/24}
"""

RETURN = r"""
actions:
  description: What was done, in sentences.
  returned: always
  type: list
  elements: str
on_trial:
  description: Whether a trial is in force, which has to be kept or taken back.
  returned: always
  type: bool
probes:
  description: The pings with C(ok), C(small) and C(said).
  returned: with O(state=proven)
  type: list
  elements: dict
"""

import re
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.systemd import parse_show
from ansible.module_utils.sparklanes.fabric import netplan
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric import trial as fabric_trial
from ansible.module_utils.sparklanes.host.edits import HostEdits

APPLY_SECONDS = 60


class Network(HostEdits):
    """The netplan file of one host: what /etc says, what is on trial in /run, and the way back."""

    by = "fabric_network"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.params = module.params
        self.name: str = self.params["file"]
        self.etc = f"/etc/netplan/{self.name}"
        self.trial = f"/run/netplan/{self.name}"
        self.before = f"/{fabric_trial.KEPT}/{self.name}.before"
        self.script = f"/{fabric_trial.SCRIPT}"

    @property
    def on_trial(self) -> bool:
        return self.at(self.trial).exists()

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=problem, actions=self.actions, on_trial=self.on_trial)
        raise SystemExit(1)

    # present, absent

    def put(self, wanted: str | None) -> dict[str, Any]:
        old, running = self.text(self.etc), self.text(self.trial)
        tried = netplan.NOTHING if wanted is None else wanted
        diff: dict[str, str] = {
            "before_header": self.etc,
            "after_header": self.etc,
            "before": old or "",
            "after": wanted or "",
        }
        if wanted is None and running is None and old is None:
            return {"changed": False, "diff": diff}
        if wanted is None and old is not None and not old.startswith(netplan.HEAD):
            self.actions.append(f"{self.etc} is not ours, so it stays")
            return {"changed": False, "diff": {**diff, "after": old}}
        if wanted is None and (before := self.text(self.before)) is not None:
            tried = diff["after"] = before
        if wanted is not None and old == wanted and running is None and self.is_live():
            return {"changed": False, "diff": diff}
        if running is not None and self.armed():
            if running == tried:
                self.actions.append("The same trial is in force already")
                return {"changed": False, "diff": diff}
            self.fail(
                f"Another trial of {self.name} is in force on this Spark, until its timer {fabric_trial.TIMER} takes it back. Wait for it"
            )
        if not shutil.which("netplan"):
            self.fail("netplan is not installed on this Spark: its network is not netplan's to say")
        self.validate(tried)
        self.actions.append(
            f"{'Remove' if tried == netplan.NOTHING else 'Write'} {self.etc}, on trial for {self.params['revert_seconds']} s"
        )
        if not self.module.check_mode:
            self.apply(tried)
        return {"changed": True, "diff": diff}

    def is_live(self) -> bool:
        found: bool = fabric_trial.live(self.addresses(), self.params["interfaces"], self.params["mtu"])
        return found

    def addresses(self) -> dict[str, dict[str, Any]]:
        rc, out, _ = self.ask("ip", "-j", "addr", "show")
        found: dict[str, dict[str, Any]] = fabric_trial.parse_ip(out if rc == 0 else "")
        return found

    def armed(self) -> bool:
        _, text, _ = self.ask("systemctl", "show", f"{fabric_trial.TIMER}.timer", "--property=ActiveState")
        return bool(parse_show(text).get("ActiveState") == "active")

    def validate(self, text: str) -> None:
        """`netplan generate` of all files that will count, below a root of its own."""
        below = Path(self.module.tmpdir) / "netplan-root"
        shutil.rmtree(below, ignore_errors=True)
        files = {path: content for path, content in netplan.read_files(self.root).items() if path.endswith(".yaml")}
        for path, content in {**files, f"run/netplan/{self.name}": text}.items():
            copy = below / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(content, encoding="utf-8")
            copy.chmod(0o600)
        rc, out, err = self.ask("netplan", "generate", "--root-dir", str(below))
        said = (err or out).replace(f"{below}/", "/").strip()
        shutil.rmtree(below, ignore_errors=True)
        if rc != 0:
            self.fail(f"netplan does not accept its files with ours among them; nothing was written: {said[-600:]}")

    def apply(self, tried: str) -> None:
        """First the way back, then the trial."""
        there = self.addresses()
        named = [one["name"] for one in self.params["interfaces"]] or re.findall(r"(?m)^ {4}(\S+):$", self.text(self.etc) or "")
        mtus = {name: int(there[name]["mtu"]) for name in named if name in there and there[name].get("mtu")}
        self.lay(self.script, fabric_trial.revert_script(str(self.at(self.trial)), mtus), 0o700)
        self.arm()
        self.lay(self.trial, tried, 0o600)
        command = ["systemd-run", "--quiet", "--wait", "--collect", f"--unit={fabric_trial.APPLY}"]
        command += [f"--property=RuntimeMaxSec={APPLY_SECONDS}", "netplan", "apply"]
        rc, _, err = self.ask(*command)
        if rc != 0:
            _, said, _ = self.ask("journalctl", "--unit", fabric_trial.APPLY, "--lines", "15", "--no-pager", "--output", "cat")
            lost = self.take_back()
            self.fail(f"netplan apply failed on this Spark, and the trial was taken back: {(said or err).strip()[-600:]}{lost}")

    def arm(self) -> None:
        self.disarm()
        seconds = f"--on-active={self.params['revert_seconds']}s"
        self.must(
            "systemd-run",
            "--quiet",
            f"--unit={fabric_trial.TIMER}",
            seconds,
            "--timer-property=AccuracySec=1s",
            "sh",
            str(self.at(self.script)),
        )
        self.actions.append(f"Arm the timer {fabric_trial.TIMER}")

    def disarm(self) -> None:
        for kind in ("timer", "service"):  # a service that failed would keep its name
            unit = f"{fabric_trial.TIMER}.{kind}"
            if kind == "timer":
                self.ask("systemctl", "stop", unit)
            self.ask("systemctl", "reset-failed", unit)

    # proven, kept, reverted

    def prove(self) -> list[dict[str, Any]]:
        """Again and again until all answer: a link needs seconds to come up, and the others apply at their own pace."""
        program = self.module.get_bin_path("ping")
        if not program:
            self.fail("ping is not installed on this Spark. The package iputils-ping brings it")
        end = time.monotonic() + self.params["prove_seconds"]
        while True:
            found: list[dict[str, Any]] = fabric_reach.run_pings(program, self.params["probes"])
            if all(one["ok"] for one in found) or time.monotonic() > end:
                return found
            time.sleep(2)

    def keep(self) -> bool:
        tried = self.text(self.trial)
        if tried is None:
            return False
        self.actions.append(f"{'Remove' if fabric_trial.is_nothing(tried) else 'Keep'} {self.etc}")
        if self.module.check_mode:
            return True
        # Disarmed first: a timer that ran in the middle would undo what is about to be kept.
        self.disarm()
        if not self.on_trial:
            self.fail(f"The trial of {self.name} was taken back by its timer before it could be kept. Run this again")
        known = self.text(self.before)
        if known is not None:  # kept by a version that had no ledger
            self.ledger.adopt(self.etc, known.encode(), 0o600)
        old = self.text(self.etc)
        if old is not None and old != tried and not old.startswith(netplan.HEAD):
            self.lay(self.before, old, 0o600)
            self.actions.append(f"Keep what {self.etc} said before in {self.before}")
        if fabric_trial.is_nothing(tried):
            self.lift(self.etc)
        else:
            self.lay(self.etc, tried, 0o600)
            if not tried.startswith(netplan.HEAD):  # it says again what it said before us
                self.ledger.forget("file", [self.etc])
                self.lift(self.before)
        self.lift(self.trial)
        self.lift(self.script)
        return True

    def revert(self) -> bool:
        if not self.on_trial:
            return False
        self.actions.append(f"Take the trial of {self.name} back")
        lost = "" if self.module.check_mode else self.take_back()
        if lost:
            self.fail(f"The trial of {self.name} was taken back{lost}")
        return True

    def take_back(self) -> str:
        """The file is gone in any case; what else went wrong, as the end of a sentence."""
        rc, out, err = self.ask("sh", str(self.at(self.script)))
        self.lift(self.trial)
        self.disarm()
        self.lift(self.script)
        if rc == 0:
            return ""
        return (
            f". But netplan did not apply what was there before (exit {rc}: {(err or out).strip()[-300:]}): "
            "look at `netplan status` and `networkctl` on this Spark; a reboot brings the old network back too"
        )

    def run(self) -> dict[str, Any]:
        result: dict[str, Any] = {"changed": False}
        try:
            if self.params["state"] == "present":
                result = self.put(netplan.render(self.params["interfaces"], self.params["mtu"], self.params["renderer"]))
            elif self.params["state"] == "absent":
                result = self.put(None)
            elif self.params["state"] == "proven":
                result["probes"] = self.prove()
            elif self.params["state"] == "kept":
                result["changed"] = self.keep()
            else:
                result["changed"] = self.revert()
        except ValueError as error:
            self.fail(str(error))
        return {**result, "on_trial": self.on_trial}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "proven", "kept", "reverted"], "required": True},
            "interfaces": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"name": {"type": "str", "required": True}, "address": {"type": "str", "required": True}},
            },
            "mtu": {"type": "int", "default": 9000},
            "renderer": {"type": "str", "choices": ["", "networkd", "NetworkManager"], "default": ""},
            "file": {"type": "str", "default": "40-cx7.yaml"},
            "revert_seconds": {"type": "int", "default": 180},
            "probes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **{name: {"type": "str", "required": True} for name in ("peer", "rail", "ifname", "source", "address")},
                    "size": {"type": "int", "required": True},
                },
            },
            "prove_seconds": {"type": "int", "default": 45},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "present", ["interfaces"])],
        supports_check_mode=True,
    )
    params = module.params
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.yaml", params["file"]):
        module.fail_json(msg=f"file {params['file']!r}: expected the name of a netplan file, for example 40-cx7.yaml")
    if params["state"] == "present" and not params["interfaces"]:
        module.fail_json(msg="state present needs interfaces")
    work = Network(module)
    work.finish(work.run)


if __name__ == "__main__":
    main()
