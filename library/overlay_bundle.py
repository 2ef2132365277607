#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Pack overlay files into one archive, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: overlay_bundle
short_description: Pack overlay files into one archive, on the controller
description:
  - One archive goes to a Spark in one transfer, whatever the number and size of the files. It runs on the controller, and only when a Spark lacks a file.
  - The hash of each file is compared before it is packed. The archive is named by the hashes and reused.
options:
  files:
    description: The files, as the filter C(overlay_plan) gives them (C(source), C(sha256), C(target), C(path)).
    type: list
    elements: dict
    required: true
  missing:
    description: The hashes that the Spark lacks.
    type: list
    elements: str
    required: true
  folder:
    description: Where archives are kept on the controller.
    type: path
    required: true
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    support: none
    details: RV(actions) names the files that are packed.
"""

EXAMPLES = r"""
- name: Pack what this Spark lacks
  delegate_to: localhost
  overlay_bundle:
    files: "{{ lane_overlays | overlay_plan(lane_extras, 'lanes/overlays', '.') }}"
    missing: "{{ kernel_overlays_result.missing }}"
    folder: .cache/overlays
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
archive:
  description: Path of the archive on the controller.
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.rank import overlays


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True},
            "missing": {"type": "list", "elements": "str", "required": True},
            "folder": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    missing = set(module.params["missing"])
    files = [file for file in map(overlays.OverlayFile.of, module.params["files"]) if file.sha256 in missing]
    absent = [f"{file.source} (sha256 {file.sha256})" for file in files if not file.path or not Path(file.path).is_file()]
    if absent:
        module.fail_json(
            msg=f"{', '.join(absent)}: neither on the Spark nor on this controller. Put it into the overlay directory "
            "(kernel_overlays_source; extras: below the project), then run this again"
        )
    dest = Path(module.params["folder"]) / overlays.archive_name(files)
    changed, actions = not dest.is_file(), []
    try:
        wrong = [text for file in files for text in overlays.read_faults(file, Path(file.path))]
        if wrong:
            module.fail_json(msg="; ".join(wrong))
        if changed:
            actions.append(f"Pack {', '.join(file.source for file in files)} into {dest}")
            if not module.check_mode:
                overlays.pack(files, dest)
    except OSError as error:
        module.fail_json(msg=f"{error.filename or dest}: {error.strerror or error}")
    module.exit_json(changed=changed, actions=actions, archive=str(dest))


if __name__ == "__main__":
    main()
