# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Packages of this machine: which program each of our tools calls, and how it comes here. The one list of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox.layout import Clone
from sandbox.shell import SandboxError, attempt, logged, step

# For what → (command or file that tells it is there, Debian and Ubuntu package)
PACKAGES = {
    "sandbox": [
        ("mmdebstrap", "mmdebstrap"),
        ("ssh", "openssh-client"),
        ("ip", "iproute2"),
        ("strip", "binutils"),
        ("/usr/lib/python3*/ensurepip/__init__.py", "python3-venv"),
        ("/usr/lib/*/libnuma.so.1", "libnuma1"),  # the engine's compiled part is imported once while it is built
        ("/usr/lib/*/libgomp.so.1", "libgomp1"),
    ],
    "podman": [
        ("podman", "podman"),
        ("crun", "crun"),
        ("/usr/lib/podman/netavark", "netavark"),
        ("newuidmap", "uidmap"),
        ("iptables", "iptables"),  # netavark looks for it even where a network needs no rule
    ],
    "vms": [
        ("mmdebstrap", "mmdebstrap"),
        ("ssh", "openssh-client"),
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mkfs.ext4", "e2fsprogs"),
    ],
    # script/test unit and lint
    "tests": [
        ("git", "git"),
        ("ssh", "openssh-client"),
        ("rsync", "rsync"),
        ("openssl", "openssl"),
    ],
    # script/bench
    "bench": [
        ("git", "git"),
        ("ssh", "openssh-client"),
        ("sshd", "openssh-server"),
        ("rsync", "rsync"),
        ("openssl", "openssl"),
    ],
}
# Packages that would start a server here, and its units. They are installed for their programs alone.
SERVERS = {"openssh-server": ["ssh.service", "ssh.socket"]}
POLICY = Path("/usr/sbin/policy-rc.d")
NO_START = "#!/bin/sh\n# Left by sparklanes while it installed a package: nothing may start. It can be removed.\nexit 101\n"


def is_there(what: str) -> bool:
    if what.startswith("/"):
        return any(Path("/").glob(what.lstrip("/")))
    return shutil.which(what, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def missing(*purposes: str) -> list[str]:
    """Packages that these tools need and whose programs aren't here."""
    wanted = dict.fromkeys(entry for purpose in purposes for entry in PACKAGES[purpose])
    return [package for what, package in wanted if not is_there(what)]


def install(clone: Clone, names: Sequence[str]) -> None:
    """Packages for this machine, which only root may install. No server is started or enabled by it."""
    if not names:
        return
    if shutil.which("apt-get") is None:
        raise SandboxError(f"Install what Debian calls {', '.join(names)} with this machine's own package manager.")
    command = f"apt-get install --no-install-recommends {' '.join(names)}"
    if os.geteuid() != 0:
        raise SandboxError(f"Packages are missing, and only root may install them: sudo {command}")
    log = clone.log / "apt.log"
    with step(f"packages: {', '.join(names)}"), without_servers(names):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        logged(["apt-get", "update"], log, env=environment)
        wanted = ["apt-get", "install", "-y", "--no-install-recommends", *names]
        logged(wanted, log, env=environment, hint=f"Install them yourself: sudo {command}")


@contextmanager
def without_servers(names: Sequence[str], policy: Path = POLICY) -> Iterator[None]:
    """Keep what is installed meanwhile from being started (policy-rc.d) and, afterwards, at a boot."""
    units = [unit for name in names for unit in SERVERS.get(name, [])]
    ours = bool(units) and (not policy.exists() or policy.read_text() == NO_START)
    if ours:
        policy.write_text(NO_START)
        policy.chmod(0o755)
    try:
        yield
        if units and shutil.which("systemctl"):
            attempt(["systemctl", "disable", *units], timeout=60)
    finally:
        if ours:
            policy.unlink(missing_ok=True)
