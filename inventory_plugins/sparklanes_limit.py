# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A -l that names nobody ends the run before it begins, in words that help."""

# ruff: noqa: E402 - imports of our package follow the lines that let it be found

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import context
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    # As in filter_plugins/sparklanes.py.
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.screen import nobody

DOCUMENTATION = """
name: sparklanes_limit
short_description: Says which hosts and groups there are where -l names one that there isn't
description:
  - Adds nothing to the inventory. Where its file is of the last source, all hosts are known, and a part of C(-l) that matches none of
    them ends the command.
options:
  plugin:
    description: The name of this plugin.
    required: true
    choices: [sparklanes_limit]
"""

display = Display()


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]  # ansible has no types
    """Looks at what the other files of the inventory have told."""

    NAME = "sparklanes_limit"

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        sources = [str(source) for source in context.CLIARGS.get("inventory") or ()]
        limit = str(context.CLIARGS.get("subset") or "")
        # A later source may have the host that is named. Then Ansible speaks for itself.
        if not sources or Path(path).parent.resolve() != Path(sources[-1]).resolve():
            return
        groups = nobody.groups_of(inventory)
        groups["all"] = list(inventory.hosts)
        if groups["all"] and nobody.unknown(limit, groups):
            display.error(nobody.why(limit, groups, sources), wrap_text=False)
            sys.exit(1)
