# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The first inventory of a fleet, as text, from a few addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.suggest import did_you_mean

RESERVED = ("all", "ungrouped", "sparks", "control", "localhost")

VAULT_EXAMPLE = """\
---
# Names of this site's secrets. A value written here would lie in plain text: write it in the editor of
#   ansible-vault create inventory/fleet/group_vars/all/vault.yml
# Then give Ansible the password: --ask-vault-pass, or ANSIBLE_VAULT_PASSWORD_FILE.
#
# The key that clients of the API must send below /v1. It is no door: docs/threat-model.md.
# engine_api_key: "change-me"
#
# A token for gated models of the Hub; public models need none.
# hub_token: "hf_change_me"
"""


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    addresses: Sequence[str]
    user: str = ""
    become: bool = False
    lane: str = ""
    controller_is: str = ""
    name: str = ""
    known_lanes: Mapping[str, int | None] = field(default_factory=dict)  # lane → the Sparks it needs, where that is known
    taken: Mapping[str, str] = field(default_factory=dict)  # address → the file that already has it

    @property
    def hosts(self) -> dict[str, str]:
        """Names that no other deployment of the fleet has."""
        stem = self.name.replace("_", "-").strip("-") or "spark"
        return {f"{stem}-{number}": address for number, address in enumerate(self.addresses, 1)}


def faults(request: Request) -> list[str]:
    """What is wrong with a request, each in one sentence."""
    found = [fault for address in request.addresses if (fault := address_fault(address))]
    if not request.addresses:
        found.append("No address was given. Give those of your Sparks, the head first: script/init 192.168.1.11 192.168.1.12")
    for address in dict.fromkeys(request.addresses):
        if list(request.addresses).count(address) > 1:
            found.append(f"{address} is given {list(request.addresses).count(address)} times: each Spark is one rank.")
    found += [
        f"{address} already stands in {request.taken[address]}."
        for address in dict.fromkeys(request.addresses)
        if address in request.taken
    ]
    if request.controller_is and request.controller_is not in request.addresses:
        hint = did_you_mean(request.controller_is, request.addresses)
        found.append(f"--controller-is {request.controller_is} is none of the given addresses. {hint}".rstrip())
    if request.user and not re.fullmatch(r"[a-z_][a-z0-9_.-]*", request.user):
        found.append(f"--user {request.user!r} is no name of a Linux user.")
    if request.name and not re.fullmatch(r"[a-z_][a-z0-9_]*", request.name):
        found.append(f"--name {request.name} can't be an inventory group: use a-z, 0-9 and _, as in pair_a.")
    elif request.name in RESERVED or request.name.startswith(("lane_", "family_")):
        found.append(f"--name {request.name} has a meaning of its own: choose another, as in pair_a.")
    if request.lane and request.lane not in request.known_lanes:
        known = ", ".join(request.known_lanes)
        found.append(
            f"There is no lane {request.lane}. {did_you_mean(request.lane, request.known_lanes)} Known: {known}.".replace(
                "  ", " "
            )
        )
    needed = request.known_lanes.get(request.lane)
    if needed is not None and request.addresses and needed != len(request.addresses):
        found.append(f"Lane {request.lane} needs {needed} Sparks, and {len(request.addresses)} addresses were given.")
    return found


def address_fault(address: str) -> str:
    """What is wrong with an address, empty when nothing is. Names are fine too, as long as they could be ones."""
    if "@" in address:
        return f"{address} holds a user: give it once, by --user."
    if "/" in address:
        return f"{address} is a network, not an address: leave out /{address.partition('/')[2]}."
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        if re.fullmatch(r"[\d.]+|.*:.*", address):
            return f"{address} is no IP address."
        label = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        return "" if re.fullmatch(rf"{label}(?:\.{label})*", address) else f"{address} is neither an address nor a host name."
    if parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast:
        return f"{address} is no address under which other Sparks reach this one."
    if parsed.is_link_local:
        return f"{address} is link-local and changes by itself: give the address of the management network."
    return ""


def groups_and_addresses(tree: Any) -> tuple[set[str], set[str]]:
    """The groups and the host addresses in the content of an inventory file."""
    groups: set[str] = set()
    addresses: set[str] = set()
    if isinstance(tree, Mapping):
        for name, group in tree.items():
            groups.add(str(name))
            if isinstance(group, Mapping):
                below, more = groups_and_addresses(group.get("children"))
                groups |= below
                addresses |= more
                for host, variables in (group.get("hosts") or {}).items():
                    addresses.add(str((variables or {}).get("ansible_host") or host))
    return groups, addresses


def fleet_file(request: Request) -> str:
    """The content of an inventory file: 10-fleet.yml, or that of a further deployment."""
    group = request.name or "sparks"
    lines = [
        "---",
        "# Your Sparks, in rank order: the first is the head and serves the API. Yours to edit (README.md in this folder).",
        "all:",
        "  children:",
        "    sparks:",
    ]
    pad = "      "
    if request.name:
        lines += ["      children:", f"        {group}:"]
        pad = "          "
    variables = []
    if request.name:
        # Its own group_vars file beats those of lanes, whatever its name sorts like.
        variables += [f"deployment: {group}", "ansible_group_priority: 10"]
    if request.user:
        variables.append(f"ansible_user: {request.user}")
    if request.become:
        variables.append("ansible_become: true")
    variables.append(
        f"lane: {request.lane}" if request.lane else "# lane: NAME  # which model; without one, site.yml prepares the hosts only"
    )
    if any(not line.startswith("#") for line in variables):
        lines += [f"{pad}vars:", *(f"{pad}  {line}" for line in variables)]
    else:
        lines += [f"{pad}# vars: {{lane: NAME}}  # which model; without one, site.yml prepares the hosts only"]
    lines.append(f"{pad}hosts:")
    for host, address in request.hosts.items():
        lines += [f"{pad}  {host}:", f'{pad}    ansible_host: "{address}"']
        if address == request.controller_is:
            lines.append(f"{pad}    ansible_connection: local")
    return "\n".join(lines) + "\n"
