# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The frozen spec of one rank: where what it mounts lies on a Spark, and the `docker create` that it stands for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

OVERLAY_ROOT = "/var/lib/sparklanes/overlays"
# An engine logs what strangers send it, so without a limit its log fills Docker's disk. The driver is named because a limit means
# nothing to others; `docker logs` reads it, also the parts that were turned over.
LOG_OPTIONS = (("--log-driver", "json-file"), ("--log-opt", "max-size=64m"), ("--log-opt", "max-file=4"))

# A rank is root in its container, with the host's network and IPC, and may run code that came with a model: no program of the image gives it
# more than it began with. It costs an engine nothing: none becomes another user.
CONFINED = (("--security-opt", "no-new-privileges"),)


def overlay_path(source: str, sha256: str | None) -> str:
    """Where an overlay or extra lies on a Spark: by content, so that a release finds its own even after the lane changed."""
    return f"{OVERLAY_ROOT}/{sha256 or 'unknown'}/{PurePosixPath(source).name}"


def overlay_sha256(path: str) -> str:
    """Of what content a file is by its place (`overlay_path`, below whatever root); empty where that says none."""
    named = re.search(r"/overlays/([0-9a-f]{64})/[^/]+$", path)
    return named[1] if named else ""


def _create_options(spec: Mapping[str, Any]) -> list[tuple[str, ...]]:
    options = spec["options"]
    # What staging did not bring is an error, not a reason to fetch something during a launch.
    parts: list[tuple[str, ...]] = [("--name", spec["container"]), ("--pull", "never"), ("--restart", "no")]
    parts += (*LOG_OPTIONS, *CONFINED)
    parts += [("--label", f"{name}={value}") for name, value in spec["labels"].items()]
    for key in ("network", "ipc", "shm_size", "memory", "memory_swap", "gpus"):
        if options.get(key) is not None:
            parts.append((f"--{key.replace('_', '-')}", str(options[key])))
    if options.get("pids_limit"):  # where this Docker's kernel has no such controller, it says so and goes on without
        parts.append(("--pids-limit", str(options["pids_limit"])))
    for key, flag in (("ulimits", "--ulimit"), ("cap_add", "--cap-add"), ("devices", "--device")):
        parts += [(flag, str(value)) for value in options.get(key) or []]
    for mount in spec["mounts"]:
        if mount.get("create"):  # -v makes a missing directory, --mount refuses: only a cache may start empty
            parts.append(("--volume", f"{mount['source']}:{mount['target']}" + (":ro" if mount["read_only"] else "")))
        else:
            readonly = ",readonly" if mount["read_only"] else ""
            parts.append(("--mount", f"type=bind,source={mount['source']},target={mount['target']}{readonly}"))
    parts += [("--env", f"{name}={value}") for name, value in spec["env"].items()]
    parts += [("--env", name) for name in spec["secret_env"]]
    if spec.get("entrypoint"):
        parts.append(("--entrypoint", str(spec["entrypoint"])))
    return parts


def docker_create_argv(spec: Mapping[str, Any]) -> list[str]:
    """`docker create …` for a rank. Secrets are named only: Docker takes their values from its own environment."""
    options = [word for part in _create_options(spec) for word in part]
    return ["docker", "create", *options, spec["image"], *spec["command"]]


def command_text(spec: Mapping[str, Any]) -> str:
    """The same command for people, to paste into a shell on the Spark: an option or a flag a line."""
    lines = ["docker create"]
    lines += [shlex.join(part) for part in _create_options(spec)]
    lines.append(shlex.quote(spec["image"]))
    line: list[str] = []
    for word in spec["command"]:
        if word.startswith("--") and line:
            lines.append(shlex.join(line))
            line = []
        line.append(word)
    lines.append(shlex.join(line))
    return " \\\n  ".join(lines)
