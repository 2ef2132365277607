#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A small server that speaks as much of the Hugging Face Hub as its real client needs for a download.

    python3 sandbox/hub.py --root DIR --host 10.93.1.1 --port 8090
    python3 sandbox/hub.py --root DIR --print-revision sparklanes/tiny

It serves DIR/<org>/<name>/ under HF_ENDPOINT=http://HOST:PORT. A repository has one revision, computed from
its content: change a byte and the revision is another. Faults for tests: `--corrupt` sends wrong bytes under
the right ETag (which the client does not notice), `--drop-after` cuts one connection, `--rate-mib` makes a
download last.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import hmac
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 20
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".onnx", ".tar", ".zip", ".npy")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
REVISION_URL = re.compile(rf"/api/models/({NAME}/{NAME})(?:/revision/([^/]+))?")
TREE_URL = re.compile(rf"/api/models/({NAME}/{NAME})/tree/([^/]+)")
RESOLVE_URL = re.compile(rf"/({NAME}/{NAME})/resolve/([^/]+)/(.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Entry:
    """One file of a repository. Large kinds have a sha256 (LFS); all have git's blob hash."""

    path: str
    size: int
    git_sha1: str
    sha256: str

    @property
    def lfs(self) -> bool:
        return self.path.endswith(LFS_SUFFIXES)

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1

    def to_tree(self) -> dict[str, Any]:
        node: dict[str, Any] = {"type": "file", "path": self.path, "size": self.size, "oid": self.git_sha1}
        if self.lfs:
            node["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return node


@functools.lru_cache(maxsize=4096)
def hashed(file: Path, path: str, size: int, mtime_ns: int) -> Entry:
    """The file's hashes; size and mtime are part of the key, so that a changed file is read again."""
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            git.update(block)
            sha.update(block)
    return Entry(path, size, git.hexdigest(), sha.hexdigest())


def entries(root: Path, repo: str) -> list[Entry]:
    """The files of a repository by name, none where there is no such repository. Dot files are not served."""
    folder = root / repo
    found = []
    for file in sorted(folder.rglob("*")) if folder.is_dir() else []:
        path = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in path.parts):
            stat = file.stat()
            found.append(hashed(file, path.as_posix(), stat.st_size, stat.st_mtime_ns))
    return found


def revision(files: list[Entry]) -> str:
    """40 hex digits that are the same wherever the same files are, like a commit."""
    lines = "".join(f"{entry.sha256} {entry.size} {entry.path}\n" for entry in files)
    return hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()


@dataclass
class Faults:
    """What this server does wrong on purpose."""

    corrupt: frozenset[str] = frozenset()
    drop_after: int = 0
    rate: int = 0
    uplink: int = 0
    free_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_uplink(self, count: int) -> None:
        """Wait until these bytes have gone through what all connections share."""
        if self.uplink:
            with self.lock:
                now = time.monotonic()
                self.free_at = max(self.free_at, now) + count / self.uplink
                delay = self.free_at - now
            time.sleep(delay)

    def take_drop(self) -> int:
        """After how many bytes to cut this connection; only the first to ask is cut."""
        with self.lock:
            limit, self.drop_after = self.drop_after, 0
            return limit


class Hub(ThreadingHTTPServer):
    """Threads, but no more than `limit` at once: further connections wait in the listen queue."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], root: Path, token: str, faults: Faults, limit: int = 32) -> None:
        super().__init__(address, Handler)
        self.root = root
        self.token = token
        self.faults = faults
        self.slots = threading.BoundedSemaphore(limit)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.slots.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sparklanes-sandbox-hub"
    timeout = 30  # an idle kept-alive connection must not hold its slot for ever
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        asked = self.headers.get("Range", "") if hasattr(self, "headers") else ""
        line = f"{time.strftime('%H:%M:%S')} {self.client_address[0]} {format % args} {asked}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    def do_GET(self) -> None:
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    do_HEAD = do_GET

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.server.token and not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {self.server.token}"):
            return self.refuse(HTTPStatus.UNAUTHORIZED, "GatedRepo", "A token is required")
        if match := TREE_URL.fullmatch(path):
            if files := self.files(match[1], match[2]):
                self.send_json([entry.to_tree() for entry in files])
            return None
        if match := REVISION_URL.fullmatch(path):
            if files := self.files(match[1], match[2] or "main"):
                model = {"id": match[1], "modelId": match[1], "sha": revision(files), "private": False}
                model |= {"gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
                self.send_json({**model, "siblings": [{"rfilename": entry.path} for entry in files]})
            return None
        if match := RESOLVE_URL.fullmatch(path):
            if files := self.files(match[1], match[2]):
                entry = next((entry for entry in files if entry.path == match[3]), None)
                if entry is None:
                    return self.refuse(HTTPStatus.NOT_FOUND, "EntryNotFound", f"No file {match[3]} in {match[1]}")
                self.send_file(match[1], entry, revision(files))
            return None
        return self.refuse(HTTPStatus.NOT_FOUND, "", "Not found")

    def files(self, repo: str, wanted: str) -> list[Entry]:
        """The repository's files, or an empty list after an error was sent."""
        files = entries(self.server.root, repo)
        if not files:
            self.refuse(HTTPStatus.NOT_FOUND, "RepoNotFound", f"No repository {repo}")
        elif wanted not in ("main", revision(files)):
            self.refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"{repo} has no revision {wanted}")
            return []
        return files

    def refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        headers = {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self.send_json({"error": message}, status, headers)

    def send_json(self, value: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] = {}) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, repo: str, entry: Entry, commit: str) -> None:
        first, last, status = 0, entry.size - 1, HTTPStatus.OK
        if match := RANGE.fullmatch(self.headers.get("Range", "")):
            first, status = int(match[1]), HTTPStatus.PARTIAL_CONTENT
            last = min(last, int(match[2])) if match[2] else last
            if first > last:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_header("Content-Range", f"bytes */{entry.size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(status)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{entry.etag}"')
        if entry.lfs:
            self.send_header("X-Linked-Etag", f'"{entry.etag}"')
            self.send_header("X-Linked-Size", str(entry.size))
        if status == HTTPStatus.PARTIAL_CONTENT:
            self.send_header("Content-Range", f"bytes {first}-{last}/{entry.size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if self.command != "HEAD":
            self.send_bytes(repo, entry, first, last - first + 1)

    def send_bytes(self, repo: str, entry: Entry, first: int, count: int) -> None:
        faults = self.server.faults
        limit = faults.take_drop() if entry.lfs and faults.drop_after else 0
        corrupt = f"{repo}/{entry.path}" in faults.corrupt
        limit_rate = min(rate for rate in (faults.rate, faults.uplink, 8 * BLOCK) if rate)
        size = max(512, limit_rate // 8)  # a small file takes its time, too
        sent, began = 0, time.monotonic()
        with (self.server.root / repo / entry.path).open("rb") as stream:
            stream.seek(first)
            while sent < count and (block := stream.read(min(size, count - sent))):
                if corrupt and first + sent + len(block) == entry.size:
                    block = block[:-1] + bytes([block[-1] ^ 1])
                if limit and sent + len(block) > limit:
                    self.wfile.write(block[: limit - sent])
                    self.connection.shutdown(SHUT_RDWR)
                    self.close_connection = True
                    return
                faults.pass_uplink(len(block))
                self.wfile.write(block)
                sent += len(block)
                if faults.rate:
                    time.sleep(max(0.0, sent / faults.rate - (time.monotonic() - began)))


def main() -> int:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--root", type=Path, required=True, help="holds <org>/<name>/ folders")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="0 takes a free one and prints it")
    parser.add_argument("--print-revision", metavar="ORG/NAME", help="print its revision and end")
    parser.add_argument("--token", default="", help="refuse requests without this bearer token")
    parser.add_argument("--corrupt", action="append", default=[], metavar="ORG/NAME/FILE")
    parser.add_argument("--drop-after", type=int, default=0, metavar="BYTES", help="cut one large download")
    parser.add_argument("--rate-mib", type=float, default=0, help="MiB/s of each connection")
    parser.add_argument("--uplink-mib", type=float, default=0, help="MiB/s of all connections together")
    options = parser.parse_args()
    if options.print_revision:
        files = entries(options.root, options.print_revision)
        if not files:
            print(f"{options.root / options.print_revision} holds no files", file=sys.stderr)
            return 1
        print(revision(files))
        return 0
    faults = Faults(
        frozenset(options.corrupt), options.drop_after, int(options.rate_mib * BLOCK), int(options.uplink_mib * BLOCK)
    )
    with Hub((options.host, options.port), options.root, options.token, faults) as hub:
        # shutdown() waits for serve_forever to end, so it may not run in the thread that serves.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=hub.shutdown, daemon=True).start())
        print(f"http://{options.host}:{hub.server_address[1]}", flush=True)
        hub.serve_forever(poll_interval=0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
