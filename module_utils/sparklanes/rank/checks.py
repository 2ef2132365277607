# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The last look at the rendered spec of a rank: what fabric and templates put into it, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.secrets import secret_flags, secret_name, secret_value

RULES = {
    "RANK.ENV": "every variable has a value",
    "RANK.ARGV": "every word stands for itself",
    "RANK.SECRET": "no secret in sight",
    "RANK.PORT": "one use a port",
}
# What a template or a shell leaves behind where nothing filled it in.
_UNFILLED = re.compile(r"\{\{|\{%|\$\{?[A-Za-z_]|\$\(|^<[a-z][^<>]*>$|^None$|^Undefined$")


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
    for name in spec["env"]:
        if name in spec["secret_env"] or secret_name(str(name)):
            remedy = "Remove it from lane_engine_env, name it in lane_secret_env."
            yield Fault("RANK.SECRET", f"{name} has its value in the spec", "its name alone", remedy)
    for flag in secret_flags(str(word) for word in spec["command"]):
        remedy = "Give it by a variable that lane_secret_env names."
        yield Fault("RANK.SECRET", f"{flag} has its value in the command", "no secret", remedy)
    for where, text in [*spec["env"].items(), *(("the command", word) for word in spec["command"])]:
        if secret_value(str(text)):
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
