# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""An nccl.conf inside the engine's image: NCCL adds what it says to all that the rank's environment leaves open.

The detection of a Spark proves its choice with the environment that the rank gets. A variable that only the image sets (a GID
index from another fleet, say) was not part of that proof, so it is refused before anything is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.fabric.names import FABRIC_ONLY, FABRIC_WINS
from ansible.module_utils.sparklanes.fabric.sysfs import parse_conf

# What decides devices, GIDs and sockets. Others (NCCL_DEBUG, say) are told, and in nobody's way.
DECIDES = ("NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_", "NCCL_CROSS_NIC", "NCCL_COMM_ID", "NCCL_P2P_", "NCCL_SHM_", "NCCL_OOB_")


def settings(texts: Mapping[str, str]) -> dict[str, str]:
    """What the files say together: as NCCL reads them, the first word on a name wins."""
    found: dict[str, str] = {}
    for text in texts.values():
        found = {**parse_conf(text), **found}
    return found


def image_conf_check(host: str, texts: Mapping[str, str] | None, spec: Mapping[str, Any]) -> Check:
    """FABRIC.IMAGE_CONF. `texts`: path → text, None where the image could not be looked into."""
    expected = "nothing that the rank's environment leaves open"
    remedy = "Build the image without these lines, or give the variables in lane_engine_env."
    if texts is None:
        again = f"Look at {host}: docker create and docker cp of the image must work."
        return judged("FABRIC.IMAGE_CONF", host, None, "not measured", expected, again)
    env = spec.get("env") or {}
    added = {name: value for name, value in settings(texts).items() if name not in env}
    if not added:
        return Check("FABRIC.IMAGE_CONF", host, PASS, "no nccl.conf in the image has a say", expected)
    text = f"{', '.join(texts)} in the image: {', '.join(f'{name}={value}' for name, value in added.items())}"
    decisive = [name for name in added if name in (*FABRIC_ONLY, *FABRIC_WINS) or name.startswith(DECIDES)]
    status = FAIL if decisive and int(spec.get("world_size") or 1) > 1 else WARN
    return Check("FABRIC.IMAGE_CONF", host, status, text, expected, remedy)
