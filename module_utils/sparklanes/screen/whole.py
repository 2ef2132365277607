# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a run does all tasks of its verb in their order: switches of Ansible that leave some out would leave out the judgement.

No task has a tag but preflight's `always`, so a run with `--tags` ends well without having done anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible.module_utils.sparklanes.screen.nobody import DONE

# Tags that tasks of this project have by themselves; to skip any other one changes nothing.
OURS = ("always", "all", "tagged", "untagged")
# `debug` is linear, with a prompt where a task fails.
STRATEGIES = ("linear", "debug")


def refusal(tags: Sequence[str], skipped: Sequence[str], start: str, strategy: str) -> str:
    """Why this run would do a part of its verb only, in a sentence for each reason; empty where it does the whole."""
    found = []
    if set(tags) - {"all"}:
        found.append(f"--tags {','.join(tags)} leaves out all that a verb does: no task has such a tag. Run it without --tags.")
    if wrong := [tag for tag in skipped if tag in OURS]:
        found.append(f"--skip-tags {','.join(wrong)} leaves out what judges the lane. Run it without --skip-tags.")
    if start:
        found.append(f"--start-at-task {start!r} leaves out what was to be known before it. Run the verb from its beginning.")
    if strategy.rpartition(".")[2] not in STRATEGIES:
        found.append(
            f"The strategy {strategy} lets hosts run ahead of each other, and ranks go together: unset ANSIBLE_STRATEGY and `strategy`."
        )
    return " ".join([*found, DONE]) if found else ""


def ours(playbook: Path, root: Path) -> bool:
    """Whether a playbook is a verb of this project: another one may have tags of its own."""
    path = playbook.resolve()
    return path.parent == root / "playbooks" or path == root / "site.yml"
