# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One GET of a web server, with limits: how long, how much, whereto, and who may see the secret that goes with it.

A server that is short of something is asked again, as it says (`again`). A proxy is used where the environment names one, and never for
this machine itself. What comes back is somebody else's words: bounded here, judged by whoever asked.
"""

from __future__ import annotations

import itertools
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.sparklanes.common import again
from ansible.module_utils.sparklanes.common.interfaces import interfaces
from ansible.module_utils.sparklanes.common.secrets import blanked

TIMEOUT = 30.0  # of each step: a connection, a piece of an answer
SECONDS = 600.0  # of a whole answer: one that comes drop by drop ends
REDIRECTS = 5
BLOCK = 1 << 20
# Of what a server says with a refusal.
WORDS = 64 << 10


@dataclass(frozen=True)
class Answer:
    """What a server gave. `url` is where it came from in the end."""

    url: str
    headers: Message
    body: bytes


class Refused(Exception):
    """A server answered with another status than success, at attempt `attempt`."""

    def __init__(self, url: str, status: int, headers: Message, body: bytes, attempt: int) -> None:
        super().__init__(f"{url}: HTTP {status}")
        self.url, self.status, self.headers, self.body, self.attempt = url, status, headers, body, attempt


class Unanswered(Exception):
    """No answer, or none that could be kept: the text says why. `tls` where the two did not agree on a secure connection."""

    def __init__(self, why: object, tls: bool = False) -> None:
        super().__init__(str(why))
        self.tls = tls


def in_the_open(address: str) -> bool:
    """Whether others may read and change what goes to an address and comes from it: not by TLS, nor without leaving the machine."""
    try:
        parts = urlsplit(address)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        return True
    return scheme != "https" and (scheme != "http" or bool(interfaces(host)))


def origin(address: str) -> tuple[str, str, int]:
    """Who answers at an address: scheme, host, port. A secret for one of them is for no other."""
    parts = urlsplit(address)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)


def whole(answer: Any, limit: int, what: str = "its list", seconds: float = SECONDS, asked: str = "") -> bytes:
    """The body of an answer. One that is too long, was cut or does not end is an OSError: half of it would pass for the whole.

    asked: the address, if what is said rests on it alone. An answer that was sent on from there into the open is an OSError too.
    """
    if asked and in_the_open(answer.url) and not in_the_open(asked):
        raise OSError(f"it sends {what} on to {blanked(answer.url)}, without TLS, where anybody on the way can write it")
    end = time.monotonic() + seconds
    parts: list[bytes] = []
    size = 0
    while block := answer.read1(min(BLOCK, limit + 1 - size)):
        parts.append(block)
        size += len(block)
        if size > limit:
            raise OSError(f"{what} has more than {limit:,} bytes")
        if time.monotonic() > end:
            raise OSError(f"{what} has not ended after {seconds:g} s")
    if answer.length:
        raise OSError(f"{what} was cut after {size:,} bytes, {answer.length:,} before its end")
    return b"".join(parts)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, but to nowhere that others can read; the secret goes along to the same server alone, and only where asked."""

    max_redirections = REDIRECTS

    def __init__(self, secret: str, along: bool) -> None:
        self.secret, self.along = secret, along

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        to = urlsplit(newurl)
        if to.scheme not in ("http", "https") or (req.type == "https" and to.scheme != "https"):
            raise OSError(f"it sends on to {to.scheme}://{to.netloc}, without the TLS that was asked for")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and self.secret and self.along and origin(newurl) == origin(req.full_url):
            made.add_unredirected_header("Authorization", self.secret)
        return made


def get(
    url: str,
    limit: int,
    secret: str = "",
    headers: Mapping[str, str] | None = None,
    what: str = "its answer",
    timeout: float = TIMEOUT,
    seconds: float = SECONDS,
    along: bool = False,
    ca: str = "",
    method: str = "GET",
) -> Answer:
    """What a server says, of at most `limit` bytes. Refused and Unanswered otherwise.

    secret: the whole header Authorization; it is not sent on by a redirect. along: but to the same server. ca: a file with the certificate
    of who signed the server's, where that is nobody whom this machine knows.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
        opener = _opener(url, secret, along, ca)
    except (OSError, ValueError) as error:
        raise Unanswered(f"{blanked(url)}: {error}") from error  # an odd address, or no such certificate
    if secret:
        request.add_unredirected_header("Authorization", secret)
    for attempt in itertools.count(1):
        try:
            with opener.open(request, timeout=timeout) as answer:
                return Answer(answer.url, answer.headers, whole(answer, limit, what, seconds, url))
        except urllib.error.HTTPError as error:
            wait = None
            if error.code in again.STATUSES:
                wait = again.delay(attempt, retry_after=error.headers.get("Retry-After", ""))
            if wait is None:
                raise Refused(url, error.code, error.headers, _words(error), attempt) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            wait = again.delay(attempt) if again.momentary(str(reason)) else None
            if wait is None:
                via = proxy_of(url)
                why = f"{reason or type(error).__name__}{f', through the proxy {blanked(via)}' if via else ''}"
                raise Unanswered(why, isinstance(reason, ssl.SSLError)) from error
        time.sleep(wait)
    raise AssertionError("counting ended")


def _opener(url: str, secret: str, along: bool, ca: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_Redirects(secret, along)]
    if not interfaces(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))  # a proxy would look on its own machine
    if ca:
        context = ssl.create_default_context()
        context.load_verify_locations(cafile=ca)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _words(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(WORDS)
    except (OSError, HTTPException, ValueError):
        return b""


def proxy_of(url: str) -> str:
    """The proxy that a request to this address goes through, empty where it goes there itself. For a person who wonders why it fails."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not interfaces(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    return str(urllib.request.getproxies().get(parts.scheme, ""))
