# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A Hub and a registry on this machine, as much of both as playbooks/pin.yml asks; real servers, what they hold is said by a test."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Repository:
    """A repository of the Hub: its commits, the newest first (id, date, title), the files of each (name → size, or bytes), who may read it."""

    commits: list[tuple[str, str, str]]
    files: dict[str, int | bytes]
    gated: str = ""
    history: bool = True
    name: str = ""

    def entries(self) -> list[dict[str, Any]]:
        made = []
        for name, content in self.files.items():
            size = content if isinstance(content, int) else len(content)
            blob = content if isinstance(content, bytes) else b""
            git = hashlib.sha1(b"blob %d\0" % len(blob) + blob, usedforsecurity=False).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": git}
            if isinstance(content, int):
                entry["lfs"] = {"oid": hashlib.sha256(name.encode()).hexdigest(), "size": size, "pointerSize": 134}
            made.append(entry)
        return made


@dataclass
class Server:
    """What every server here keeps: who asked what, with which Authorization, and answers that come before the usual one."""

    address: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    # (status, headers, body) by a part of the path, each given once.
    first: list[tuple[str, int, dict[str, str], bytes]] = field(default_factory=list)

    def answer(self, path: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        kept: Server = self.server.kept
        secret = self.headers.get("Authorization") or ""
        kept.asked.append((self.command, self.path, secret))
        early = next((one for one in kept.first if one[0] in self.path), None)
        if early:
            kept.first.remove(early)
        status, headers, body = early[1:] if early else kept.answer(self.path, secret)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


@contextmanager
def serving(kept: Server) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.kept = kept  # type: ignore[attr-defined]
        kept.address = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield kept.address
        server.shutdown()


@dataclass
class Hub(Server):
    """The Hub's API: revision, commits, tree, resolve."""

    repositories: dict[str, Repository] = field(default_factory=dict)

    def answer(self, path: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        words = [unquote(word) for word in urlsplit(path).path.strip("/").split("/")]
        models = words[:2] == ["api", "models"]
        name, rest = "/".join(words[2:4] if models else words[:2]), words[4:] if models else words[2:]
        found = self.repositories.get(name)
        if found is None or len(rest) < 2:
            return 401, {"X-Error-Code": "RepoNotFound"}, b'{"error":"Invalid username or password."}'
        if found.gated and secret != f"Bearer {found.gated}":
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        kind, revision = rest[0], rest[1]
        ids = [commit for commit, _, _ in found.commits]
        place = 0 if revision == "main" else ids.index(revision) if revision in ids else None
        if place is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if kind == "revision":
            told: Any = {"id": found.name or name, "sha": ids[place], "lastModified": found.commits[0][1], "siblings": []}
        elif kind == "commits" and found.history:
            told = [{"id": one, "date": date, "title": title, "authors": []} for one, date, title in found.commits[place:]]
        elif kind == "tree":
            told = found.entries()
        elif kind == "resolve" and isinstance(content := found.files.get("/".join(rest[2:])), bytes):
            return 200, {}, content
        else:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        return 200, {"Content-Type": "application/json"}, json.dumps(told).encode()


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass
class Registry(Server):
    """A registry: tags, manifests and blobs by digest. auth: nothing, `basic`, or `bearer` with a token of its own realm."""

    auth: str = ""
    login: str = ""  # user:password, empty: everybody
    realm: str = ""  # where tokens are given; empty: here
    tags: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    name: str = "owner/engine"
    on_manifest: Callable[[Registry, str], None] | None = None

    def put(self, data: Any, kind: str = "application/octet-stream") -> str:
        body = json.dumps(data).encode()
        self.blobs[digest_of(body)] = (kind, body)
        return digest_of(body)

    def image(self, architecture: str = "arm64", created: str = "2026-08-28T10:00:00Z", **inner: Any) -> str:
        config = self.put({"architecture": architecture, "os": "linux", "created": created, "config": inner})
        return self.put(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": config}, "layers": [{"size": 5 << 30}]}, MANIFEST
        )

    def index(self, *entries: tuple[str, str, str]) -> str:
        """(digest, os/architecture[/variant], comment)."""
        manifests = []
        for digest, platform, _ in entries:
            system, machine, *variant = platform.split("/")
            manifests.append(
                {
                    "digest": digest,
                    "platform": {"os": system, "architecture": machine, **({"variant": variant[0]} if variant else {})},
                }
            )
        return self.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}, INDEX)

    def answer(self, path: str, secret: str) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(path)
        if parts.path == "/token":
            wanted = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            if self.login and secret != wanted:
                return 401, {}, b'{"errors":[{"code":"DENIED"}]}'
            return 200, {}, json.dumps({"token": f"for-{parse_qs(parts.query)['scope'][0]}"}).encode()
        if self.auth == "bearer" and secret != f"Bearer for-repository:{self.name}:pull":
            realm = self.realm or f"http://{self.address}/token"
            return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="here",scope="repository:{self.name}:pull"'}, b"{}"
        if self.auth == "basic" and secret != f"Basic {base64.b64encode(self.login.encode()).decode()}":
            return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b"{}"
        prefix = f"/v2/{self.name}/"
        if not parts.path.startswith(prefix):
            return 404, {}, b'{"errors":[{"code":"NAME_UNKNOWN"}]}'
        kind, _, reference = parts.path.removeprefix(prefix).partition("/")
        if kind == "tags":
            return 200, {}, json.dumps({"name": self.name, "tags": sorted(self.tags)}).encode()
        digest = self.tags.get(reference, reference)
        if digest not in self.blobs:
            return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        if self.on_manifest and kind == "manifests":
            self.on_manifest(self, reference)
        return 200, {"Content-Type": self.blobs[digest][0], "Docker-Content-Digest": digest}, self.blobs[digest][1]
