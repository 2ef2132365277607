# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a verb of sparklanes shows while it runs."""

# ruff: noqa: E402 - imports of our package follow the lines that let it be found

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils
from ansible import context
from ansible.plugins.callback.default import CallbackModule as Default

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    # As in filter_plugins/sparklanes.py.
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.screen import nobody

DOCUMENTATION = """
name: sparklanes
type: stdout
short_description: What a verb of sparklanes shows while it runs
description:
  - As the callback V(default) of Ansible, and a play for Sparks that finds none ends the run as failed, with the hosts and groups that there are.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""


class CallbackModule(Default):  # type: ignore[misc]  # ansible has no types
    """Ansible's own output; runs without a Spark fail."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "sparklanes"

    def v2_playbook_on_no_hosts_matched(self) -> None:
        # Plays for the controller alone are left out under -l, which is as it should be.
        if nobody.FLEET not in str(self._play.hosts):
            return
        inventory = self._play.get_variable_manager()._inventory
        groups = {name: [host.name for host in group.get_hosts()] for name, group in inventory.groups.items()}
        sources = [str(source) for source in context.CLIARGS.get("inventory") or ()]
        self._display.error(nobody.why(str(context.CLIARGS.get("subset") or ""), groups, sources), wrap_text=False)
        # Ansible would end well: nothing failed, for nothing ran. An exception of a callback is only warned of.
        sys.exit(1)
