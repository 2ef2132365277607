# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One recipe in the three forms that people have it in: a sparkrun recipe, a docker run, the record of a container."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FACTS = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "lane" / "recipes.yml"
NO_IMAGE = "engine/vllm:1"  # where a recipe is a bare vllm serve


def recorded() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    return made


def recipe(facts: Mapping[str, Any]) -> str:
    """As sparkrun has it: values of flags as defaults, their names in braces in the command."""
    defaults: dict[str, Any] = {}
    lines = ["vllm serve {model}"]
    for flag, *values in facts["flags"]:
        name = re.sub(r"[^a-z0-9]+", "_", flag.lower()).strip("_")
        if len(values) == 1 and not re.search(r"[{\s]", values[0]) and name not in defaults:
            defaults[name] = yaml.safe_load(values[0]) if re.fullmatch(r"[1-9]\d*", values[0]) else values[0]
            lines.append(f"{flag} {{{name}}}")
        else:
            lines.append(" ".join([flag, *map(shlex.quote, values)]))
    data = {
        "recipe_version": "2",
        "model": facts["model"],
        "runtime": "vllm",
        "container": facts.get("image", NO_IMAGE),
        **({"max_nodes": 1} if facts.get("solo") else {}),
        "defaults": defaults,
        "env": facts.get("env") or {},
        "command": " \\\n    ".join(lines) + "\n",
    }
    return yaml.safe_dump(data, sort_keys=False)


def command(facts: Mapping[str, Any]) -> str:
    """As a document prints it."""
    lines = ["docker run"]
    lines += [shlex.join(option) for option in facts.get("options") or []]
    lines += [shlex.join(["-e", f"{name}={value}"]) for name, value in (facts.get("env") or {}).items()]
    lines.append(shlex.quote(facts.get("image", NO_IMAGE)))
    lines.append(f"vllm serve {facts['model']}")
    lines += [shlex.join(flag) for flag in facts["flags"]]
    return "# started by hand\n" + " \\\n  ".join(lines) + "\n"


def container(facts: Mapping[str, Any]) -> str:
    """As Docker tells of it."""
    words = ["serve", facts["model"], *(word for flag in facts["flags"] for word in flag)]
    record = {
        "Id": "0" * 64,
        "Name": "/vllm_node",
        "Config": {
            "Image": facts.get("image", NO_IMAGE),
            "Entrypoint": ["vllm"],
            "Cmd": words,
            "Env": [f"{name}={value}" for name, value in (facts.get("env") or {}).items()],
        },
        "HostConfig": {"NetworkMode": "host", "IpcMode": "host", "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]},
        "Mounts": [],
        "State": {"Running": True},
    }
    return json.dumps([record])


FORMS = {"recipe": (recipe, "yaml"), "command": (command, "txt"), "container": (container, "json")}
