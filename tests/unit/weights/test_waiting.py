# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A server that has too much to do is asked again when it says, for a while; any other failure soon, a few times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.sparklanes.weights import steps
from ansible.module_utils.sparklanes.weights.model import StagingError


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        ("http://m/f: HTTP 429 (Retry-After: 30)", [30.0, 30.0]),
        ("http://m/f: HTTP 503", [5.0, 10.0]),
        ("https://hub did not give a/b: 429 Client Error: Too Many Requests. Retry after 12 seconds", [12.0, 12.0]),
        ("http://m/f: HTTP 429 (Retry-After: 86400)", []),
        ("http://m/f: HTTP 404", [1.0, 2.0]),
        ("hub did not give a/b: it stood still for 600 s and was ended", [1.0, 2.0]),
    ],
)
def test_a_file_that_was_refused_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, words: str, waits: list[float]) -> None:
    waited: list[float] = []

    def refuse(*_: Any) -> None:
        raise StagingError(words)

    monkeypatch.setattr(steps, "receive", refuse)
    tool = SimpleNamespace(cancel=SimpleNamespace(wait=lambda seconds: waited.append(seconds)))
    context: Any = SimpleNamespace(source=SimpleNamespace(attempts=3), tool=tool)
    nothing: Any = None
    with pytest.raises(StagingError):
        steps.bring(context, nothing, "f", nothing, Path("/none"))
    assert waited == waits
