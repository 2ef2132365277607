# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which Spark has which address on which rail, and whether that plan may be written.

An address is given for a host, or follows from the rail's network and the host's place in the group. All that can be
wrong is found before a byte is written: afterwards a Spark may be out of reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.registered import HostVars, Look, look, look_again, looks, results
from ansible.module_utils.sparklanes.fabric import reach
from ansible.module_utils.sparklanes.fabric.netplan import BLOCKS, NOTHING, render

Facts = Mapping[str, Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
MTU_RANGE = (1280, 9978)  # the least that IPv6 wants; the most that a ConnectX-7 takes


def derive(rails: Sequence[Facts], explicit: Mapping[str, str], index: int, first: int) -> list[dict[str, str]]:
    """The rails of one host: [{name, address}]. Raises ValueError with a sentence for a person."""
    made = []
    for rail in rails:
        name = str(rail.get("interface") or "")
        if not _NAME.fullmatch(name):
            raise ValueError(f"rail {rail}: interface must be the name of a network device, for example enp1s0f0np0")
        given = explicit.get(name)
        if given:
            made.append({"name": name, "address": str(given)})
            continue
        if not rail.get("network"):
            raise ValueError(f"rail {name}: give its network (192.168.100.0/24), or an address in fabric_network_addresses")
        try:
            network = ipaddress.ip_network(str(rail["network"]))
        except ValueError as error:
            raise ValueError(f"rail {name}: {error}") from error
        number = first + index
        if not 0 < number < network.num_addresses - (1 if network.version == 4 else 0):
            raise ValueError(f"rail {name}: {network} has no host number {number}")
        made.append({"name": name, "address": f"{network.network_address + number}/{network.prefixlen}"})
    unknown = sorted(set(explicit) - {one["name"] for one in made})
    if unknown:
        raise ValueError(
            f"fabric_network_addresses names {', '.join(unknown)}, which is not an interface of fabric_network_rails"
        )
    if len({one["name"] for one in made}) < len(made):
        raise ValueError("fabric_network_rails names one interface twice")
    return made


def plan(settings: Mapping[str, Facts]) -> tuple[dict[str, list[dict[str, str]]], list[Check]]:
    """Host → rails, and what is wrong with the settings. `settings`: host → {rails, addresses, first, mtu}, in the group's order."""
    made: dict[str, list[dict[str, str]]] = {}
    checks = []
    for index, (host, one) in enumerate(settings.items()):
        remedy = "Set fabric_network_rails, fabric_network_first and fabric_network_addresses (roles/fabric_network/README.md)."
        try:
            mtu = int(one.get("mtu") or 0)
            if not MTU_RANGE[0] <= mtu <= MTU_RANGE[1]:
                raise ValueError(f"fabric_network_mtu {one.get('mtu')}: expected {MTU_RANGE[0]} to {MTU_RANGE[1]}")
            made[host] = derive(one.get("rails") or [], one.get("addresses") or {}, index, int(one.get("first") or 0))
            if not made[host]:
                raise ValueError("fabric_network_rails is empty")
        except (ValueError, TypeError, AttributeError) as error:
            made[host] = []
            checks.append(judged("NETPLAN.ADDRESS", host, False, str(error), "an address on each rail", remedy))
    return made, checks


def address_checks(rails: Mapping[str, Sequence[Facts]]) -> list[Check]:
    """Addresses that fit together: valid, of one host each, rails in networks of their own that others share."""
    owners: dict[str, list[str]] = {}
    networks: dict[str, set[str]] = {}
    parsed: dict[str, list[Any]] = {}
    checks: list[Check] = []
    for host, mine in rails.items():
        parsed[host] = []
        for rail in mine:
            try:
                if "/" not in str(rail["address"]):
                    raise ValueError(f"{rail['address']} has no prefix length")
                interface = ipaddress.ip_interface(str(rail["address"]))
            except ValueError as error:
                checks.append(_bad(host, f"{rail['name']}: {error}", "Give it as 192.168.100.11/24."))
                continue
            parsed[host].append((rail["name"], interface))
            owners.setdefault(str(interface.ip), []).append(f"{host} {rail['name']}")
            networks.setdefault(str(interface.network), set()).add(host)
    for host, mine in parsed.items():
        found = []
        for name, interface in mine:
            found += [f"{name}: {text}" for text in _unusable(interface)]
            twice = owners[str(interface.ip)]
            found += [f"{interface.ip} is on {' and '.join(twice)}"] if len(twice) > 1 else []
            alone = len(rails) > 1 and len(networks[str(interface.network)]) == 1
            found += [f"{name}: nobody else is in {interface.network}"] if alone else []
        for position, (name, interface) in enumerate(mine):
            for other, second in mine[position + 1 :]:
                if interface.network.overlaps(second.network) if interface.version == second.version else False:
                    found.append(f"{name} and {other} share {interface.network}: the kernel may answer for one on the other")
        if found:
            checks.append(
                _bad(host, "; ".join(found), "Give each rail a network of its own and each Spark its own address in it.")
            )
        elif mine:
            text = ", ".join(f"{name} {interface}" for name, interface in mine)
            checks.append(Check("NETPLAN.ADDRESS", host, PASS, text, "an address of its own on each rail"))
    return checks


def _bad(host: str, found: str, remedy: str) -> Check:
    return judged("NETPLAN.ADDRESS", host, False, found, "an address of its own on each rail, in a network of its own", remedy)


def _unusable(interface: Any) -> list[str]:
    ip, network = interface.ip, interface.network
    if ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local or (ip.version == 4 and ip.is_reserved):
        return [f"{ip} is no address for a rail"]
    if network.prefixlen < network.max_prefixlen - 1 and ip in (network.network_address, network.broadcast_address):
        return [f"{ip} is the network or broadcast address of {network}"]
    if network.prefixlen == network.max_prefixlen:
        return [f"{interface} is a network of one address"]
    return []


def node_checks(host: str, rails: Sequence[Facts], seen: Look, wanted: str | None) -> list[Check]:
    """What the Spark itself says to the plan. `seen`: of fabric_network_info.

    wanted: the text of our file; None takes it away.
    """
    if seen.facts is None:
        id_, expected = ("NODE.FACTS", "measured") if seen.broke else ("NODE.REACHABLE", "answers")
        return [judged(id_, host, None, seen.problem, expected, f"{look_again(host)} Nothing was written.")]
    info = seen.facts
    checks = [
        judged(
            "NETPLAN.TOOL",
            host,
            bool(info.get("tool")),
            info.get("tool") or "netplan is not installed: this Spark's network is not netplan's to say",
            "netplan",
            "This role writes netplan files only, as DGX OS uses them. Elsewhere set the addresses by hand (docs/fabric.md).",
        )
    ]
    pending = info.get("pending") or {}
    if pending.get("armed") and (info.get("file") or {}).get("trial") != (NOTHING if wanted is None else wanted):
        text = f"another trial is armed, and takes itself back {pending.get('when') or 'soon'}"
        checks.append(judged("NETPLAN.PENDING", host, False, text, "no trial", "Wait until it is over, then run this again."))
    return checks if wanted is None else checks + _interface_checks(host, rails, info)


def _interface_checks(host: str, rails: Sequence[Facts], info: Facts) -> list[Check]:
    checks = []
    interfaces: Mapping[str, Facts] = info.get("interfaces") or {}
    missing = [str(rail["name"]) for rail in rails if rail["name"] not in interfaces]
    there = ", ".join(name for name in interfaces if name != "lo")
    checks.append(
        judged("NETPLAN.INTERFACE", host, not missing, f"{', '.join(missing)} is not there" if missing else "all there",
               "the interfaces of fabric_network_rails", f"{host} has {there}: rocep* names of roce_facts tell which belong to the fabric.")
    )  # fmt: skip
    checks.append(_management(host, rails, info, interfaces))
    blocked = [owner for owner in info.get("owners") or [] if owner.get("weight") == BLOCKS]
    told = [owner for owner in info.get("owners") or [] if owner.get("weight") != BLOCKS]
    if blocked:
        text = "; ".join(f"{one['interface']}: {one['kind']} {one['path']} {one['why']}" for one in blocked)
        remedy = f"Take the interface out of {', '.join(dict.fromkeys(str(one['path']) for one in blocked))} on {host}, then run this again."
        checks.append(Check("NETPLAN.OWNER", host, FAIL, text, "nobody else defines the interfaces", remedy))
    elif told:
        text = "; ".join(f"{one['interface']}: {one['kind']} {one['path']} {one['why']}" for one in told)
        checks.append(Check("NETPLAN.OWNER", host, WARN, text, "nobody else has a say"))
    else:
        mine = info.get("file") or {}
        text = f"{mine.get('path')} {'has them' if mine.get('text') is not None else 'will have them'}"
        checks.append(Check("NETPLAN.OWNER", host, PASS, text, "nobody else has a say"))
    return checks


def _management(host: str, rails: Sequence[Facts], info: Facts, interfaces: Mapping[str, Facts]) -> Check:
    """The way by which we came, and every network that is already somewhere else on this Spark, stay as they are."""
    names = {str(rail["name"]) for rail in rails}
    found = [f"{name} {why}" for name, why in (info.get("management") or {}).items() if name in names]
    if not info.get("management"):
        found.append("neither an ssh connection nor a default route shows which interface leads to this Spark")
    for rail in rails:
        try:
            wanted = ipaddress.ip_interface(str(rail["address"])).network
        except ValueError:
            continue  # NETPLAN.ADDRESS says so
        for name, there in interfaces.items():
            for text in there.get("addresses") or []:
                other = ipaddress.ip_interface(str(text)).network
                if name not in names and other.version == wanted.version and other.overlaps(wanted):
                    found.append(f"{wanted} of {rail['name']} overlaps {text} on {name}")
    return judged("NETPLAN.MANAGEMENT", host, not found, "; ".join(found) or "apart from the fabric",
                  "management apart from the fabric", "Choose other interfaces or networks for the rails.")  # fmt: skip


def judge(
    settings: Mapping[str, Facts], infos: Mapping[str, Look], present: bool = True
) -> tuple[dict[str, list[dict[str, str]]], list[Check]]:
    """The whole plan and everything that is to be said about it."""
    if not present:
        return {host: [] for host in settings}, [
            check for host in settings for check in node_checks(host, [], infos.get(host) or look(None), None)
        ]
    rails, checks = plan(settings)
    checks += address_checks({host: mine for host, mine in rails.items() if mine})
    for host, mine in rails.items():
        seen = infos.get(host) or look(None)
        if mine or seen.facts is None:
            text = render(mine, int(settings[host]["mtu"]), str(settings[host].get("renderer") or "")) if mine else ""
            checks += node_checks(host, mine, seen, text)
    return rails, checks


def as_fabrics(rails: Mapping[str, Sequence[Facts]], mtu: int) -> dict[str, dict[str, Any]]:
    """The plan in the shape of roce_fabric, for the pings that prove it: rails of one network meet, as in a ring."""
    made = {}
    for host, mine in rails.items():
        places = [(rail["name"], ipaddress.ip_interface(str(rail["address"]))) for rail in mine]
        made[host] = {
            "ifname": places[0][0] if places else "",
            "env": {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"},
            "rails": [
                {"netdev": name, f"ipv{place.version}": str(place.ip), "network": str(place.network), "mtu": mtu}
                for name, place in places
            ],
        }
    return made


def network_plan(hostvars: HostVars, hosts: Sequence[str], present: bool = True) -> dict[str, Any]:
    """{rails: host → the rails of its file, checks: all that is to be said about them}, from the settings and the looks of role
    fabric_network."""
    settings = {host: dict(wanted or {}) for host, wanted in results(hostvars, hosts, "fabric_network_settings").items()}
    rails, made = judge(settings, looks(hostvars, hosts, "fabric_network_now"), present)
    return {"rails": rails, "checks": made}


def network_probes(rails: Mapping[str, Sequence[Facts]], mtu: int) -> dict[str, list[dict[str, Any]]]:
    """Host → pings that prove the new addresses."""
    return reach.plan(as_fabrics(rails, int(mtu)))


def network_kept(hostvars: HostVars, hosts: Sequence[str]) -> list[str]:
    """The hosts that keep a new network: their trial has ended well."""
    return [host for host, result in results(hostvars, hosts, "fabric_network_kept").items() if (result or {}).get("changed")]
