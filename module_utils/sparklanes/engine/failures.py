# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The failures of engines that are known by a line of their log. A line is given to the first that matches."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine.failures_engine import ENGINE
from ansible.module_utils.sparklanes.engine.failures_fabric import FABRIC
from ansible.module_utils.sparklanes.engine.failures_hardware import HARDWARE
from ansible.module_utils.sparklanes.engine.failures_while_serving import WHILE_SERVING
from ansible.module_utils.sparklanes.engine.known import Known

KNOWN: tuple[Known, ...] = (*HARDWARE, *FABRIC, *ENGINE, *WHILE_SERVING)
# Wrong from the boot on, however well the engine answers.
ENDS_THOUGH_HEALTHY = frozenset({"socket_fallback"})
HARDWARE_OR_MEMORY = frozenset(known.code for known in KNOWN if known.hardware_or_memory)
