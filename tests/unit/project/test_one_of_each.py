# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What docs/architecture.md calls the one place for a question is there, and nothing else answers it."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = "ansible.module_utils.sparklanes"
HOME = ROOT / "module_utils" / "sparklanes"
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PLACES = re.findall(
    r"`([a-z_.]+\.\w+)`", TEXT.partition("### One place for each question")[2].partition("\n## ")[0].partition("|---|")[2]
)
# A definition that would be a second answer, and where the first one is.
SECOND = {
    r"def (?:\w*_)?(?:free_bytes|refuse_room)\b|\bdisk_usage\(|\bstatvfs\(": {
        "common/disk.py",
    },
    r"re\.compile\([^\n]*(?:TOKEN|PASSWORD|PASSWD)": {"common/secrets.py"},
    r"[\"'](?:_pass|_?password|_?passwd|_?passphrase|_?api_?key)[\"'],\s*[\"']": {"common/secrets.py"},  # a list of such names
    r"\bRANGES\b.* = \{": {"lane/limits.py", "host/sysctl.py"},
    r"kernel/random/boot_id": {"common/clock.py"},
    r"\bGIB = ": {"common/sizes.py", "memory/page_cache.py"},
    r"def human_(?:bytes|time)\b": {"common/sizes.py"},
    r"--query-compute-apps": {"gpu/nvidia_smi.py"},
    r"CLOCK_BOOTTIME": {"common/clock.py"},
    r"\[\"dmesg\"|\(\"dmesg\"|\"--dmesg\"": {"common/journal.py"},
    r"not seeing messages": {"common/journal.py"},
    r"def parse_shows?\b": {"common/systemd.py"},
    r"\"info\", \"--format\"": {"docker/containers.py"},
    r"^btime |\"btime": {"rank/evidence.py"},
}


def test_the_table_names_something() -> None:
    assert len(PLACES) >= 15


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_there(place: str) -> None:
    module, _, name = place.rpartition(".")
    found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    tree = ast.parse((HOME / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert name in own, f"{place} is {found!r}, which another file defines"


@pytest.mark.parametrize("pattern", SECOND)
def test_nothing_answers_a_second_time(pattern: str) -> None:
    files: list[Path] = [*HOME.rglob("*.py")]
    there = {str(path.relative_to(HOME)) for path in files if re.search(pattern, path.read_text(encoding="utf-8"))}
    assert there <= SECOND[pattern], f"{sorted(there - SECOND[pattern])}: see the table in docs/architecture.md"
