# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A skip that isn't about another platform is a failure, however it is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

HEAD = "import pytest\nimport platforms\n"
CASES = {
    "a mark": "@pytest.mark.skip(reason='later')\ndef test_it(): pass",
    "a condition": "@pytest.mark.skipif(True, reason='rsync is not installed here')\ndef test_it(): pass",
    "a call in the test": "def test_it(): pytest.skip('not up')",
    "a call in a fixture": "@pytest.fixture\ndef x(): pytest.skip('not up')\ndef test_it(x): pass",
    "a module": "pytest.skip('not now', allow_module_level=True)",
    "a module that lacks something": "pytest.importorskip('there_is_no_such_module')",
    "unittest's": "import unittest\nclass TestIt(unittest.TestCase):\n    @unittest.skip('later')\n    def test_it(self): pass",
    "an expected failure": "@pytest.mark.xfail(reason='known')\ndef test_it(): assert False",
    "a strict one": "@pytest.mark.xfail(strict=True)\ndef test_it(): assert False",
    "one that passes": "@pytest.mark.xfail\ndef test_it(): pass",
    "a call of it": "def test_it(): pytest.xfail('known')",
    "a reason that only looks allowed": "def test_it(): pytest.skip('platform: I felt like it')",
}


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """pytest on one file below the project's own conftest."""
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests/conftest.py").read_bytes())
    (tmp_path / "platforms.py").write_bytes((ROOT / "tests/platforms.py").read_bytes())
    (tmp_path / "test_one.py").write_text(HEAD + text + "\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_it_fails(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, text)
    assert done.returncode != 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert "xfailed" not in done.stdout.splitlines()[-1]


def test_another_platform_is_an_excuse(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(): platforms.skip('gpu')")
    assert (done.returncode, "1 skipped" in done.stdout) == (0, True), done.stdout


def test_every_allowed_reason_is_used() -> None:
    """One that nothing uses would excuse what comes later."""
    here = {ROOT / "tests/platforms.py", Path(__file__)}
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path not in here)
    sys.path.append(str(ROOT / "tests"))
    import platforms

    used = {name for name in platforms.REASONS if f'skip("{name}")' in text or f"needs_{name.replace(' ', '_')}" in text}
    assert used == set(platforms.REASONS)
