# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Resource limits that the nodes' container runtime is asked for: what the kernel will grant to whom asks.

Who asks is crun, a child of podman, and podman changes its own limits when it starts:

- RLIMIT_NPROC becomes kernel.pid_max where that is allowed, else 1048576 where that is; both count as the new hard limit.
- RLIMIT_NOFILE becomes 1048576 where that is allowed, else the soft limit rises to the hard one.

The kernel refuses (setrlimit, EPERM) a hard limit above the caller's own one, unless the caller has CAP_SYS_RESOURCE in the
first user namespace; and for RLIMIT_NOFILE one above fs.nr_open, whoever asks. A container for which nothing is asked gets
1048576 of each from podman, which is then refused. Docker asks for nothing: its containers inherit the daemon's limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNLIMITED = 2**64 - 1  # RLIM_INFINITY of the kernel
PODMAN_DEFAULT = 1048576  # podman's RLimitDefaultValue, for files and processes


@dataclass(frozen=True)
class LimitFacts:
    """What decides about limits on this machine. Hard limits are this process's own; the rest are sysctls."""

    nofile: int
    nproc: int
    nr_open: int
    pid_max: int
    threads_max: int
    may_raise: bool  # CAP_SYS_RESOURCE, and not only in a user namespace of our own


def hard_limits(text: str) -> dict[str, int]:
    """Hard limits by their names in /proc/self/limits ("Max open files")."""
    found = re.findall(r"^(Max [a-z ]+?)\s{2,}(?:unlimited|\d+)\s+(unlimited|\d+)\s", text, re.M)
    return {name: UNLIMITED if value == "unlimited" else int(value) for name, value in found}


def is_first_user_namespace(uid_map: str) -> bool:
    """Whether /proc/self/uid_map maps all ids to themselves: only there does CAP_SYS_RESOURCE raise a limit."""
    return uid_map.split() == ["0", "0", "4294967295"]


def ulimits(facts: LimitFacts) -> dict[str, int]:
    """Limits to ask podman for, by Docker's names; empty where its own defaults are granted."""
    if facts.may_raise:
        return {"nofile": facts.nr_open} if facts.nr_open < PODMAN_DEFAULT else {}
    return {
        "nofile": min(facts.nofile, facts.nr_open, PODMAN_DEFAULT),
        "nproc": min(facts.nproc, facts.pid_max, facts.threads_max, PODMAN_DEFAULT),
    }
