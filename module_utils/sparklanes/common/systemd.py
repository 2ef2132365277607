# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What systemctl prints."""

from __future__ import annotations


def parse_show(text: str) -> dict[str, str]:
    """`systemctl show UNIT` prints KEY=VALUE lines."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def parse_shows(text: str) -> dict[str, dict[str, str]]:
    """`systemctl show UNIT… --property=Id,…`: id → its lines. Each unit is a block, with an empty line between two."""
    blocks = [parse_show(block) for block in text.split("\n\n")]
    return {block["Id"]: block for block in blocks if block.get("Id")}
