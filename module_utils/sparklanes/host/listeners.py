# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who listens on which TCP port of a Spark, from `ss -Hltnp`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OWNER = re.compile(r'\("(?P<name>(?:[^"\\]|\\.)*)",pid=(?P<pid>\d+)')


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket. `pid` is 0 where ss could not see the owner."""

    address: str
    port: int
    process: str = ""
    pid: int = 0

    def on(self, address: str) -> bool:
        """Whether a bind to `address` would meet this listener (wildcards meet everything)."""
        return "*" in (self.address, address) or self.address == address


def _plain(address: str) -> str:
    bare = address.strip("[]").partition("%")[0].removeprefix("::ffff:")
    return "*" if bare in ("0.0.0.0", "::", "*", "") else bare


def parse_ss(text: str) -> list[Listener]:
    """The listeners in the output of `ss -Hltnp` (iproute2 5 and 6); lines of another shape are passed over."""
    found = []
    for line in text.splitlines():
        words = line.split(None, 5)
        if len(words) < 5 or words[0] != "LISTEN":
            continue
        address, _, port = words[3].rpartition(":")
        if not port.isdigit():
            continue
        owner = _OWNER.search(words[5]) if len(words) > 5 else None
        found.append(Listener(_plain(address), int(port), owner["name"] if owner else "", int(owner["pid"]) if owner else 0))
    return found
