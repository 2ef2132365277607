# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The last look at the rendered spec of a rank: what fabric and templates put into it, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, Fault, as_checks

RULES = {
    "RANK.ENV": "every variable has a value",
    "RANK.ARGV": "every word stands for itself",
    "RANK.SECRET": "no secret in sight",
    "RANK.PORT": "one use a port",
}
# What a template or a shell leaves behind where nothing filled it in.
_UNFILLED = re.compile(r"\{\{|\{%|\$\{?[A-Za-z_]|\$\(|^<[a-z][^<>]*>$|^None$|^Undefined$")
# Keys of Hugging Face, OpenAI and GitHub.
_SECRET = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,})")


def rank_checks(spec: Mapping[str, Any]) -> list[Check]:
    """What would be frozen, shown or started with this spec and must not be."""
    checks: list[Check] = as_checks([*_env(spec), *_argv(spec), *_secrets(spec), *_ports(spec)], str(spec["node"]), RULES)
    return checks


def _env(spec: Mapping[str, Any]) -> Iterator[Fault]:
    for name, value in spec["env"].items():
        if not isinstance(value, str) or not value.strip():
            remedy = "Run role roce again where it belongs to the fabric; else set it to null in the lane."
            # An empty NCCL_IB_GID_INDEX is read as 0, a link-local address.
            yield Fault("RANK.ENV", f"{name} has no value", "a value, or no variable at all", remedy)
        elif "\0" in value or _UNFILLED.search(value):
            yield Fault(
                "RANK.ENV", f"{name} is {value!r:.60}", "the value itself", "Nothing expands it: write what it stands for."
            )
    if spec["world_size"] > 1:
        address = str(spec["env"].get("VLLM_HOST_IP", ""))
        if not address or address.startswith(("169.254.", "fe80:")):
            found = f"VLLM_HOST_IP is {address or 'absent'}"
            yield Fault(
                "RANK.ENV",
                found,
                "an address that every rank reaches",
                "Give the rail an address (docs/fabric.md), run role roce for all.",
            )


def _argv(spec: Mapping[str, Any]) -> Iterator[Fault]:
    for index, word in enumerate(spec["command"]):
        if not isinstance(word, str) or not word.strip():
            yield Fault(
                "RANK.ARGV",
                f"word {index} of the command is empty",
                "no empty words",
                "Find the flag before it in lane_engine_args.",
            )
        elif "\0" in word or _UNFILLED.search(word):
            yield Fault(
                "RANK.ARGV", f"{word!r:.60} in the command", "the value itself", "Nothing expands it: write what it stands for."
            )


def _secrets(spec: Mapping[str, Any]) -> Iterator[Fault]:
    for name in spec["secret_env"]:
        if name in spec["env"]:
            yield Fault("RANK.SECRET", f"{name} has its value in the spec", "its name alone", "Remove it from lane_engine_env.")
    for where, text in [*spec["env"].items(), *(("the command", word) for word in spec["command"])]:
        if _SECRET.search(str(text)):
            yield Fault(
                "RANK.SECRET",
                f"{where} holds what looks like a key",
                "no secret",
                "Name it in lane_secret_env, and replace the key.",
            )


def _ports(spec: Mapping[str, Any]) -> Iterator[Fault]:
    master = spec["master"] or {}
    if master and master["port"] == spec["api"]["port"]:
        yield Fault("RANK.PORT", f"API and rendezvous use port {master['port']}", "two ports", "Set lane_master_port to another.")
