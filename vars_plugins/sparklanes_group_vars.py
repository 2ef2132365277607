# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""group_vars and host_vars beside the inventory, and then those of a site: of `site/` in a folder that stands for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.vars.host_group_vars import VarsModule as HostGroupVars
from ansible.utils.vars import combine_vars

DOCUMENTATION = """
name: sparklanes_group_vars
short_description: Variables beside the inventory, and those of a site
description:
  - Reads what V(host_group_vars) reads, and stands in its place, as nothing says in which order two such plugins are asked. After that it
    reads C(site/group_vars) and C(site/host_vars) of a source that is a folder. In C(inventory/sandbox) they are what
    C(inventory/fleet) is beside C(inventory/shipped).
options:
  stage:
    ini: [{key: stage, section: vars_sparklanes_group_vars}]
    env: [{name: ANSIBLE_VARS_PLUGIN_STAGE}]
  _valid_extensions:
    description: As of V(host_group_vars).
    default: [".yml", ".yaml", ".json"]
    env: [{name: ANSIBLE_YAML_FILENAME_EXT}]
    ini: [{section: defaults, key: yaml_valid_extensions}]
    type: list
    elements: string
extends_documentation_fragment:
  - vars_plugin_staging
"""


class VarsModule(HostGroupVars):  # type: ignore[misc]  # ansible has no types
    """Ansible's own reader, one folder further."""

    REQUIRES_ENABLED = True

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        found = dict(super().get_vars(loader, path, entities, cache))
        site = Path(path, "site")
        return dict(combine_vars(found, super().get_vars(loader, str(site), entities, cache))) if site.is_dir() else found
