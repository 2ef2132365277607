# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Web servers that answer as a case says: a list of steps, of which each request takes the next and the last one stays.

A step: `body` (right, evil, longer, shorter, zeros, endless, empty, or a text of the case, `times` over), `status`, `cut` (share of the body after which the
connection ends), `says` (Content-Length: right, that of the whole, none, chunked, or a number), `range` (honour, ignore, wrong), `headers`, `drip` (seconds between
pieces), `hold` (seconds of silence after them), `redirect` (an address; {other}: another server, which has the evil files, at {other_port}), `raw` (bytes instead of HTTP).
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.hostile.arena import Arena
from benchmarks.hostile.models import evil

Step = Mapping[str, Any]
RIGHT: Sequence[Step] = ({"body": "right", "range": "honour"},)
ENDLESS = 600  # pieces of 1 MiB: more than any limit here lets through
BODIES: Mapping[str, Callable[[bytes], bytes]] = {
    "right": lambda right: right,
    "evil": evil,
    "longer": lambda right: right + b"more",
    "shorter": lambda right: right[:-1],
    "zeros": lambda right: bytes(len(right)),
    "empty": lambda right: b"",
    "endless": lambda right: right,
}


class Site:
    """What a server has, by path; `steps` by path, for all paths under ''."""

    def __init__(
        self, arena: Arena, files: Mapping[str, bytes], steps: Mapping[str, Sequence[Step]], name: str = "mirror"
    ) -> None:
        self.arena, self.files, self.steps, self.name = arena, files, steps, name
        self.asked: dict[str, int] = {}
        self.other = ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        self.port = int(self.server.server_port)
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self) -> str:
        """Answer from a process of its own, which shares nothing with the product."""
        self.arena.adversary(self.server.serve_forever)
        self.server.socket.close()
        return self.url

    def step(self, path: str, method: str) -> Step:
        steps = self.steps.get(path, self.steps.get("", RIGHT))
        if method == "HEAD":
            return steps[0]
        number = self.asked.get(path, 0)
        self.asked[path] = number + 1
        return steps[min(number, len(steps) - 1)]


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            step = site.step(path, self.command)
            noted = {"authorization": self.headers["Authorization"]} if self.headers["Authorization"] else {}
            site.arena.note(at=site.name, method=self.command, path=self.path[:200], **noted)
            self.close_connection = True
            with contextlib.suppress(OSError):
                send(self, site, path, step)

    return Handler


def send(to: BaseHTTPRequestHandler, site: Site, path: str, step: Step) -> None:
    if raw := step.get("raw"):
        to.wfile.write(raw.encode("latin-1") * int(step.get("times", 1)))
        return
    given = step.get("body", "right")
    found = site.files.get(path)
    if found is None and given in BODIES and not step.get("redirect"):
        to.send_response(404)
        to.send_header("Content-Length", "0")
        to.end_headers()
        return
    body = BODIES[given](found or b"") if given in BODIES else str(given).encode() * int(step.get("times", 1))
    if "place" in step:  # one bit of it
        number, bit = divmod(int(step["place"]), 8)
        body = (found or b"")[:number] + bytes([(found or b"")[number] ^ 1 << bit]) + (found or b"")[number + 1 :]
    status, headers = int(step.get("status", 200)), {str(key): str(value) for key, value in (step.get("headers") or {}).items()}
    headers = {key: value.replace("{me}", site.url).replace("{path}", path) for key, value in headers.items()}
    whole = len(body)
    asked = re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", ""))
    if asked and step.get("range", "ignore") != "ignore":
        begin = int(asked[1])
        if step["range"] == "wrong":
            begin = max(0, begin - 7)
        body, status = body[begin:], 206
        headers.setdefault("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
    if redirect := step.get("redirect"):
        status, body = int(step.get("status", 302)), b""
        headers["Location"] = str(redirect).format(
            other=site.other, other_port=site.other.rpartition(":")[2], me=site.url, path=path
        )
    says = step.get("says", "right")
    to.send_response(status)
    if says == "chunked":
        to.send_header("Transfer-Encoding", "chunked")
    elif says != "none" and given != "endless":
        to.send_header("Content-Length", str(len(body) if says == "right" else says))
    for key, value in headers.items():
        to.send_header(key, value)
    for number in range(int(step.get("many_headers", 0))):
        to.send_header(f"X-{number}", "x" * 100)
    to.end_headers()
    if to.command == "HEAD":
        return
    body = body[: int(len(body) * float(step["cut"]))] if "cut" in step else body
    if given == "endless":
        for _ in range(ENDLESS):
            to.wfile.write(body if len(body) > 1 << 20 else bytes(1 << 20))
        return
    if says == "chunked":
        to.wfile.write(f"{len(body) + 1000:x}\r\n".encode())
    drip = float(step.get("drip", 0))
    piece = max(1, len(body) // 16) if drip else len(body)
    for at in range(0, len(body), piece or 1):
        to.wfile.write(body[at : at + piece])
        time.sleep(drip)
    if hold := step.get("hold"):
        to.wfile.flush()
        time.sleep(float(hold))


class Silent:
    """Takes connections, says `greeting` and then nothing more, for as long as it is let."""

    def __init__(self, arena: Arena, greeting: bytes = b"") -> None:
        self.arena, self.greeting = arena, greeting
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])

    def serve(self) -> int:
        self.arena.adversary(self._hold)
        self.listener.close()
        return self.port

    def _hold(self) -> None:
        held = []
        while True:
            taken, _ = self.listener.accept()
            self.arena.note(at="silent")
            with contextlib.suppress(OSError):
                taken.sendall(self.greeting)
            held.append(taken)
