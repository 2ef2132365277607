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
  - Releases that no deployment of this Spark runs, would restore or is moving to are pruned; none where the state of one can't be read.
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
  transaction:
    description: Id of the transaction that works. Where it has lost the lock of this Spark, nothing is frozen or removed.
    type: str
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
not_pruned:
  description: Why no release was looked at, where something can't be read that may refer to one; a warning too.
  returned: always
  type: str
pruned:
  description: Releases that were removed.
  returned: always
  type: list
  elements: str
"""

import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import clock
from ansible.module_utils.sparklanes.common.files import Unreadable, as_json, write_json
from ansible.module_utils.sparklanes.release.store import Store, alone, unreferenced


def unneeded(module: AnsibleModule, store: Store) -> tuple[list[str], str]:
    """Releases that no deployment refers to; none while one of them can't say what it refers to, and then why."""
    moving = {module.params["release"]}
    try:
        states = store.all_states()
        for transaction in store.all_transactions():
            moving |= {transaction.from_release, transaction.to_release}
    except ValueError as error:
        why = f"No release was pruned here: {error}, so what it refers to is not known"
        module.warn(why)
        return [], why
    return unreferenced(store.releases(), states, moving), ""


def frozen(read: Any, release: str) -> dict[str, Any] | None:
    """A file of a release that stands for its id; one that can't be read is none, and is written anew."""
    try:
        found: dict[str, Any] | None = read(release)
    except Unreadable as error:
        if not error.mark:  # no file, or no access to one: nothing that could be written over
            raise
        return None
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "release": {"type": "str", "required": True},
            "spec": {"type": "dict", "required": True},
            "manifest": {"type": "dict", "required": True},
            "prune": {"type": "bool", "default": True},
            "transaction": {"type": "str"},
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
        found = {"rank.json": frozen(store.spec, params["release"]), "release.json": frozen(store.manifest, params["release"])}
        for name, present in found.items():
            if present is not None and as_json(present) != as_json(wanted[name]):
                module.fail_json(
                    msg=f"{folder}/{name} holds another content than this release id stands for. A release never changes: "
                    "the file was edited by hand. Remove the folder if no rank runs it, then launch again"
                )
        new = None in found.values()
        if new:
            actions.append(f"Freeze release {params['release']}")
        with alone(params["root"], f"freezes release {params['release']}", write=not module.check_mode):
            lost = "" if module.check_mode or not params["transaction"] else store.lost(params["transaction"], clock.now())
            if lost:
                module.fail_json(msg=f"deployment {params['deployment']}: {lost}. Nothing was frozen or removed here")
            pruned, not_pruned = unneeded(module, store) if params["prune"] else ([], "")
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
        not_pruned=not_pruned,
        diff={"before": "" if new else as_json(params["manifest"]), "after": as_json(params["manifest"])},
    )


if __name__ == "__main__":
    main()
