# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The keeper of a systemd unit that is ours: placed, enabled, started and proven, never by a needless reload (see host/units)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.systemd import parse_show
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.tree import Entry
from ansible.module_utils.sparklanes.host.units import reload_risk_here


class OwnUnit:
    """One systemd unit of ours: placed, enabled and started without a needless `daemon-reload`, and proven.

    `prove` looks once and says what is wrong of the unit that was just started, in words that end a sentence; empty where it runs
    as asked. It is asked again for `seconds`.
    """

    def __init__(
        self, edits: HostEdits, name: str, text: str, prove: Callable[[], str] | None = None, seconds: float = 0.0
    ) -> None:
        self.edits, self.name, self.wanted, self.prove, self.seconds = edits, name, text, prove, seconds
        self.path = f"/etc/systemd/system/{name}"

    @property
    def there(self) -> bool:
        return self.edits.text(self.path) is not None

    def show(self) -> dict[str, str]:
        return show(self.edits, self.name, "LoadState", "ActiveState", "NeedDaemonReload")

    @property
    def enabled(self) -> bool:
        """By the links on the disk. `show` tells UnitFileState as it was before --no-reload, until the next reload."""
        return self.edits.ask("systemctl", "is-enabled", self.name)[1].strip() == "enabled"

    @property
    def state(self) -> str:
        """systemd's ActiveState; empty where the unit isn't there."""
        return self.show().get("ActiveState", "") if self.there else ""

    @property
    def runs(self) -> bool:
        return self.state in ("active", "activating", "reloading")

    def do(self, verb: str, *options: str) -> None:
        """A verb of systemctl that has to work; where it doesn't, the journal tells why."""
        rc, _, err = self.edits.ask("systemctl", verb, *options, self.name)
        if rc != 0:
            self.edits.fail(f"systemctl {' '.join((verb, *options))} {self.name} failed: {err.strip()}\n{self.journal()}")

    def journal(self) -> str:
        _, out, _ = self.edits.ask("journalctl", "--unit", self.name, "--lines", "15", "--no-pager", "--output", "cat")
        return f"The journal of {self.name} ends with:\n{out.strip() or '(nothing)'}"

    def place(self) -> None:
        """Give the unit its text. A new one needs no reload; another text does, and waits while that could cost a container its GPU."""
        old = self.edits.text(self.path)
        if old is None:
            self.edits.write(self.path, self.wanted)
            if self.edits.module.check_mode or self.show().get("LoadState") == "loaded":
                return
        elif old == self.wanted and self.show().get("NeedDaemonReload") != "yes":
            return
        # systemd knows an older text of the unit (or, before release 246, has not seen the new file).
        risk = reload_risk_here(commands.run, self.edits.at("/dev"))
        if risk:
            self.edits.waiting.append(f"{self.name} keeps its old text for now: {risk}")
            return
        self.edits.write(self.path, self.wanted)
        daemon_reload(self.edits)

    def enable(self) -> None:
        if not self.enabled and self.edits.note(f"Enable {self.name}"):
            self.link(Entry("link", target=self.path), "enable")

    def disable(self) -> None:
        if self.enabled and self.edits.note(f"Disable {self.name}"):
            self.link(None, "disable")

    def link(self, after: Entry | None, verb: str) -> None:
        """What enabling is: a link in the folder of the target that wants the unit."""
        wanted_by = re.search(r"^WantedBy=(\S+)$", self.wanted or self.edits.text(self.path) or "", re.MULTILINE)
        if wanted_by is None:
            self.do(verb, "--no-reload")
        else:
            path = f"/etc/systemd/system/{wanted_by[1]}.wants/{self.name}"
            self.edits.ledger.file(path, after, lambda: self.do(verb, "--no-reload"))

    def start(self, why: str = "", again: bool = False) -> None:
        """Start it, or where it runs restart it, and see that it does what it was asked."""
        if self.edits.note(f"{'Restart' if again else 'Start'} {self.name}" + (f": {why}" if why else "")):
            self.do("restart")
            self.proven()

    def proven(self) -> None:
        if self.prove is None:
            return
        end = time.monotonic() + self.seconds
        while (problem := self.prove()) and time.monotonic() < end:
            time.sleep(0.2)
        if problem:
            self.edits.fail(f"{self.name} was started, but {problem}\n{self.journal()}")

    def stop(self, why: str = "") -> None:
        if self.runs and self.edits.note(f"Stop {self.name}{why}"):
            self.do("stop")

    def remove(self) -> None:
        """systemd forgets a unit that is stopped and gone by itself."""
        if self.there:
            self.disable()
            self.edits.drop(self.path)


def show(edits: HostEdits, unit: str, *properties: str) -> dict[str, str]:
    """These properties of a unit, as systemd has them now."""
    rc, out, err = edits.ask("systemctl", "show", unit, f"--property={','.join(properties)}")
    if rc != 0:
        edits.fail(f"systemd does not answer: {err.strip()}. This role needs a Spark that runs systemd")
    return parse_show(out)


def daemon_reload(edits: HostEdits) -> None:
    """Ask `reload_risk_here` first."""
    if edits.note("Make systemd read its unit files again"):
        edits.must("systemctl", "daemon-reload")
