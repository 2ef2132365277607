# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Asking a program that may not be installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[..., tuple[int, str, str]]
NOT_FOUND = 127  # as a shell says


def ask(run: Run, argv: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """Exit status, output and errors. `run` is `AnsibleModule.run_command`, which by itself would end the module for a program that is not there."""
    try:
        return run(list(argv), handle_exceptions=False, **options)
    except OSError as error:
        return NOT_FOUND, "", f"{argv[0]}: {error.strerror or error}"
