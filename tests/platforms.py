# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The only reasons for which a test may be skipped: this platform is not the one that it is about.

What is merely not installed is installed (sandbox/packages.py); what isn't up is brought up by script/test. `tests/conftest.py` turns each
other skip into a failure, and each expected failure, for a known bug is no passed test.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

PREFIX = "platform: "
REASONS = {
    "root": "only root may do this",
    "mount": "nothing may be mounted here, not even by root",
    "device nodes": "no device nodes may be made here, not even by root",
    "disk": "no folder for temporary files lies on a disk of its own here",
    "gpu": "this machine has a GPU, so nothing stands in for one",
}


def reason(name: str) -> str:
    """The text of an allowed reason."""
    return PREFIX + REASONS[name]


def skip(name: str) -> NoReturn:
    pytest.skip(reason(name))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=reason("root"))


def allowed(text: str) -> bool:
    """Whether what pytest says of a skip is one of the reasons above."""
    return text.removeprefix("Skipped: ") in {reason(name) for name in REASONS}
