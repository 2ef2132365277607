"""When a server that is short of something is asked again."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.common import again


@pytest.mark.parametrize(
    "text",
    [
        "toomanyrequests: retry-after: 1.043361ms, allowed: 44000/minute",
        "Error response from daemon: received unexpected HTTP status: 503 Service Unavailable",
        "error pulling image configuration: download failed after attempts=1: unexpected EOF",
        'Get "https://registry.example/v2/": net/http: TLS handshake timeout',
        "read tcp 10.0.0.1:1->10.0.0.2:443: read: connection reset by peer",
        "unexpected status code 429",
        "502 Bad Gateway",
    ],
)
def test_words_that_pass(text: str) -> None:
    assert again.momentary(text)


@pytest.mark.parametrize(
    "text",
    [
        "toomanyrequests: You have reached your unauthenticated pull rate limit. https://docs.docker.com/",
        "manifest unknown",
        "unauthorized: authentication required",
        "no space left on device",
        "dial tcp 10.0.0.2:5030: connect: connection refused",
    ],
)
def test_words_that_stay(text: str) -> None:
    assert not again.momentary(text)


@pytest.mark.parametrize(
    ("attempt", "text", "header", "seconds"),
    [
        (1, "", "", 5.0),
        (2, "", "", 10.0),
        (3, "", "", 20.0),
        (4, "", "", None),
        (1, "toomanyrequests: retry-after: 30, allowed: 1/minute", "", 30.0),
        (1, "Retry after 1m30s", "", 90.0),
        (1, "try again in 45.5 seconds", "", 45.5),
        (1, "retry-after: 6h", "", None),
        (1, "", "42", 42.0),
        (1, "", "86400", None),
        (1, "", "Fri, 15 Jan 2027 08:02:00 GMT", 120.0),
        (1, "", "Fri, 15 Jan 2027 07:00:00 GMT", 5.0),
        (1, "", "soon", 5.0),
    ],
)
def test_how_long_it_is_waited(attempt: int, text: str, header: str, seconds: float | None) -> None:
    assert again.delay(attempt, text, header, now=1_800_000_000.0) == seconds
