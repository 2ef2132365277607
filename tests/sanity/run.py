#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Check the documentation of our modules with `ansible-test sanity`, on a collection generated from this tree.

ansible-test only knows collections. A throwaway one is made from library/, module_utils/ and
doc_fragments/, imports and names of fragments rewritten, and removed again; nothing of it is kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "local.sparklanes"
TESTS = ("validate-modules", "import")
# Reported for every module of a project that isn't a collection under the GPL; ours are Apache-2.0.
IGNORED = "validate-modules:missing-gplv3-license"
# Rooms of the controller that need what a Spark may lack (PyYAML). No module imports them, so none would ship them.
ELSEWHERE = ("lane/importers",)
FRAGMENTS = re.compile(r"^extends_documentation_fragment:.*$", re.M)


def rewritten(text: str) -> str:
    """A file as it would stand in the collection: what is imported, and the fragments of documentation, by the collection's name."""
    text = text.replace("ansible.module_utils.sparklanes", f"ansible_collections.{NAME}.plugins.module_utils.sparklanes")
    return FRAGMENTS.sub(lambda line: re.sub(r"(?<=[\[ ])sparklanes\b", f"{NAME}.sparklanes", line[0]), text)


def generate(parent: Path) -> Path:
    home = parent / "ansible_collections" / NAME.replace(".", "/")
    plugins = home / "plugins"
    for source, target in (
        ("library", "modules"),
        ("module_utils/sparklanes", "module_utils/sparklanes"),
        ("doc_fragments", "doc_fragments"),
    ):
        for file in (ROOT / source).rglob("*.py"):
            if str(file.parent.relative_to(ROOT / source)) in ELSEWHERE:
                continue
            copy = plugins / target / file.relative_to(ROOT / source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8")
            copy.write_text(rewritten(text), encoding="utf-8")
    (home / "meta").mkdir()
    (home / "meta" / "runtime.yml").write_text('requires_ansible: ">=2.19.0"\n', encoding="utf-8")
    (home / "README.md").write_text("Generated.\n", encoding="utf-8")
    (home / "galaxy.yml").write_text(
        "namespace: local\nname: sparklanes\nversion: 0.0.1\nreadme: README.md\nauthors: [Contributors]\n", encoding="utf-8"
    )
    ignore = home / "tests" / "sanity"
    ignore.mkdir(parents=True)
    modules = sorted(file.name for file in (plugins / "modules").glob("*.py"))
    for version in ("2.19", "2.20", "2.21"):
        lines = [f"plugins/modules/{name} {IGNORED}" for name in modules]
        (ignore / f"ignore-{version}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return home


def pip_without_a_download(data: Path) -> None:
    """ansible-test fetches get-pip from the net; the interpreter's own ensurepip does the same work here."""
    folder = data / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    for version in ("24_2", "25_0", "25_2"):
        (folder / f"get_pip_{version}.py").write_text("import ensurepip\nensurepip.bootstrap(upgrade=True)\n", encoding="utf-8")


def keep_pip_settings(home: Path) -> None:
    """ansible-test hides the environment from pip, and HOME is another one: hand on how the user reaches a package index.

    pip reads both files, and what stands in the second counts more, as the environment does.
    """
    for given in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (file := Path.home() / given).is_file():
            (home / ".pip").mkdir()
            shutil.copyfile(file, home / ".pip" / "pip.conf")
            break
    told = {name[4:].lower().replace("_", "-"): value for name, value in os.environ.items() if name.startswith("PIP_")}
    told.pop("config-file", None)
    folder = home / ".config" / "pip"
    folder.mkdir(parents=True)
    lines = "".join(f"{name} = {value}\n" for name, value in sorted(told.items()))
    (folder / "pip.conf").write_text(f"[global]\n{lines}", encoding="utf-8")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sparklanes-sanity-") as folder:
        home = generate(Path(folder))
        environ = {**os.environ, "HOME": folder, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        keep_pip_settings(Path(folder))
        pip_without_a_download(Path(folder) / ".ansible" / "test")
        subprocess.run(["git", "init", "-q", "."], cwd=home, check=True, env=environ)
        command = ["ansible-test", "sanity", "--venv", "--python", "{}.{}".format(*sys.version_info)]
        if shutil.which("ansible-test", path=environ["PATH"]) is None:
            print("ansible-test is not beside this Python: install the project with its test extra", file=sys.stderr)
            return 2
        return subprocess.run(
            [*command, *(part for test in TESTS for part in ("--test", test))], cwd=home, check=False, env=environ
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
