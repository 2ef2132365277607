# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What systemctl prints."""

from __future__ import annotations


def parse_show(text: str) -> dict[str, str]:
    """`systemctl show` prints KEY=VALUE lines."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}
