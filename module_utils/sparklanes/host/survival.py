# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What lets a wedged Spark be entered and understood: texts of drop-ins, and what packages are there.

Where unified memory runs out, the kernel goes on and answers pings while sshd is evicted (field reports: ssh times
out, ICMP alive, power cycle, empty pstore). So sshd gets pages and a score that keep it, and the journal a disk.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible.module_utils.sparklanes.host.edits import HostEdits
from ansible.module_utils.sparklanes.host.tree import Entry

COMMENT = "# Kept by sparklanes (role spark_survival). Change the variables of the site, not this file.\n"
DROP_IN = "90-sparklanes.conf"
JOURNAL_DROP_IN = f"/etc/systemd/journald.conf.d/{DROP_IN}"
JOURNAL_FOLDER = "/var/log/journal"
LINGER = "/var/lib/systemd/linger"  # of each user who lingers an empty file
# Where version 0.1 kept what role spark_survival did. The ledger of edits has it now.
OLD_MEMORY = "/var/lib/sparklanes/survival.json"
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


def ssh_drop_in(score: int) -> str:
    """sshd's own listener is spared by sshd itself; what it starts inherits the score of the unit, which this sets."""
    return f"{COMMENT}[Service]\nOOMScoreAdjust={score}\n"


def reserve_drop_in(section: str, mib: int) -> str:
    return f"{COMMENT}[{section}]\nMemoryMin={mib}M\n"


def journal_drop_in(max_mib: int) -> str:
    """On disk, bounded, and synced often: after a power cut the last minutes are what a person wants to read."""
    return f"{COMMENT}[Journal]\nStorage=persistent\nSystemMaxUse={max_mib}M\nSyncIntervalSec=30s\n"


def problems(score: int, reserve_mib: int, journal_max_mib: int) -> list[str]:
    """Wishes that make no sense, as sentences."""
    wrong = []
    if not -1000 <= score <= 0:
        wrong.append(f"ssh_oom_score: found {score}, expected -1000 (never killed) to 0 (as any other)")
    if not 16 <= reserve_mib <= LARGEST_RESERVE_MIB:
        wrong.append(f"reserve_mib: found {reserve_mib}, expected 16 to {LARGEST_RESERVE_MIB}: a lane can't have what is kept")
    if journal_max_mib < 64:
        wrong.append(f"journal_max_mib: found {journal_max_mib}, expected 64 or more")
    return wrong


def undo(part: str) -> str:
    """For the ledger: who takes a part back."""
    return f"role spark_survival, spark_survival_{part}: absent"


def adopt(edits: HostEdits) -> None:
    """Move what version 0.1 kept into the ledger. Unreadable is not absent."""
    text = edits.text(OLD_MEMORY)
    if text is None:
        return
    try:
        known = {"held": [], "linger": [], "journal_folder": False, "swap": "", **json.loads(text)}
        held, linger = [str(name) for name in known["held"]], [str(name) for name in known["linger"]]
    except (ValueError, TypeError) as error:
        edits.fail(f"{OLD_MEMORY} can't be read ({error}); it says what role spark_survival did here. Mend it, or move it aside")
    if edits.module.check_mode:
        return
    edits.doing("hold", held, "install", "hold", undo("hold"))
    edits.doing("journal", [JOURNAL_FOLDER] if known["journal_folder"] else [], "absent", "present", undo("journal"))
    edits.doing("swap", [str(known["swap"])] if known["swap"] else [], "absent", "present", undo("swap"))
    for user in linger:
        edits.ledger.file(f"{LINGER}/{user}", Entry("file", "0644"), lambda: None, ours=True)
    edits.tree.remove(OLD_MEMORY)
