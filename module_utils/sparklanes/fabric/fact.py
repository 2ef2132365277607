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


# Two meanings, two names: `host_ip` of the fact is the control address, where ranks and their engines find each other; it may lie on the
# management network. Fabric addresses are those of the rails, and data goes between two Sparks by those that share a network.


def is_ring(fabric: Mapping[str, Any]) -> bool:
    """Whether cables join two Sparks each, without a switch: each rail has a network of its own with one neighbour."""
    env = fabric.get("env")
    return isinstance(env, Mapping) and str(env.get("NCCL_IB_SUBNET_AWARE_ROUTING")) == "1"


def rails_of(fabric: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rails = fabric.get("rails")
    return [rail for rail in rails if isinstance(rail, Mapping)] if isinstance(rails, list) else []


def address_of(rail: Mapping[str, Any]) -> str:
    return str(rail.get("ipv4") or rail.get("ipv6") or "")


def meeting(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """(number, rail here, rail there) of the rails that meet: rail i and rail i; in a ring those of one network."""
    ours, theirs = rails_of(here), rails_of(there)
    if is_ring(here) or is_ring(there):
        ends = [(index, one, two) for index, one in enumerate(ours) for two in theirs]
        return [(index, one, two) for index, one, two in ends if one.get("network") and one.get("network") == two.get("network")]
    return [(index, one, two) for index, (one, two) in enumerate(zip(ours, theirs, strict=False))]


def fabric_addresses(fabric: Mapping[str, Any]) -> list[str]:
    """Addresses at which other Sparks reach this one over the fabric: of a ring each rail's, else that of the first rail."""
    found = [address for rail in rails_of(fabric) if (address := address_of(rail))]
    return found if is_ring(fabric) else found[:1]


def address_for(lender: Mapping[str, Any], taker: Mapping[str, Any]) -> str:
    """The lender's address on a rail that meets one of the taker's; empty where no cable or switch joins the two."""
    return next((address_of(theirs) for _, _, theirs in meeting(taker, lender) if address_of(theirs)), "")
