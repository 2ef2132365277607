"""A `docker run …` as printed by a document, read into the spec of a rank, so that it can be compared with what we render."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

# Options without a value, and the two whose values are read into something else.
BARE = {"--rm", "-d", "--detach", "-it", "--init"}
ALIASES = {"-e": "--env", "-v": "--volume", "--net": "--network"}
LISTS = {"--ulimit": "ulimits", "--cap-add": "cap_add", "--device": "devices"}
SINGLE = {
    "--restart": "restart",
    "--network": "network",
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--memory": "memory",
    "--memory-swap": "memory_swap",
    "--gpus": "gpus",
    "--pids-limit": "pids_limit",
}


def printed(path: Path) -> tuple[dict[str, str], list[str]]:
    """What the lines `# name: value` at the top say, and the words of the command below them."""
    text = path.read_text(encoding="utf-8")
    head = dict(re.findall(r"^# (\w+): (.*)$", text, re.MULTILINE))
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return head, shlex.split(body.replace("\\\n", " "))


def spec_of(words: list[str]) -> dict[str, Any]:
    """The spec of `docker run …`; of bare `vllm serve …` its command alone."""
    spec: dict[str, Any] = {"image": "", "command": [], "env": {}, "mounts": [], "options": {}}
    if words[:2] != ["docker", "run"]:
        return {**spec, "command": words}
    options = spec["options"]
    rest = words[2:]
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = ALIASES.get(name, name)
        if name in BARE:
            continue
        if not equals:
            value = rest.pop(0)
        if name == "--env":
            key, _, text = value.partition("=")
            spec["env"][key] = text
        elif name == "--volume":
            source, target, *mode = value.split(":")
            spec["mounts"].append({"source": source, "target": target, "read_only": mode == ["ro"]})
        elif name in LISTS:
            options.setdefault(LISTS[name], []).append(value)
        elif name in SINGLE:
            options[SINGLE[name]] = value
        else:
            assert name == "--name", f"{name} is not known here"
    spec["image"], *spec["command"] = rest
    return spec
