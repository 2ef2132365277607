# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How often an engine booted on this Spark since the Spark did.

Each boot of an engine, a failed one above all, leaves memory mapped that only a reboot gives back. A pair whose
container restarted about 35 times could not be entered over ssh any more (spark-vllm-docker issue 257).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import STATE_ROOT, read_json, write_json

FILE = "engine-boots.json"
# Well below those 35; no source says where it begins.
WARN_FROM = 20


def counted(data: Mapping[str, Any] | None, boot: str) -> int:
    """Boots of an engine in the boot `boot` of the Spark; those before it don't count."""
    if not data or data.get("boot_id") != boot:
        return 0
    count = data.get("boots")
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0


def read(state_root: str = STATE_ROOT, root: Path = Path("/")) -> dict[str, Any]:
    boot = boot_id(root)
    return {"boots": counted(read_json(root / str(Path(state_root, FILE)).lstrip("/")), boot), "boot_id": boot}


def add(state_root: str = STATE_ROOT) -> int:
    """Count one more; the new number."""
    boot, path = boot_id(), Path(state_root, FILE)
    number = counted(read_json(path), boot) + 1
    write_json(path, {"boots": number, "boot_id": boot}, 0o644)
    return number
