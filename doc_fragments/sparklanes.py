# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the documentation of our modules has in common: `extends_documentation_fragment: [sparklanes, sparklanes.info]`.

The second name says which kind of module it is. What a module itself says under `attributes` wins over both, key by key.
"""

from __future__ import annotations


class ModuleDocFragment:
    """The fragments, each a YAML text. Ansible looks for the part behind the dot in capitals."""

    # For every module: what the three attributes mean.
    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: With C(--check), predicts whether anything would change, and leaves the host as it is.
  diff_mode:
    description: With C(--diff), shows what was there before and what is there after.
  idempotent:
    description: A second run with the same arguments, on a host that nobody touched in between, reports no change.
author:
  - Contributors to the sparklanes project (@sparklanes)
"""

    # It reads, and C(changed) is always false.
    INFO = r"""
attributes:
  check_mode:
    support: full
    details: Reads in check mode as it does otherwise.
  diff_mode:
    support: N/A
    details: Changes nothing, so there is nothing to compare.
  idempotent:
    support: full
"""

    # It brings a host into the state that its arguments name.
    CHANGE = r"""
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

    # It starts work that outlives the connection, and is followed by C(long_job).
    JOB = r"""
attributes:
  check_mode:
    support: partial
    details: Refuses what a real run would refuse at once, and starts nothing. It predicts a change also where a real run would only
      attach to a job that runs already, or where the job would find nothing to do.
  diff_mode:
    support: none
    details: The work is not done yet when the module returns. The result of the job tells what was done.
  idempotent:
    support: partial
    details: While the job runs, a second run attaches to it and starts nothing. Once it has ended, the work is done again.
"""

    # It starts, follows or reads jobs of ours.
    JOBS = r"""
options:
  jobs_dir:
    description: Where jobs lie.
    type: path
    default: /var/lib/sparklanes/jobs
"""
