# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from what its hosts registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS = ("path", "repo", "revision", "sha256", "expect", "config_sha256")


def models(model: Mapping[str, Any], drafter: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """lane_model and lane_drafter as module model_stage takes them. An empty one is left out."""
    named = (("model", model), ("drafter", drafter))
    return [{"name": name, **{key: one[key] for key in KEYS if one.get(key)}} for name, one in named if one]


def borrowed(asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same as module model_lend takes them."""
    return [{key: one[key] for key in ("name", "path", "repo", "revision") if key in one} for one in asked]


def complete_on(hostvars: Mapping[str, Any], ranks: Sequence[str], result: str) -> list[str]:
    """The ranks, in order, whose registered `result` says that all models are complete."""
    return [rank for rank in ranks if (hostvars[rank].get(result) or {}).get("staged") is True]


def fabric_addresses(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """Fabric addresses of the ranks that have one."""
    found = [(hostvars[rank].get("roce_fabric") or {}).get("host_ip") for rank in ranks]
    return [str(address) for address in found if address]
