# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A recipe of sparkrun (version 2), and the older form of spark-vllm-docker (version 1), which differs in what prepares the container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import blanked
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.engine.command import Flag
from ansible.module_utils.sparklanes.lane.importers import command
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, OPEN, Launch
from ansible.module_utils.sparklanes.lane.importers.source import LARGEST, Refused, word_set

RUNTIMES = ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm", "vllm-node")
# Names of defaults that are not the flag's own.
_NAMED = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "data_parallel": "--data-parallel-size",
}
_KNOWN = word_set(
    "recipe_version sparkrun_version name description author maintainer notes tags model model_revision runtime runtime_version runtime_config container mode min_nodes "
    "max_nodes solo_only cluster_only defaults env command metadata benchmark executor_config pre_exec post_exec post_commands "
    "stop_after_post builder builder_config build_args mods"
)
_EXECUTOR = {
    "gpus": "gpus",
    "ipc": "ipc",
    "shm_size": "shm_size",
    "network": "network",
    "ulimit": "ulimits",
    "cap_add": "cap_add",
}
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Parts that run something around the engine, or change its container, and that no lane can say.
_OUTSIDE = {
    "mods": "it changes the container before it serves: build an image that holds it, or mount overlays",
    "pre_exec": "it changes the container before it serves: build an image that holds it, or mount overlays",
    "build_args": "the image is built with it: name an image that is, by digest or ids",
    "builder_config": "the image is built with it: name an image that is, by digest or ids",
    "post_exec": "it runs after the engine serves; a launch runs nothing of a recipe",
    "post_commands": "it runs on the controller; a launch runs nothing of a recipe",
    "runtime_config": "of the recipe's own runtime",
}


def launch(data: Mapping[str, Any], name: str) -> Launch:
    """The engine that a recipe starts."""
    version = str(data.get("recipe_version", data.get("sparkrun_version", "2")))
    runtime = str(data.get("runtime") or "")
    if runtime not in RUNTIMES:
        raise Refused(f"{name} is for the runtime {runtime:.40}, and lanes run vLLM: look for the vLLM recipe of the model")
    model = _text(data, "model", name)
    if not model:
        hint = did_you_mean("model", [str(key) for key in data])
        raise Refused(f"{name} has no model: expected the recipe of one model. {hint}".strip())
    made = Launch(
        f"recipe, version {version}", image=_text(data, "container", name), revision=_text(data, "model_revision", name)
    )
    if version.partition(".")[0] not in ("1", "2"):
        made.note(OPEN, f"recipe_version {said(version, 20)}", "", "no version that is known here: read as version 2")
    metadata = data.get("metadata")
    made.title = blanked(
        said(data.get("description") or (metadata.get("description") if isinstance(metadata, Mapping) else "") or "", 100)
    )
    defaults, env = _mapping(data, "defaults", name), _mapping(data, "env", name)
    values = {"model": model, **{str(key): _plain(value) for key, value in defaults.items()}}
    text = data.get("command")
    if text is None:
        made.model, made.prefix, made.entrypoint = model, ["serve"], "vllm"
        made.take_flags(_flags_of(defaults))
    elif isinstance(text, str):
        words = command.launch(_filled(text.strip(), values), f"the command of {name}")
        made.model, made.prefix, made.entrypoint = words.model, ["serve"], "vllm"
        made.flags, made.env, made.secret_env = words.flags, words.env, words.secret_env
        made.rows += words.rows
        made.warnings += words.warnings
        if words.image:
            raise Refused(f"the command of {name} starts a container of its own: give that docker run as a text file")
    else:
        raise Refused(f"{name}: command is no text")
    for key, value in sorted(defaults.items()):
        if text is not None and f"{{{key}}}" not in text and f"{{{key}}}" not in " ".join(values.values()):
            made.note(DROPPED, f"default {key}: {said(value, 60)}", "", "its command does not use it, so it changed nothing")
    made.take_env((str(key), _plain(value)) for key, value in env.items())
    made.nodes = _nodes(data, name)
    _executor(_mapping(data, "executor_config", name), made)
    for key, why in _OUTSIDE.items():
        for one in data.get(key) or [] if isinstance(data.get(key), list) else [data[key]] if data.get(key) else []:
            made.note(OPEN, f"{key} {said(one, 80)}", "lane_warnings", why)
            made.warn(f"The source has {key} {said(one, 80)}, and this lane does not.")
    for key in data:
        if key not in _KNOWN:
            made.note(
                OPEN,
                f"{said(key, 40)} of the recipe",
                "",
                did_you_mean(str(key), _KNOWN) or "no part of a recipe that is known here",
            )
    return made


def _filled(text: str, values: Mapping[str, str]) -> str:
    """`{name}` of a command with the recipe's defaults, theirs inside each other too; the braces of JSON stay.

    A text that doubles a brace means one by two, as Python's format does; so do the version 1 recipes.
    """
    doubled = "{{" in text
    size = 0

    def meant(found: re.Match[str]) -> str:
        nonlocal size
        value = values.get(found[1], found[0]) if found[1] else found[0][0] if doubled else found[0]
        size += len(value)
        if size > LARGEST:
            raise Refused(f"{{{found[1]}}} makes the command longer than {LARGEST // 1024} KiB, and no command is: write it out")
        return value

    text = _BRACES.sub(meant, text)
    doubled = False  # of the recipe's text alone, not of its values
    for _ in range(4):
        filled = _PLACEHOLDER.sub(meant, text)
        if filled == text:
            break
        text = filled
    return text


def _plain(value: Any) -> str:
    """A value of YAML as the text that a command has."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _text(data: Mapping[str, Any], key: str, name: str) -> str:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise Refused(f"{name}: {key} is {said(value, 40)!r}, which is no text")
    return (value or "").strip()


def _mapping(data: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise Refused(f"{name}: {key} is {said(value, 40)!r}, which is no mapping")
    return value or {}


def _flags_of(defaults: Mapping[str, Any]) -> list[Flag]:
    """The flags of a recipe without a command: each default is one, false is none."""
    made: list[Flag] = []
    for key, value in defaults.items():
        name = _NAMED.get(str(key), f"--{str(key).replace('_', '-')}")
        if value is False or value is None:
            continue
        switch = name in engine_flags.switches() or value is True
        values = [str(item) for item in value] if isinstance(value, list) else [_plain(value)]
        made.append((name, [] if switch else values))
    return made


def _nodes(data: Mapping[str, Any], name: str) -> int | None:
    """How many Sparks a recipe is for, where it says so alone; else its tensor parallel does."""
    if data.get("solo_only") or data.get("mode") == "solo" or data.get("max_nodes") == 1:
        return 1
    return None


def _executor(config: Mapping[str, Any], made: Launch) -> None:
    for key, value in config.items():
        if key in _EXECUTOR and value is not None:
            listed = key in ("ulimit", "cap_add")
            made.options[_EXECUTOR[key]] = (
                [str(one) for one in (value if isinstance(value, list) else [value])] if listed else str(value)
            )
        elif key in ("auto_remove", "restart_policy", "privileged", "entrypoint"):
            made.note(DROPPED, f"executor_config {key}: {said(value, 40)}", "", "how a rank is started is decided by sparklanes")
        else:
            made.note(OPEN, f"executor_config {said(key, 40)}: {said(value, 40)}", "", "a lane has no such option")
