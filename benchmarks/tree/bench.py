#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the tree weighs: files and lines that each Ansible module carries to a Spark, lines of the product, YAML that joins hosts.

    script/bench tree [--against COMMIT]

`lines` of a module are those of the definitions (functions, classes, constants) in the files that Ansible ships with it, its own
left out. With --against every figure stands beside that of another commit, and of lines the aim is to be no more.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from benchmarks.figures import Figure, emit  # noqa: E402

PACKAGE = "ansible.module_utils.sparklanes"
PYTHON = ("module_utils", "library", "filter_plugins", "action_plugins", "doc_fragments")
YAML = ("roles", "playbooks")
# A result of each host, looked up by name: several hosts joined in an expression instead of in a function.
JOIN = re.compile(r"zip\(|map\(\s*'extract'")
FOLLOWED = re.compile(r"tasks_from:\s*[\"']?(\w+)")


def shipped(root: Path, module: Path) -> list[Path]:
    """The files of our package that Ansible sends with a module: all that it reaches by imports."""
    home = root / "module_utils" / "sparklanes"
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(f"{PACKAGE}."):
                continue
            inside = str(node.module).removeprefix(PACKAGE).strip(".")
            for alias in node.names:
                names = (f"{inside}.{alias.name}".strip("."), inside)
                files = [home / f"{name.replace('.', '/')}.py" for name in names if name]
                file = next((file for file in files if file.is_file()), None)
                if file is not None and file not in found:
                    found.add(file)
                    waiting.append(file)
    return sorted(found)


def definition_lines(file: Path) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in body if isinstance(node, kinds))


def lines(root: Path, folders: tuple[str, ...], endings: tuple[str, ...]) -> int:
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.suffix in endings and file.is_file()]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def joins(root: Path) -> int:
    files = [file for folder in YAML for file in (root / folder).rglob("*.yml")]
    return sum(len(JOIN.findall(file.read_text(encoding="utf-8"))) for file in files)


def unspecified(root: Path) -> int:
    """Entry points of roles that others include, and that no argument spec describes."""
    used: set[tuple[str, str]] = set()
    for file in [file for folder in YAML for file in (root / folder).rglob("*.yml")]:
        text = file.read_text(encoding="utf-8")
        for block in re.findall(r"(?:include_role|import_role):\n((?: +.*\n)+)", text):
            name = re.search(r"\bname:\s*[\"']?(\w+)", block)
            entry = FOLLOWED.search(block)
            if name and entry:
                used.add((name[1], entry[1]))
    missing = 0
    for role, entry_point in used:
        spec = root / "roles" / role / "meta" / "argument_specs.yml"
        known = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"] if spec.is_file() else {}
        missing += entry_point not in known
    return missing


def measure(root: Path) -> dict[str, tuple[float, str]]:
    """Figure → value and unit."""
    found: dict[str, tuple[float, str]] = {}
    per_module: dict[str, tuple[int, int]] = {}
    for module in sorted((root / "library").glob("*.py")):
        files = shipped(root, module)
        per_module[module.stem] = (len(files), sum(map(definition_lines, files)))
    for name, (count, weight) in per_module.items():
        found[f"{name}_files"] = (count, "files")
        found[f"{name}_lines"] = (weight, "lines")
    found["median_files"] = (statistics.median(count for count, _ in per_module.values()), "files")
    found["median_lines"] = (statistics.median(weight for _, weight in per_module.values()), "lines")
    found["python"] = (lines(root, PYTHON, (".py",)), "lines")
    found["yaml"] = (lines(root, YAML, (".yml",)), "lines")
    found["host_joins_in_yaml"] = (joins(root), "expressions")
    found["entry_points_without_a_spec"] = (unspecified(root), "entry points")
    return found


def figures(now: dict[str, tuple[float, str]], before: dict[str, tuple[float, str]] | None, commit: str) -> Iterator[Figure]:
    for name, (value, unit) in now.items():
        was = (before or {}).get(name)
        aim = 0.0 if unit in ("expressions", "entry points") else was[0] if was and unit == "lines" else None
        yield Figure(name, value, unit, aim, f"{was[0]:g} at {commit}" if was else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/bench tree", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", default="", help="another commit of this repository")
    chosen = parser.parse_args()
    before = None
    if chosen.against:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", chosen.against], capture_output=True, check=False)
        if packed.returncode:
            print(f"error: {packed.stderr.decode(errors='replace').strip()}", file=sys.stderr)
            return 2
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tree:
                tree.extractall(folder, filter="data")
            before = measure(Path(folder))
    good = [emit(figure) for figure in figures(measure(ROOT), before, chosen.against)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
