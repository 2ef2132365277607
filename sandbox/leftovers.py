# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a killed run leaves behind, how we know it is ours, and how it goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from sandbox.host import cgroup2_root
from sandbox.layout import Clone, State
from sandbox.shell import attempt

ABSENT, UP, PARTIAL, STALE = "absent", "up", "partial", "stale"


def judge(state: State | None, boot: str, running: Iterable[str], services_alive: bool) -> str:
    """absent: nothing was made. up: all is there. stale: made before a reboot. partial: anything else."""
    if state is None:
        return ABSENT
    if state.boot_id != boot:
        return STALE
    whole = state.complete and services_alive and set(running) == set(state.nodes)
    return UP if whole else PARTIAL


def mounts_under(mountinfo: str, tops: Iterable[str]) -> list[str]:
    """Mount points at or below one of `tops`, deepest first, from /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            point = fields[4].replace("\\040", " ")
            if any(point == top or point.startswith(f"{top}/") for top in tops):
                found.append(point)
    return sorted(found, key=lambda point: point.count("/"), reverse=True)


def roots_in(mountinfo: str, storage: str) -> bool:
    """Whether a process with this mountinfo lives in a container of our storage."""
    return any(line.split(" ")[4:5] == ["/"] and f"{storage}/" in line.rpartition(" - ")[2] for line in mountinfo.splitlines())


def processes_of(clone: Clone) -> list[int]:
    """Processes inside our containers, by the file system they live in, and the monitors that watch them."""
    storage, exit_dir = str(clone.storage), f"{clone.run}/"
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            inside = roots_in((folder / "mountinfo").read_text(), storage)
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # gone meanwhile
        monitor = arguments[0].endswith(b"conmon") and any(exit_dir.encode() in word for word in arguments[1:])
        if inside or monitor:
            found.append(int(folder.name))
    return found


def remove_cgroups(top: Path) -> None:
    """Empty cgroups, deepest first; the kernel refuses to remove one with a process in it."""
    if not top.is_dir():
        return
    folders = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: len(path.parts), reverse=True)
    for folder in (*folders, top):
        with contextlib.suppress(OSError):
            folder.rmdir()


def sweep(clone: Clone, state: State | None) -> None:
    """Remove what the engine itself could not: processes, mounts, interfaces, namespaces, half-written files."""
    end = time.monotonic() + 10
    while (left := processes_of(clone)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    for which in ("mgmt", "fabric"):
        for link in (clone.keeper(which), clone.bridge(which)):
            attempt(["ip", "link", "delete", link])
    for point in mounts_under(Path("/proc/self/mountinfo").read_text(), [str(clone.home), str(clone.run)]):
        attempt(["umount", "-l", point])
    hierarchy = cgroup2_root(Path("/proc/self/mounts").read_text())
    if hierarchy is not None:
        remove_cgroups(hierarchy / clone.name)
    for path in map(Path, state.netns if state else ()):
        if path.parent == Path("/run/netns") and path.exists():
            attempt(["umount", "-l", str(path)])
            path.unlink(missing_ok=True)
    shutil.rmtree(clone.run, ignore_errors=True)
    shutil.rmtree(clone.tmp, ignore_errors=True)
    shutil.rmtree(clone.nodes, ignore_errors=True)
    for part in clone.home.glob("**/*.part*"):
        if clone.storage not in part.parents:
            part.unlink(missing_ok=True)
