# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A network file on trial: netplan reads it from /run, where it hides the one of its name in /etc, until it is proven.

A timer on the Spark takes it away again by itself, and a reboot does too, so what stands in /etc is always something that
worked. Proven, it is moved to /etc.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.fabric.netplan import NOTHING

TIMER = "sparklanes-fabric-revert"
APPLY = "sparklanes-fabric-apply"
SCRIPT = "run/sparklanes/fabric-revert.sh"
KEPT = "var/lib/sparklanes/fabric_network"  # what a file of another author said before ours


def revert_script(trial: str, mtus: Mapping[str, int]) -> str:
    """Without the trial netplan goes back to what /etc says; where that says nothing of an MTU, the old one is set again."""
    lines = [
        "#!/bin/sh",
        "# Takes the fabric's network on trial back. Written by sparklanes; ends with the reboot that would do the same.",
        f"rm -f {shlex.quote(trial)}",
        "netplan apply",
        "applied=$?",
    ]
    lines += [f"ip link set dev {shlex.quote(device)} mtu {int(mtu)}" for device, mtu in mtus.items()]
    said = f'logger -t {TIMER} "The network on trial was taken back (netplan apply: exit $applied)"'
    return "\n".join([*lines, said, 'rm -f "$0"', "exit $applied", ""])


def parse_ip(text: str) -> dict[str, dict[str, Any]]:
    """`ip -j addr` → name → {mac, mtu, up, addresses} (no link-local IPv6, which every device has)."""
    try:
        items = json.loads(text or "[]")
    except ValueError:
        items = []
    found: dict[str, dict[str, Any]] = {}
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("ifname"), str):
            continue
        addresses = []
        for entry in item.get("addr_info") or []:
            try:
                address = ipaddress.ip_interface(f"{entry.get('local')}/{entry.get('prefixlen')}")
            except (ValueError, AttributeError):
                continue
            if not (address.version == 6 and address.ip.is_link_local):
                addresses.append(str(address))
        found[item["ifname"]] = {
            "mac": str(item.get("address") or ""),
            "mtu": item.get("mtu"),
            "up": "UP" in (item.get("flags") or []),
            "addresses": addresses,
        }
    return found


def management(interfaces: Mapping[str, Mapping[str, Any]], ssh_address: str, routes: str) -> dict[str, str]:
    """Interface → why it must not be touched: the ssh connection that we came by, and the default route."""
    found: dict[str, str] = {}
    try:
        items = json.loads(routes or "[]")
    except ValueError:
        items = []
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and item.get("dst") == "default" and item.get("dev"):
            found[str(item["dev"])] = "has the default route"
    for name, one in interfaces.items():
        if ssh_address and any(text.partition("/")[0] == ssh_address for text in one.get("addresses") or []):
            found[name] = f"carries this ssh connection ({ssh_address})"
    return found


def ssh_address(proc: Path, pid: int) -> str:
    """The address on this side of the ssh connection, from the environment of an ancestor: sudo takes it out of our own."""
    for _ in range(64):
        try:
            environ = (proc / str(pid) / "environ").read_bytes().split(b"\0")
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        for entry in environ:
            if entry.startswith(b"SSH_CONNECTION="):
                words = entry.partition(b"=")[2].decode("ascii", "replace").split()
                if len(words) == 4:
                    return words[2].removeprefix("::ffff:")
        parent = stat.rpartition(")")[2].split()[1:2]
        if not parent or not parent[0].isdigit() or int(parent[0]) < 1:
            return ""
        pid = int(parent[0])
    return ""


def live(interfaces: Mapping[str, Mapping[str, Any]], wanted: Sequence[Mapping[str, str]], mtu: int) -> bool:
    """Whether the interfaces are now as they should be: the address, no other IPv4 one, and the MTU.

    (A router may add IPv6 addresses of its own.)
    """
    for one in wanted:
        there = interfaces.get(one["name"])
        if there is None or there.get("mtu") != mtu:
            return False
        address = ipaddress.ip_interface(one["address"])
        same = [text for text in there["addresses"] if ipaddress.ip_interface(text).version == address.version]
        if str(address) not in same or (address.version == 4 and len(same) > 1):
            return False
    return True


def is_nothing(text: str | None) -> bool:
    """A trial of absence."""
    return text == NOTHING
