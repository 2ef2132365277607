# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The fabric of one node: what was chosen, the environment that says so to NCCL, and the proof that it does.

Rules in the order they apply: fabric_ports (what a port could be), fabric_choice (which it is), fabric_env
(how NCCL is told), here (simulation, warnings, the plain-socket transport). Across nodes: fabric_cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.fabric.choice import Choice, choose, remedy_for
from ansible.module_utils.sparklanes.fabric.devices import Interface, Netdev, Node
from ansible.module_utils.sparklanes.fabric.environment import (
    check_names,
    control_place,
    pinned_index,
    roce_env,
    socket_env,
    unsafe,
)
from ansible.module_utils.sparklanes.fabric.nccl import simulate
from ansible.module_utils.sparklanes.fabric.options import Options
from ansible.module_utils.sparklanes.fabric.ports import (
    QUIET,
    Candidate,
    Problem,
    Rail,
    judge_ports,
    to_candidate,
)
from ansible.module_utils.sparklanes.fabric.remarks import hardware_warnings


def _prove(choice: Choice, node: Node, env: Mapping[str, str], options: Options) -> dict[str, Any]:
    """Let the simulated NCCL read the environment: every device and every GID must come out as chosen."""
    outcome: dict[str, Any] = simulate(node, env, options.nccl_version)
    rows = outcome["devices"]
    got = [(row["hca"], row["port"]) for row in rows]
    want = [(rail.device.name, rail.port.number) for rail in choice.rails]
    if got != want:
        used = ", ".join(f"{name}:{port}" for name, port in got) or "no device"
        choice.fail(
            "NCCL_CHOICE",
            f"with {env['NCCL_IB_HCA']} NCCL would use {used} ({outcome['error'] or outcome['net']})",
            "This is a case that the rules don't know: please report it with the module's result",
        )
        return outcome
    for rail, row in zip(choice.rails, rows, strict=True):
        gid = rail.port.gids.get(row["gid_index"])
        if gid is None or (gid.address, gid.version, gid.netdev) != (rail.gid.address, 2, rail.gid.netdev):
            what = f"GID {row['gid_index']} ({row['ipv4'] or row['gid'] or 'empty'}, {row['netdev'] or 'no device'})"
            choice.fail(
                "NCCL_CHOICE",
                f"on {rail.name} NCCL would use {what} instead of GID {rail.gid.index} ({rail.ip}, {rail.netdev.name}), "
                f"and no NCCL_IB_ADDR_RANGE fits all chosen devices",
                "Remove the other address from that device or move it, or set gid_policy: pin_per_node",
            )
    return outcome


def _described(rail: Rail) -> dict[str, Any]:
    row: dict[str, Any] = {
        "hca": rail.device.name,
        "port": rail.port.number,
        "netdev": rail.netdev.name,
        "ipv4": str(rail.ip) if rail.ip.version == 4 else None,
        "network": str(rail.network),
        "mtu": rail.netdev.mtu,
        "gid_index": rail.gid.index,
        "link_gbps": (rail.netdev.speed or 0) / 1000 or rail.port.rate_gbps,
    }
    return row if rail.ip.version == 4 else {**row, "ipv6": str(rail.ip)}


def _left_over(candidates: Sequence[Candidate], choice: Choice) -> None:
    """Warn of ports that aren't used though they look as if they were meant, and of dead GIDs on those that are."""
    said = " ".join(problem.message for problem in choice.errors + choice.warnings)
    for candidate in candidates:
        if candidate.code and candidate.code not in QUIET and f"{candidate.label}" not in said:
            choice.warnings.append(
                Problem(candidate.code, f"{candidate.label} is not used: {candidate.why}", remedy_for(candidate))
            )
        elif candidate.rails and (dead := [*candidate.stale, *candidate.unreadable]):
            code = "GID_STALE" if candidate.stale else "GID_UNREADABLE"
            indexes = ", ".join(str(gid.index) for gid in dead)
            message = f"{candidate.label} has GIDs that don't match its addresses: {indexes}"
            choice.warnings.append(Problem(code, message, "Set the network device down and up when nothing runs"))


def _bootstrap(choice: Choice, outcome: Mapping[str, Any], ifname: str, address: str) -> None:
    boot = outcome["bootstrap"]
    if boot and (boot["ifname"], boot["address"]) != (ifname, address):
        choice.warnings.append(
            Problem(
                "SOCKET_ADDRESS",
                f"NCCL's bootstrap would use {boot['address']} on {boot['ifname']}, the engine {address} on {ifname}",
                f"Remove the other address from {ifname} if the nodes can't reach it",
            )
        )


def _conf(choice: Choice, node: Node, env: Mapping[str, str], outcome: Mapping[str, Any], options: Options) -> Any:
    """nccl.conf adds what the environment leaves open. A container sees its own, a process on the host this one."""
    added: dict[str, str] = {}
    for _path, settings in node.conf:
        added = {**settings, **added}
    if not added:
        return None
    result = simulate(node, {**added, **env}, options.nccl_version)
    differs = result != outcome
    files = ", ".join(file for file, settings in node.conf if settings)
    listed = ", ".join(f"{key}={value}" for key, value in added.items())
    effect = "and changes what NCCL uses on the host" if differs else "and changes neither device nor GID"
    overridden = ", ".join(key for key in added if key in env and env[key] != added[key])
    contrary = f"; our environment overrides {overridden}" if overridden else ""
    choice.warnings.append(
        Problem(
            "NCCL_CONF",
            f"{files} sets {listed}: it adds to the environment {effect}{contrary}",
            "Remove the file, or make sure that no container mounts it",
        )
    )
    return result


def _roce(node: Node, options: Options) -> dict[str, Any]:
    candidates = judge_ports(node, options)
    choice = choose(candidates, node, options)
    env: dict[str, str] = {}
    control: tuple[str, Interface] | None = None
    outcome = conf = None
    if choice.rails and not choice.errors:
        control = control_place(choice, node, options)
        index = pinned_index(choice, options)
        check_names(choice, control[0] if control else choice.rails[0].netdev.name)
        if control and not choice.errors:
            env = roce_env(choice, control[0], index, options)
            outcome = _prove(choice, node, env, options)
            conf = _conf(choice, node, env, outcome, options)
            _bootstrap(choice, outcome, control[0], str(control[1].ip))
    if choice.rails:
        choice.warnings += hardware_warnings(choice.rails, node.rules)
        _left_over(candidates, choice)
    used = {(rail.device.name, rail.port.number) for rail in choice.rails}
    rails = [_described(rail) for rail in choice.rails]
    judged = [to_candidate(candidate, node, (candidate.device.name, candidate.port.number) in used) for candidate in candidates]
    nccl = {"with_env": outcome, "without_env": simulate(node, {}, options.nccl_version), "with_conf": conf}
    return _result(options, choice, judged, rails, env, control, nccl)


def _result(
    options: Options,
    choice: Choice,
    candidates: list[dict[str, Any]],
    rails: list[dict[str, Any]],
    env: dict[str, str],
    control: tuple[str, Interface] | None,
    nccl: dict[str, Any],
) -> dict[str, Any]:
    errors = [problem.to_dict() for problem in choice.errors]
    warnings = [problem.to_dict() for problem in choice.warnings]
    env = {} if errors else env  # an environment that isn't proven is not handed out
    fabric: dict[str, Any] = {
        "transport": options.transport,
        "host_ip": str(control[1].ip) if control else None,
        "ifname": control[0] if control else None,
        "rails": rails,
        "env": env,
        "warnings": warnings,
        "errors": errors,
    }
    if options.nccl_version:
        fabric["nccl_version"] = ".".join(str(part) for part in options.nccl_version)
    result = {
        "candidates": candidates,
        "chosen": rails,
        "env": env,
        "warnings": warnings,
        "errors": errors,
        "nccl": nccl,
        "fabric": fabric,
    }
    return {**result, "summary": summary(result)}


def _socket(node: Node, options: Options) -> dict[str, Any]:
    """Plain sockets (no RDMA): the device with an address in fabric_cidr, or whose network holds all peers."""
    choice = Choice()
    found = _socket_place(choice, node, options)
    env: dict[str, str] = {}
    outcome = conf = None
    rails: list[dict[str, Any]] = []
    if found:
        netdev, interface = found
        if unsafe(netdev.name):
            choice.fail("NAME_UNSAFE", f"the name {netdev.name!r} can't stand in a variable", "Rename the device")
        env = {**socket_env(netdev.name), "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
        outcome = simulate(node, env, options.nccl_version)
        conf = _conf(choice, node, env, outcome, options)
        _bootstrap(choice, outcome, netdev.name, str(interface.ip))
        rail = {"hca": None, "port": None, "netdev": netdev.name, "ipv4": str(interface.ip)}
        rails = [{**rail, "network": str(interface.network), "mtu": netdev.mtu, "gid_index": None}]
    nccl = {"with_env": outcome, "without_env": simulate(node, {}, options.nccl_version), "with_conf": conf}
    control = (found[0].name, found[1]) if found else None
    return _result(options, choice, [], rails, env, control, nccl)


def _socket_place(choice: Choice, node: Node, options: Options) -> tuple[Netdev, Interface] | None:
    if not node.addresses_known:
        choice.fail("ADDRESS_UNKNOWN", "`ip -d -j addr` gave nothing that can be read", "Install iproute2 on the node")
        return None
    if not (options.fabric_cidr or options.peers or options.control_ifname):
        choice.fail("CIDR_MISSING", "transport is socket and nothing says which network is the fabric", "Set fabric_cidr")
        return None
    found: list[tuple[Netdev, Interface]] = []
    for netdev in node.netdevs.values():
        for interface in netdev.addresses:
            if interface.version == 4 and not interface.ip.is_loopback and _wanted(netdev, interface, options):
                found.append((netdev, interface))
                break
    have = ", ".join(f"{n.name} {a}" for n in node.netdevs.values() for a in n.addresses if a.version == 4)
    wanted = ", ".join(str(item) for item in options.fabric_cidr or options.peers) or f"{options.control_ifname}"
    if len(found) == 1:
        netdev = found[0][0]
        if netdev.running:
            return found[0]
        message = f"{netdev.name} has the fabric's address and is not running ({netdev.operstate})"
        choice.fail("SOCKET_DOWN", message, f"ip link set {netdev.name} up, and check its cable")
    elif found:
        names = ", ".join(f"{netdev.name} {interface}" for netdev, interface in found)
        choice.fail("SOCKET_AMBIGUOUS", f"several network devices are in {wanted}: {names}", "Narrow fabric_cidr")
    else:
        choice.fail("SOCKET_NONE", f"no network device is in {wanted}; this node has {have}", "Correct fabric_cidr")
    return None


def _wanted(netdev: Netdev, interface: Interface, options: Options) -> bool:
    if options.control_ifname and netdev.name != options.control_ifname:
        return False
    if options.fabric_cidr:
        return bool(options.in_cidr(interface.ip))
    peers = [peer for peer in options.peers if peer != interface.ip]
    return all(peer in interface.network for peer in peers) if options.peers else True


def detect(node: Node, options: Options) -> dict[str, Any]:
    """The whole answer for one node, as plain data."""
    return _socket(node, options) if options.transport == "socket" else _roce(node, options)


def summary(result: Mapping[str, Any]) -> list[str]:
    """The answer as lines for a person."""
    fabric, lines = result["fabric"], []
    good = "usable" if not result["errors"] else "NOT usable"
    lines.append(f"fabric over {fabric['transport']}: {good}, {len(fabric['rails'])} rail(s)")
    for number, rail in enumerate(fabric["rails"]):
        hca = f"{rail['hca']}:{rail['port']} GID {rail['gid_index']} on " if rail["hca"] else ""
        address = rail["ipv4"] or rail.get("ipv6")
        lines.append(f"rail {number}: {hca}{rail['netdev']} {address} in {rail['network']}, MTU {rail['mtu']}")
    for item in result["candidates"]:
        if not item["chosen"]:
            why = f"{item['code']}, {item['why']}" if item["code"] else f"possible with {', '.join(item['addresses'])}"
            lines.append(f"not used: {item['dev']}:{item['port']} ({item['netdev'] or 'no network device'}): {why}")
    lines += [f"{name}={value}" for name, value in result["env"].items()]
    plain = result["nccl"]["without_env"]
    devices = ", ".join(f"{row['hca']}:{row['port']} GID {row['gid_index']}" for row in plain["devices"])
    lines.append(f"without this environment NCCL would use {plain['net']}{': ' + devices if devices else ''}")
    for kind in ("error", "warning"):
        lines += [f"{kind} {item['code']}: {item['message']}. {item['remedy']}." for item in result[f"{kind}s"]]
    return lines
