#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Keep what lets a wedged Spark be entered and understood, and take each part away again."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: survival_kit
short_description: Keep what lets a wedged Spark be entered and understood
description:
  - Each part is V(present), V(absent) or V(keep), which leaves it alone. V(absent) undoes what this module did and nothing else.
    What it did stands in the ledger of edits, which C(host_edits_info) reads.
  - Units change by drop-ins. systemd is made to read them only while no running container could lose its GPU by that;
    otherwise they wait, and O(ignore:waiting) says for what.
  - Nothing is changed where one of the wishes makes no sense.
options:
  ssh:
    description: A score (O(ssh_oom_score)) that lets the OOM killer spare what is started over ssh.
    type: str
    choices: [present, absent, keep]
    default: keep
  ssh_oom_score:
    description: C(OOMScoreAdjust) of the ssh service, -1000 to 0.
    type: int
    default: -900
  reserve:
    description: Memory (O(reserve_mib)) that the kernel does not take from sshd, from system services and from sessions.
    type: str
    choices: [present, absent, keep]
    default: keep
  reserve_mib:
    description: C(MemoryMin) in MiB of each of these. Needs cgroup v2.
    type: int
    default: 128
  journal:
    description: A journal on disk, bounded and synced every 30 s.
    type: str
    choices: [present, absent, keep]
    default: keep
  journal_max_mib:
    description: Largest size of the journal in MiB.
    type: int
    default: 1024
  hold:
    description:
      - Hold the installed packages that match O(hold_patterns), for unattended upgrades and for C(apt upgrade) alike.
      - V(absent) releases only those that this module held.
    type: str
    choices: [present, absent, keep]
    default: keep
  hold_patterns:
    description: Names of packages, with wildcards.
    type: list
    elements: str
    default: [nvidia-*, libnvidia-*, linux-*nvidia*, cuda-drivers*]
  linger:
    description: Keep the systemd user manager of O(linger_user) when its last session ends.
    type: str
    choices: [present, absent, keep]
    default: keep
  linger_user:
    description: Name of the user; the one that C(sudo) came from when left out.
    type: str
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Refuses what a real run would refuse, but what a file system or systemd refuses only when asked.
"""

EXAMPLES = r"""
- name: A Spark that can be entered when memory is gone, and that keeps its driver
  survival_kit:
    ssh: present
    reserve: present
    journal: present
    hold: present

- name: Let packages go again
  survival_kit:
    hold: absent
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
ours:
  description: >-
    What this module did and would undo. C(held) (packages), C(linger) (users), C(journal_folder) (whether it made /var/log/journal).
  returned: always
  type: dict
"""

import contextlib
import os
import re
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import own_unit, survival
from ansible.module_utils.sparklanes.host import units as host_units
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.tree import Entry


class SurvivalKit(HostEdits):
    """The parts as asked and as found on one host. What `absent` may undo is what the ledger says that this module did."""

    by = "survival_kit"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.params = module.params

    def wants(self, part: str, state: str) -> bool:
        return bool(self.params[part] == state)

    def run(self) -> dict[str, Any]:
        wish = self.params
        wrong = survival.problems(wish["ssh_oom_score"], wish["reserve_mib"], wish["journal_max_mib"])
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", self.user()):
            wrong.append(f"linger_user: found {self.user()!r}, expected the name of a user")
        if wrong:
            self.fail("; ".join(wrong))
        survival.adopt(self)
        # What can refuse comes before what changes.
        packages = self.packages() if not self.wants("hold", "keep") else []
        self.unit_drop_ins()
        self.journal()
        self.hold(packages)
        if not self.wants("linger", "keep"):
            self.linger(self.user())
        return {
            "ours": {
                "held": self.did("hold"),
                "linger": [name.rpartition("/")[2] for name in self.ledger.names("file", f"{survival.LINGER}/")],
                "journal_folder": bool(self.did("journal")),
            }
        }

    def take_away(self, path: str) -> bool:
        """A drop-in, and its folder where that is empty now."""
        if not self.drop(path):
            return False
        if not self.module.check_mode:
            with contextlib.suppress(OSError):
                self.at(path).parent.rmdir()
        return True

    # Units

    def ssh_unit(self) -> str:
        """ssh.service on Debian and Ubuntu, sshd.service elsewhere."""
        loaded = (name for name in ("ssh.service", "sshd.service") if self.show(name).get("LoadState") == "loaded")
        found = next(loaded, "")
        if not found:
            self.fail("neither ssh.service nor sshd.service is known to systemd here, so there is nothing to protect")
        return found

    def show(self, unit: str) -> dict[str, str]:
        found: dict[str, str] = own_unit.show(self, unit, "LoadState", "NeedDaemonReload", "OOMScoreAdjust", "MemoryMin")
        return found

    def unit_drop_ins(self) -> None:
        parts = {part for part in ("ssh", "reserve") if not self.wants(part, "keep")}
        if not parts:
            return
        ssh = self.ssh_unit()
        texts: dict[tuple[str, str], str] = {}
        if "ssh" in parts:
            texts[(ssh, "91-sparklanes-oom.conf")] = survival.ssh_drop_in(self.params["ssh_oom_score"])
        if "reserve" in parts:
            for unit, section in ((ssh, "Service"), ("system.slice", "Slice"), ("user.slice", "Slice")):
                texts[(unit, "91-sparklanes-reserve.conf")] = survival.reserve_drop_in(section, self.params["reserve_mib"])
        for (unit, name), text in texts.items():
            path = f"/etc/systemd/system/{unit}.d/{name}"
            part = "ssh" if name.endswith("oom.conf") else "reserve"
            if self.wants(part, "present"):
                self.write(path, text)
            else:
                self.take_away(path)
        touched = sorted({unit for unit, _ in texts})
        if self.changed or any(self.show(unit).get("NeedDaemonReload") == "yes" for unit in touched):
            self.reload(ssh if "ssh" in parts else "")
        if not self.module.check_mode and not self.waiting:
            self.prove(ssh)

    def prove(self, ssh: str) -> None:
        """What systemd itself says, as another drop-in may win over ours."""
        found, wish = self.show(ssh), self.params
        wanted = {
            "OOMScoreAdjust": str(wish["ssh_oom_score"]) if self.wants("ssh", "present") else None,
            "MemoryMin": str(wish["reserve_mib"] * 1024**2) if self.wants("reserve", "present") else None,
        }
        for name, value in wanted.items():
            if value is not None and found.get(name) != value:
                self.fail(
                    f"{name} of {ssh}: systemd says {found.get(name) or 'nothing'}, expected {value}. Another drop-in wins over ours: "
                    f"systemctl cat {ssh}"
                )

    def reload(self, ssh: str) -> None:
        risk = host_units.reload_risk_here(commands.run, self.at("/dev"))
        if risk:
            self.waiting.append(f"The drop-ins count from the next boot or run: {risk}")
            return
        own_unit.daemon_reload(self)
        if not ssh:
            return
        sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin")
        if sshd:
            self.must(sshd, "-t", hint="ssh is not restarted with this configuration; mend /etc/ssh/sshd_config first")
        # Sessions are no part of the service: they stay.
        if self.note(f"Restart {ssh}, so that new sessions inherit the score"):
            self.must("systemctl", "try-restart", ssh)

    # The journal

    def journal(self) -> None:
        path = survival.JOURNAL_DROP_IN
        if self.wants("journal", "present"):
            there = self.at(survival.JOURNAL_FOLDER).is_dir()
            if not self.write(path, survival.journal_drop_in(self.params["journal_max_mib"])) and there:
                return
            if self.module.check_mode:
                return
            if not there:
                self.doing("journal", [survival.JOURNAL_FOLDER], "absent", "present", survival.undo("journal"))
            self.must("systemctl", "restart", "systemd-journald.service")
            self.must("journalctl", "--flush")
            if not self.at(survival.JOURNAL_FOLDER).is_dir():
                self.fail(f"{path} asks for a journal on disk and {survival.JOURNAL_FOLDER} was not made. Another file of "
                          "/etc/systemd/journald.conf.d may win: systemd-analyze cat-config systemd/journald.conf")  # fmt: skip
        elif self.wants("journal", "absent") and self.take_away(path):
            ours = self.did("journal")
            if ours:
                self.actions.append(
                    f"Remove {survival.JOURNAL_FOLDER}, which was made by this role: the journal is in memory again"
                )
            if self.module.check_mode:
                return
            if ours:
                self.must("journalctl", "--relinquish-var")
                shutil.rmtree(self.at(survival.JOURNAL_FOLDER))
                self.undone("journal")
            self.must("systemctl", "restart", "systemd-journald.service")

    # Packages

    def packages(self) -> list[survival.Package]:
        rc, out, err = self.ask("dpkg-query", "--show", f"--showformat={survival.DPKG_FORMAT}")
        if rc != 0:
            self.fail(f"dpkg-query does not answer ({err.strip()}), so no package can be held or released here")
        found: list[survival.Package] = survival.parse_packages(out)
        return found

    def hold(self, packages: list[survival.Package]) -> None:
        if self.wants("hold", "present"):
            free, held = survival.held_away(packages, self.params["hold_patterns"])
            if not free and not held:
                self.actions.append(f"No installed package is named {', '.join(self.params['hold_patterns'])}: nothing to hold")
            if free and self.note(f"Hold {', '.join(free)}", "", survival.selections(free, "hold")):
                self.doing("hold", free, "install", "hold", survival.undo("hold"))
                self.must("dpkg", "--set-selections", data=survival.selections(free, "hold"))
        elif self.wants("hold", "absent"):
            still = {package.name for package in packages if package.want == "hold"}
            ours = [name for name in self.did("hold") if name in still]
            if ours and self.note(f"Release {', '.join(ours)}", survival.selections(ours, "hold")):
                self.must("dpkg", "--set-selections", data=survival.selections(ours, "install"))
            self.undone("hold")

    # The user manager

    def user(self) -> str:
        return str(self.params["linger_user"] or os.environ.get("SUDO_USER") or "root")

    def linger(self, user: str) -> None:
        """logind keeps the wish as an empty file of the user's name."""
        path, hint = f"{survival.LINGER}/{user}", "Is systemd-logind running, and does this user exist?"
        there = self.tree.entry(path) is not None
        if self.wants("linger", "present"):
            if not there and self.note(f"Keep the user manager of {user} after its last session"):
                self.ledger.file(path, Entry("file", "0644"), lambda: self.must("loginctl", "enable-linger", user, hint=hint))
        elif (
            there and path in self.ledger.names("file") and self.note(f"Let the user manager of {user} end with its last session")
        ):
            self.ledger.file(path, None, lambda: self.must("loginctl", "disable-linger", user, hint=hint))


def main() -> None:
    part = {"type": "str", "choices": ["present", "absent", "keep"], "default": "keep"}
    module = AnsibleModule(
        argument_spec={
            "ssh": part,
            "ssh_oom_score": {"type": "int", "default": -900},
            "reserve": part,
            "reserve_mib": {"type": "int", "default": 128},
            "journal": part,
            "journal_max_mib": {"type": "int", "default": 1024},
            "hold": part,
            "hold_patterns": {"type": "list", "elements": "str", "default": list(survival.HOLD_PATTERNS)},
            "linger": part,
            "linger_user": {"type": "str"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    kit = SurvivalKit(module)
    kit.finish(kit.run)


if __name__ == "__main__":
    main()
