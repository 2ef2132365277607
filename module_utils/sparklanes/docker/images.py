# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Images by digest: a tag moves, a digest can't.

Two Sparks with the same image may show different image IDs (a Spark with the containerd store
shows another kind of ID than one with overlay2), so what is compared is the repository digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common import again
from ansible.module_utils.sparklanes.common.checks import Check, judged

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._:-]+[a-zA-Z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
# What Docker calls the architecture of `uname -m`.
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


@dataclass(frozen=True)
class Reference:
    """The one way in which we name an image."""

    repository: str
    digest: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What Docker is asked for: REPOSITORY@DIGEST, or the ID alone where no registry has the image."""
        return f"{self.repository}@{self.digest}" if self.digest else self.ids[0] if self.ids else ""


@dataclass(frozen=True)
class LocalImage:
    """An image that is on the Spark."""

    id: str
    repo_digests: Sequence[str] = field(default_factory=tuple)
    repo_tags: Sequence[str] = field(default_factory=tuple)
    architecture: str = ""
    size_bytes: int = 0


@dataclass(frozen=True)
class Listed:
    """A line of `docker image ls --digests`."""

    repository: str
    tag: str
    digest: str
    id: str


def canonical(repository: str) -> str:
    """The full name: Docker shortens `docker.io/library/x` to `x` where it prints."""
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, path = ("docker.io", rest) if first == "index.docker.io" else (first, rest)
    else:
        host, path = "docker.io", repository
    return f"{host}/library/{path}" if host == "docker.io" and "/" not in path else f"{host}/{path}"


def problems(repository: str, digest: str, ids: Sequence[str] = ()) -> list[str]:
    """Why these don't name an image, as sentences; each tells what to write instead. An ID names one that no registry has."""
    found = [
        f"lane_image.ids: found {entry!r}; expected sha256: and 64 hex digits, as `docker image inspect --format '{{{{.Id}}}}'` prints"
        for entry in ids
        if not _DIGEST.fullmatch(entry)
    ]
    if not repository:
        found.append("lane_image.repository is missing; expected a name such as ghcr.io/owner/engine")
    elif "@" in repository:
        found.append(
            f"lane_image.repository: found {repository!r} with a digest in it; expected the name alone. Move the digest to lane_image.digest"
        )
    elif ":" in repository.rpartition("/")[2]:
        found.append(
            f"lane_image.repository: found {repository!r} with a tag; expected the name alone. A tag moves: "
            f"pin what it means today with `docker buildx imagetools inspect {repository}`"
        )
    elif not _REPOSITORY.fullmatch(repository):
        found.append(f"lane_image.repository: found {repository!r}, expected a name such as ghcr.io/owner/engine")
    if not digest and not ids:
        found.append(
            "lane_image.digest is missing; expected sha256: and 64 hex digits. Find it with "
            f"`docker buildx imagetools inspect {repository or 'REPOSITORY'}:TAG` and write it into the lane, or into your own lane file"
        )
    elif digest and not _DIGEST.fullmatch(digest):
        short = " (a shortened digest names nothing)" if digest.startswith("sha256:") else ""
        found.append(f"lane_image.digest: found {digest!r}{short}; expected sha256: and 64 hex digits in lower case")
    return found


def parse_inspect(text: str) -> LocalImage:
    """The first image in what `docker image inspect` prints."""
    entry = json.loads(text)[0]
    return LocalImage(
        id=str(entry.get("Id", "")),
        repo_digests=tuple(map(str, entry.get("RepoDigests") or [])),
        repo_tags=tuple(map(str, entry.get("RepoTags") or [])),
        architecture=str(entry.get("Architecture", "")),
        size_bytes=int(entry.get("Size") or 0),
    )


def parse_list(text: str) -> list[Listed]:
    """`docker image ls --digests --no-trunc --format '{{json .}}'`: one JSON object a line."""
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    clean = [
        {key: "" if row.get(key) in (None, "<none>") else str(row[key]) for key in ("Repository", "Tag", "Digest", "ID")}
        for row in rows
    ]
    return [Listed(row["Repository"], row["Tag"], row["Digest"], row["ID"]) for row in clean]


def parse_manifest(text: str, machine: str) -> int | str | None:
    """`docker manifest inspect`: bytes of the packed layers; of an index, the digest of the manifest for this machine; None where neither."""
    try:
        data = json.loads(text)
        for entry in data.get("manifests") or []:
            if (entry.get("platform") or {}).get("architecture") == ARCHITECTURES.get(machine, machine):
                return str(entry["digest"])
        return sum(int(layer["size"]) for layer in data["layers"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def known_by(image: LocalImage, digest: str, ids: Sequence[str] = ()) -> bool:
    """Whether a local image is the one with this digest, under whatever name it came, or one of these IDs."""
    return any(entry.rpartition("@")[2] == digest for entry in image.repo_digests) or image.id == digest or image.id in ids


def judge(host: str, image: LocalImage, wanted: str, machine: str, how: str = "name", ids: Sequence[str] = ()) -> list[Check]:
    """Whether the image on a Spark is the one that the lane names, and can run there.

    `wanted` is REPOSITORY@DIGEST or an ID. `how` it was found: a record stands for the digest that it was received with.
    """
    architecture = ARCHITECTURES.get(machine, machine)
    digest = wanted.rpartition("@")[2]
    return [
        judged(
            "IMAGE.DIGEST",
            host,
            how == "record" or known_by(image, digest, ids),
            f"{image.id or 'an image'} with digests {', '.join(image.repo_digests) or 'none'}",
            wanted,
            f"Docker gave another image than was asked for. Remove it (`docker image rm {wanted}`) and run this again",
        ),
        judged(
            "IMAGE.ARCH",
            host,
            image.architecture == architecture,
            f"built for {image.architecture or 'unknown'}",
            architecture,
            f"The lane names an image for other machines. Pin the digest of the {architecture} image: "
            f"`docker buildx imagetools inspect {wanted.partition('@')[0]}:TAG`",
        ),
    ]


def parity(found: Mapping[str, Mapping[str, Any] | None]) -> list[Check]:
    """Whether all ranks hold one image. `found`: host → id, repo_digests, how, store; None where it has none (another check says so).

    Equal digests or equal IDs are one content. Different IDs in one kind of store are two images. In two kinds (overlay2,
    containerd) they can't be compared: then each must be one of the lane's own, which IMAGE.DIGEST judges, and the stores are named.
    """
    hosts = [host for host, image in found.items() if image]
    if len(hosts) < 2:
        return []
    first = found[hosts[0]] or {}
    made = []
    for host in hosts[1:]:
        image = found[host] or {}
        shared = _digests(first) & _digests(image)
        same_store = first.get("store") == image.get("store")
        # Each of them was compared with the lane's digest on its own, unless an ID alone named it.
        compared = "id" not in (first.get("how"), image.get("how"))
        told = f"ID {str(image.get('id'))[:19]} ({image.get('store') or 'unknown store'})"
        other = f"ID {str(first.get('id'))[:19]} ({first.get('store') or 'unknown store'}) as on {hosts[0]}"
        ok = bool(shared) or compared or first.get("id") == image.get("id") or not same_store
        remedy = f"Two images go by one name. Remove the wrong one on {host} (`docker image rm`) and run site.yml."
        made.append(judged("IMAGE.PARITY", host, ok, told, other, remedy))
    return made


def _digests(image: Mapping[str, Any]) -> set[str]:
    return {str(entry).rpartition("@")[2] for entry in image.get("repo_digests") or []}


def others(reference: Reference, listed: Sequence[Listed]) -> str:
    """What the Spark has of this repository instead, as a sentence; empty where it has nothing."""
    same = [row for row in listed if canonical(row.repository) == canonical(reference.repository)]
    if not same:
        return ""
    named = ", ".join(
        f"{row.repository}:{row.tag or '(no tag)'} = {row.digest or f'no digest, loaded or built here, ID {row.id}'}"
        for row in same
    )
    return (
        f"On this Spark: {named}; none of them is used, as the lane was proven with {reference.digest}. "
        "If one of them is what you mean, write its digest (or, of one without, its ID) into lane_image.digest (lane_image.ids)"
    )


# Docker's words for a failed pull → what that means for a person. The first that fits counts. {waited}: whether it was asked again.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"^docker \S+ .*(?:stood still for|was not done after) ",
        "what it waits for hangs: the daemon, the disk of its images, or the other end. On the Spark, `journalctl -u docker` and "
        "`docker system df` tell which; a daemon that answers neither is restarted (`systemctl restart docker`, which ends its containers). Then run this again",
    ),
    (
        r"toomanyrequests|too many requests|\b429\b|pull rate limit",
        "the registry refuses more for now, as too much was asked of it. Log in on the Spark (`sudo docker login REGISTRY`), which raises the limit, "
        "or wait for as long as it says; the other Sparks need only one copy from there",
    ),
    (
        r"TLS handshake timeout|unexpected EOF|connection reset by peer|\b50[0234] |HTTP status: 50[0234]|Service Unavailable",
        "the registry, or a proxy before it, is overloaded or cut the connection{waited}. Run this again later",
    ),
    (
        r"manifest unknown|manifest for .* not found|: not found",
        "the registry does not know this digest. It was deleted there or never pushed: look at the repository, rebuild or push the image, "
        "and pin the digest that the push prints",
    ),
    (
        r"unauthorized|denied|authentication required|no basic auth|docker login|403 Forbidden|401 Unauthorized",
        "the registry wants a login, or the repository does not exist there. Log in on the Spark (`sudo docker login REGISTRY`) and check the name",
    ),
    (
        r"verification failed|digest mismatch|unexpected (?:commit )?digest",
        "what the registry sent does not match the digest. The registry or something between it and the Spark damages or replaces images; "
        "nothing was kept. Push the image again, from where it was built",
    ),
    (
        r"HTTP response to HTTPS client|x509|certificate|tls:",
        "the registry does not speak trusted TLS. Give Docker its CA (/etc/docker/certs.d/REGISTRY/ca.crt), or, for a registry of your own on a "
        "private network, name it in insecure-registries of /etc/docker/daemon.json",
    ),
    (
        r"no such host|connection refused|no route to host|i/o timeout|network is unreachable|context deadline exceeded|Client\.Timeout",
        "the registry can't be reached from this Spark. Check its name, the route and the proxy settings of Docker",
    ),
    (r"no space left on device", "the disk is full. `docker system df` and `df -h /var/lib/docker` show what takes the room"),
    (
        r"permission denied while trying to connect|Cannot connect to the Docker daemon|Is the docker daemon running",
        "Docker does not answer. `systemctl status docker` on the Spark tells why; run with become",
    ),
)


def explain(error: str, attempt: int = 1) -> str:
    """What a failed pull or push means, with the next step. attempt: the one that failed."""
    for pattern, meaning in _CAUSES:
        if re.search(pattern, error, re.IGNORECASE):
            return meaning.replace("{waited}", again.waited(attempt))
    return "Docker gave a reason that we do not know; read it above"
