# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A container that somebody started: the record of `docker inspect`, or what rank_command_info tells of one on a Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import HIDDEN
from ansible.module_utils.sparklanes.lane.importers import command
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, OPEN, Launch
from ansible.module_utils.sparklanes.lane.importers.source import Refused
from ansible.module_utils.sparklanes.rank import drift

# What images for CUDA, Python and vLLM set themselves. Without the record of the image nobody can tell that from what a person chose.
_OF_IMAGES = re.compile(
    r"PATH|HOME|HOSTNAME|LANG|LC_ALL|DEBIAN_FRONTEND|TZ|SHELL|TERM|PWD|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|ENV|BASH_ENV|SHLVL|container"
    r"|(?:NVIDIA|NV|CUDA|CUDNN|CUBLAS|CUFFT|CURAND|CUSOLVER|CUSPARSE|CUTENSOR|NPP|NVJPEG|NSIGHT|OPENMPI|OPENUCX|PYTORCH_BUILD|RDMACORE|TRT)_\w*"
    r"|_CUDA_COMPAT_\w*|GPG_KEY|PYTHON(?:_VERSION|_SHA256|IOENCODING|UNBUFFERED|DONTWRITEBYTECODE)|PIP_\w+|UV_\w+|VIRTUAL_ENV|VLLM_USAGE_SOURCE"
    r"|VLLM_BASE_DIR|VLLM_BUILD_\w+|LLVM_\w+|MODEL_OPT_VERSION|JUPYTER_PORT|TENSORBOARD_PORT|COCOAPI_VERSION|HPCX_VERSION|GDRCOPY_VERSION|POLYGRAPHY_VERSION"
)
# What a person sets although it begins so.
_CHOSEN = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"}
)


def launch(records: Sequence[Mapping[str, Any]], name: str) -> Launch:
    """The engine of the one container in the records of `docker inspect CONTAINER [IMAGE]`."""
    boxes = [one for one in records if isinstance(one.get("HostConfig"), Mapping)]
    images = [one for one in records if "HostConfig" not in one and ("RootFS" in one or "RepoDigests" in one)]
    if len(boxes) != 1:
        names = ", ".join(str(one.get("Name", "")).lstrip("/") for one in boxes) or "none"
        raise Refused(f"{name} has {len(boxes)} containers ({names:.200}): expected one, docker inspect NAME > {name}")
    box = boxes[0]
    image = next((one for one in images if one.get("Id") == box.get("Image")), None)
    try:
        made = of_spec(drift.spec_of_inspect(box, image), whole=image is not None)
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{name} is no record of docker inspect as Docker writes it ({type(error).__name__}: {error})") from error
    if re.fullmatch(r"sha256:[0-9a-f]{64}", str(box.get("Image"))):
        made.image_ids = [str(box["Image"])]
    return made


def of_spec(spec: Mapping[str, Any], whole: bool = True) -> Launch:
    """The same of what `drift.spec_of_inspect` tells. whole: what the image sets stands apart already."""
    made = Launch("container", image=str(spec["image"]), image_digests=[str(one) for one in spec.get("image_digests") or []])
    words = [str(word) for word in spec["command"]]
    made.title = f"as container {spec.get('container')} runs"
    _command(words, made)
    env = dict(spec["env"])
    if not whole:
        own = [name for name in env if _OF_IMAGES.fullmatch(name) and name not in _CHOSEN]
        for variable in own:
            del env[variable]
        if own:
            why = "by its name it is the image's own; docker inspect CONTAINER IMAGE tells them apart"
            made.note(DROPPED, f"env {', '.join(own)}", "", why)
    made.take_env(env.items())
    made.mounts = [dict(one) for one in spec["mounts"]]
    options = dict(spec["options"])
    for key in ("restart", "no_new_privileges"):
        options.pop(key, None)
    made.options = {key: value for key, value in options.items() if value not in (None, "", [], 0, False)}
    if made.options.get("shm_size") == 64 * 1024**2:
        del made.options["shm_size"]  # Docker's own
    return made


def _command(words: list[str], made: Launch) -> None:
    """The words of a container: entrypoint first, so that the lane has it whatever the image says."""
    hidden = [word for word in words if word == HIDDEN]
    shell = next((n for n, word in enumerate(words[:3]) if word in command.SHELLS and n + 1 < len(words)), None)
    before = words[:shell] if shell is not None else []
    rest = command.unwrapped(words[shell:], {}, 1, made, in_image=True) if shell is not None else words
    if not command.serves(rest):
        raise Refused(
            f"the container runs {' '.join(words[:3])!r:.80}, which is no vllm serve: the engine was started in it afterwards. "
            "Put that vllm serve, and the docker run before it, into a text file"
        )
    command.read_serve(rest, made)
    if not made.entrypoint:
        made.entrypoint, *made.prefix = [*before, *made.prefix]
    if hidden and not any(row.fate == "secret" for row in made.rows):
        made.note(OPEN, "a value of the command", "", "it was hidden where it was read")
