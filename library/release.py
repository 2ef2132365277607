#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Freeze a release of a deployment on this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: release
short_description: Freeze a release of a deployment on this Spark
description:
  - Writes the rank spec and the release manifest under C(releases/ID/), mode 0600, each file whole or absent.
  - A release never changes. Another content under the same id is refused.
  - Releases that no deployment of this Spark runs, would restore or is moving to are pruned.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  release:
    description: Id of the release, 12 hex digits.
    type: str
    required: true
  spec:
    description: What to start on this Spark (schema C(sparklanes-rank/1)).
    type: dict
    required: true
  manifest:
    description: What the release consists of on all ranks - lane, image digest, weights, overlays, host settings.
    type: dict
    required: true
  prune:
    description: Remove releases that nothing refers to any more.
    type: bool
    default: true
  root:
    description: Where releases and state lie.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    support: partial
    details: Shows the manifest of a release that is new. What goes is named by RV(pruned).
"""

EXAMPLES = r"""
- name: Freeze the release
  release:
    deployment: sparks
    release: "{{ rank_release }}"
    spec: "{{ rank_spec }}"
    manifest: "{{ rank_manifest }}"
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
path:
  description: Folder of the release.
  returned: always
  type: str
pruned:
  description: Releases that were removed.
  returned: always
  type: list
  elements: str
"""

import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import as_json, write_json
from ansible.module_utils.sparklanes.release.store import Store, unreferenced


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "release": {"type": "str", "required": True},
            "spec": {"type": "dict", "required": True},
            "manifest": {"type": "dict", "required": True},
            "prune": {"type": "bool", "default": True},
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        supports_check_mode=True,
    )
    params = module.params
    actions: list[str] = []
    try:
        store = Store(params["deployment"], params["root"])
        folder = store.release_folder(params["release"])
        wanted = {"rank.json": params["spec"], "release.json": params["manifest"]}
        for name, frozen in (("rank.json", store.spec(params["release"])), ("release.json", store.manifest(params["release"]))):
            if frozen is not None and as_json(frozen) != as_json(wanted[name]):
                module.fail_json(
                    msg=f"{folder}/{name} holds another content than this release id stands for. A release never changes: "
                    "the file was edited by hand. Remove the folder if no rank runs it, then launch again"
                )
        new = store.spec(params["release"]) is None or store.manifest(params["release"]) is None
        if new:
            actions.append(f"Freeze release {params['release']}")
        transaction = store.transaction()
        moving = {params["release"]}
        if transaction is not None:
            moving |= {transaction.from_release, transaction.to_release}
        pruned = unreferenced(store.releases(), store.all_states(), moving) if params["prune"] else []
        actions += [f"Prune release {name}" for name in pruned]
        if not module.check_mode:
            # The spec comes last: a release exists once its spec does.
            for name in ("release.json", "rank.json"):
                write_json(folder / name, wanted[name])
            for name in pruned:
                shutil.rmtree(store.release_folder(name))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(actions),
        actions=actions,
        path=str(folder),
        pruned=pruned,
        diff={"before": "" if new else as_json(params["manifest"]), "after": as_json(params["manifest"])},
    )


if __name__ == "__main__":
    main()
