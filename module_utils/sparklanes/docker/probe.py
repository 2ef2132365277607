# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What an image really holds, asked of itself: versions of libraries, its ENTRYPOINT, the flags that its engine knows.

A lane says what its image holds (`lane_image.vllm`, `lane_image.pins`), because one library of another version has cost people
days. Two containers tell: one that only reads package metadata, and one that prints `vllm serve --help`, which imports
the engine and takes 1 to 2 GB. Neither gets a GPU or a network. Answers are kept under the image's ID, as its content can't change.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.module_utils.sparklanes.common.sizes import GIB

# What a lane calls a library → the distributions that bring it. CUDA 12 and 13 have their own names; the CUTLASS DSL has parts.
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "torch": ("torch",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "flashinfer": ("flashinfer-python",),
    "cutlass_dsl": ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"),
}
# Run by the image's own python3: versions of what is installed, as JSON.
VERSIONS_PROGRAM = (
    "import importlib.metadata as m, json, sys\n"
    "found = {}\n"
    "for d in m.distributions():\n"
    "    found[str(d.metadata['Name']).lower().replace('_', '-')] = d.version\n"
    "print(json.dumps({'python': sys.version.split()[0], 'packages': found}))\n"
)
# `vllm serve --help` needs so much (measured: 0.9 GB on CPUs; CUDA builds import more).
HELP_BYTES = 6 * GIB
LIMITS = ("--network", "none", "--memory", "5g", "--pids-limit", "512")
LABEL = "sparklanes.purpose=probe"

_FLAG = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")


def parse_versions(text: str) -> dict[str, Any]:
    """The program's answer; images print greetings before it. ValueError where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            if isinstance(found.get("packages"), dict):
                return {
                    "python": str(found.get("python", "")),
                    "packages": {str(k): str(v) for k, v in found["packages"].items()},
                }
    raise ValueError("the image's python3 did not answer")


def parse_flags(text: str) -> list[str]:
    """All long flags that a help text names."""
    return sorted(set(_FLAG.findall(text)))


def parse_entrypoint(inspected: str) -> list[str]:
    """ENTRYPOINT in what `docker image inspect` prints."""
    config = json.loads(inspected)[0].get("Config") or {}
    return [str(word) for word in config.get("Entrypoint") or []]
