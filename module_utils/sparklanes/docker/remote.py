# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a registry says of an image, by the protocol that Docker pulls with: which manifest a tag means, for which machines, and what the
image's configuration tells without a pull.

A tag may name an index, a list of manifests by platform. What a Spark pulls of it is one manifest, and that one's digest is the pin: the
same in both image stores of Docker, and still the same after a Spark has lent the image to others, which an index is not: of an index whose
other platforms are not there Docker pushes the one manifest (moby pull request 48737). Everything that comes is hashed here: a registry that
sends other bytes than it names is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ansible.module_utils.sparklanes.common import again, web
from ansible.module_utils.sparklanes.common.secrets import secret_name
from ansible.module_utils.sparklanes.common.suggest import nearest
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.docker.images import canonical
from ansible.module_utils.sparklanes.docker.logins import Login, is_local

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
# As the distribution's own registry limits a manifest; a configuration has a line for each step of a build.
MANIFEST_LIMIT = 4 << 20
CONFIG_LIMIT = 8 << 20
TAGS_LIMIT = 8 << 20
TOKEN_LIMIT = 1 << 20
# Where Docker goes for names without a host, and who gives it tokens there.
API_HOSTS = {"docker.io": "registry-1.docker.io"}
REALM_HOSTS = {"docker.io": ("auth.docker.io",)}
# What of a configuration is worth a look: the rest is the base image's.
LABELS = re.compile(
    r"org\.opencontainers\.image\.(?:version|revision|created|source|base\.name|base\.digest)|.*(?:vllm|dflash|flashinfer|torch|nccl|cuda).*",
    re.IGNORECASE,
)
VERSIONS = re.compile(r"[A-Z0-9_]*(?:VLLM|TORCH|NCCL|CUDA|FLASHINFER|CUTLASS)[A-Z0-9_]*(?:VERSION|COMMIT|REF)", re.ASCII)
_CHALLENGE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')


class RegistryError(Exception):
    """What a registry said, or that it said nothing, in words for a person."""


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index, by its own bytes."""

    digest: str
    data: Mapping[str, Any]
    type: str


class Registry:
    """One repository of a registry. insecure: it speaks no TLS, as Docker calls such a one."""

    def __init__(self, repository: str, login: Login | None = None, insecure: bool = False, ca: str = "") -> None:
        self.repository = repository
        self.host, _, self.name = canonical(repository).partition("/")
        self.login, self.insecure, self.ca = login, insecure, ca
        self.base = f"{'http' if insecure else 'https'}://{API_HOSTS.get(self.host, self.host)}"
        self._token = ""

    # --- asking ---

    def _get(self, path: str, limit: int, accept: str = "*/*", what: str = "", method: str = "GET") -> web.Answer:
        """One answer; asked again with what the registry wants to see of us first."""
        url = f"{self.base}/v2/{quote(self.name)}/{path}"
        shown = what or f"{self.host}/{self.name}"
        for _ in range(2):
            try:
                return web.get(url, limit, self._token, {"Accept": accept}, ca=self.ca, method=method)
            except web.Refused as error:
                if error.status != 401 or self._token:
                    raise RegistryError(self._explain(error, shown)) from error
                self._token = self._answer_to(error)
            except web.Unanswered as error:
                if error.tls and is_local(self.host) and self.base.startswith("https:"):
                    self.base = f"http://{self.host}"  # on this machine Docker too does without TLS
                    return self._get(path, limit, accept, what, method)
                hint = (
                    "Give this machine its CA (/etc/docker/certs.d/REGISTRY/ca.crt), or, for a registry of your own without TLS, name it in "
                    "engine_image_insecure_registries"
                    if error.tls
                    else "Check its name, this machine's route, proxy and DNS"
                )
                raise RegistryError(f"{self.host} does not answer ({error}). {hint}") from error
        raise AssertionError("a second answer raises or returns")

    def _answer_to(self, refusal: web.Refused) -> str:
        """What to show a registry that asks who we are: nothing that it did not ask for, and a password to nobody but it and who speaks for it."""
        challenge = refusal.headers.get("WWW-Authenticate", "")
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic" and self.login:
            self._refuse_open(self.base)
            return self.login.basic
        told = {name.lower(): value for name, value in _CHALLENGE.findall(challenge)}
        realm = told.get("realm", "")
        if kind != "bearer" or not realm:
            raise RegistryError(self._explain(refusal, f"{self.host}/{self.name}"))
        parts = urlsplit(realm)
        if parts.scheme not in ("https", "http") or (parts.scheme == "http" and self.base.startswith("https:")):
            raise RegistryError(f"{self.host} sends who wants a token to {said(realm, 100)}, which is no https:// address")
        query = {"service": told.get("service", ""), "scope": told.get("scope") or f"repository:{self.name}:pull"}
        address = f"{realm}{'&' if parts.query else '?'}{urlencode({name: value for name, value in query.items() if value})}"
        secret = ""
        if self.login and self.speaks_for(parts.hostname or ""):
            self._refuse_open(realm)
            secret = self.login.basic
        try:
            answer = web.get(address, TOKEN_LIMIT, secret, ca=self.ca if web.origin(realm) == web.origin(self.base) else "")
        except web.Refused as error:
            raise RegistryError(self._explain(error, f"{self.host}/{self.name} (a token of {parts.hostname})")) from error
        except web.Unanswered as error:
            raise RegistryError(f"{parts.hostname}, which gives tokens for {self.host}, does not answer ({error})") from error
        try:
            given = json.loads(answer.body)
            token = str(given.get("token") or given.get("access_token") or "")
        except (ValueError, AttributeError, RecursionError):
            token = ""
        if not re.fullmatch(r"[!-~]+", token):
            raise RegistryError(f"{parts.hostname} gave no token for {self.host}/{self.name}")
        return f"Bearer {token}"

    def speaks_for(self, realm: str) -> bool:
        """Whether a host that gives tokens may see the password for this registry: the registry itself, a part of its domain, or as the site says."""
        own = self.host.rpartition(":")[0] or self.host
        trusted = (*REALM_HOSTS.get(self.host, ()), *([self.login.realm] if self.login and self.login.realm else []))
        return realm == own or realm in trusted or (own.endswith(f".{realm}") and "." in realm) or realm.endswith(f".{own}")

    def _refuse_open(self, address: str) -> None:
        if self.login and web.in_the_open(address) and not self.login.over_http:
            raise RegistryError(
                f"the password for {self.host} would go to {said(address, 100)} without TLS, for anybody on the way to read. Where that network "
                f"is yours alone: engine_image_logins: {{{self.host}: {{…, over_http: true}}}}"
            )

    def _explain(self, error: web.Refused, what: str) -> str:
        code = _code(error.body)
        where = f"{what} at {self.host}" if not what.startswith(self.host) else what
        if error.status == 429:
            return (
                f"{where}: the registry refuses more for now (429{code}){again.waited(error.attempt)}. A login raises the limit "
                "(engine_image_logins), or wait for as long as it says"
            )
        if error.status in (401, 403):
            who = f"as {self.login.username}" if self.login else "without a login"
            return (
                f"{where}: access denied ({error.status}{code}), asked {who}. It is private, or not there: check the name, and give a login that may "
                f"read it (engine_image_logins: {{{self.host}: {{username: …, password: …}}}}, or docker login {self.host} on this machine)"
            )
        if error.status == 404:
            return f"{where}: not there (404{code})"
        if error.status >= 500:
            return f"{where}: the registry answers HTTP {error.status}{again.waited(error.attempt)}. Run this again later"
        return f"{where}: HTTP {error.status}{code}"

    # --- answers ---

    def manifest(self, reference: str) -> Manifest:
        """What a tag or a digest names. Of a digest the bytes must be that, of a tag those that the registry says."""
        answer = self._get(
            f"manifests/{quote(reference, safe=':')}", MANIFEST_LIMIT, ACCEPT, f"{self.host}/{self.name}:{reference}"[:120]
        )
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        told = reference if DIGEST.fullmatch(reference) else answer.headers.get("Docker-Content-Digest", digest)
        if told != digest:
            raise RegistryError(
                f"{self.host}/{self.name}:{reference}: {self.host} sends {digest}, expected {said(told, 80)}. The registry or something before it "
                "damages or replaces images"
            )
        data = _object(answer.body, f"the manifest of {self.host}/{self.name}:{reference}")
        return Manifest(digest, data, str(data.get("mediaType") or answer.headers.get_content_type()))

    def digest(self, tag: str) -> str:
        """What a tag names now, of its headers alone: registries count a manifest that is read as a pull."""
        headers = self._get(f"manifests/{quote(tag)}", MANIFEST_LIMIT, ACCEPT, method="HEAD").headers
        told = headers.get("Docker-Content-Digest", "")
        return told if DIGEST.fullmatch(told) else self.manifest(tag).digest

    def config(self, manifest: Manifest) -> tuple[str, Mapping[str, Any]]:
        """The image's configuration, by which overlay2 knows it: its digest and its content."""
        told = manifest.data.get("config")
        digest = str(told.get("digest")) if isinstance(told, Mapping) else ""
        if not DIGEST.fullmatch(digest):
            raise RegistryError(
                f"{self.host}/{self.name}@{manifest.digest[:19]}… is of an old kind ({said(manifest.type, 60)}): it names no configuration"
            )
        body = self._get(f"blobs/{digest}", CONFIG_LIMIT).body
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            raise RegistryError(
                f"{self.host}/{self.name}: its configuration is not {digest[:19]}…. The registry or something before it replaces images"
            )
        return digest, _object(body, f"the configuration of {self.host}/{self.name}")

    def tags(self) -> list[str]:
        """The tags that the registry lists, in part where there are many; none where it doesn't."""
        try:
            told = _object(self._get("tags/list", TAGS_LIMIT).body, "tags")
        except RegistryError:
            return []
        found = told.get("tags")
        return [tag for tag in found if isinstance(tag, str) and TAG.fullmatch(tag)] if isinstance(found, list) else []


def _object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"{what} is no JSON: {str(error)[:80]}") from error
    if not isinstance(data, Mapping):
        raise RegistryError(f"{what} is no object")
    return data


def _code(body: bytes) -> str:
    """`, MANIFEST_UNKNOWN`: the code in a registry's refusal, empty where it gives none."""
    try:
        code = json.loads(body)["errors"][0]["code"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return f", {code}" if isinstance(code, str) and re.fullmatch(r"\w{1,40}", code) else ""


def choose(index: Mapping[str, Any], architecture: str) -> tuple[str, list[str]]:
    """The digest of the manifest that a machine of this architecture takes of an index, empty where there is none; and the platforms in it.

    As Docker does: the first of its platform. An attestation (of platform unknown) is no image.
    """
    entries = index.get("manifests")
    platforms, chosen = [], ""
    for entry in entries if isinstance(entries, Sequence) else []:
        platform = entry.get("platform") if isinstance(entry, Mapping) else None
        if not isinstance(platform, Mapping) or platform.get("os") == "unknown":
            continue
        system, machine, variant = (str(platform.get(key) or "") for key in ("os", "architecture", "variant"))
        platforms.append(said("/".join(part for part in (system, machine, variant) if part), 40))
        # Arm of 64 bits is v8 whether it is said or not; v9 needs more than a machine may have.
        fits = (system, machine) == ("linux", architecture) and variant in ("", "v8" if architecture == "arm64" else "")
        if fits and not chosen and DIGEST.fullmatch(str(entry.get("digest"))):
            chosen = str(entry["digest"])
    return chosen, platforms


def look(registry: Registry, reference: str, architecture: str) -> dict[str, Any]:
    """What a tag or a digest means for a machine of this architecture. RegistryError says what stands against it."""
    where = (
        f"{registry.host}/{registry.name}:{reference}"
        if not DIGEST.fullmatch(reference)
        else f"{registry.host}/{registry.name}@{reference[:19]}…"
    )
    first = registry.manifest(reference)
    manifest, index = first, ""
    if first.type in INDEXES or "manifests" in first.data:
        chosen, platforms = choose(first.data, architecture)
        if not chosen:
            raise RegistryError(
                f"{where} has no image for linux/{architecture}; it is for {', '.join(platforms) or 'nothing that it names'}"
            )
        manifest, index = registry.manifest(chosen), first.digest
    image_id, config = registry.config(manifest)
    built = (str(config.get("os") or ""), str(config.get("architecture") or ""))
    if built != ("linux", architecture):
        raise RegistryError(
            f"{where} has no image for linux/{architecture}; it is built for {said('/'.join(built), 40) or 'unknown'}"
        )
    return {
        "digest": manifest.digest,
        "index": index,
        "id": image_id,
        "date": said(config.get("created") or "", 40),
        "architecture": architecture,
        "bytes": sum(
            layer["size"]
            for layer in manifest.data.get("layers") or []
            if isinstance(layer, Mapping) and isinstance(layer.get("size"), int)
        ),
        **told_by(config),
    }


def told_by(config: Mapping[str, Any]) -> dict[str, Any]:
    """What an image's configuration says for itself: ENTRYPOINT, labels and versions in the environment. What pip installed it does not know."""
    inner = config.get("config")
    inner = inner if isinstance(inner, Mapping) else {}
    entrypoint, labels, env = (inner.get(key) for key in ("Entrypoint", "Labels", "Env"))
    pairs = [str(one).partition("=") for one in env] if isinstance(env, list) else []
    return {
        "entrypoint": [said(word, 200) for word in entrypoint] if isinstance(entrypoint, list) else [],
        "labels": {
            said(name, 80): said(value, 120)
            for name, value in sorted(labels.items() if isinstance(labels, Mapping) else [])
            if LABELS.fullmatch(str(name)) and not secret_name(str(name))
        },
        "versions": {said(name, 80): said(value, 80) for name, _, value in pairs if VERSIONS.fullmatch(name)},
    }


def of_registry(registry: Registry, tag: str, pinned: str, architecture: str) -> dict[str, Any]:
    """What a registry says of the tag that is asked for (empty: none) and of the digest that is pinned (empty: none)."""
    found: dict[str, Any] = {"source": registry.host, "asked": tag, "now": {}, "pinned": {}}
    if tag and not TAG.fullmatch(tag):
        raise RegistryError(f"{said(tag, 80)!r} is no tag; expected letters, digits, _ . and -")
    if tag:
        try:
            now = look(registry, tag, architecture)
        except RegistryError as error:
            raise RegistryError(_with_tags(str(error), registry, tag)) from error
        later = registry.digest(tag)
        if later not in (now["digest"], now["index"]):
            raise RegistryError(
                f"{registry.host}/{registry.name}:{tag} moved while it was asked about, from {(now['index'] or now['digest'])[:19]}… to "
                f"{later[:19]}…. Somebody pushes just now: ask again"
            )
        found["now"] = now
    if pinned:
        if found["now"] and pinned in (found["now"]["digest"], found["now"]["index"]):
            found["pinned"] = {**found["now"], "error": ""}
        else:
            try:
                found["pinned"] = {**look(registry, pinned, architecture), "error": ""}
            except RegistryError as error:
                found["pinned"] = {"error": str(error), "date": ""}
        found["pinned"]["asked"] = pinned
    return found


def _with_tags(problem: str, registry: Registry, tag: str) -> str:
    """The refusal of a tag that is not there, with those that are."""
    if "not there" not in problem:
        return problem
    known = registry.tags()
    if not known or tag in known:
        return problem + ". It was deleted or never pushed: look at the repository"
    near = nearest(tag, known)
    some = ", ".join(known[-8:])
    return f"{problem}. " + (f"Did you mean {near}? " if near else "") + f"It has {len(known)} tags, among them {some}"
