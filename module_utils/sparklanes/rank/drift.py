# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a container runs and what a lane would run, put side by side: flags, environment, mounts, limits.

Both come as the spec of a rank (`lanes.render_rank`); `spec_of_inspect` makes one of what Docker tells of a container.
Spellings that mean the same are the same: `--max_model_len`, `-tp`, `32g` and bytes, JSON with other blanks.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import HIDDEN, blanked_words, hidden, secret_name
from ansible.module_utils.sparklanes.common.sizes import MIB, size_or_none
from ansible.module_utils.sparklanes.docker import gpu_access
from ansible.module_utils.sparklanes.engine.command import flags_and_words
from ansible.module_utils.sparklanes.engine.flags import canonical_flag

ABSENT = "(absent)"
GIVEN = "(given)"  # a flag without a value

_SHM_DEFAULT = 64 * MIB


@dataclass(frozen=True)
class Difference:
    """One thing that differs: `what` is a kind and a name, as `flag --port`, `env NCCL_NET`, `mount /cache`, `limit memory`."""

    what: str
    ours: Any
    theirs: Any

    def sentence(self) -> str:
        if self.theirs == ABSENT:
            return f"{self.what}: the lane adds {_shown(self.ours)}"
        if self.ours == ABSENT:
            return f"{self.what}: runs with {_shown(self.theirs)}, which the lane does not have"
        return f"{self.what}: runs with {_shown(self.theirs)}, the lane says {_shown(self.ours)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    """How two specs of ranks differ, in the order of kinds; empty where they run the same."""
    # What the image sets counts where the lane sets it too.
    preset = {name: value for name, value in (theirs.get("image_env") or {}).items() if name in ours["env"]}
    left, right = shape(ours), shape({**theirs, "env": {**preset, **theirs["env"]}})
    if ours["image"] in (theirs.get("image_digests") or []):
        right["image"] = left["image"]  # a tag of the very image
    return [
        Difference(what, left.get(what, ABSENT), right.get(what, ABSENT))
        for what in [*left, *(what for what in right if what not in left)]
        if left.get(what, ABSENT) != right.get(what, ABSENT)
    ]


def report(host: str, deployment: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What `render --diff` says of a host: `theirs` is what runs there, empty where nothing does."""
    if not theirs:
        return f"# {host}: no container to compare with; name one that was started by hand: -e render_container=NAME (deployment {deployment})"
    name = f"{theirs.get('container')}{'' if theirs.get('running') else ', which does not run,'}"
    found = differences(ours, theirs)
    if not found:
        return f"# {host}: {name} is what the lane renders"
    places = "1 place" if len(found) == 1 else f"{len(found)} places"
    return "\n".join([f"# {host}: {name} differs from what the lane renders in {places}", *(one.sentence() for one in found)])


def shape(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec says, by kind and name, each value in one form."""
    words = unwrapped([str(word) for word in [spec.get("entrypoint"), *spec["command"]] if word])
    model, flags = flags_of(words)
    made: dict[str, Any] = {"image": spec["image"], "model": model}
    made |= {f"flag {name}": HIDDEN if secret_name(name) else value for name, value in flags.items()}
    env = {str(name): str(value) for name, value in spec["env"].items()} | dict.fromkeys(spec.get("secret_env") or [], HIDDEN)
    made |= {f"env {name}": hidden(name, value) for name, value in env.items()}
    made |= {
        f"mount {mount['target']}": f"{mount['source']} ({'read-only' if mount['read_only'] else 'writable'})"
        for mount in spec["mounts"]
    }
    made |= {f"limit {name}": value for name, value in _limits(spec["options"])}
    return made


# --- commands --------------------------------------------------------------------------------------------------


def unwrapped(words: Sequence[str]) -> list[str]:
    """The words that a shell would run, where a command is `bash -c TEXT [NAME [WORD…]]`; any other command as it is."""
    if len(words) < 3 or words[0].rpartition("/")[2] not in ("bash", "sh") or not re.fullmatch(r"-[a-z]*c", words[1]):
        return list(words)
    try:
        inner = shlex.split(words[2])
    except ValueError:
        return list(words)
    last = max((index for index, word in enumerate(inner) if word.endswith(";") or word in ("&&", "exec")), default=-1)
    made: list[str] = []
    for word in inner[last + 1 :]:
        made += words[4:] if word == "$@" else [word]
    return made


def flags_of(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The model and the flags of `[vllm serve] MODEL --flag value …`; one with several values is a list, `--x.y` a part of `--x`."""
    before, told = flags_and_words(words)
    given = {canonical_flag(name): values for name, values in told}
    flags: dict[str, Any] = {}
    for name, values in given.items():
        root, *parts = name.split(".")
        meant: Any = _value(values) if values else GIVEN
        for part in reversed(parts):
            meant = {part: meant}
        flags[root] = {**flags[root], **meant} if parts and isinstance(flags.get(root), Mapping) else meant
    model = before[-1] if before and before[-1] != "serve" else ""
    return str(flags.pop("--model", model)).rstrip("/"), flags


def _value(values: Sequence[str]) -> Any:
    """Numbers by value, JSON by content, anything else as text."""
    if len(values) > 1:
        return [_value([value]) for value in values]
    try:
        return json.loads(values[0])
    except json.JSONDecodeError:
        return values[0]


# --- limits ----------------------------------------------------------------------------------------------------


def _limits(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "restart", options.get("restart") or "no"
    if options.get("privileged"):
        yield "privileged", True
    network = options.get("network") or "bridge"
    yield "network", "bridge" if network == "default" else network
    yield "ipc", options.get("ipc") or "private"
    yield "shm_size", size_or_none(options.get("shm_size")) or _SHM_DEFAULT
    memory, swap = size_or_none(options.get("memory")) or 0, size_or_none(options.get("memory_swap")) or 0
    if memory:
        yield "memory", memory
        yield "memory_swap", swap or 2 * memory  # Docker's own default
    if (options.get("pids_limit") or 0) > 0:
        yield "pids_limit", int(options["pids_limit"])
    if options.get("no_new_privileges"):
        yield "no_new_privileges", True
    if options.get("gpus"):
        yield "gpus", str(options["gpus"]).strip('"')
    for text in options.get("ulimits") or []:
        name, _, bounds = str(text).partition("=")
        soft, _, hard = bounds.partition(":")
        yield f"ulimit {name}", f"{soft}:{hard or soft}"
    for cap in options.get("cap_add") or []:
        yield f"cap {str(cap).upper().removeprefix('CAP_')}", True
    for device in options.get("devices") or []:
        if gpu_access.is_cdi(str(device)):
            yield f"device {device}", str(device)
            continue
        host, _, inside = str(device).partition(":")
        yield f"device {inside or host}", host


# --- what Docker tells -----------------------------------------------------------------------------------------


def spec_of_inspect(
    entry: Mapping[str, Any], image: Mapping[str, Any] | None = None, secrets: Sequence[str] = ()
) -> dict[str, Any]:
    """A container of `docker inspect` as the spec of a rank. `image`: `docker image inspect` of its image, whose own
    environment is no choice of who started the container. Values of secrets, those of these names too, are blanked."""
    config, host = entry.get("Config") or {}, entry.get("HostConfig") or {}
    preset = set(((image or {}).get("Config") or {}).get("Env") or [])

    def env(pairs: Iterable[str]) -> dict[str, str]:
        split = [str(pair).partition("=") for pair in pairs]
        return {name: HIDDEN if name in secrets else hidden(name, value) for name, _, value in split}

    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return {
        "container": str(entry.get("Name", "")).lstrip("/"),
        "running": bool((entry.get("State") or {}).get("Running")),
        "image": str(config.get("Image", "")),
        "image_digests": [str(digest) for digest in (image or {}).get("RepoDigests") or []],
        "command": list(blanked_words(str(word) for word in words)),
        "env": env(pair for pair in config.get("Env") or [] if pair not in preset),
        "image_env": env(pair for pair in config.get("Env") or [] if pair in preset),
        "mounts": [
            {
                "source": str(mount.get("Source") or mount.get("Name")),
                "target": mount["Destination"],
                "read_only": not mount.get("RW"),
            }
            for mount in entry.get("Mounts") or []
        ],
        "options": {
            "restart": (host.get("RestartPolicy") or {}).get("Name") or "no",
            "privileged": bool(host.get("Privileged")),
            "network": host.get("NetworkMode"),
            "ipc": host.get("IpcMode"),
            "shm_size": host.get("ShmSize"),
            "memory": host.get("Memory"),
            "memory_swap": host.get("MemorySwap"),
            "pids_limit": host.get("PidsLimit"),
            "no_new_privileges": any(_forbids_privileges(str(one)) for one in host.get("SecurityOpt") or []),
            "gpus": _gpus(host.get("DeviceRequests") or []) or ("all" if host.get("Runtime") == "nvidia" else None),
            "ulimits": [f"{one['Name']}={one['Soft']}:{one['Hard']}" for one in host.get("Ulimits") or []],
            "cap_add": list(host.get("CapAdd") or []),
            "devices": [f"{one['PathOnHost']}:{one['PathInContainer']}" for one in host.get("Devices") or []]
            + [
                str(id_)
                for request in host.get("DeviceRequests") or []
                if request.get("Driver") == "cdi"
                for id_ in request.get("DeviceIDs") or []
            ],
        },
    }


def _forbids_privileges(option: str) -> bool:
    """`no-new-privileges`, also with `:true` or `=true` after it."""
    name, _, value = option.replace("=", ":").partition(":")
    return name == "no-new-privileges" and value in ("", "true")


def _gpus(requests: Iterable[Mapping[str, Any]]) -> str | None:
    for request in requests:
        if request.get("Driver") == "nvidia" or any("gpu" in caps for caps in request.get("Capabilities") or []):
            if request.get("DeviceIDs"):
                return "device=" + ",".join(request["DeviceIDs"])
            return "all" if request.get("Count") == -1 else str(request.get("Count"))
    return None
