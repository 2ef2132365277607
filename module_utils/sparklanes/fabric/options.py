# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a user may say about the fabric, checked and typed. Contradictions are refused in one sentence."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.fabric.nccl import DYNAMIC_GID, parse_version

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Options:
    transport: str = "roce"
    fabric_cidr: tuple[Network, ...] = ()
    peers: tuple[Address, ...] = ()
    ports_wanted: int | None = None
    want_both_halves: bool = True
    topology: str = "switch"
    hcas: tuple[str, ...] = ()
    allow_soft: bool = False
    allow_ipv6: bool = False
    control_ifname: str | None = None
    nccl_version: tuple[int, ...] | None = None
    gid_policy: str = "validated_unset"
    gid_index: int | None = None
    strict: bool = False

    def in_cidr(self, address: Address) -> bool:
        return any(address in network for network in self.fabric_cidr if network.version == address.version)


def _networks(texts: list[str]) -> tuple[Network, ...]:
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(str(text).strip(), strict=False))
        except ValueError as error:
            raise ValueError(f"fabric_cidr {text!r} is not a network like 192.168.100.0/24 ({error})") from error
    if len({network.version for network in networks}) > 1:
        raise ValueError("fabric_cidr mixes IPv4 and IPv6: NCCL uses one family for all devices; keep one")
    return tuple(networks)


def _addresses(texts: list[str]) -> tuple[Address, ...]:
    addresses: list[Address] = []
    for text in texts:
        try:
            addresses.append(ipaddress.ip_address(str(text).strip()))
        except ValueError as error:
            raise ValueError(f"peers {text!r} is not an address; give the peers' fabric addresses, not names") from error
    return tuple(addresses)


def read_options(params: Mapping[str, Any]) -> Options:
    """The module's parameters as Options. ValueError with a sentence where they are wrong or contradict each other."""
    version = params.get("nccl_version")
    options = Options(
        transport=params.get("transport") or "roce",
        fabric_cidr=_networks(params.get("fabric_cidr") or []),
        peers=_addresses(params.get("peers") or []),
        ports_wanted=params.get("ports_wanted"),
        want_both_halves=params.get("want_both_halves") is not False,
        topology=params.get("topology") or "switch",
        hcas=tuple(params.get("hcas") or []),
        allow_soft=bool(params.get("allow_soft")),
        allow_ipv6=bool(params.get("allow_ipv6")),
        control_ifname=params.get("control_ifname") or None,
        nccl_version=parse_version(version) if version else None,
        gid_policy=params.get("gid_policy") or "validated_unset",
        gid_index=params.get("gid_index"),
        strict=bool(params.get("strict")),
    )
    contradiction = _contradiction(options)
    if contradiction:
        raise ValueError(contradiction)
    return options


def _contradiction(options: Options) -> str | None:
    old = options.nccl_version is not None and options.nccl_version[:2] < DYNAMIC_GID
    if options.ports_wanted is not None and options.ports_wanted < 1:
        return f"ports_wanted is {options.ports_wanted}; it counts QSFP ports, so at least 1, or leave it out"
    if options.gid_index is not None and options.gid_index < 0:
        return f"gid_index is {options.gid_index}; leave it out to let NCCL choose"
    if options.gid_index is not None and options.gid_policy != "pin_per_node" and not old:
        return "gid_index is set and gid_policy is validated_unset: remove gid_index, or set gid_policy: pin_per_node"
    if any(network.version == 6 for network in options.fabric_cidr) and not options.allow_ipv6:
        return "fabric_cidr is IPv6 and allow_ipv6 is false: set allow_ipv6: true on every node, or use IPv4"
    if options.topology == "direct" and len(options.peers) > 2:
        return (
            f"topology is direct, which joins two Sparks, and {len(options.peers)} peers are given: use topology: switch or ring"
        )
    if options.topology == "ring" and options.ports_wanted == 1:
        return "topology is ring and ports_wanted is 1: a ring needs both QSFP ports of every node"
    if options.transport == "socket" and (options.hcas or options.topology == "ring" or options.gid_index is not None):
        return "transport is socket, which uses no RDMA device: remove hcas, gid_index and topology: ring"
    return None
