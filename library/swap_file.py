#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Keep enough swap by a file of ours, and take it away again, never under what serves."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: swap_file
short_description: Keep enough swap by a file of ours
description:
  - Where swap of O(gib) is on already, nothing is made; where less is on, a file of ours adds the rest, with a line in C(/etc/fstab).
  - Refuses, before anything changes, where the file is there already, or would leave less than 10 GiB free on its disk.
options:
  state:
    description:
      - V(absent) turns our file off and removes it with its line, and nothing else. While a rank, a GPU container or a GPU process runs it
        waits, as turning swap off under what serves can end it.
    type: str
    choices: [present, absent]
    default: present
  gib:
    description: Swap in GiB, 1 to 256.
    type: float
    default: 16
  path:
    description: Our file. On a file system that can hold swap.
    type: path
    default: /var/lib/sparklanes/swap.img
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
"""

EXAMPLES = r"""
- name: A valve for a lane that repacks weights
  swap_file:
    gib: 16
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
  description: Files of ours, which V(absent) would remove.
  returned: always
  type: list
  elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import disk
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.host import survival, swap
from ansible.module_utils.sparklanes.host.edits import HostEdits


class SwapFile(HostEdits):
    """The swap of one host, as asked and as found. Which file is ours is what the ledger says."""

    by = "swap_file"

    def __init__(self, module: AnsibleModule) -> None:
        super().__init__(module, module.params["root"])
        self.path: str = module.params["path"]
        self.gib: float = module.params["gib"]

    def run(self) -> dict[str, Any]:
        wrong = swap.problems(self.gib, self.path)
        if wrong:
            self.fail("; ".join(wrong))
        survival.adopt(self)
        if self.module.params["state"] == "absent":
            self.remove()
        elif missing := swap.missing(self.on(), self.gib):
            self.refuse(missing)
            self.make(missing)
        return {"ours": self.did("swap")}

    def on(self) -> list[swap.Swap]:
        found: list[swap.Swap] = swap.parse_swaps(self.text("/proc/swaps") or "")
        return found

    def refuse(self, missing: int) -> None:
        on = self.on()
        if any(one.path == self.path for one in on) or self.tree.there(self.path):
            self.fail(
                f"{self.path} exists and {sum(one.size for one in on) / GIB:.1f} GiB of swap are on; expected {self.gib:g} GiB. Turn it off "
                "and remove it (spark_survival_swap: absent, with no rank running), then run this again"
            )
        problem = disk.lacking(self.at(self.path).parent, missing, swap.SPARE_GIB * GIB)
        if problem:
            self.fail(f"{self.path}: {problem} ({missing / GIB:.1f} GiB for the file and {swap.SPARE_GIB} GiB to spare)")

    def make(self, size: int) -> None:
        table = swap.fstab_with(self.fstab(), self.path)
        if self.note(f"Make {self.path} of {size / GIB:.1f} GiB and turn it on as swap", "", f"{self.path}\n"):
            self.doing("swap", [self.path], "absent", "present", survival.undo("swap"))
            problem = self.fill(size)
            if problem:
                self.undone("swap")
                self.fail(problem)
        self.write_fstab(table)

    def fill(self, size: int) -> str:
        """The file, made and turned on; what went wrong, empty where nothing did. Only a file that was made here is removed again."""
        try:
            with self.tree.folder(self.path, make=True) as (folder, name):
                handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        except OSError as error:
            return f"{self.path} could not be made: {error.strerror}"
        problem = self.turn_on(handle, size)
        if not problem:
            return ""
        if self.tree.there(self.path):
            self.tree.remove(self.path)
        return f"{problem}. The file is removed again; not every file system can hold one"

    def turn_on(self, handle: int, size: int) -> str:
        """The new file, filled and turned on as swap."""
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            return f"{self.path} could not be made: {error.strerror}"
        finally:
            os.close(handle)
        for program in ("mkswap", "swapon"):
            rc, out, err = self.ask(program, str(self.at(self.path)))
            if rc != 0:
                return f"{program} {self.path} failed: {(err or out).strip()}"
        return ""

    def fstab(self) -> str:
        text = self.text("/etc/fstab") or ""
        if "\ufffd" in text:
            self.fail(
                "/etc/fstab has bytes that are no UTF-8, so it can't be rewritten without a loss. Correct that line by hand"
            )
        return text

    def write_fstab(self, table: str) -> None:
        """Only our line comes and goes. A copy of the table in the ledger, given back, would undo others' edits."""
        old = self.text("/etc/fstab") or ""
        if old != table and self.note("Write /etc/fstab", f"/etc/fstab:\n{old}", f"/etc/fstab:\n{table}"):
            self.tree.write("/etc/fstab", table.encode())

    def remove(self) -> None:
        ours = self.did("swap")
        if not ours:
            return
        table = self.fstab()
        holder = occupied.look().holder()
        if holder:
            self.waiting.append(
                f"{', '.join(ours)} stays on: turning swap off under what serves can end it ({holder}). Stop it, then run this again"
            )
            return
        on = {one.path for one in self.on()}
        for path in ours:
            if path in on and self.note(f"Turn {path} off"):
                self.must("swapoff", path, hint="Is there memory for what is swapped out?")
            table = swap.fstab_without(table, path)
            self.write_fstab(table)
            if self.tree.there(path) and self.note(f"Remove {path}", f"{path}\n"):
                self.tree.remove(path)
        self.undone("swap")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "gib": {"type": "float", "default": 16},
            "path": {"type": "path", "default": "/var/lib/sparklanes/swap.img"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    work = SwapFile(module)
    work.finish(work.run)


if __name__ == "__main__":
    main()
