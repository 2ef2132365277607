# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Does what the fabric's facts promise get through? Who pings whom over which rail, what came back, and the judgement.

A ping is as large as the MTU allows and may not be fragmented, is bound to the rail's own device and address, and is
followed by a small one where it fails: the two together tell a wrong MTU from a dead path.
The rendezvous port of rank 0 is tried by the workers while rank 0 itself listens there, or its running engine does.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check, judged
from ansible.module_utils.sparklanes.fabric import exchange
from ansible.module_utils.sparklanes.fabric.fact import address_of, meeting

ALL_PAIRS_UP_TO = 8  # nodes; a larger deployment pings its neighbours in the ring of ranks
SMALL = 56  # bytes of data of an ordinary ping: passes any MTU
HEADERS = {4: 28, 6: 48}  # bytes of IP and ICMP around the data
CONTROL = "control"  # stands for a rail where bootstrap has a device of its own

Facts = Mapping[str, Any]


# What to try


def pairs(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Who pings whom, in both directions: packets of one direction can be lost alone."""
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return [(one, other) for one in hosts for other in hosts if one != other]
    ring = [(hosts[index - 1], host) for index, host in enumerate(hosts)]
    return ring + [(other, one) for one, other in ring]


def plan(fabrics: Mapping[str, Facts]) -> dict[str, list[dict[str, Any]]]:
    """Host → pings, {peer, rail, ifname, source, address, size}. `fabrics`: `roce_fabric` of each host, in rank order.

    Rail i meets rail i; in a ring, whose cables join two nodes each, the rails of one network meet.
    """
    made: dict[str, list[dict[str, Any]]] = {host: [] for host in fabrics}
    for one, other in pairs(list(fabrics)):
        for index, rail, end in meeting(fabrics[one], fabrics[other]):
            made[one].append(_ping(other, str(index), rail, address_of(end)))
        if not _on_a_rail(fabrics[one]) and fabrics[one].get("host_ip") and fabrics[other].get("host_ip"):
            control = {"netdev": fabrics[one].get("ifname"), "ipv4": fabrics[one]["host_ip"]}
            made[one].append({**_ping(other, CONTROL, control, str(fabrics[other]["host_ip"])), "size": SMALL})
    return made


def _ping(peer: str, rail: str, here: Facts, address: str) -> dict[str, Any]:
    source = address_of(here)
    size = int(here.get("mtu") or 0) - HEADERS[6 if ":" in source else 4]
    return {
        "peer": peer,
        "rail": rail,
        "ifname": str(here.get("netdev") or ""),
        "source": source,
        "address": address,
        "size": max(size, SMALL),
    }


def _on_a_rail(fabric: Facts) -> bool:
    return fabric.get("ifname") in [rail.get("netdev") for rail in fabric.get("rails") or []]


def master_plan(specs: Mapping[str, Facts], fabrics: Mapping[str, Facts]) -> dict[str, dict[str, Any]]:
    """Host → its end of the rendezvous port: rank 0 listens for the others' number, they connect from their own address."""
    made: dict[str, dict[str, Any]] = {}
    for host, spec in specs.items():
        master = spec.get("master") or {}
        if int(spec["world_size"]) > 1 and master.get("host") and master.get("port"):
            end = {"address": str(master["host"]), "port": int(master["port"])}
            if int(spec["rank"]) == 0:
                made[host] = {**end, "listen_for": len(specs) - 1}
            else:
                made[host] = {**end, "source": str((fabrics.get(host) or {}).get("host_ip") or "")}
    return made


# Trying it: the only functions here that touch the system


def ping_argv(program: str, probe: Facts, size: int) -> list[str]:
    """Two echoes, of which one must come back: an address that was never asked for is resolved by the first."""
    argv = [program, "-n", "-q", "-c", "2", "-i", "0.3", "-W", "2", "-M", "do", "-s", str(size)]
    for binding in (probe.get("ifname"), probe.get("source")):
        argv += ["-I", str(binding)] if binding else []
    return [*argv, str(probe["address"])]


def run_pings(program: str, probes: Sequence[Facts], seconds: float = 15) -> list[dict[str, Any]]:
    """All at once, so that the time is that of the slowest. A large ping that fails is followed by a small one."""
    large = commands.together([ping_argv(program, probe, int(probe["size"])) for probe in probes], seconds)
    lost = [index for index, (code, *_) in enumerate(large) if code != 0]
    small = dict(zip(lost, commands.together([ping_argv(program, probes[i], SMALL) for i in lost], seconds), strict=True))
    return [
        {
            **probe,
            "ok": large[index][0] == 0,
            "small": small[index][0] == 0 if index in small else None,
            "said": "" if large[index][0] == 0 else complaint("\n".join(large[index][1:])),
        }
        for index, probe in enumerate(probes)
    ]


def complaint(text: str) -> str:
    """The line of ping's output that says why, if one does."""
    wanted = re.compile(r"(?i)error|mtu|frag|unreachable|prohibited|bind|cannot|invalid|unknown|did not answer|no such")
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if wanted.search(line) and "packets transmitted" not in line), "")[:200]


class Listener:
    """Rank 0's end of the port. Connections wait in the kernel's queue until `accept` looks at them."""

    def __init__(self, address: str, port: int) -> None:
        self.error, self._socket = "", None
        try:
            # A worker closes first, so nothing of this stands in the engine's way afterwards.
            self._socket = socket.create_server((address, port), family=_family(address), backlog=64)
        except (OSError, OverflowError) as error:
            self.error = str(error)

    def accept(self, wanted: int, seconds: float) -> dict[str, Any]:
        """Wait until that many addresses have connected, no longer than `seconds`."""
        if self._socket is None:
            return {"listened": False, "error": self.error, "met": []}
        met: list[str] = []
        end = time.monotonic() + seconds
        with self._socket as listener:
            while len(met) < wanted and (left := end - time.monotonic()) > 0:
                listener.settimeout(left)
                try:
                    peer, name = listener.accept()
                except OSError:
                    break
                with peer:
                    peer.settimeout(2)
                    with contextlib.suppress(OSError):
                        peer.recv(1)
                if name[0] not in met:
                    met.append(name[0])
        return {"listened": True, "error": "", "met": met}


def connect(address: str, port: int, source: str, seconds: float) -> dict[str, Any]:
    """Connect to the port, again while it is refused: rank 0 may only begin to listen. {outcome, error}"""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            with socket.create_connection(
                (address, port), timeout=max(left, 0.5), source_address=(source, 0) if source else None
            ):
                return {"outcome": "accepted", "error": ""}
        except ConnectionRefusedError as error:
            outcome = {"outcome": "refused", "error": str(error)}
        except TimeoutError as error:
            return {"outcome": "silent", "error": str(error)}
        except (OSError, OverflowError) as error:
            return {"outcome": "failed", "error": str(error)}
        if time.monotonic() + 0.2 > end:
            return outcome
        time.sleep(0.2)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def established(ss_text: str, address: str, port: int) -> bool:
    """Whether `ss -Htn state established` shows a connection of this Spark to that port: a rank already runs over it."""
    wanted = {f"{address}:{port}", f"[{address}]:{port}", f"[::ffff:{address}]:{port}"}
    return any(wanted & set(line.split()) for line in ss_text.splitlines())


# Judging it


def peer_checks(host: str, probes: Sequence[Facts], results: Sequence[Facts] | None) -> list[Check]:
    """FABRIC.PEER: a row for each rail whose peers all answer, and one for each pair that doesn't."""
    found = {(str(result.get("peer")), str(result.get("rail"))): result for result in results or []}
    made: list[Check] = []
    for rail in dict.fromkeys(str(probe["rail"]) for probe in probes):
        mine = [probe for probe in probes if str(probe["rail"]) == rail]
        bad = [check for probe in mine if (check := _peer(host, probe, found.get((str(probe["peer"]), rail))))]
        if not bad:
            what = "bootstrap's own device" if rail == CONTROL else f"rail {rail}"
            text = f"{what} ({mine[0]['ifname']}): {len(mine)} peer(s) answer {mine[0]['size']} bytes unfragmented"
            bad = [Check("FABRIC.PEER", host, PASS, text, "answers over each rail")]
        made += bad
    return made


def _peer(host: str, probe: Facts, result: Facts | None) -> Check | None:
    size, ifname, address = probe["size"], probe["ifname"], probe["address"]
    where = f"rail {probe['rail']} ({ifname} {probe['source']}) to {probe['peer']} ({address})"
    expected = f"{size} bytes unfragmented over each rail"
    by_hand = f"ping -M do -s {size} -I {ifname} {address}"
    if result is None:
        return Check(
            "FABRIC.PEER", host, FAIL, f"{where}: not measured", expected, f"Try it on {host}: {by_hand} (package iputils-ping)."
        )
    if result.get("ok"):
        return None
    said = f" ({result['said']})" if result.get("said") else ""
    if result.get("small"):
        text = f"{where}: small packets pass, {size} bytes don't{said}"
        remedy = f"A smaller MTU lies on the way: set the same at {host}, {probe['peer']} and on the switch, then {by_hand}."
    else:
        text = f"{where}: no answer at all{said}"
        remedy = (
            f"Look at the cable, the switch port, the address and the firewall (ICMP) between {host} and {probe['peer']}; "
            f"two rails in one subnet need arp_ignore=1, arp_announce=2. Then {by_hand}."
        )
    return Check("FABRIC.PEER", host, FAIL, text, expected, remedy)


def master_check(host: str, end: Facts, result: Facts | None, head: Facts | None) -> Check | None:
    """FABRIC.MASTER_PORT, of a worker. `result` is its own, `head` that of rank 0, whose word on who listened counts."""
    if "listen_for" in end:
        return None
    place = f"{end['address']}:{end['port']}"
    expected = "rank 0's rendezvous port can be reached"
    outcome = str((result or {}).get("outcome", ""))
    error = str((result or {}).get("error", ""))
    if outcome in ("accepted", "established"):
        text = f"{place}: {'a rank runs over it' if outcome == 'established' else 'connected'}"
        return Check("FABRIC.MASTER_PORT", host, PASS, text, expected)
    if outcome == "refused":
        listened = bool((head or {}).get("listened"))
        who = (
            "though rank 0 listened there"
            if listened
            else f"and rank 0 could not listen ({(head or {}).get('error') or 'unknown'})"
        )
        remedy = (
            "A firewall on rank 0 rejects it (nft list ruleset; ufw status), or Ansible's forks are fewer than the ranks."
            if listened
            else f"Look at rank 0: ss -ltnp 'sport = :{end['port']}'."
        )
        return judged("FABRIC.MASTER_PORT", host, False, f"{place}: refused, {who}", expected, remedy)
    text = {"silent": "no answer", "failed": error or "failed"}.get(outcome, "not measured")
    remedy = f"A firewall drops it: look at {place} on rank 0 (nft list ruleset; ufw status) and at the route from {host}."
    return judged("FABRIC.MASTER_PORT", host, False, f"{place}: {text}", expected, remedy)


def gate_checks(host: str, reach: Facts, facts: Facts, head: Facts | None) -> list[Check]:
    """The live part of gate A. `reach`: {probes, master} of this host; `head`: what readiness_info found on rank 0."""
    made = peer_checks(host, reach.get("probes") or [], facts.get("probes"))
    made += exchange.checks(host, reach.get("probes") or [], facts.get("exchange"))
    if reach.get("master"):
        check = master_check(host, reach["master"], facts.get("master_port"), (head or {}).get("master_port"))
        made += [check] if check else []
    return made


def plans(specs: Mapping[str, Facts], fabrics: Mapping[str, Facts]) -> dict[str, dict[str, Any]]:
    """Host → what to try from there: {probes, master}. One rank tries nothing."""
    if len(specs) < 2:
        return {host: {"probes": [], "master": {}} for host in specs}
    pings = plan({host: dict(fabrics.get(host) or {}) for host in specs})
    masters = master_plan(specs, fabrics)
    return {host: {"probes": pings[host], "master": masters.get(host, {})} for host in specs}
