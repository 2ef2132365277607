#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Keep kernel settings and login options for good: live, in a file, and nowhere overridden."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: kernel_settings
short_description: Keep kernel settings and systemd-logind options, live and after a reboot
description:
  - Takes all settings of a Spark at once, writes them to one file of ours in C(/etc/sysctl.d), sets them
    in the running kernel and reads both back.
  - Fails, before anything changes, where another file would win over ours at boot (C(systemd-sysctl)) or
    when somebody runs C(sysctl --system). The two read C(/etc/sysctl.conf) differently.
  - Can keep systemd-logind from removing the semaphores and shared memory of a user whose last session ends,
    which kills ranks that were started over ssh. systemd-logind is told to read its files again (SIGHUP,
    sessions stay) and asked over D-Bus whether it did.
options:
  settings:
    description:
      - Kernel settings by name, for example C(vm.swappiness).
      - With none, settings are left alone and the result says what the Spark has.
    type: dict
    default: {}
  watch:
    description: Further settings to report on without changing them.
    type: list
    elements: str
    default: []
  name:
    description:
      - Name of our file in C(/etc/sysctl.d). The default sorts after C(99-sysctl.conf), the link to C(/etc/sysctl.conf).
    type: str
    default: 99-zz-sparklanes.conf
  state:
    description:
      - V(absent) removes our file. Settings of the running kernel go back to what the remaining files say, else to what they were before
        this module first set them. So does a setting that is no longer in O(settings).
    type: str
    choices: [present, absent]
    default: present
  live:
    description:
      - V(false) changes neither the running kernel nor any file that is read at boot or by C(sysctl --system).
        The file is only laid down in O(staged). For a Spark on which another lane serves.
    type: bool
    default: true
  remove_ipc:
    description:
      - V(no) keeps a drop-in of ours that sets C(RemoveIPC=no); V(default) removes it; V(keep) leaves it alone.
      - With O(live=false) the drop-in is still laid down, as it protects whatever runs, and never removed.
    type: str
    choices: ['no', default, keep]
    default: keep
  staged:
    description: Folder for the file that is not live yet.
    type: path
    default: /etc/sparklanes/staged
  root:
    description: Root of the file tree, for tests and images.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Refuses what a real run would refuse, but a value that only the kernel itself refuses.
  diff_mode:
    details: Shows the files and the values of the running kernel.
"""

EXAMPLES = r"""
- name: Swap little, also after a reboot, and keep the semaphores of ranks
  kernel_settings:
    settings:
      vm.swappiness: 10
    remove_ipc: 'no'

- name: Lay down what the next lane needs while another one serves
  kernel_settings:
    settings:
      vm.swappiness: 0
    live: false
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
live:
  description: Value of each setting in the running kernel.
  returned: always
  type: dict
file:
  description: Path of our file and what it sets (V(null) where there is no such file).
  returned: always
  type: dict
effective:
  description: Per setting the value after the next boot (C(systemd-sysctl)) and after C(sysctl --system).
  returned: always
  type: dict
winner:
  description: Per setting the file that decides it for C(systemd-sysctl) and for C(sysctl --system).
  returned: always
  type: dict
staged:
  description: Path of the file that waits for its lane, or an empty text.
  returned: always
  type: str
remove_ipc:
  description: What systemd-logind itself says (V(yes), V(no)), or V(not running).
  returned: always
  type: str
"""

import json
import time
from collections.abc import Iterable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.host import conf_files, sysctl
from ansible.module_utils.sparklanes.host import logind as host_logind
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.logind import remove_ipc

COMMENT = "Kept by sparklanes (role spark_kernel). Change the variable of the lane or the site, not this file."
# Where version 0.1 kept what the running kernel had before us. The ledger of edits has it now.
OLD_MEMORY = "/var/lib/sparklanes/kernel-settings.json"
IPC_DROP_IN = "/etc/systemd/logind.conf.d/90-sparklanes.conf"
IPC_COMMENT = (
    "Kept by sparklanes (role spark_kernel): with RemoveIPC=yes the end of an ssh session\n"
    "takes the semaphores and shared memory of a rank that was started in it."
)


class KernelSettings(HostEdits):
    """The settings of one host, as asked and as found."""

    by = "kernel_settings"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.params = module.params
        self.live: bool = self.params["live"]
        self.wanted = {str(key): sysctl.normal_value(value) for key, value in self.params["settings"].items()}
        self.path = f"/etc/sysctl.d/{self.params['name']}"
        self.staged_path = f"{self.params['staged']}/{self.params['name']}"

    def kernel(self, key: str) -> str | None:
        """The live value, None where this kernel has no such setting."""
        setting = self.at(f"/proc/sys/{sysctl.normal_key(key)}")
        try:
            value: str = sysctl.normal_value(setting.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None
        return value

    def validate(self) -> None:
        name = self.params["name"]
        if "/" in name or not name.endswith(".conf") or name.startswith("."):
            self.fail(f"name: found {name!r}, expected a plain file name that ends in .conf, such as 99-zz-sparklanes.conf")
        empty = [key for key, value in self.wanted.items() if not value or self.params["settings"][key] is None]
        if empty:
            self.fail(
                f"settings: {', '.join(empty)} has no value. Give one, or leave the setting out to leave the Spark's own alone"
            )
        odd = [
            key for key, value in self.wanted.items() if ".." in sysctl.normal_key(key).split("/") or not (key + value).isascii()
        ]
        if odd:
            self.fail(f"settings: {', '.join(odd)} is no name below /proc/sys with a value of plain ASCII. Correct it")
        wrong = sysctl.out_of_range(self.wanted)
        if wrong:
            self.fail("; ".join(wrong))
        unknown = [key for key in self.wanted if self.kernel(key) is None]
        if unknown:
            self.fail(
                f"{', '.join(unknown)}: this kernel has no such setting (nothing under /proc/sys). Correct the name in the lane or the site's variables"
            )

    def files(self) -> list[conf_files.ConfFile]:
        found: list[conf_files.ConfFile] = conf_files.collect(self.root, sysctl.SYSCTL_DIRS, sysctl.SYSCTL_CONF)
        return found

    # Settings of the kernel

    def run(self) -> None:
        self.validate()
        self.adopt()
        found = self.files()
        if self.params["state"] == "absent":
            self.remove(found)
        elif self.wanted:
            text = sysctl.render(self.wanted, COMMENT)
            lost = sysctl.overridden(conf_files.with_file(found, self.path, text), self.path, self.wanted)
            if lost:
                self.fail("; ".join(lost))
            if self.live:
                self.take(found, text)
            else:
                self.stage(text)
        else:
            self.leave_alone()
        self.remove_ipc()

    def take(self, found: list[conf_files.ConfFile], text: str) -> None:
        """The running kernel first, so that a value which it refuses never becomes permanent."""
        ours = self.keys_of(self.text(self.path) or "")
        if not self.module.check_mode:
            for key, old in self.differing(self.wanted).items():
                # A value that is ours already tells nothing of what was before us.
                if old is not None and (key not in ours or self.ledger.before("sysctl", key) is not None):
                    self.ledger.change("sysctl", [key], old, self.wanted[key])
        self.set_live(self.wanted)
        self.write(self.path, text)
        self.give_back([key for key in ours if key not in self.wanted], conf_files.with_file(found, self.path, text))
        self.drop(self.staged_path, "it is live now")

    def stage(self, text: str) -> None:
        """Another lane serves: neither the kernel nor a file that anything reads is touched."""
        if self.text(self.path) == text and not self.differing(self.wanted):
            self.drop(self.staged_path, f"{self.path} already says the same")
            return
        if not self.write(self.staged_path, text):
            self.actions.append(f"{self.staged_path} waits until the lane that serves here has stopped")

    def leave_alone(self) -> None:
        ours = self.text(self.path)
        for key in self.params["watch"]:
            made = sysctl.winners(self.files(), key)[sysctl.AT_BOOT]
            source = f"set by {made.path}" if made else "the kernel's own default, as no file sets it"
            self.actions.append(f"{key} left alone, as nothing asks for a value: live {self.kernel(key)}, {source}")
        if ours is not None:
            self.actions.append(f"{self.path} stays from an earlier lane; spark_kernel_remove: true removes it")
        self.drop(self.staged_path, "nothing asks for it any more")

    def differing(self, wanted: dict[str, str]) -> dict[str, str | None]:
        return {key: self.kernel(key) for key, value in wanted.items() if self.kernel(key) != value}

    def set_live(self, wanted: dict[str, str]) -> None:
        for key, old in self.differing(wanted).items():
            self.note(
                f"Set {key} from {old} to {wanted[key]} in the running kernel",
                f"{key} = {old} (live)\n",
                f"{key} = {wanted[key]} (live)\n",
            )
            if self.module.check_mode:
                continue
            try:
                self.at(f"/proc/sys/{sysctl.normal_key(key)}").write_text(wanted[key] + "\n", encoding="ascii")
            except OSError as error:
                self.fail(f"{key}: the kernel refuses {wanted[key]!r} ({error.strerror}); found {old}. No file was written")
            if self.kernel(key) != wanted[key]:
                self.fail(
                    f"{key}: set to {wanted[key]}, the kernel still says {self.kernel(key)}. Something on this Spark sets it back; no file was written"
                )

    def remove(self, found: list[conf_files.ConfFile]) -> None:
        text = self.text(self.path)
        self.drop(self.staged_path)
        if text is None:
            return
        if not self.live:
            self.actions.append(f"{self.path} stays while a lane serves on this Spark; launch or a later run removes it")
            return
        self.drop(self.path)
        self.give_back(self.keys_of(text), conf_files.with_file(found, self.path, None))

    @staticmethod
    def keys_of(text: str) -> list[str]:
        """The settings that a text of ours makes."""
        return [sysctl.dotted(key) for key in sysctl.read_files([conf_files.ConfFile("", text)]).exact]

    def give_back(self, keys: Iterable[str], remaining: list[conf_files.ConfFile]) -> None:
        """Settings that we make no longer: as the remaining files say, else as they were before us."""
        gone = list(keys)
        for key in gone:
            made = sysctl.winners(remaining, key)[sysctl.AT_BOOT]
            value = made.value if made else self.before_us(key)
            if value is None:
                self.actions.append(f"{key} stays {self.kernel(key)} until the next reboot: no remaining file sets it")
            else:
                self.set_live({key: str(value)})
        if gone and not self.module.check_mode:
            self.ledger.forget("sysctl", gone)

    def before_us(self, key: str) -> str | None:
        known = self.ledger.before("sysctl", key)
        return self.old_memory().get(key) if known is None else known

    def old_memory(self) -> dict[str, str]:
        """What version 0.1 kept. Unreadable is not absent."""
        text = self.text(OLD_MEMORY)
        try:
            found = {} if text is None else json.loads(text)
            return {str(key): str(value) for key, value in found.items() if value is not None}
        except (ValueError, AttributeError) as error:
            self.fail(
                f"{OLD_MEMORY} can't be read ({error}); it says what the kernel had before sparklanes. Mend it, or move it aside"
            )

    def adopt(self) -> None:
        """Move what version 0.1 kept into the ledger."""
        known = self.old_memory()
        if self.module.check_mode or self.text(OLD_MEMORY) is None:
            return
        ours = sysctl.read_files([conf_files.ConfFile("", self.text(self.path) or "")]).exact
        for key, value in known.items():
            made = ours.get(sysctl.normal_key(key))
            if made and self.ledger.before("sysctl", key) is None:
                self.ledger.change("sysctl", [key], value, made.value)
        self.tree.remove(OLD_MEMORY)

    # systemd-logind

    def remove_ipc(self) -> None:
        wanted = self.params["remove_ipc"]
        if wanted == "keep":
            return
        if wanted == "no":
            self.keep_ipc()
        elif not self.live and self.text(IPC_DROP_IN) is not None:
            self.actions.append(f"{IPC_DROP_IN} stays while a lane serves on this Spark")
        elif self.drop(IPC_DROP_IN) and not self.module.check_mode:
            self.reload_logind()

    def keep_ipc(self) -> None:
        text = host_logind.render_logind({"RemoveIPC": "no"}, IPC_COMMENT)
        found = conf_files.collect(self.root, host_logind.LOGIND_DIRS, host_logind.LOGIND_CONF)
        made = host_logind.logind_winner(conf_files.with_file(found, IPC_DROP_IN, text), "RemoveIPC")
        if made is None or not host_logind.is_no(made.value):
            where = made.path if made else "a file"
            self.fail(
                f"RemoveIPC: {where} sets it after {IPC_DROP_IN}; expected no, or ranks die when an ssh session ends. Remove that line from {where}"
            )
        written = self.write(IPC_DROP_IN, text)
        if self.module.check_mode or self.logind_says() in ("no", "not running"):
            return
        if not written:
            self.note("Tell systemd-logind to read its files again: it still has RemoveIPC=yes")
        self.reload_logind()
        if self.logind_says() != "no":
            self.fail(
                f"RemoveIPC: {IPC_DROP_IN} says no, systemd-logind says {self.logind_says()} (D-Bus). Look at: systemd-analyze cat-config systemd/logind.conf"
            )

    def reload_logind(self) -> None:
        """SIGHUP makes logind read its files; a restart would do too, but is more than is needed."""
        before = self.logind_says()
        if before == "not running":
            return
        rc, _, err = commands.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGHUP", "systemd-logind.service"])
        if rc != 0:
            self.fail(f"systemd-logind could not be told to read its files again: {err.strip()}")
        for _ in range(20):
            if self.logind_says() != before:
                return
            time.sleep(0.1)

    def logind_says(self) -> str:
        says, error = remove_ipc(commands.run)
        if error:
            self.fail(f"systemd-logind runs and does not answer over D-Bus: {error}")
        return str(says)

    def result(self) -> dict[str, Any]:
        found, ours = self.files(), self.text(self.path)
        keys = [*self.wanted, *(key for key in self.params["watch"] if key not in self.wanted)]
        made = {key: sysctl.winners(found, key) for key in keys}
        exact = sysctl.read_files([conf_files.ConfFile(self.path, ours or "")]).exact
        return {
            "live": {key: self.kernel(key) for key in keys},
            "file": {
                "path": self.path,
                "settings": None if ours is None else {sysctl.dotted(key): item.value for key, item in exact.items()},
            },
            "effective": {
                key: {program: item.value if item else None for program, item in programs.items()}
                for key, programs in made.items()
            },
            "winner": {
                key: {program: item.path if item else None for program, item in programs.items()}
                for key, programs in made.items()
            },
            "staged": self.staged_path if self.text(self.staged_path) is not None else "",
            "remove_ipc": self.logind_says(),
        }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "default": {}},
            "watch": {"type": "list", "elements": "str", "default": []},
            "name": {"type": "str", "default": "99-zz-sparklanes.conf"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "live": {"type": "bool", "default": True},
            "remove_ipc": {"type": "str", "choices": ["no", "default", "keep"], "default": "keep"},
            "staged": {"type": "path", "default": "/etc/sparklanes/staged"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    host = KernelSettings(module)

    def work() -> dict[str, Any]:
        host.run()
        return host.result()

    host.finish(work)


if __name__ == "__main__":
    main()
