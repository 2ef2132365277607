# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""For every test of the project: a skip that isn't about another platform is a failure."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import platforms


def judge(report: Any) -> None:
    """Make a failure of a skip, or of an expected failure, that no platform excuses."""
    if hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"xfail ({report.wasxfail}): a known bug is no passed test. Mend it, or assert what it does today."
        del report.wasxfail
    elif report.skipped:
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not platforms.allowed(said):
            report.outcome = "failed"
            report.longrepr = f"{said}. Only another platform excuses a test: tests/platforms.py has the reasons."


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    judge(report)
    return report
