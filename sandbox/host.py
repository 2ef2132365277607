# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, and which of our workarounds it therefore needs: detected, never assumed."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandbox.limits import LimitFacts, hard_limits, is_first_user_namespace, ulimits
from sandbox.packages import is_there
from sandbox.shell import SandboxError, attempt, capture

CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Host:
    """Facts of the machine, as read from /proc, /sys and /etc/os-release."""

    distribution: str
    codename: str
    cgroups: str  # unified, hybrid or legacy
    controllers: frozenset[str]
    systemd: bool
    nvidia: bool
    limits: LimitFacts


@dataclass(frozen=True)
class Workarounds:
    """What stands in for something that the machine withholds. All false on an ordinary one."""

    private_cgroup2: bool  # a mount namespace whose /sys/fs/cgroup is cgroup2
    cgroupfs: bool  # no systemd to ask for cgroups
    no_pids_limit: bool  # the pids controller is not there to be set
    own_limits: bool  # podman's default limits are refused
    emulated_memlock_runc: bool  # ... inside the nodes, too
    emulated_no_gpu_hook: bool  # makes the nodes' Docker accept --gpus where there is no GPU

    def names(self) -> list[str]:
        return [name for name, needed in vars(self).items() if needed]


def cgroup_layout(mounts: str) -> str:
    """Layout of the cgroup tree, from /proc/self/mounts."""
    unified = hybrid = False
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3 or fields[2] != "cgroup2":
            continue
        if fields[1] == "/sys/fs/cgroup":
            unified = True
        else:
            hybrid = True
    return "unified" if unified else "hybrid" if hybrid else "legacy"


def cgroup2_root(mounts: str) -> Path | None:
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) >= 3 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def effective_capabilities(status: str) -> int:
    """CapEff from /proc/self/status."""
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.M)
    return int(found.group(1), 16) if found else 0


def os_release(text: str) -> tuple[str, str]:
    values = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.M))
    return values.get("ID", ""), values.get("VERSION_CODENAME", "")


def detect(root: Path = Path("/")) -> Host:
    mounts = (root / "proc/self/mounts").read_text()
    distribution, codename = os_release((root / "etc/os-release").read_text())
    hierarchy = cgroup2_root(mounts)
    controllers: frozenset[str] = frozenset()
    if hierarchy is not None:
        listed = root / str(hierarchy).lstrip("/") / "cgroup.controllers"
        controllers = frozenset(listed.read_text().split()) if listed.exists() else frozenset()
    capabilities = effective_capabilities((root / "proc/self/status").read_text())
    return Host(
        distribution=distribution,
        codename=codename,
        cgroups=cgroup_layout(mounts),
        controllers=controllers,
        systemd=(root / "run/systemd/system").is_dir(),
        nvidia=(root / "dev/nvidiactl").exists(),
        limits=limit_facts(root, capabilities),
    )


def limit_facts(root: Path, capabilities: int) -> LimitFacts:
    own = hard_limits((root / "proc/self/limits").read_text())
    return LimitFacts(
        nofile=own["Max open files"],
        nproc=own["Max processes"],
        nr_open=int((root / "proc/sys/fs/nr_open").read_text()),
        pid_max=int((root / "proc/sys/kernel/pid_max").read_text()),
        threads_max=int((root / "proc/sys/kernel/threads-max").read_text()),
        may_raise=bool(capabilities >> CAP_SYS_RESOURCE & 1)
        and is_first_user_namespace((root / "proc/self/uid_map").read_text()),
    )


def needed(host: Host) -> Workarounds:
    if host.cgroups == "legacy":
        raise SandboxError(
            "This machine mounts no cgroup2 tree at all, and systemd in a container needs one. "
            "Boot with systemd.unified_cgroup_hierarchy=1, or use another machine."
        )
    return Workarounds(
        private_cgroup2=host.cgroups == "hybrid",
        cgroupfs=not host.systemd or host.cgroups == "hybrid",
        no_pids_limit="pids" not in host.controllers,
        own_limits=bool(ulimits(host.limits)),
        emulated_memlock_runc=not host.limits.may_raise,
        emulated_no_gpu_hook=not host.nvidia,
    )


# --- addresses


def networks_in_use() -> list[str]:
    """Every network that this machine has an address in or a route to, but the default route."""
    found = []
    for line in capture(["ip", "-4", "-o", "addr", "show"]).splitlines():
        fields = line.split()
        found.append(fields[fields.index("inet") + 1])
    for route in json.loads(capture(["ip", "-4", "-j", "route", "show", "table", "all"]) or "[]"):
        if route.get("dst", "default") != "default":
            found.append(route["dst"])
    return found


def free_subnets(used: Iterable[str]) -> tuple[str, str]:
    """Management and fabric subnets, neighbours, that overlap nothing in use. Default: 10.93.1.0/24 and 10.93.2.0/24."""
    taken = [ipaddress.ip_interface(text).network for text in used]
    for second in (93, *range(94, 128), *range(32, 93)):
        for third in range(1, 254, 2):
            pair = [ipaddress.ip_network(f"10.{second}.{third + i}.0/24") for i in (0, 1)]
            if not any(mine.overlaps(other) for mine in pair for other in taken):
                return str(pair[0]), str(pair[1])
    raise SandboxError("No free pair of /24 networks in 10.32.0.0/11 … 10.127.0.0/16: this machine routes them all.")


def address(subnet: str, number: int) -> str:
    return str(ipaddress.ip_network(subnet)[number])


def gateway(subnet: str) -> str:
    """The machine's own address on a bridge, with its prefix length."""
    return f"{address(subnet, 1)}/{ipaddress.ip_network(subnet).prefixlen}"


# --- the engine


def docker_answers() -> bool:
    return attempt(["docker", "info", "--format", "{{.ServerVersion}}"], timeout=20)[0] == 0


def pick_engine(may_raise: bool) -> str:
    """podman where it is installed, Docker where its daemon answers, else podman, which we then install.

    Docker gives a privileged container all capabilities, and starts none where CAP_SYS_RESOURCE is withheld; podman gives what there is.
    """
    asked = os.environ.get("SPARKLANES_SANDBOX_ENGINE", "")
    if asked in ("podman", "docker"):
        return asked
    if asked:
        raise SandboxError(f"SPARKLANES_SANDBOX_ENGINE: found {asked!r}, expected podman or docker.")
    if is_there("podman") or not may_raise:
        return "podman"
    return "docker" if docker_answers() else "podman"
