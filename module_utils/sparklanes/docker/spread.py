# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which Sparks have the image and compiled kernels, and so give them to the others: from what role engine_image registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars, looks
from ansible.module_utils.sparklanes.fabric import fact


def with_image(hostvars: HostVars, hosts: Sequence[str]) -> list[str]:
    """The hosts on which the image is."""
    return [host for host, seen in looks(hostvars, hosts, "engine_image_result").items() if (seen.facts or {}).get("here")]


def kernels(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, list[str]]:
    """{compiled: the hosts that have kernels, empty: those that have none}. Of whom nothing is known stands in neither."""
    known = {host: seen.facts or {} for host, seen in looks(hostvars, hosts, "engine_image_jit").items()}
    asked = [host for host, facts in known.items() if "files" in facts]
    return {
        "compiled": [host for host in asked if known[host]["files"]],
        "empty": [host for host in asked if not known[host]["files"]],
    }


Fabrics = Mapping[str, Mapping[str, Any]]


def lenders(hostvars: HostVars, hosts: Sequence[str], here: Sequence[str]) -> dict[str, Any]:
    """How an image comes over the fabric from those that have it to the other `hosts`, which are of this run, in rank order.

    sources: who takes it from its source first, as nobody that has it can give it. waves: one after the other, each a list of {lender, address, takers}. from:
    taker → its lender. A registry listens at one address, and in a ring a Spark has another one for each neighbour, and none for
    the others: so the image goes from neighbour to neighbour.
    """
    fabrics = fact.fabrics_of(hostvars, hosts)
    have = [host for host in hosts if host in here]
    left = [host for host in hosts if host not in here]
    sources = []
    while rest := [host for host in left if host not in _reached(fabrics, have)]:
        sources.append(rest[0])
        have.append(rest[0])
        left.remove(rest[0])
    waves = []
    while left:
        wave = _wave(fabrics, have, left)
        taken = [taker for part in wave for taker in part["takers"]]
        waves.append(wave)
        have += taken
        left = [host for host in left if host not in taken]
    giver = {taker: part["lender"] for wave in waves for part in wave for taker in part["takers"]}
    return {"sources": sources, "waves": waves, "from": giver}


def _reached(fabrics: Fabrics, have: Sequence[str]) -> set[str]:
    """Whom what these have can come to, from one to the next."""
    found, new = set(have), set(have)
    while new:
        new = {
            taker for taker in fabrics for giver in new if taker not in found and fact.address_for(fabrics[giver], fabrics[taker])
        }
        found |= new
    return found


def _wave(fabrics: Fabrics, have: Sequence[str], left: Sequence[str]) -> list[dict[str, Any]]:
    """What can be lent at the same time: each lender at the address by which most of those can take it whom nobody serves yet."""
    wave: list[dict[str, Any]] = []
    served: set[str] = set()
    for lender in have:
        at: dict[str, list[str]] = {}
        for taker in left:
            address = fact.address_for(fabrics[lender], fabrics[taker])
            if address and taker not in served:
                at.setdefault(address, []).append(taker)
        if at:
            address = max(at, key=lambda one: len(at[one]))
            wave.append({"lender": lender, "address": address, "takers": at[address]})
            served.update(at[address])
    return wave


def spreads(hostvars: HostVars, hosts: Sequence[str]) -> bool:
    """Whether the fabric joins any two of these Sparks, so that one may take an image from another."""
    fabrics = fact.fabrics_of(hostvars, hosts)
    return any(fact.address_for(fabrics[one], fabrics[two]) for one in hosts for two in hosts if one != two)
