# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What may hang for ever, Docker and the driver, is run with a time limit by everyone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import ROOT

HANG = {"docker", "nvidia-smi"}
FILES = [*(ROOT / "library").glob("*.py"), *(ROOT / "module_utils/sparklanes").rglob("*.py")]
# They feed or read a stream of gigabytes, and watch it themselves.
STREAMS = {"archive.py", "burn.py"}


def first_word(call: ast.Call) -> str:
    argv = call.args[0] if call.args else None
    first = argv.elts[0] if isinstance(argv, ast.List | ast.Tuple) and argv.elts else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def without_a_limit(text: str) -> list[int]:
    """Lines that run one of these programs by `run_command`, which has no limit, or by subprocess without `timeout`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and first_word(node) in HANG:
            limited = any(keyword.arg == "timeout" for keyword in node.keywords)
            if node.func.attr == "run_command" or (ast.unparse(node.func).startswith("subprocess.") and not limited):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_waits_for_ever_on_docker_or_the_driver(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.name in STREAMS or not without_a_limit(text), "run it by common.commands.run"
    assert "Docker(module.run_command" not in text
    assert "Docker(self.module.run_command" not in text
    assert "ImageStore(module.run_command" not in text


def test_the_rule_sees_what_it_is_for() -> None:
    assert without_a_limit("self.module.run_command(['docker', 'ps'])") == [1]
    assert without_a_limit("subprocess.run(['nvidia-smi', '-L'])") == [1]
    assert (
        without_a_limit("subprocess.run(['docker', 'ps'], timeout=5)\ncommands.run(['docker', 'ps'])\nrun_command(['ls'])") == []
    )
