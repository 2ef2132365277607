#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where a Spark has its models: at the lane's path, or in a Hub cache that somebody has filled."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hub_cache_info
short_description: Where a Spark has its models, at the lane's path or in a Hub cache that somebody has filled
description:
  - Says where the Hub's client of whoever runs it keeps its cache (C(HF_HUB_CACHE), C(HF_HOME), C(~/.cache/huggingface/hub)), links resolved.
  - With O(models), says of each which folder is used. What lies at its path wins; else a snapshot of its very commit that is whole, on a disk of
    this Spark that is there after a boot, is used where it lies, and the one that staging has read before any other.
  - Reads names, sizes and lists, no weights, and asks no network. Links are followed as C(WEIGHTS.LINK) allows them.
options:
  models:
    description: The models as their lane has them, see C(model_stage).
    type: list
    elements: dict
    default: []
  folders:
    description: Caches that a person has named. They are looked at first, whoever can write to them.
    type: list
    elements: path
    default: []
  login:
    description: >-
      What the module said when the user who logs in ran it. That cache comes next, that of whoever runs the module last; nobody but root and
      that user may be able to write to them.
    type: dict
    suboptions:
      folders:
        description: As returned.
        type: list
        elements: path
        default: []
      uid:
        description: As returned.
        type: int
        required: true
  host:
    description: This Spark's name in the lines for people.
    type: str
  staged_dir:
    description: Where manifests and markers lie.
    type: path
    default: /var/lib/sparklanes/staged
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: The caches of whoever logs in here
  hub_cache_info:
  become: false
  register: login

- name: Which folder is used
  hub_cache_info:
    login: {folders: "{{ login.folders }}", uid: "{{ login.uid }}"}
    models:
      - {name: model, path: /var/lib/sparklanes/models/tiny, repo: sparklanes/tiny, revision: 0123456789012345678901234567890123456789}
  become: true
"""

RETURN = r"""
folders:
  description: The cache of whoever runs the module, where there is one.
  type: list
  elements: str
  returned: always
uid:
  description: Who runs the module.
  type: int
  returned: always
places:
  description: >-
    Of each model C(name), C(repo), C(revision), its lane's path as C(instead_of), the C(path) that is used, whether it is C(cached), and C(said),
    lines for people about that and about caches that are not used.
  type: list
  elements: dict
  returned: always
"""

import os
import platform
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.weights.hub_cache import folders
from ansible.module_utils.sparklanes.weights.model import Model, StagingError
from ansible.module_utils.sparklanes.weights.place import Cache, place


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "list", "elements": "path", "default": []},
            "login": {
                "type": "dict",
                "options": {
                    "folders": {"type": "list", "elements": "path", "default": []},
                    "uid": {"type": "int", "required": True},
                },
            },
            "host": {"type": "str"},
            "staged_dir": {"type": "path", "default": "/var/lib/sparklanes/staged"},
        },
        supports_check_mode=True,
    )
    host = module.params["host"] or platform.node()
    mine = folders(os.environ, str(Path.home()))
    login = module.params["login"] or {"folders": [], "uid": os.geteuid()}
    caches = [
        *(Cache(path) for path in module.params["folders"]),
        *(Cache(path, login["uid"]) for path in login["folders"]),
        *(Cache(path, os.geteuid()) for path in mine),
    ]
    try:
        models = [Model.from_dict(model) for model in module.params["models"]]
        found = [place(model, caches, Path(module.params["staged_dir"])).to_dict(host) for model in models]
    except StagingError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, actions=[], folders=mine, uid=os.geteuid(), places=found)


if __name__ == "__main__":
    main()
