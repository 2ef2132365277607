# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a program of ours carries: the files of this package that it imports, as an archive that Python reads."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import io
import shutil
import zipfile
from pathlib import Path

PACKAGE = "ansible.module_utils.sparklanes"
ROOT = Path(__file__).parents[1]


def is_module(name: str) -> bool:
    """Whether a dotted name is a module rather than something that one defines."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def source_texts(name: str, known: dict[str, str] | None = None) -> dict[str, str]:
    """The source of a module of this package and of all that it imports from it, by name: `rank.after_boot`."""
    found = {} if known is None else known
    if name in found:
        return found
    found[name] = inspect.getsource(importlib.import_module(f"{PACKAGE}.{name}"))
    for node in ast.walk(ast.parse(found[name])):
        if not isinstance(node, ast.ImportFrom) or f"{node.module}.".partition(f"{PACKAGE}.")[0]:
            continue
        for alias in node.names:
            imported = f"{node.module}.{alias.name}"
            imported = imported if is_module(imported) else str(node.module)
            source_texts(imported.removeprefix(f"{PACKAGE}."), found)
    return found


def archive(name: str) -> bytes:
    """A module of this package and what it imports as a program: `main(sys.argv)`. Equal sources give equal bytes."""
    texts = {f"{PACKAGE}.{module}".replace(".", "/") + ".py": text for module, text in source_texts(name).items()}
    folders = {parent.as_posix() for path in texts for parent in Path(path).parents if parent.name}
    texts |= {f"{folder}/__init__.py": "" for folder in folders}
    texts["__main__.py"] = f"import sys\nfrom {PACKAGE}.{name} import main\nsys.exit(main(sys.argv))\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as pack:
        for path in sorted(texts):
            pack.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), texts[path])
    return buffer.getvalue()


def copy_payload(target: Path) -> None:
    """The code for a job: the zip this module came in, or else this package's files."""
    for parent in Path(__file__).parents:
        if zipfile.is_zipfile(parent):
            shutil.copyfile(parent, target)
            return
    home = PACKAGE.replace(".", "/")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as pack:
        for package in ("ansible", "ansible/module_utils"):
            pack.writestr(f"{package}/__init__.py", "")
        for file in sorted(ROOT.rglob("*.py")):
            pack.write(file, f"{home}/{file.relative_to(ROOT)}")
