# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The fabric across nodes: rail i must be the same wire on every node, because NCCL pairs devices by index.

Input: {host: `fabric` of roce_facts}, in rank order. Output: checks. What can't be compared fails.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.fabric.fact import is_ring

Fabrics = Mapping[str, Mapping[str, Any]]


def _rails(fabric: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rails = fabric.get("rails")
    return [rail for rail in rails if isinstance(rail, Mapping)] if isinstance(rails, list) else []


def _problems(fabric: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    items = fabric.get(key)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _network(rail: Mapping[str, Any]) -> str | None:
    """The rail's network, if its address is in it."""
    try:
        network = ipaddress.ip_network(str(rail.get("network")))
        address = ipaddress.ip_address(str(rail.get("ipv4") or rail.get("ipv6")))
    except ValueError:
        return None
    return str(network) if address in network else None


def _where(rail: Mapping[str, Any]) -> str:
    return f"{rail.get('hca') or rail.get('netdev')} {rail.get('ipv4') or rail.get('ipv6')} in {rail.get('network')}"


def cluster_checks(fabrics: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """All checks of a deployment's fabric. One node needs none, and says so; no node gives no checks."""
    if len(fabrics) == 1:
        return [Check("FABRIC.RAILS", next(iter(fabrics)), PASS, "one node: no fabric is needed")]
    checks, whole = _facts(fabrics)
    if len(whole) < 2 or len(whole) < len(fabrics):
        return checks  # comparing a part would pass what nobody measured
    ring = any(map(is_ring, whole.values()))
    checks += _same(whole, "FABRIC.TRANSPORT", "transport", "Set fabric_transport for all hosts alike")
    rails = _count(whole)
    checks += rails
    if all(check.status == PASS for check in rails):
        checks += _ring(whole) if ring else _networks(whole)
        checks += _mtu(whole)
    checks += _addresses(whole) + _link_local(whole)
    if any(fabric.get("nccl_version") for fabric in whole.values()):
        checks += _same(whole, "FABRIC.NCCL_VERSION", "nccl_version", "Run the same image on all nodes")
    return checks


def _facts(fabrics: Fabrics) -> tuple[list[Check], dict[str, Mapping[str, Any]]]:
    """Every host must have a fabric without errors; its warnings become warnings of the gate."""
    checks: list[Check] = []
    whole: dict[str, Mapping[str, Any]] = {}
    for host, fabric in fabrics.items():
        if not isinstance(fabric, Mapping) or "rails" not in fabric:
            found, remedy = "no fabric facts", "Run the role roce on this host and read its message"
            checks.append(Check("FABRIC.FACTS", host, FAIL, found, "facts of the role roce", remedy))
            continue
        errors = _problems(fabric, "errors")
        for error in errors:
            found = f"{error.get('code')}: {error.get('message')}"
            checks.append(Check("FABRIC.FACTS", host, FAIL, found, "no errors", str(error.get("remedy", ""))))
        if not errors:
            whole[host] = fabric
            checks.append(Check("FABRIC.FACTS", host, PASS, f"fabric over {fabric.get('transport')}"))
        for warning in _problems(fabric, "warnings"):
            found = f"{warning.get('code')}: {warning.get('message')}"
            checks.append(Check("FABRIC.WARNING", host, WARN, found, "", str(warning.get("remedy", ""))))
    return checks, whole


def _same(fabrics: Fabrics, id_: str, key: str, remedy: str) -> list[Check]:
    """The value of all hosts must be that of the first, and known."""
    first = next(iter(fabrics))
    wanted = fabrics[first].get(key)
    return [
        judged(id_, host, bool(wanted) and fabric.get(key) == wanted, fabric.get(key) or "unknown",
               f"{wanted or 'known'} as on {first}", remedy)
        for host, fabric in fabrics.items()
    ]  # fmt: skip


def _count(fabrics: Fabrics) -> list[Check]:
    most = max(len(_rails(fabric)) for fabric in fabrics.values())
    checks = []
    for host, fabric in fabrics.items():
        rails = _rails(fabric)
        found = f"{len(rails)} rail(s): " + ("; ".join(_where(rail) for rail in rails) or "none")
        remedy = "NCCL pairs devices by index: give every node the same number (cable, addresses, fabric_cidr)"
        checks.append(
            judged("FABRIC.RAILS", host, len(rails) == most > 0, found, f"{most or 'at least one'} as on the others", remedy)
        )
    return checks


def _networks(fabrics: Fabrics) -> list[Check]:
    """Rail i of every node in one and the same network."""
    first = next(iter(fabrics))
    wanted = [_network(rail) for rail in _rails(fabrics[first])]
    checks = []
    for host, fabric in fabrics.items():
        rails = _rails(fabric)
        networks = [_network(rail) for rail in rails]
        ok = None not in networks and networks == wanted
        found = "; ".join(f"rail {i}: {_where(rail)}" for i, rail in enumerate(rails))
        expected = "; ".join(f"rail {i}: {network}" for i, network in enumerate(wanted)) + f" as on {first}"
        if sorted(map(str, networks)) == sorted(map(str, wanted)):
            remedy = "The same networks in another order: swap the addresses of the halves on this host"
        else:
            remedy = "Give rail i of every node an address in the same network, with the same prefix length"
        checks.append(judged("FABRIC.NETWORK", host, ok, found, expected, remedy))
    return checks


def _ring(fabrics: Fabrics) -> list[Check]:
    """A ring's cable joins two nodes: each network must be on exactly one other host, once."""
    owners: dict[str | None, list[str]] = {}
    for host, fabric in fabrics.items():
        for rail in _rails(fabric):
            owners.setdefault(_network(rail), []).append(host)
    checks = []
    for host, fabric in fabrics.items():
        bad = []
        for rail in _rails(fabric):
            network = _network(rail)
            others = [other for other in owners[network] if other != host]
            if network is None or len(owners[network]) != 2 or len(others) != 1:
                bad.append(f"{_where(rail)} shared with {', '.join(others) or 'nobody'}")
        remedy = "Give each cable of the ring its own networks, one per PCI half, on exactly its two ends"
        found = "; ".join(bad) or "each network is shared with one neighbour"
        checks.append(judged("FABRIC.NETWORK", host, not bad, found, "one neighbour in each network", remedy))
    return checks


def _mtu(fabrics: Fabrics) -> list[Check]:
    """Equal at both ends of each wire; unknown is not equal. In a ring the wires are found by network."""
    first = next(iter(fabrics))
    wires: dict[str, int] = {}
    checks = []
    for host, fabric in fabrics.items():
        bad, all_mtu = [], []
        for rail in _rails(fabric):
            mtu, wire = rail.get("mtu"), str(rail.get("network"))
            all_mtu.append(str(mtu))
            if not isinstance(mtu, int) or mtu <= 0:
                bad.append(f"{rail.get('netdev')}: MTU unknown")
            elif wires.setdefault(wire, mtu) != mtu:
                bad.append(f"{rail.get('netdev')}: MTU {mtu}, the other end of {wire} has {wires[wire]}")
        found = "; ".join(bad) or f"MTU {', '.join(all_mtu)}"
        remedy = "Set the same MTU in netplan at both ends and on the switch (9000)"
        checks.append(judged("FABRIC.MTU", host, not bad, found, f"the MTU of the other nodes (first: {first})", remedy))
    return checks


def _addresses(fabrics: Fabrics) -> list[Check]:
    """No address twice, and every host knows its own."""
    owners: dict[str, list[str]] = {}
    for host, fabric in fabrics.items():
        rails = {str(rail.get("ipv4") or rail.get("ipv6")) for rail in _rails(fabric)}
        for address in sorted(rails | {str(fabric.get("host_ip"))}):
            owners.setdefault(address, []).append(host)
    checks = []
    for host, fabric in fabrics.items():
        twice = {address: hosts for address, hosts in owners.items() if host in hosts and len(hosts) > 1}
        known = bool(fabric.get("host_ip") and fabric.get("ifname"))
        unfit = _unfit(str(fabric["host_ip"])) if known else ""
        found = "; ".join(f"{address} is on {' and '.join(hosts)}" for address, hosts in twice.items()) or unfit
        found = found or (f"{fabric.get('host_ip')} on {fabric.get('ifname')}" if known else "no host_ip")
        remedy = "Give each node its own address (netplan); a copied disk image often copies them"
        checks.append(judged("FABRIC.ADDRESS", host, known and not twice and not unfit, found, "an address of its own", remedy))
    return checks


def _unfit(address: str) -> str:
    """Why no other node can reach this address, if so."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return f"{address} is no IP address"
    unreachable = ip.is_loopback or ip.is_unspecified or ip.is_multicast
    return f"{address} is no address that another node can reach" if unreachable else ""


def _link_local(fabrics: Fabrics) -> list[Check]:
    """169.254 on all nodes works until a reboot; on some of them only, nothing reaches anything."""

    def local(fabric: Mapping[str, Any]) -> list[str]:
        addresses = [str(rail.get("ipv4")) for rail in _rails(fabric)]
        return [address for address in addresses if address.startswith("169.254.")]

    some = {host: local(fabric) for host, fabric in fabrics.items()}
    if not any(some.values()):
        return []
    every = all(len(some[host]) == len(_rails(fabrics[host])) for host in fabrics)
    remedy = "Give every half of every node a static address in netplan, and link-local: []"
    return [
        Check("FABRIC.LINK_LOCAL", host, WARN if every else FAIL, ", ".join(found) or "static addresses",
              "no 169.254 address" if every else "169.254 on all rails or on none", remedy)
        for host, found in some.items()
    ]  # fmt: skip
