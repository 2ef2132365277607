# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the decode check is told of a lane."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Words by which publishers and engines name weights of eight bits or less. The engine says of its cache itself, of its weights it does not.
NARROW = re.compile(
    r"fp8|fp4|mxfp|int8|int4|w8a|w4a|awq|gptq|modelopt|compressed-tensors|bitsandbytes|gguf|[48]bit", re.IGNORECASE
)


def narrow(lane: Mapping[str, Any]) -> bool:
    """Whether the lane's weights have eight bits or less: its --quantization, else the name of its model."""
    flags, model = lane.get("lane_engine_args") or {}, lane.get("lane_model") or {}
    said = str(flags.get("--quantization") or model.get("repo") or model.get("path") or "")
    return bool(NARROW.search(said))
