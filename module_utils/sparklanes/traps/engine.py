# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of the engine: its flags and how they are spelled, and tuned kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ansible.module_utils.sparklanes.common.suggest import nearest
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.engine.flags import canonical_flag
from ansible.module_utils.sparklanes.lane.view import JSON_FLAGS, View
from ansible.module_utils.sparklanes.traps.frame import ADVISE, REFUSE, Rules

RULES = Rules()


@RULES.add(
    "FLAG_UNKNOWN",
    REFUSE,
    want="a flag of `vllm serve`",
    remedy="Correct the flag. If your engine has it all the same, accept the trap with its version.",
    source="vLLM 0.32.0; the recorded launchers",
)
def unknown(view: View) -> Iterator[str]:
    """Every flag is one that an engine knows.

    The command line of each rank is refused, after the old ranks were stopped.
    """
    for flag in view.lane["lane_engine_args"]:
        name = engine_flags.base_flag(flag)
        if not engine_flags.known(name):
            gone, near = engine_flags.successor(flag), nearest(name, engine_flags.names())
            hint = f"; instead: {gone}" if gone else f"; did you mean {near}?" if near else ""
            yield f"no engine that we know has {flag}{hint}"


@RULES.add(
    "FLAG_SPELLING",
    REFUSE,
    want="the spelling of this engine",
    remedy="Say it in lane_flag_names, as --kv-cache-memory-bytes: --kv-cache-memory.",
    source="743B launchers; Flash 2x notes; SM121 image repository",
)
def spelling(view: View) -> Iterator[str]:
    """A flag is spelled as the image's engine spells it.

    The Flash fork of day 0 knows --kv-cache-memory, the 743B engine and newer ones --kv-cache-memory-bytes.
    """
    rendered = {canonical_flag(flag): flag for flag in view.args} | {
        flag: str(own) for flag, own in view.lane["lane_flag_names"].items()
    }
    for flag, own in engine_flags.spellings(str(view.lane["lane_image"]["vllm"] or "")).items():
        if flag in view.args and rendered.get(flag, flag) != own:
            yield f"{rendered.get(flag, flag)} for {view.lane['lane_image']['vllm']}, which spells it {own}"


@RULES.add(
    "FLAG_JSON",
    REFUSE,
    want="a mapping, or text that is JSON",
    remedy='Write it as a YAML mapping, as --speculative-config: {method: mtp, num_speculative_tokens: 2}. Inside JSON quotes are ".',
    source="743B README: notes on single-quoted JSON; FP8 TP4 recipe",
)
def quoted(view: View) -> Iterator[str]:
    """Flags that take JSON get JSON.

    Quotes that a shell would have removed reach the engine here, and its parser ends: no shell stands between.
    """
    for flag, value in view.lane["lane_engine_args"].items():
        if canonical_flag(flag) in JSON_FLAGS and not _is_json(value):
            yield f"{flag} is {str(value)!r:.60}"


def _is_json(value: Any) -> bool:
    if isinstance(value, str):
        try:
            return isinstance(json.loads(value), dict)
        except (ValueError, RecursionError):
            return False
    return isinstance(value, dict)


@RULES.add(
    "FLAG_SHELL",
    REFUSE,
    want="the value itself",
    remedy="Write the value. What differs per Spark comes from the fabric: lane_fabric_env.",
    source="FP8 TP4 recipe: its variables stand inside single quotes",
)
def shell(view: View) -> Iterator[str]:
    """No value holds a variable of a shell or a placeholder.

    Nothing expands it: the engine would look for a model called $MODEL_PATH.
    """
    for where in ("lane_engine_args", "lane_engine_env"):
        for name, value in view.lane[where].items():
            for text in _texts(value):
                if re.search(r"\$\{?[A-Za-z_]|\$\(|`|^<[a-z][^<>]*>$", text):
                    yield f"{name} in {where} is {text!r:.60}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


@RULES.add(
    "MOE_TUNING",
    ADVISE,
    want="no tuned configs, or such for every shape",
    remedy="Remove the tuned configs, or make them for prefill and all batch sizes too.",
    source="cfontes TP4 README: learnings",
)
def moe_tuning(view: View) -> Iterator[str]:
    """MoE kernels are tuned for every shape or for none.

    A partial set snaps the other shapes to wrong configs: 10 % slower than none.
    """
    mounts = [item["target"] for item in view.lane["lane_overlays"]] + [
        item["target"] for item in view.lane["lane_container"]["mounts"]
    ]
    if "VLLM_TUNED_CONFIG_FOLDER" in view.env:
        yield "VLLM_TUNED_CONFIG_FOLDER is set"
    for target in mounts:
        if "fused_moe/configs" in target:
            yield f"{target} is mounted"
