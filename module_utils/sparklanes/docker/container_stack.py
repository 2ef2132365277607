# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether this Docker can give a container its GPU and its devices: asked while the old rank still serves, not found out by `docker start`.

Docker refuses at the start of a container, after the old one was stopped: without NVIDIA's Container Toolkit, with a CDI name that no
specification has, with a device file that is not there.
"""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check, judged
from ansible.module_utils.sparklanes.common.commands import Run, ask
from ansible.module_utils.sparklanes.docker import gpu_access

# dockerd gives `--gpus` where it finds one of these as it starts: the first, or from version 29 on the second with CDI (moby pull 50228).
HOOK, CDI_HOOK, CDI_HOOK_FROM = "nvidia-container-runtime-hook", "nvidia-cdi-hook", 29
RUNTIME_CONFIG = "etc/nvidia-container-runtime/config.toml"
MODE = "auto"  # the toolkit's own default
_VERSION = re.compile(r"version\s+v?(\d+\.\d+\.\d+\S*)", re.IGNORECASE)
_MODE = re.compile(r"""^\s*mode\s*=\s*["'](?P<mode>[a-z-]+)["']""")
Facts = Mapping[str, Any]


def parse_version(text: str) -> str:
    """`nvidia-ctk --version`; empty where it says none."""
    found = _VERSION.search(text)
    return found[1] if found else ""


def parse_cdi_list(text: str) -> list[str]:
    """The names that `nvidia-ctk cdi list` prints, without what it logs."""
    return sorted({word for line in text.splitlines() if gpu_access.is_cdi(word := line.strip())})


def parse_mode(text: str) -> str:
    """`mode` of the table [nvidia-container-runtime] in the toolkit's config.toml: auto, cdi, legacy, csv."""
    table = ""
    for line in text.splitlines():
        if line.strip().startswith("["):
            table = line.strip().strip("[] ")
        elif table == "nvidia-container-runtime" and (found := _MODE.match(line)):
            return found["mode"]
    return MODE


def toolkit(run: Run, root: Path = Path("/")) -> dict[str, Any]:
    """NVIDIA's Container Toolkit: version (empty without it), mode, the paths of its hooks, and the CDI devices that its specifications have."""
    hook, cdi_hook = shutil.which(HOOK) or "", shutil.which(CDI_HOOK) or ""
    rc, out, _ = ask(run, ["nvidia-ctk", "--version"])
    version = parse_version(out) if rc == 0 else ""
    if not version and not hook and not cdi_hook:
        return {"version": "", "mode": "", "hook": "", "cdi_hook": "", "cdi": []}
    rc, listed, _ = ask(run, ["nvidia-ctk", "cdi", "list"])
    try:
        config = (root / RUNTIME_CONFIG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        config = ""
    cdi = parse_cdi_list(listed) if rc == 0 else []
    return {"version": version, "mode": parse_mode(config), "hook": hook, "cdi_hook": cdi_hook, "cdi": cdi}


def _has_nodes(folder: Path) -> bool:
    return any(stat.S_ISCHR(one.stat().st_mode) or stat.S_ISBLK(one.stat().st_mode) for one in folder.rglob("*") if one.exists())


def device_facts(devices: Iterable[str], root: Path = Path("/")) -> dict[str, str]:
    """Word behind `--device` → what is there: cdi (a name, no path), device, folder (of devices), empty, other, missing, or why nobody could look."""
    made = {}
    for word in devices:
        if gpu_access.is_cdi(word):
            made[word] = "cdi"
            continue
        path = root / gpu_access.device_path(word).lstrip("/")
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                made[word] = "folder" if _has_nodes(path) else "empty"
            else:
                made[word] = "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "other"
        except FileNotFoundError:
            made[word] = "missing"
        except OSError as error:
            made[word] = str(error.strerror or error)
    return made


_SAID = {"missing": "is not there", "empty": "holds no device", "other": "is no device"}


def device_check(host: str, devices: Sequence[str], seen: Mapping[str, str] | None, docker: Facts) -> list[Check]:
    """DOCKER.DEVICES: each `--device` of the rank is there. No row for a rank without any."""
    wanted = [word for word in devices if not gpu_access.cdi_gpu(word)]
    if not wanted:
        return []
    bad = []
    for word in wanted:
        told = (seen or {}).get(word)
        if told == "cdi":
            bad += [] if word in known_cdi(docker) else [f"{word} is in no CDI specification"]
        elif told not in ("device", "folder"):
            bad.append(f"{gpu_access.device_path(word)} {_SAID.get(str(told), told or 'was not looked at')}")
    remedy = (
        f"On {host}: ls -l /dev/infiniband; ibv_devices. The modules mlx5_ib and ib_uverbs make it (sudo modprobe), also without a cable. "
        "A rank that needs no such device: lane_container_site: {devices: …}"
    )
    return [judged("DOCKER.DEVICES", host, not bad, "; ".join(bad) or ", ".join(wanted), "each device is there", remedy)]


def known_cdi(docker: Facts) -> set[str]:
    """CDI devices that the daemon lists, or the toolkit where this version of Docker lists none."""
    listed = docker.get("devices")
    return set(listed if listed else (docker.get("toolkit") or {}).get("cdi") or [])


def _by_cdi(docker: Facts) -> bool:
    """Whether this daemon answers `--gpus` by CDI."""
    major = str(docker.get("version") or "").partition(".")[0]
    new = major.isdigit() and int(major) >= CDI_HOOK_FROM
    hook = (docker.get("toolkit") or {}).get("cdi_hook")
    return new and bool(hook) and bool(docker.get("cdi_dirs")) and any(map(gpu_access.cdi_gpu, known_cdi(docker)))


def gpu_check(host: str, options: Facts, docker: Facts | None) -> list[Check]:
    """DOCKER.GPU: this Docker can give the rank its GPU in the way that its options ask for it. No row for a rank that asks for none.

    docker: of `docker.daemon.parse_info`, with `toolkit` of this file.
    """
    asked = gpu_access.of_options(options)
    if not asked:
        return []
    if not docker or docker.get("error") or "toolkit" not in docker:
        found = f"not measured: {(docker or {}).get('error') or 'Docker was not asked'}"
        return [Check("DOCKER.GPU", host, FAIL, found, f"can give {asked}", f"On {host}: docker info; nvidia-ctk --version")]
    kit = docker["toolkit"]
    there = kit.get("hook") or kit.get("cdi_hook") or kit.get("version")
    has = f"NVIDIA Container Toolkit {kit.get('version') or '(no version told)'}" if there else "no NVIDIA Container Toolkit"
    has += f", mode {kit['mode']}" if kit.get("mode") else ""
    has += f", default runtime {docker.get('default_runtime') or '?'}"
    if asked.startswith("--gpus"):
        remedy = f"On {host}: sudo apt-get install nvidia-container-toolkit, then restart Docker while nothing serves. Docker looks for {HOOK} as it starts"
        can = bool(kit.get("hook")) or _by_cdi(docker)
        return [judged("DOCKER.GPU", host, can, has if can else f"{has}: no {HOOK}", f"can give {asked}", remedy)]
    wanted = [str(device) for device in options.get("devices") or [] if gpu_access.cdi_gpu(str(device))]
    if not wanted:
        return [Check("DOCKER.GPU", host, PASS, f"{has}; {asked}")]
    known = known_cdi(docker)
    lacking = [device for device in wanted if device not in known]
    if not docker.get("cdi_dirs"):
        found = f"CDI is off in Docker {docker.get('version') or '?'}; {has}"
        remedy = f'On {host}: {{"features": {{"cdi": true}}}} in /etc/docker/daemon.json (Docker 25 or later), then restart Docker while nothing serves'
        return [Check("DOCKER.GPU", host, FAIL, found, f"can give {asked}", remedy)]
    found = (
        f"{', '.join(lacking)} in no CDI specification ({', '.join(sorted(known)) or 'there is none'}); {has}" if lacking else has
    )
    remedy = f"On {host}: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; nvidia-ctk cdi list shows what there is"
    return [judged("DOCKER.GPU", host, not lacking, found, f"can give {asked}", remedy)]
