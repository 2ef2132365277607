# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""File systems from the distribution's own packages: the nodes', and the base of the engine's image.

Each is cached under a key of all that goes into it, and gets its final name by rename when it is complete:
whatever lies under another name is rubbish of a run that was killed.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from sandbox.host import Host
from sandbox.layout import EPOCH, Clone, content_key
from sandbox.shell import SandboxError, capture, logged

HERE = Path(__file__).parent

# What a Spark has that this project uses, and ensurepip for the weights' own virtual environment.
NODE_PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,iproute2,procps,openssh-server,ca-certificates,docker.io,"
    "iptables,kmod,iputils-ping,rsync,ethtool,pciutils,curl,sudo"
)
# Docker's client, where the distribution has it apart from docker.io, as Debian 13 has.
CLIENT = "docker-cli"
ENGINE_PACKAGES = "python3-minimal,python3,ca-certificates,libnuma1,libgomp1,iproute2"
SLIM = [
    *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")),
    "force-unsafe-io",  # a build that a power cut ends is done again
]


def apt_sources(targets: str) -> list[str]:
    """One `deb` line for each suite of the distribution's own, from `apt-get indextargets`; other vendors' are left out."""
    suites: dict[tuple[str, str], list[str]] = {}
    for line in targets.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[3] in ("Debian", "Ubuntu"):
            components = suites.setdefault((fields[0], fields[1]), [])
            if fields[2] not in components:
                components.append(fields[2])
    return [f"deb {uri} {release} {' '.join(components)}" for (uri, release), components in suites.items()]


def apt_options(dump: str) -> list[str]:
    """The machine's own proxy and validity settings, from `apt-config dump`, for the apt that builds an image."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")
    return [line for line in dump.splitlines() if line.startswith(wanted) and not line.endswith('"";')]


def host_sources() -> list[str]:
    pattern = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    sources = apt_sources(capture(["apt-get", "indextargets", "--format", pattern, "Created-By: Packages"]))
    if not sources:
        raise SandboxError("apt knows no Debian or Ubuntu source here: run `apt-get update`, then this again.")
    return sources


def node_packages(found: str) -> str:
    """Packages of a node, by what `apt-cache search` finds for the client's name."""
    names = {line.split(" ")[0] for line in found.splitlines()}
    return f"{NODE_PACKAGES},{CLIENT}" if CLIENT in names else NODE_PACKAGES


def host_node_packages() -> str:
    return node_packages(capture(["apt-cache", "search", "--names-only", f"^{CLIENT}$"]))


def node_key(host: Host, sources: Iterable[str]) -> str:
    return content_key(host.codename, *sources, host_node_packages(), HERE / "node", *SLIM)


def base_key(host: Host, sources: Iterable[str]) -> str:
    return content_key(host.codename, *sources, ENGINE_PACKAGES, *SLIM)


def mmdebstrap(
    clone: Clone, host: Host, sources: list[str], packages: str, variant: str, out: Path, hooks: Iterable[str] = ()
) -> None:
    part = out.with_name(out.name + ".part.tar")
    options = apt_options(capture(["apt-config", "dump", "Acquire"]))
    logged(
        [
            "mmdebstrap",
            "--mode=root",
            f"--variant={variant}",
            f"--include={packages}",
            *(f"--dpkgopt={option}" for option in SLIM),
            *(f"--aptopt={option}" for option in options),
            *(f"--customize-hook={hook}" for hook in hooks),
            host.codename,
            str(part),
            *sources,
        ],
        clone.log / f"{out.stem}.log",
        env=os.environ | {"TMPDIR": str(clone.tmp), "SOURCE_DATE_EPOCH": str(EPOCH)},
        hint="The packages come from this machine's own apt sources: does `apt-get update` work?",
    )
    part.rename(out)


def node_rootfs(clone: Clone, host: Host, sources: list[str]) -> Path:
    """The node's file system: a Spark's userland as far as this project touches it."""
    out = clone.cache / f"node-{node_key(host, sources)}.tar"
    if not out.exists():
        files = clone.tmp / "node-files.tar"
        files.write_bytes(tar_of(HERE / "node"))
        hooks = [
            f"tar-in {files} /",
            'chroot "$1" systemctl enable emulated-per-node-kernel.service',
            'rm -f "$1"/etc/ssh/ssh_host_*',
            'chroot "$1" apt-get clean',
        ]
        mmdebstrap(clone, host, sources, host_node_packages(), "apt", out, hooks)
    return out


def engine_base(clone: Clone, host: Host, sources: list[str]) -> Path:
    out = clone.cache / f"engine-base-{base_key(host, sources)}.tar"
    if not out.exists():
        mmdebstrap(clone, host, sources, ENGINE_PACKAGES, "minbase", out)
    return out


def tar_of(folder: Path) -> bytes:
    """A folder as root would have written it: git keeps the executable bit, nothing else."""
    buffer = io.BytesIO()

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        entry.mtime = EPOCH
        return entry

    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=normal)
    return buffer.getvalue()


def registry_program(clone: Clone) -> Path:
    """The distribution's docker-registry, unpacked rather than installed: installing it would start a service."""
    installed = shutil.which("docker-registry")
    if installed:
        return Path(installed)
    out = clone.cache / "docker-registry"
    if not out.exists():
        work = clone.tmp / "docker-registry"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        # apt's own unprivileged user may not write here.
        script = 'cd "$1" && apt-get -o APT::Sandbox::User=root download docker-registry && dpkg -x docker-registry_*.deb .'
        logged(["sh", "-ec", script, "sh", str(work)], clone.log / "docker-registry.log")
        (work / "usr/bin/docker-registry").rename(out)
        shutil.rmtree(work)
    return out


def check_machine(host: Host) -> None:
    if os.uname().machine not in ("x86_64", "aarch64"):
        raise SandboxError(f"No vLLM for CPU is published for {os.uname().machine}; the sandbox needs x86_64 or aarch64.")
    if not host.codename or shutil.which("apt-get") is None:
        raise SandboxError(
            f"The sandbox is built from Debian or Ubuntu packages and this is '{host.distribution or 'unknown'}'. "
            "Use Debian 12 or 13, or Ubuntu 24.04, in a virtual machine if need be."
        )
