# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""script/test itself, on a tree whose stages are played: budgets, what ran where, and a full run that goes on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

GIT = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]
# Plays python, pytest and molecule: fails the stage that `fail` names, says what Ansible would log for `warn`.
STUB = r"""#!/bin/sh
case "$*" in
    *sandbox.results*) exec python3 "$@" ;;
    *tests/unit*) what=unit ;;
    *test_staging_faults.py) what=staging ;;
    *run.py\ faults*) what=faults ;;
    *slow.xml*) what=slow ;;
    *tests/e2e*) what=e2e ;;
    *tests/vm*) what=vm ;;
    *) what=${0##*/} ;;
esac
echo "$what" >> .sandbox/ran
if [ -e ".sandbox/warn-$what" ]; then echo '[DEPRECATION WARNING]: old' >> "$ANSIBLE_LOG_PATH"; fi
[ ! -e ".sandbox/fail-$what" ]
"""
VENV = """PAIRS='3.11 2.19 ansible<13
3.12 2.20 ansible<14
3.13 2.21 ansible<15'
find_python() { case $1 in 3.13) ;; *) echo "/usr/bin/python$1" ;; esac; }
pair_of() { case $1 in .venv) echo 3.11 2.19 ;; *) echo 3.12 2.20 ;; esac; }
make_venv() { mkdir -p .sandbox/log; }
"""


class Tree:
    """A clone in which only script/test and sandbox/results.py are real."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in {
            "script/test": (ROOT / "script/test").read_text(),
            "script/lint": STUB,
            "script/sandbox": "#!/bin/sh\n",
            "sandbox/results.py": (ROOT / "sandbox/results.py").read_text(),
            "sandbox/__init__.py": "",
            "sandbox/venv.sh": VENV,
            ".gitignore": "/.venv*/\n/.sandbox/\n__pycache__/\n",
            ".venv/bin/python": STUB,
            ".venv/bin/molecule": STUB,
            ".venv-3.12/bin/python": STUB,
        }.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.git("init", "-q")
        self.commit()

    def git(self, *words: str) -> None:
        subprocess.run([*GIT, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def run(self, what: str, fail: str = "", warn: str = "") -> tuple[int, str, list[str]]:
        """Exit status, what was printed, and which stages' programs ran."""
        own = self.root / ".sandbox"
        own.mkdir(exist_ok=True)
        for path in [*own.glob("fail-*"), *own.glob("warn-*"), own / "ran"]:
            path.unlink(missing_ok=True)
        for kind, name in (("fail", fail), ("warn", warn)):
            if name:
                (own / f"{kind}-{name}").touch()
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SPARKLANES_"))}
        done = subprocess.run(
            ["bash", "script/test", what], cwd=self.root, env=environ, capture_output=True, text=True, check=False
        )
        ran = (own / "ran").read_text().split() if (own / "ran").exists() else []
        return done.returncode, done.stdout + done.stderr, ran


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_all_runs_each_stage_once_and_says_on_what(tree: Tree) -> None:
    code, out, ran = tree.run("all")
    assert (code, ran) == (0, ["lint", "unit", "unit", "molecule", "e2e"]), out
    assert "unit tests ran on Python and ansible-core: 3.11/2.19, 3.12/2.20" in out
    assert "not here, so not run: Python 3.13 with ansible-core 2.21" in out
    assert re.search(r"^molecule passed \d+ s of 480$", out, re.M)
    assert out.splitlines()[-1] == "total: 5 passed, 0 failed"


def test_a_failed_stage_ends_the_run(tree: Tree) -> None:
    code, out, ran = tree.run("all", fail="molecule")
    assert (code, ran) == (1, ["lint", "unit", "unit", "molecule"])
    assert re.search(r"^molecule FAILED \d+ s$", out, re.M)
    assert out.splitlines()[-1].endswith(", 1 failed")


def test_what_ansible_calls_deprecated_fails_the_stage(tree: Tree) -> None:
    code, out, ran = tree.run("all", warn="molecule")
    assert (code, ran[-1]) == (1, "molecule")
    assert "deprecated" in out


def test_a_full_run_goes_on_where_it_ended(tree: Tree) -> None:
    code, out, ran = tree.run("full", fail="e2e")
    assert (code, ran) == (1, ["lint", "unit", "unit", "molecule", "e2e"])
    assert "goes on from here" in out
    code, out, ran = tree.run("full")
    assert (code, ran) == (0, ["e2e", "slow", "staging", "faults", "vm"])
    assert "but not as one run: 4 stage(s) passed in an earlier one" in out
    assert re.search(r"^lint passed \d+ s in the run of 2", out, re.M)
    code, out, ran = tree.run("full")
    assert (code, len(ran)) == (0, 9), "a finished one begins anew"
    assert "full: passed as one run at" in out


def test_another_commit_or_a_change_begins_anew(tree: Tree) -> None:
    tree.run("full", fail="vm")
    tree.commit()
    code, out, ran = tree.run("full", fail="vm")
    assert (code, len(ran)) == (1, 9), "another commit"
    (tree.root / "new").touch()
    code, out, ran = tree.run("full")
    assert (code, len(ran)) == (0, 9), "a change that no commit holds"
    assert "not one clean commit" in out
    assert "as one run" not in out


def test_the_stages_stay_below_what_a_run_may_take() -> None:
    text = (ROOT / "script/test").read_text().partition("<< 'TABLE'\n")[2].partition("TABLE")[0]
    table = {fields[0]: int(fields[1]) for fields in (line.split(None, 2) for line in text.splitlines()) if len(fields) == 3}
    assert set(table) == {"lint", "unit", "others", "molecule", "e2e", "slow", "staging", "faults", "vm"}
    assert sum(table[name] for name in ("lint", "unit", "others", "molecule", "e2e")) < 45
    assert sum(table.values()) < 150, "it has to pass as one run"
