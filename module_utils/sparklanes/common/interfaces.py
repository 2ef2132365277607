# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who reaches what listens at an address: this machine alone, or others too."""

from __future__ import annotations

import ipaddress

EVERY = "every interface"


def interfaces(host: str) -> str:
    """Where a service is reached that binds this address or name: empty where only its own machine does, EVERY, or the address itself."""
    name = host.strip().strip("[]")
    if name == "localhost":
        return ""
    try:
        address = ipaddress.ip_address(name or "0.0.0.0")
    except ValueError:
        return name
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return ""
    return EVERY if address.is_unspecified else name
