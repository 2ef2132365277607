"""Ansible's hostvars, as rules of several hosts read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def registered(hosts: Iterable[str], **names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Variables of each host, from name → host → value. A host that a name leaves out has no such variable."""
    return {host: {name: values[host] for name, values in names.items() if host in values} for host in hosts}
