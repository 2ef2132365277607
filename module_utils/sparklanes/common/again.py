# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Asking a server again that is short of something for the moment: when, how often, and when not."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

ATTEMPTS = 4
FIRST_SECONDS = 5.0  # doubled each time
# A server that wants a longer wait is not waited for in the middle of a run: a person is told instead.
LONGEST_SECONDS = 300.0
# Too many requests, and what a server, or a proxy before it, says while it is overloaded or starts.
STATUSES = frozenset({429, 500, 502, 503, 504})
_MOMENTARY = re.compile(
    r"toomanyrequests|too many requests|\b(?:status(?: code)?|HTTP|code:?|received unexpected HTTP status:) ?(?:429|50[0234])\b|\b50[234] (?:Bad Gateway|Service|Gateway)|"
    r"TLS handshake timeout|unexpected EOF|connection reset by peer|Service Unavailable",
    re.IGNORECASE,
)
# `retry-after: 30`, `Retry after 1m30s`, `try again in 2.5 s`, in headers and in the words of registries.
_ASKED = re.compile(
    r"(?:retry[- ]after:?|try again in|retry in) (?:(?P<hours>\d{1,4})h)?(?:(?P<minutes>\d{1,6})m(?!s))?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)(?! ?ms| ?m| ?h))?",
    re.IGNORECASE,
)
# The rate limit of Docker Hub for who is not logged in counts hours, and says no delay.
_HOURS = re.compile(r"reached your (?:unauthenticated )?pull rate limit", re.IGNORECASE)


def momentary(text: str) -> bool:
    """Whether a server's words mean that the same question may be answered soon."""
    return bool(_MOMENTARY.search(text)) and not _HOURS.search(text)


def delay(attempt: int, text: str = "", retry_after: str = "", now: float | None = None) -> float | None:
    """Seconds to wait before attempt `attempt` + 1: what the server asks for in its words or in its header Retry-After (seconds or a
    date), at least ours; None where the attempts are used up or it asks for longer than we wait."""
    if attempt >= ATTEMPTS:
        return None
    wanted = max(FIRST_SECONDS * 2 ** (attempt - 1), _header(retry_after, now), _words(text))
    return wanted if wanted <= LONGEST_SECONDS else None


def waited(attempt: int) -> str:
    """The end of a sentence about what attempt `attempt` met: that it was not the first, which is waited before each other one."""
    return ", also after waiting" if attempt > 1 else ""


def _words(text: str) -> float:
    found = _ASKED.search(text)
    if not found:
        return 0.0
    return 3600.0 * int(found["hours"] or 0) + 60.0 * int(found["minutes"] or 0) + float(found["seconds"] or 0)


def _header(text: str, now: float | None) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now))
    except (TypeError, ValueError):
        return 0.0
