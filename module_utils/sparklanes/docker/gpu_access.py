# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How a container asks for the GPU: each of the ways that Docker and NVIDIA's Container Toolkit know.

What a container asked for is not what it has (a privileged one asks for nothing and has all): who asks whether a GPU is in use looks at
its processes first (`gpu.occupied`). These are the spellings for a container that has no process on it yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# A device by its name in a specification of the Container Device Interface: vendor/class=name. The toolkit's vendors are
# nvidia.com, runtime.nvidia.com and management.nvidia.com.
_CDI = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+=[A-Za-z0-9_.:-]+")
_CDI_OF_NVIDIA = re.compile(r"(?:[a-z0-9-]+\.)?nvidia\.com/[A-Za-z0-9_.-]+=")
# Values of NVIDIA_VISIBLE_DEVICES with which the toolkit's runtime injects no GPU. Unset is like void, but for an old CUDA image.
_NO_GPU = ("", "void", "none")
# Docker's CLI takes `--runtime`, and a daemon may have one of these as its default.
_RUNTIMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
# A way to ask without the environment (toolkit: accept-nvidia-visible-devices-as-volume-mounts).
_MOUNTED = "/var/run/nvidia-container-devices/"


def is_cdi(device: str) -> bool:
    """Whether what stands behind `--device` is the name of a CDI device, not a path."""
    return bool(_CDI.fullmatch(device.strip()))


def cdi_gpu(device: str) -> bool:
    return is_cdi(device) and bool(_CDI_OF_NVIDIA.match(device.strip()))


def gpu_node(path: str) -> bool:
    """Whether a device file belongs to NVIDIA's driver."""
    return path.startswith(("/dev/nvidia", "/dev/nvhost", "/dev/nvmap"))


def device_path(device: str) -> str:
    """The path on the Spark of a word behind `--device`: HOST[:CONTAINER[:MODE]]."""
    return str(device).strip().partition(":")[0]


def of_options(options: Mapping[str, Any]) -> str:
    """How the options of a rank (`lane_container`) ask for the GPU, as they are written there; empty where they don't."""
    if options.get("gpus"):
        return f"--gpus {options['gpus']}"
    for device in options.get("devices") or []:
        if cdi_gpu(str(device)) or gpu_node(device_path(str(device))):
            return f"--device {device}"
    return ""


def of_inspect(config: Mapping[str, Any], host: Mapping[str, Any], mounts: Iterable[Mapping[str, Any]] = ()) -> str:
    """How a container asks for the GPU, from Config, HostConfig and Mounts of `docker inspect`; empty where it doesn't.

    What can't be told counts as asking: a runtime of NVIDIA whose environment is not there.
    """
    for request in host.get("DeviceRequests") or []:
        driver, ids = str(request.get("Driver") or "").lower(), [str(one) for one in request.get("DeviceIDs") or []]
        if driver == "cdi":
            # Capabilities is null: the name of the device says all.
            if any(cdi_gpu(one) for one in ids):
                return f"CDI {', '.join(ids)}"
            continue
        if driver.startswith("nvidia") or any("gpu" in (caps or []) for caps in request.get("Capabilities") or []):
            return f"--gpus {','.join(ids) or 'all'}"
    for device in host.get("Devices") or []:
        path = str(device.get("PathOnHost") or "")
        if cdi_gpu(path) or gpu_node(path):
            return f"--device {path}"
    runtime = str(host.get("Runtime") or "")
    targets = [str(mount.get("Destination") or "") for mount in mounts]
    if any(target.startswith(_MOUNTED) for target in targets):
        return f"mount of {_MOUNTED}"
    if runtime in _RUNTIMES and _visible(config.get("Env")):
        return f"--runtime {runtime}"
    return ""


def _visible(env: Sequence[str] | None) -> bool:
    """Whether the toolkit's runtime gives a GPU for this environment."""
    if env is None:
        return True
    told = dict(str(pair).partition("=")[::2] for pair in env)
    if "NVIDIA_VISIBLE_DEVICES" in told:
        return told["NVIDIA_VISIBLE_DEVICES"].strip().lower() not in _NO_GPU
    return "CUDA_VERSION" in told and "NVIDIA_REQUIRE_CUDA" not in told  # an image from before that variable gets all of them
