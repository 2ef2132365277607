#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Ask the Hub, or a mirror, which commit of a repository there is."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hub_info
short_description: Ask the Hub, or a mirror, which commit of a repository there is
description:
  - Says of each repository which commit a branch, a tag or a commit means now, when it was made, and which files it holds, and of a commit that is
    pinned whether the Hub still knows it and how many are newer. No file of a model is downloaded; a small one is read where its hash is wanted.
  - What one repository could not be asked does not keep the others. C(error) of RV(repositories) says why, in words for a person.
  - It asks in plain requests, from where it runs; nothing has to be installed there. A Hub that is short of something is asked again, as it says.
  - The token goes to the Hub alone, never along a redirect to another server, and not without TLS unless that is allowed.
options:
  repositories:
    description: What to ask, one entry a model.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: What the model is called, V(model) or V(drafter).
        type: str
        required: true
      repo:
        description: C(owner/name).
        type: str
        required: true
      ask:
        description: A branch, a tag or a commit; empty asks for none.
        type: str
        default: ''
      pinned:
        description: The commit that is pinned; empty where none is.
        type: str
        default: ''
      hash:
        description: Small files whose sha256 is wanted too, where the Hub's list has none.
        type: list
        elements: str
        default: []
  source:
    description: V(mirror) reads C(manifest.json) of O(mirror) instead, the only list that says of which commit the files are.
    type: str
    choices: [hub, mirror]
    default: hub
  endpoint:
    description: The Hub, or a mirror that speaks its protocol.
    type: str
    default: https://huggingface.co
  token:
    description: For repositories that need one.
    type: str
    default: ''
  token_over_http:
    description: Send the token to a Hub without TLS that is not this machine. Anybody on the way can read it.
    type: bool
    default: false
  mirror:
    description: The folder of each model behind a plain web server, by name.
    type: dict
    default: {}
  mirror_lists:
    description: What the list in that folder must hash to, by name.
    type: dict
    default: {}
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: Ask the Hub for the newest commit of the model
  delegate_to: localhost
  hub_info:
    repositories:
      - {name: model, repo: "{{ lane_model.repo }}", ask: main}
    token: "{{ hub_token }}"
  register: hub
"""

RETURN = r"""
repositories:
  description: >-
    Name to what was said: C(source), C(commit) that C(asked) means, C(date) and C(title) of it, C(files), C(bytes), C(shards), C(sha256) by file,
    C(pinned) (C(commit), C(date), C(behind), C(error)), and C(error), empty where it answered.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.secrets import secret_value
from ansible.module_utils.sparklanes.weights import hub_commits
from ansible.module_utils.sparklanes.weights.hub import HubError, token_refusal

OPTIONS: dict[str, Any] = {
    "repositories": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "repo": {"type": "str", "required": True},
            "ask": {"type": "str", "default": ""},
            "pinned": {"type": "str", "default": ""},
            "hash": {"type": "list", "elements": "str", "default": []},
        },
    },
    "source": {"type": "str", "choices": ["hub", "mirror"], "default": "hub"},
    "endpoint": {"type": "str", "default": "https://huggingface.co"},
    "token": {"type": "str", "default": "", "no_log": True},
    "token_over_http": {"type": "bool", "default": False},
    "mirror": {"type": "dict", "default": {}},
    "mirror_lists": {"type": "dict", "default": {}},
}


def ask(params: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What is said of one repository."""
    name = wanted["name"]
    found: dict[str, Any]
    if params["source"] == "mirror":
        url = str(params["mirror"].get(name) or "")
        if not url:
            raise HubError(f"no mirror is named for {name}: set model_weights_mirror")
        if secret_value(url):
            raise HubError(f"the address of the mirror of {name} holds a password, which a log would show: give it without")
        found = hub_commits.of_mirror(url, str(params["mirror_lists"].get(name) or ""), wanted)
        return found
    if secret_value(params["endpoint"]):
        raise HubError("the address of the Hub holds a password, which a log would show: give a token (model_weights_token)")
    if params["token"] and not params["token_over_http"] and (refusal := token_refusal(params["endpoint"])):
        raise HubError(refusal)
    found = hub_commits.of_hub(params["endpoint"], params["token"], wanted)
    return found


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    answers: dict[str, dict[str, Any]] = {}
    for wanted in module.params["repositories"]:
        try:
            answers[wanted["name"]] = {**ask(module.params, wanted), "error": ""}
        except HubError as error:
            answers[wanted["name"]] = {"error": str(error)}
    module.exit_json(changed=False, repositories=answers)


if __name__ == "__main__":
    main()
