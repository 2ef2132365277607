# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""systemd on a Spark that runs GPU containers.

`systemctl daemon-reload` makes systemd write the device rules of its cgroups again. A running
container then loses its GPU ("Failed to initialize NVML: Unknown Error") where systemd can't
look the devices up, which it does through the links in /dev/char. So: no reload there, not
even the one that `systemctl enable` does on its own.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.commands import Run
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.tree import Entry


def parse_show(text: str) -> dict[str, str]:
    """`systemctl show` prints KEY=VALUE lines."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def missing_links(dev: Path = Path("/dev")) -> list[str]:
    """The NVIDIA device nodes that have no link in /dev/char, by path."""
    found = []
    for node in sorted([*dev.glob("nvidia*"), *dev.glob("nvidia-caps/*")]):
        status = node.stat()
        if stat.S_ISCHR(status.st_mode):
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            if not os.path.lexists(dev / "char" / number):
                found.append(str(node))
    return found


def reload_risk(gpu_containers: Sequence[str] | None, cgroup_driver: str, unlinked: Sequence[str]) -> str:
    """Why `daemon-reload` has to wait, or an empty text.

    `gpu_containers` are the running ones by name, None where Docker does not say. The cgroup
    driver only explains: with `cgroupfs` the loss is rarer, not ruled out on every release.
    """
    if gpu_containers is None:
        return "Docker does not say which containers run, and a running one could lose its GPU"
    if gpu_containers and unlinked:
        return (
            f"{', '.join(gpu_containers)} would lose the GPU at a daemon-reload (cgroup driver {cgroup_driver or 'unknown'}): "
            f"no link in /dev/char for {', '.join(unlinked)}. Stop the rank, or make the links (sudo nvidia-ctk system "
            "create-dev-char-symlinks --create-all), then run this again"
        )
    return ""


def gpu_containers(run: Run) -> tuple[list[str] | None, str]:
    """Names of the running containers that use the GPU (None where Docker does not say), and Docker's cgroup driver."""
    if not shutil.which("docker"):
        return [], ""
    docker = Docker(run)
    try:
        driver = str(docker.info()["cgroup_driver"])
        return [box.name for box in docker.containers("status=running") if box.uses_gpu], driver
    except (DockerError, ValueError):
        return None, ""


def reload_risk_here(run: Run, dev: Path = Path("/dev")) -> str:
    """Why `daemon-reload` has to wait on this Spark, or an empty text."""
    boxes, driver = gpu_containers(run)
    return reload_risk(boxes, driver, missing_links(dev))


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
