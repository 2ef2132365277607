#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Read what sparklanes changed on a Spark, what was there before, and what changed since."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_edits_info
short_description: Read what sparklanes changed on a Spark, what was there before, and what changed since
description:
  - Reads the ledger of edits in C(/var/lib/sparklanes/host-edits) and compares it with the files and kernel settings as they are now.
  - A ledger that can't be read is a failure, not an empty one.
options:
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: What did sparklanes change here
  become: true
  host_edits_info:
  register: host_edits
"""

RETURN = r"""
edits:
  description:
    - What was changed and not given back yet. C(kind) is V(file), V(sysctl) or V(state) (a held package, a swap file); C(name) the path or
      name; C(before), C(after) and C(now) tell a file by its hash, mode and owner; C(by) and C(at) are the module and the time (UTC) of the
      first edit; C(foreign) is true where somebody else changed it between two edits of ours; C(undo) names the role that gives a
      V(state) back.
    - C(standing) is V(ours), V(as_before), V(changed) by somebody else since, or V(unknown) for a V(state).
  returned: always
  type: list
  elements: dict
changed_since:
  description: One sentence for each thing that somebody else changed after we did.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.host.ledger import Ledger, LedgerError
from ansible.module_utils.sparklanes.host.restore import report
from ansible.module_utils.sparklanes.host.tree import Tree


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    try:
        edits = report(Ledger(Tree(module.params["root"]), "host_edits_info"))
    except LedgerError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
    module.exit_json(
        changed=False,
        edits=edits,
        changed_since=[
            f"{edit['name']} was changed by somebody else after {edit['by']} did ({edit['at']})"
            for edit in edits
            if edit["standing"] == "changed"
        ],
    )


if __name__ == "__main__":
    main()
