# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The fact `roce_fabric` that role roce leaves of each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def fabric_of(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The fact of role roce among the variables of a host, empty before it was gathered."""
    facts = variables.get("roce_fabric") or (variables.get("ansible_facts") or {}).get("roce_fabric") or {}
    return dict(facts)


def fabrics_of(hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Host → its fabric. `hosts`: in rank order."""
    return {host: fabric_of(hostvars[host]) for host in hosts}
