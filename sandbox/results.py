# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One closing line for script/test: python3 -m sandbox.results FOLDER_OF_JUNIT_XML PASSED_STAGES FAILED_STAGES."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as xml
from pathlib import Path


def count(folder: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of all pytest runs."""
    passed = failed = skipped = 0
    for path in folder.glob("*.xml"):
        for suite in xml.parse(path).getroot().iter("testsuite"):
            bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
            left = int(suite.get("skipped", "0"))
            failed += bad
            skipped += left
            passed += int(suite.get("tests", "0")) - bad - left
    return passed, failed, skipped


def closing_line(tests: tuple[int, int, int], stages_passed: int, stages_failed: int) -> str:
    passed, failed, skipped = tests
    # A stage without pytest counts as one; a failed stage counts at least once, even when no test of it ran.
    failed = max(failed, stages_failed)
    if not passed + failed:
        passed = stages_passed
    tail = f", {skipped} skipped" if skipped else ""
    return f"total: {passed} passed, {failed} failed{tail}"


if __name__ == "__main__":
    print(closing_line(count(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])))
