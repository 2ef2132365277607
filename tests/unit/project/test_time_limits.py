# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""No child is waited for without end: a program is run by the one place that has limits, or by a file that says here who ends it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import ROOT

FOLDERS = ("library", "module_utils", "action_plugins", "filter_plugins", "callback_plugins", "inventory_plugins", "vars_plugins")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
# Who starts programs by himself, and who ends them.
STARTS = {
    "common/commands.py": "the one place: after its seconds, or where it stands still",
    "docker/archive.py": "gigabytes through a pipe: common.stall",
    "docker/logs.py": "a stream: a timer",
    "docker/registry.py": "a daemon: jobs.serving, after hours, or when nobody asks",
    "gpu/measure.py": "two streams: the clock of the measurement",
    "jobs/runner.py": "the job itself, where no systemd runs: whoever stops it",
    "weights/chain/lend.py": "daemons: jobs.serving, after hours, or when nobody asks",
    "weights/tools.py": "clients that fetch: common.stall, and the end of the job",
}
CALLS = ("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")


def problems(text: str) -> list[str]:
    """What starts a program without a limit that can be seen."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute | ast.Call):
            continue
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        if isinstance(node, ast.Attribute) and node.attr == "run_command":
            found.append(f"{node.lineno}: AnsibleModule.run_command has no time limit: common.commands.run")
        elif isinstance(node, ast.Call) and name in {f"subprocess.{call}" for call in CALLS} | {"os.system", "os.popen", "Popen"}:
            found.append(f"{node.lineno}: {name}: common.commands.run has a time limit")
        elif isinstance(node, ast.Call) and any(
            one.arg == "seconds" and isinstance(one.value, ast.Constant) and not one.value.value for one in node.keywords
        ):
            found.append(f"{node.lineno}: no end is named: give `limits` to what may take hours")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_child_is_waited_for_without_end(path: Path) -> None:
    found = problems(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(ROOT / "module_utils/sparklanes")) if "module_utils" in path.parts else path.name
    assert bool(found) == (name in STARTS), found or f"{name} starts nothing any more: take it out of STARTS"


def test_the_rule_sees_what_it_is_for() -> None:
    seen = (
        "self.module.run_command(['ss'])",
        "Jobs(module.run_command)",
        "subprocess.run(['ls'])",
        "os.system('ls')",
        "run(x, seconds=None)",
    )
    assert [len(problems(text)) for text in seen] == [1] * len(seen)
    assert problems("commands.run(['ss'], seconds=5)\nprocess.run()\nx: subprocess.Popen[str]") == []
