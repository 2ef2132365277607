# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which of the possible rails the fabric takes. One answer, or an error that names what was in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible.module_utils.sparklanes.fabric.devices import Node
from ansible.module_utils.sparklanes.fabric.nccl import pci_order
from ansible.module_utils.sparklanes.fabric.options import Address, Network, Options
from ansible.module_utils.sparklanes.fabric.ports import QUIET, Candidate, Problem, Rail

CIDR_REMEDY = "Set fabric_cidr to the network(s) of the fabric, for example [192.168.100.0/24, 192.168.101.0/24]"
_REMEDIES = {
    "PORT_DOWN": "Plug the QSFP cable at both ends and set the link up (ip link set DEV up)",
    "IB_MODE": "Set the port to Ethernet (mlxconfig -d PCI set LINK_TYPE_P1=2) and reboot",
    "NO_IPV4": "Give its network device a static IPv4 address in netplan; without one NCCL silently uses fe80",
    "V1_ONLY": "Enable RoCE v2 (cma_roce_mode -d DEV -p 1 -m 2); NCCL would silently use v1",
    "IPV6_ONLY": "Give it an IPv4 address, or set allow_ipv6: true on every node",
    "GID_STALE": "Run again; if it stays, set the network device down and up so that its GIDs are made anew",
    "GID_UNREADABLE": "Run again, and on the host: a container without the device's network namespace can't read it",
    "NETDEV_DOWN": "Set the network device up (ip link set DEV up)",
    "SOFT_DEVICE": "Use the ConnectX-7 ports; allow_soft: true is for tests",
    "VIRTUAL_FUNCTION": "Name it in hcas if it is meant",
    "BOND_SLAVE": "Give the bond RoCE LAG, so that it shows as one device, or dissolve it",
    "NOT_LISTED": "Add it to hcas",
    "LINK_LOCAL_MIXED": "Give it a static address in the fabric's network; 169.254 may change at reboot",
    "NOT_IN_CIDR": "Give it an address in fabric_cidr, or add its network to fabric_cidr",
}
_UNKNOWN = "See why with `cat /sys/class/infiniband/DEV/ports/1/{state,link_layer}`"


def remedy_for(candidate: Candidate) -> str:
    remedy = _REMEDIES.get(candidate.code, _UNKNOWN).replace("/infiniband/DEV", f"/infiniband/{candidate.device.name}")
    if candidate.code in ("PORT_DOWN", "NETDEV_DOWN"):
        return remedy.replace("DEV", candidate.port.netdev or "DEV")
    return remedy.replace("-d DEV", f"-d {candidate.device.name}").replace(
        "-d PCI", f"-d {candidate.device.pci or candidate.device.name}"
    )


SHOWN = 12  # rails in one message; the rest are in `candidates`
Groups = dict[tuple[str, str], list[Candidate]]


@dataclass
class Choice:
    rails: list[Rail] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def fail(self, code: str, message: str, remedy: str) -> Choice:
        self.errors.append(Problem(code, message, remedy))
        return self


def _places(rails: Sequence[Rail]) -> str:
    shown = [f"{rail.name} ({rail.netdev.name}) {rail.interface}" for rail in rails[:SHOWN]]
    return ", ".join(shown) + (f" and {len(rails) - SHOWN} more" if len(rails) > SHOWN else "")


def choose(candidates: Sequence[Candidate], node: Node, options: Options) -> Choice:
    choice = Choice()
    if not node.devices:
        return _no_device(choice, node)
    if not node.addresses_known:
        return choice.fail(
            "ADDRESS_UNKNOWN",
            "`ip -d -j addr` gave nothing that can be read, and without addresses no GID can be checked",
            "Install iproute2 and run `ip -d -j addr` on the node",
        )
    missing = [name for name in options.hcas if name not in {candidate.device.name for candidate in candidates}]
    if missing:
        have = ", ".join(candidate.device.name for candidate in candidates)
        choice.fail("HCA_MISSING", f"hcas names {', '.join(missing)}; this node has {have}", "Correct hcas for this host")
        return choice
    if not any(candidate.rails for candidate in candidates):
        return _no_port(choice, candidates)
    _narrow(choice, candidates, options)
    picked = [] if choice.errors else _pick(choice, candidates, options)
    rails = [rail for candidate in picked if (rail := _one_path(choice, candidate, options))]
    choice.rails = sorted(rails, key=lambda rail: pci_order(rail.device, rail.port))
    if choice.rails and not choice.errors:
        _halves(choice, candidates, options)
    return choice


def _no_device(choice: Choice, node: Node) -> Choice:
    if not node.pci_functions:
        return choice.fail(
            "NO_RDMA_PCI",
            "there is no RDMA device, and no Mellanox function on the PCI bus",
            "Plug a QSFP cable: power saving takes a ConnectX-7 without one off the bus. If it stays away with the "
            "cable, switch the Spark off and its AC power off for 60 s",
        )
    functions = ", ".join(node.pci_functions)
    driver = "mlx5_ib is loaded" if node.ib_driver else "mlx5_ib is not loaded"
    return choice.fail(
        "NO_RDMA_DEVICE",
        f"the PCI bus has {functions}, but /sys/class/infiniband is empty; {driver}",
        "Load the driver (modprobe mlx5_ib; package rdma-core), then look at dmesg for mlx5 errors",
    )


def _no_port(choice: Choice, candidates: Sequence[Candidate]) -> Choice:
    listed = "; ".join(f"{candidate.label}: {candidate.why}" for candidate in candidates) or "the devices have no ports"
    active = [candidate for candidate in candidates if candidate.code not in QUIET or candidate.code == "BOND_SLAVE"]
    first = (active or list(candidates))[:1]
    remedy = remedy_for(first[0]) if first else _UNKNOWN
    choice.fail("NO_USABLE_PORT", f"no RDMA port can carry the fabric: {listed}", remedy)
    for candidate in active:
        choice.fail(candidate.code, f"{candidate.label}: {candidate.why}", remedy_for(candidate))
    return choice


def _narrow(choice: Choice, candidates: Sequence[Candidate], options: Options) -> None:
    """Drop the rails that are out of the question: outside fabric_cidr, another family, 169.254 beside routable."""
    everything = [rail for candidate in candidates for rail in candidate.rails]
    if options.fabric_cidr:
        kept = [rail for rail in everything if options.in_cidr(rail.ip)]
        if not kept:
            wanted = ", ".join(str(network) for network in options.fabric_cidr)
            choice.fail(
                "CIDR_NONE",
                f"no usable address is in fabric_cidr {wanted}; usable are {_places(everything)}",
                "Correct fabric_cidr, or give the fabric's network devices addresses in it",
            )
            return
        _unused(choice, kept, options)
        _keep(candidates, kept, "NOT_IN_CIDR", "none of its addresses is in fabric_cidr")
        everything = kept
    family = 4 if any(rail.ip.version == 4 for rail in everything) else 6
    kept = [rail for rail in everything if rail.ip.version == family]
    _keep(candidates, kept, "NO_IPV4", "IPv6 only, while other ports have IPv4")
    if any(not rail.link_local for rail in kept):
        kept = [rail for rail in kept if not rail.link_local]
        _keep(candidates, kept, "LINK_LOCAL_MIXED", "only a 169.254 address, while others have a routable one")


def _unused(choice: Choice, kept: Sequence[Rail], options: Options) -> None:
    for network in options.fabric_cidr:
        if not any(rail.ip.version == network.version and rail.ip in network for rail in kept):
            choice.warnings.append(
                Problem(
                    "CIDR_UNUSED",
                    f"fabric_cidr has {network}, and no usable RDMA port has an address in it",
                    "If that network belongs to this node, look at its port below; if not, set fabric_cidr per host",
                )
            )


def _keep(candidates: Sequence[Candidate], kept: Sequence[Rail], code: str, why: str) -> None:
    left = set(kept)
    for candidate in candidates:
        if candidate.rails:
            candidate.rails = [rail for rail in candidate.rails if rail in left]
            if not candidate.rails:
                candidate.refuse(code, why)


def _pick(choice: Choice, candidates: Sequence[Candidate], options: Options) -> list[Candidate]:
    """The candidates of the QSFP port(s) that are the fabric."""
    picked: list[Candidate] = []
    groups: Groups = {}
    for candidate in candidates:
        if candidate.rails:
            groups.setdefault(candidate.qsfp, []).append(candidate)
    everything = [candidate for members in groups.values() for candidate in members]
    if options.topology == "ring":
        picked = everything
        if len(groups) < 2:
            only = _places([rail for candidate in everything for rail in candidate.rails])
            choice.fail("RING_PORTS", f"a ring needs two QSFP ports with addresses, here is {only}", "Cable both ports")
    elif options.fabric_cidr or len(groups) == options.ports_wanted:
        picked = everything
    elif peers := _others(groups, options):
        picked = _by_peers(choice, groups, peers)
    elif len(groups) == 1:
        picked = everything
    else:
        choice.fail(
            "AMBIGUOUS_PORTS",
            f"{len(groups)} QSFP ports could be the fabric: {_ports(groups)}",
            f"{CIDR_REMEDY}; topology: ring if every port is meant",
        )
    ports = {candidate.qsfp for candidate in picked}
    if not picked or choice.errors:
        return []
    if options.ports_wanted is not None and len(ports) != options.ports_wanted:
        found = _places([rail for candidate in picked for rail in candidate.rails])
        choice.fail(
            "PORTS_WANTED",
            f"ports_wanted is {options.ports_wanted}, the fabric has {len(ports)} QSFP port(s) here: {found}",
            "Cable and address the missing port, narrow fabric_cidr, or correct ports_wanted",
        )
    elif len(ports) > 1 and options.topology != "ring" and options.ports_wanted is None:
        hardware = [candidate for candidate in picked if candidate.device.kind != "soft"]
        if len({candidate.qsfp for candidate in hardware}) > 1:
            choice.warnings.append(
                Problem(
                    "SECOND_CABLE",
                    f"the fabric spans {len(ports)} QSFP ports; between two nodes a second cable adds nothing",
                    "If it is meant, say so with ports_wanted; if not, narrow fabric_cidr",
                )
            )
    return picked


def _ports(groups: Groups) -> str:
    return "; ".join(_places([rail for candidate in members for rail in candidate.rails]) for members in groups.values())


def _others(groups: Groups, options: Options) -> list[Address]:
    """The peers without this node: the list may be that of the whole fleet."""
    own = {rail.ip for members in groups.values() for candidate in members for rail in candidate.rails}
    return [peer for peer in options.peers if peer not in own]


def _by_peers(choice: Choice, groups: Groups, peers: Sequence[Address]) -> list[Candidate]:
    """The QSFP port whose networks hold all peers."""
    holding = [
        members
        for members in groups.values()
        if all(any(peer in rail.network for candidate in members for rail in candidate.rails) for peer in peers)
    ]
    wanted = ", ".join(str(peer) for peer in peers)
    if not holding:
        choice.fail(
            "PEERS_UNREACHED",
            f"no QSFP port's networks hold all peers ({wanted}): {_ports(groups)}",
            "Check cables and addresses of this node and of the peers, or use topology: ring",
        )
    elif len(holding) > 1:
        choice.fail(
            "AMBIGUOUS_PORTS",
            f"{len(holding)} QSFP ports have networks that hold all peers ({wanted}): {_ports(groups)}",
            "Give each QSFP port its own subnet, or set ports_wanted if all are meant",
        )
    else:
        return holding[0]
    return []


def _one_path(choice: Choice, candidate: Candidate, options: Options) -> Rail | None:
    """The one rail of a port: by fabric_cidr (already narrowed), by the peers, else they must be in one network."""
    rails = candidate.rails
    if len({rail.network for rail in rails}) > 1 and options.peers:
        near = [rail for rail in rails if any(peer in rail.network for peer in options.peers)]
        rails = near or rails
    networks: list[Network] = list(dict.fromkeys(rail.network for rail in rails))
    if len(networks) > 1:
        choice.fail(
            "SEVERAL_NETWORKS",
            f"{candidate.label} has addresses in several networks: {_places(rails)}",
            CIDR_REMEDY,
        )
        return None
    # several in one network: the untagged one, then the one NCCL meets first
    return min(rails, key=lambda rail: (rail.upper, rail.gid.index))


def _halves(choice: Choice, candidates: Sequence[Candidate], options: Options) -> None:
    """Each chosen QSFP port must bring all its PCI halves: one alone gives half the bandwidth, silently."""
    used = {(rail.device.name, rail.port.number) for rail in choice.rails}
    for qsfp in dict.fromkeys(
        candidate.qsfp for candidate in candidates if (candidate.device.name, candidate.port.number) in used
    ):
        members = [candidate for candidate in candidates if candidate.qsfp == qsfp and candidate.device.kind == "pf"]
        mine = [candidate for candidate in members if (candidate.device.name, candidate.port.number) in used]
        if not mine:
            continue  # a virtual function that hcas names: its port's halves are not what was asked for
        if any(rail.netdev.kind == "bond" for rail in choice.rails if rail.device.name in {s.device.name for s in mine}):
            continue  # a bond's slaves are not halves of their own
        lost = [candidate for candidate in members if candidate not in mine]
        here = ", ".join(candidate.label for candidate in mine)
        for candidate in lost:
            problem = Problem(
                "HALF_MISSING",
                f"{candidate.label} is the other PCI half of the QSFP port of {here} and can't be used: {candidate.why}. "
                "One half alone has half the bandwidth",
                f"{remedy_for(candidate)}; or accept it with want_both_halves: false",
            )
            (choice.errors if options.want_both_halves else choice.warnings).append(problem)
        if not lost and len({(candidate.device.pci or "").rpartition(".")[0] for candidate in mine}) == 1:
            problem = Problem(
                "HALF_ABSENT",
                f"the QSFP port of {here} has one PCI half only; a Spark has two, each with half the bandwidth",
                "Look for the missing function in lspci and dmesg, then reboot, then take AC power off for 60 s; "
                "or accept it with want_both_halves: false",
            )
            (choice.errors if options.want_both_halves else choice.warnings).append(problem)
