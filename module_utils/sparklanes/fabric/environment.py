# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The environment that tells NCCL, Gloo and the engine which fabric was chosen. Never an empty value, no blanks.

A new name belongs into names.py too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from ansible.module_utils.sparklanes.fabric.choice import Choice
from ansible.module_utils.sparklanes.fabric.devices import Interface, Node
from ansible.module_utils.sparklanes.fabric.nccl import DYNAMIC_GID, MAX_DEVICES, MAX_NAME
from ansible.module_utils.sparklanes.fabric.options import Network, Options
from ansible.module_utils.sparklanes.fabric.ports import Problem, Rail

# In NCCL's lists , : ^ = have a meaning and blanks are part of a name; quotes, $ and \ don't survive env files.
_UNSAFE = set(",:^=\"'`$\\#;")


def unsafe(name: str) -> bool:
    printable = all("!" <= char <= "~" for char in name)
    return not name or not printable or len(name) > MAX_NAME or bool(_UNSAFE & set(name))


def smallest_network(addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> Network:
    """The smallest CIDR that holds all addresses."""
    low, high = int(min(addresses, key=int)), int(max(addresses, key=int))
    width = addresses[0].max_prefixlen
    return ipaddress.ip_network((addresses[0], width - (low ^ high).bit_length()), strict=False)


def address_range(rails: Sequence[Rail]) -> Network | None:
    """NCCL_IB_ADDR_RANGE, wanted only where a chosen device has more than one address NCCL could take."""
    networks = {rail.network for rail in rails}
    if all(rail.upper for rail in rails) and len(networks) == 1:
        return networks.pop()  # one VLAN: its network, which doesn't change with the addresses
    family = rails[0].ip.version

    def rivals(rail: Rail) -> int:
        return sum(
            1
            for gid in rail.port.gids.values()
            if gid.version == 2 and (gid.ipv4 is not None) == (family == 4) and not gid.address.is_link_local
        )

    if any(rail.upper or rivals(rail) > 1 for rail in rails):
        network = smallest_network([rail.ip for rail in rails])
        return network if network.prefixlen else None  # /0 holds everything and says nothing
    return None


def pinned_index(choice: Choice, options: Options) -> int | None:
    """The one GID index for all chosen devices, where NCCL is too old to look or a pin is asked for."""
    version = options.nccl_version
    old = version is not None and version[:2] < DYNAMIC_GID
    if not old and options.gid_policy != "pin_per_node":
        return None
    # an address may stand in several v2 slots of a device
    sets = [
        {g.index for g in rail.port.gids.values() if (g.address, g.version, g.netdev) == (rail.gid.address, 2, rail.gid.netdev)}
        for rail in choice.rails
    ]
    listed = ", ".join(f"{rail.name} {min(indexes)}" for rail, indexes in zip(choice.rails, sets, strict=True))
    common = set.intersection(*sets)
    if options.gid_index is not None and options.gid_index not in common:
        choice.fail("GID_INDEX_WRONG", f"gid_index is {options.gid_index}, right are {listed}", "Remove gid_index")
        return None
    if not common:
        reason = f"NCCL {'.'.join(map(str, version or ()))} can't look for GIDs" if old else "gid_policy is pin_per_node"
        choice.fail(
            "NO_COMMON_GID_INDEX",
            f"{reason}, and no single index is right on every device: {listed}",
            "Set the network devices down and up so that their GIDs are made anew, "
            "or use NCCL 2.21 or newer with gid_policy: validated_unset",
        )
        return None
    index: int = options.gid_index if options.gid_index is not None else min(common)
    choice.warnings.append(
        Problem(
            "GID_PINNED",
            f"NCCL_IB_GID_INDEX={index} is pinned; an address that comes or goes moves GIDs and breaks it",
            "Use NCCL 2.21 or newer with gid_policy: validated_unset",
        )
    )
    return index


def control_place(choice: Choice, node: Node, options: Options) -> tuple[str, Interface] | None:
    """The device and address of bootstrap, Gloo and the engine's own connections."""
    first = choice.rails[0]
    if options.control_ifname is None:
        if options.topology == "ring":
            choice.fail(
                "RING_CONTROL",
                "in a ring no fabric address is reachable from every node",
                "Set control_ifname to a network device that all nodes share (the 10GbE one)",
            )
            return None
        return first.netdev.name, first.interface
    name = options.control_ifname
    netdev = node.netdevs.get(name)
    if netdev is None:
        found = "no network device of that name"
    elif not netdev.running:
        found = f"it is not running ({netdev.operstate})"
    else:
        for address in netdev.addresses:
            if address.version == first.ip.version and not (address.version == 6 and address.ip.is_link_local):
                return name, address
        found = f"it has no IPv{first.ip.version} address"
    choice.fail("CONTROL_IFNAME", f"control_ifname {name}: {found}", "Name a running device with an address, or unset it")
    return None


def socket_env(name: str) -> dict[str, str]:
    """Where sockets go. NCCL takes a list (hence `=`), Gloo and TensorPipe take plain names."""
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name}


def roce_env(choice: Choice, ifname: str, index: int | None, options: Options) -> dict[str, str]:
    rails = choice.rails
    family = rails[0].ip.version
    env = {
        "NCCL_IB_HCA": "=" + ",".join(rail.name for rail in rails),
        "NCCL_IB_ADDR_FAMILY": "AF_INET" if family == 4 else "AF_INET6",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        **socket_env(ifname),
        "UCX_NET_DEVICES": ifname,
        "OMPI_MCA_btl_tcp_if_include": ifname,
    }
    if family == 6:
        env["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    if index is not None:
        env["NCCL_IB_GID_INDEX"] = str(index)
    span = address_range(rails) if index is None else None
    if span is not None:
        env["NCCL_IB_ADDR_RANGE"] = str(span)
    if options.strict:
        env["NCCL_NET"] = "IB"  # no device then stops NCCL, instead of sockets without a word
    if options.topology == "ring":
        env |= {"NCCL_IB_MERGE_NICS": "0", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_NET_PLUGIN": "none"}
        lengths = {rail.network.prefixlen for rail in rails}
        if len(lengths) > 1:
            choice.fail(
                "RING_PREFIX",
                f"the ring's networks have different prefix lengths: {', '.join(str(rail.network) for rail in rails)}",
                "Give every link of the ring a network of the same size",
            )
        elif lengths != {24}:
            env["NCCL_IB_SUBNET_PREFIX_LEN"] = str(lengths.pop())
    return env


def check_names(choice: Choice, ifname: str) -> None:
    """Names go into lists whose separators can't be quoted: refuse what NCCL would read differently."""
    for name in dict.fromkeys([*(rail.device.name for rail in choice.rails), ifname]):
        if unsafe(name):
            choice.fail(
                "NAME_UNSAFE",
                f"the name {name!r} holds a character that has a meaning in NCCL's lists or can't stand in a variable",
                "Rename the device with udev (letters, digits, . _ -)",
            )
    if len(choice.rails) > MAX_DEVICES:
        choice.fail(
            "TOO_MANY_HCAS",
            f"{len(choice.rails)} devices were chosen, NCCL knows {MAX_DEVICES}",
            "Narrow fabric_cidr, or list the devices in hcas",
        )
