# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where the files of a model come from: the Hub, a plain HTTP mirror, the Sparks before this one, or they lie here already.

A source says what the files must be, and brings one file below a folder. What a source brings is never trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible.module_utils.sparklanes.common import sums, web
from ansible.module_utils.sparklanes.common.checks import WARN, Check
from ansible.module_utils.sparklanes.common.secrets import blanked
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights import hub as weights_hub
from ansible.module_utils.sparklanes.weights import hub_client
from ansible.module_utils.sparklanes.weights.chain.take import ChainSource
from ansible.module_utils.sparklanes.weights.client_user import ROOM, ClientUser
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import (
    BLOCK,
    Content,
    Manifest,
    Model,
    StagingError,
    of_model,
    proven,
    safe_name,
    with_digests,
)
from ansible.module_utils.sparklanes.weights.pace import Pace
from ansible.module_utils.sparklanes.weights.tools import Source, Tool, own_folder, writes_at_most

HTTP_TIMEOUT = 60.0
# 15 wheels of 10 MiB together. pip has limits a request, and none for an index that trickles.
INSTALL_SECONDS = 1800.0
LISTS = ("manifest.json", sums.SUMS)


def from_hub(model: Model, files: Mapping[str, weights_hub.HubFile]) -> Manifest:
    entries = {name: {"size": file.size, "sha256": file.sha256, "git_sha1": file.git_sha1} for name, file in files.items()}
    return proven(model, with_digests(model, told(model, entries, "hub")))


def told(model: Model, entries: Mapping[str, Mapping[str, Any]], source: str) -> Manifest:
    """A list of files by somebody else's word."""
    return Manifest.from_dict({"repo": model.repo, "revision": model.revision, "files": entries, "source": source})


class HubSource(Source):
    """The Hub, by its own client."""

    fetches = True

    def __init__(self, args: Mapping[str, Any], token: str, run: Tool) -> None:
        self.endpoint = args["endpoint"]
        self.name = self.endpoint
        self.token = token
        self.lock = hub_client.read(args["lock"])
        self.venv = Path(args["venvs_dir"]) / self.lock.name
        self.pip_args = list(args["pip_args"])
        self.run = run
        self.runs_as = str(args["user"])

    @cached_property
    def user(self) -> ClientUser:
        return ClientUser.of(self.runs_as)

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        model.needs_commit()
        saved = store.manifest()
        if saved is not None and saved.of(model) and saved.source == "hub":
            return proven(model, with_digests(model, saved))  # a commit does not change
        return from_hub(model, weights_hub.tree(self.endpoint, model.repo, model.revision, self.token))

    def prepare(self, report: Reporter) -> None:
        report.phase(f"huggingface_hub {self.lock.version}")
        hub_client.ensure(self.venv, self.lock, self.pip_args, partial(self.run, seconds=INSTALL_SECONDS), sys.executable)

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        came = own_folder(name, incoming) / "file"
        if came.is_file() and came.stat().st_size == content.size:
            return came  # taken over before an earlier job was killed
        room = incoming / ROOM
        command = self.user.command(weights_hub.download_command(self.venv, model.repo, model.revision, name, room))
        env = weights_hub.client_environment(self.endpoint, self.token, room / ".home", os.environ)

        def reached() -> int:
            """Bytes of this file that are on the disk; the client may fill it in any order."""
            try:
                stat = path.stat() if (path := self.growing(name, content, incoming)) else None
            except OSError:
                return 0
            return stat.st_blocks * 512 if stat else 0

        code, output = self.run(writes_at_most(content.size, command), env, progress=reached)
        if code != 0:
            raise StagingError(f"{self.endpoint} did not give {model.repo}/{name}: {output}")
        return self.user.take_over(incoming, name)

    def growing(self, name: str, content: Content, incoming: Path) -> Path | None:
        room = incoming / ROOM
        final = room / name
        if final.exists():
            return final
        folder = (room / ".cache/huggingface/download" / name).parent
        tags = [tag for tag in (content.sha256, content.git_sha1) if tag]
        found = [path for tag in tags for path in folder.glob(f"*.{tag}.*incomplete")]
        return found[0] if len(found) == 1 else None

    def sweep(self, incoming: Path) -> None:
        self.user.sweep(incoming)
        room = self.user.room(incoming)
        hf = self.venv / "bin" / "hf"
        code, _ = self.run(
            self.user.command(["test", "-w", str(room), "-a", "-x", str(hf)]), {"PATH": os.environ.get("PATH", os.defpath)}
        )
        if code != 0:
            raise StagingError(
                f"user {self.user.name}, as whom the Hub's client runs, can't reach {room}, or {hf}. Let others pass through the folders"
                " on the way (chmod o+x), or run it as root: model_weights_hub_user: root"
            )


def listed(text: bytes) -> dict[str, str]:
    """File → sha256 of a SHA256SUMS that a person or `release.archive` made."""
    try:
        return {safe_name(name): digest for name, digest in sums.read(text.decode(errors="replace")).items()}
    except ValueError as error:
        raise StagingError(str(error)) from error


def unpinned(model: Model, host: str, url: str, pin: str) -> list[Check]:
    """A list that anybody on the way to the mirror can write, hashes and all, is believed where nothing says what it must be."""
    if pin or not url or not web.in_the_open(url):
        return []
    found = f"{model.name}: {blanked(url)} is believed without TLS, and nothing says what its list of files must hash to"
    remedy = (
        f"Give the sha256 of its {' or '.join(LISTS)}: model_weights_mirror_lists: {{{model.name}: …}}; or an https:// address"
    )
    return [Check("SOURCE.UNPINNED", host, WARN, found, "https://, or a pinned list", remedy)]


class MirrorSource(Source):
    """A folder behind a web server, with a list of its files: our own manifest.json, or SHA256SUMS, or the lane's sha256."""

    fetches = True

    def __init__(self, args: Mapping[str, Any], pace: Pace) -> None:
        self.urls: Mapping[str, str] = args["urls"]
        self.pins: Mapping[str, str] = args["lists"]
        self.name = " and ".join(sorted(set(self.urls.values())))
        self.pace = pace

    def _open(self, url: str, method: str = "GET", begin: int = 0) -> Any:
        request = urllib.request.Request(url, method=method)
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        return urllib.request.urlopen(request, timeout=HTTP_TIMEOUT)

    def _url(self, model: Model, name: str) -> str:
        if model.name not in self.urls:
            raise StagingError(f"no mirror is named for {model.name}: set model_weights_mirror")
        return f"{self.urls[model.name].rstrip('/')}/{quote(name)}"

    def manifest(self, model: Model, store: ModelStore) -> Manifest:
        return proven(model, with_digests(model, self._listed(model)))

    def _listed(self, model: Model) -> Manifest:
        for name in LISTS:
            url, pin = self._url(model, name), self.pins.get(model.name, "")
            try:
                with self._open(url) as answer:
                    text = web.whole(answer, weights_hub.LIST_LIMIT, asked="" if pin else url)
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    continue
                raise StagingError(f"{url}: HTTP {error.code}. May this node read the mirror?") from error
            except (OSError, ValueError, HTTPException) as error:  # ValueError: of an address that it was sent on to
                raise StagingError(f"{url} does not answer ({getattr(error, 'reason', error)}). Check the address") from error
            found = hashlib.sha256(text).hexdigest()
            if pin and pin != found:
                raise StagingError(f"{url} hashes to {found[:16]}…, not {pin[:16]}…. Is it the list that is meant?")
            if name == sums.SUMS:
                return self._with_sizes(model, listed(text))
            try:
                files = Manifest.from_dict(json.loads(text)).files
            except (ValueError, RecursionError) as error:
                raise StagingError(f"{url} is no JSON: {str(error)[:100]}") from error
            return Manifest(model.repo, model.revision, files, "mirror")
        if model.sha256:
            return self._with_sizes(model, model.sha256)
        raise StagingError(
            f"{self._url(model, '')} has neither {' nor '.join(LISTS)}, and lane_{model.name}.sha256 is empty: nothing says"
            " what the files must be. Run `sha256sum * > SHA256SUMS` beside them"
        )

    def _with_sizes(self, model: Model, sums: Mapping[str, str]) -> Manifest:
        def size(name: str) -> int:
            url = self._url(model, name)
            try:
                with self._open(url, "HEAD") as answer:
                    return int(answer.headers["Content-Length"])
            except (OSError, TypeError, ValueError, HTTPException) as error:
                raise StagingError(f"{url}: no size ({error}). Is the file there?") from error

        names = [safe_name(name) for name in sums if name not in LISTS and of_model(name)]
        if not names:
            raise StagingError(f"{self._url(model, 'SHA256SUMS')} names no files")
        with ThreadPoolExecutor(8) as pool:
            sizes = dict(zip(names, pool.map(size, names), strict=True))
        return told(model, {name: {"size": sizes[name], "sha256": sums[name]} for name in names}, "mirror")

    def fetch(self, model: Model, name: str, content: Content, incoming: Path) -> Path:
        path = own_folder(name, incoming) / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        url = self._url(model, name)
        begin = path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
        if begin and begin == content.size:
            return path
        if begin > content.size:
            begin = 0
        try:
            with self._open(url, begin=begin) as answer:
                if not goes_on(answer, begin):
                    begin = 0
                    path.unlink(missing_ok=True)  # the whole again: another inode, in which nothing of an earlier attempt is
                self._write(answer, path, begin, content.size, url)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                path.unlink(missing_ok=True)  # what is there can't be its beginning
            asked = error.headers.get("Retry-After", "")
            raise StagingError(f"{url}: HTTP {error.code}" + (f" (Retry-After: {asked[:40]})" if asked else "")) from error
        except (OSError, ValueError, HTTPException) as error:  # ValueError: of an address that it was sent on to
            if isinstance(error, OSError) and error.errno is not None and error.filename:
                raise  # of the disk here
            raise StagingError(f"{url}: {getattr(error, 'reason', error) or type(error).__name__}") from error
        if path.stat().st_size < content.size:
            raise StagingError(f"{url} ended after {path.stat().st_size:,} of {content.size:,} bytes")
        return path

    def _write(self, answer: Any, path: Path, begin: int, size: int, url: str) -> None:
        """The answer from `begin` on. One byte more than the file may have is enough to refuse it."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if begin else os.O_CREAT | os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
            while block := answer.read(min(BLOCK, size - begin + 1)):
                begin += len(block)
                if begin > size:
                    path.unlink()
                    raise StagingError(f"{url} goes on after the {size:,} bytes that the file has")
                stream.write(block)
                stream.flush()
                self.pace.take(len(block))


def goes_on(answer: Any, begin: int) -> bool:
    """Whether an answer is what comes after the first `begin` bytes, and not the whole again."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if answer.status != 206:
        return False
    if not begin or found is None or int(found[1]) != begin:
        raise StagingError(f"{answer.url} answers with another part of the file than the one that it was asked for")
    return True


def make_source(args: Mapping[str, Any], secrets: Mapping[str, str], tool: Tool, report: Reporter, pace: Pace) -> Source:
    kind = args["source"]
    if kind == "hub":
        return HubSource(args["hub"], secrets.get("token", ""), tool)
    if kind == "mirror":
        return MirrorSource(args["mirror"], pace)
    if kind == "chain":
        return ChainSource(
            args["chain"], secrets.get("chain_secret", ""), tool, report, float(args["rate"]), int(args["workers"])
        )
    return Source()
