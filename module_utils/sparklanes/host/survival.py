# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What lets a wedged Spark be entered and understood: texts of drop-ins, and what packages and swap are there.

Where unified memory runs out, the kernel goes on and answers pings while sshd is evicted (field reports: ssh times
out, ICMP alive, power cycle, empty pstore). So sshd gets pages and a score that keep it, and the journal a disk.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GIB = 1024**3
COMMENT = "# Kept by sparklanes (role spark_survival). Change the variables of the site, not this file.\n"
DROP_IN = "90-sparklanes.conf"
JOURNAL_DROP_IN = f"/etc/systemd/journald.conf.d/{DROP_IN}"
# Kernel metapackages too: linux-nvidia-hwe moved from 6.17 to 7.0, whose kernels fail RDMA registration.
HOLD_PATTERNS = ("nvidia-*", "libnvidia-*", "linux-*nvidia*", "cuda-drivers*")
# More is no small reserve any more: memory that MemoryMin keeps is memory that a lane can't have.
LARGEST_RESERVE_MIB = 1024


@dataclass(frozen=True)
class Package:
    """One package as dpkg knows it. `want` is what was asked of dpkg (install, hold), `status` what is."""

    name: str
    version: str
    want: str
    status: str


@dataclass(frozen=True)
class Swap:
    """One line of /proc/swaps, in bytes."""

    path: str
    kind: str
    size: int
    used: int
    priority: int = -2  # below 0: the kernel's own choice


DPKG_FORMAT = "${binary:Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"


def parse_packages(text: str) -> list[Package]:
    """`dpkg-query --show` with DPKG_FORMAT. Lines of another shape are skipped."""
    rows = (line.split("\t") for line in text.splitlines())
    return [Package(*row) for row in rows if len(row) == 4 and row[0]]


def held_away(packages: Iterable[Package], patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Installed packages that match: those still to hold, and those held already."""
    chosen = [
        package
        for package in packages
        if package.status == "installed"
        and any(fnmatch.fnmatchcase(package.name.partition(":")[0], pattern) for pattern in patterns)
    ]
    return (
        sorted(package.name for package in chosen if package.want != "hold"),
        sorted(package.name for package in chosen if package.want == "hold"),
    )


def selections(names: Iterable[str], want: str) -> str:
    """What `dpkg --set-selections` reads."""
    return "".join(f"{name}\t{want}\n" for name in names)


def parse_swaps(text: str) -> list[Swap]:
    """/proc/swaps: sizes are in KiB, blanks in a path are written \\040."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 4 and words[2].isascii() and words[2].isdigit() and words[3].isascii() and words[3].isdigit():
            priority = int(words[4]) if re.fullmatch(r"-?[0-9]{1,9}", "".join(words[4:5])) else -2
            found.append(Swap(words[0].replace("\\040", " "), words[1], int(words[2]) * 1024, int(words[3]) * 1024, priority))
    return found


def fstab_line(path: str) -> str:
    return f"{path} none swap sw,nofail 0 0"


def fstab_with(text: str, path: str) -> str:
    """The table with our swap file in it; a line of its own that somebody wrote for it stays as it is."""
    if any(words[:1] == [path] for words in map(str.split, text.splitlines())):
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + fstab_line(path) + "\n"


def fstab_without(text: str, path: str) -> str:
    """The table without the line that we wrote, every other byte as it was."""
    return "".join(line for line in text.splitlines(keepends=True) if line.rstrip("\n") != fstab_line(path))


def ssh_drop_in(score: int) -> str:
    """sshd's own listener is spared by sshd itself; what it starts inherits the score of the unit, which this sets."""
    return f"{COMMENT}[Service]\nOOMScoreAdjust={score}\n"


def reserve_drop_in(section: str, mib: int) -> str:
    return f"{COMMENT}[{section}]\nMemoryMin={mib}M\n"


def journal_drop_in(max_mib: int) -> str:
    """On disk, bounded, and synced often: after a power cut the last minutes are what a person wants to read."""
    return f"{COMMENT}[Journal]\nStorage=persistent\nSystemMaxUse={max_mib}M\nSyncIntervalSec=30s\n"


def problems(score: int, reserve_mib: int, journal_max_mib: int, swap_gib: float, swap_path: str) -> list[str]:
    """Wishes that make no sense, as sentences."""
    wrong = []
    if not -1000 <= score <= 0:
        wrong.append(f"ssh_oom_score: found {score}, expected -1000 (never killed) to 0 (as any other)")
    if not 16 <= reserve_mib <= LARGEST_RESERVE_MIB:
        wrong.append(f"reserve_mib: found {reserve_mib}, expected 16 to {LARGEST_RESERVE_MIB}: a lane can't have what is kept")
    if journal_max_mib < 64:
        wrong.append(f"journal_max_mib: found {journal_max_mib}, expected 64 or more")
    if not 1 <= swap_gib <= 256:
        wrong.append(f"swap_gib: found {swap_gib:g}, expected 1 to 256")
    if not swap_path.startswith("/") or len(swap_path.split()) != 1 or swap_path.endswith("/") or swap_path.startswith("/dev/"):
        wrong.append(f"swap_path: found {swap_path!r}, expected the absolute path of a file, without blanks")
    return wrong
