# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What of a lane can be looked up, and whom to ask: the Hub or a mirror for commits of models, a registry for the digest of an image.

What is open is asked for; what is pinned is dated, and asked for again where a person wants to know whether it moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.docker.images import ARCHITECTURES

MODELS = ("model", "drafter")
# What a Hub calls the branch that people take a model from.
NEWEST = "main"


@dataclass(frozen=True)
class Wanted:
    """What a person asked for: a revision of the model or the drafter, a tag, everything again, another architecture. Empty: as the lane says."""

    model: str = ""
    drafter: str = ""
    tag: str = ""
    all: bool = False
    architecture: str = ""


def architecture_of(lane: Mapping[str, Any], machine: str) -> str:
    """For which machines the lane's image is, as Docker calls it: a Spark is arm64, a host with other GPUs amd64; without one, this machine."""
    arch = str(lane["lane_gpu_arch"])
    if arch == "sm_121":
        return "arm64"
    return "amd64" if arch.startswith("sm_") else ARCHITECTURES.get(machine, machine)


def questions(lane: Mapping[str, Any], wanted: Wanted, source: str, machine: str) -> dict[str, Any]:
    """What to ask whom. source: where the site's models come from (`model_weights_source`)."""
    return {
        "lane": str(lane["lane_id"]),
        "repositories": list(_repositories(lane, wanted, source)),
        "image": _image(lane, wanted, machine),
    }


def _repositories(lane: Mapping[str, Any], wanted: Wanted, source: str) -> Iterator[dict[str, Any]]:
    for name in MODELS:
        model = lane[f"lane_{name}"] or {}
        asked, pinned = str(getattr(wanted, name)), str(model.get("revision") or "")
        if not model.get("repo") or (source == "directory" and not asked):
            continue
        wants_hash = model.get("config_sha256") or model.get("bad_sha256")
        yield {
            "name": name,
            "repo": model["repo"],
            "ask": asked or (NEWEST if wanted.all or not pinned else ""),
            "pinned": pinned,
            "hash": ["config.json"] if wants_hash else [],
        }


def _image(lane: Mapping[str, Any], wanted: Wanted, machine: str) -> dict[str, Any]:
    """The question to the registry; empty where there is none to ask: of a build that has no name there, or one without a tag."""
    image = lane["lane_image"] or {}
    tag, pinned = wanted.tag or str(image.get("tag") or ""), str(image.get("digest") or "")
    asks = bool(wanted.tag or wanted.all or not (pinned or image.get("ids")))
    if local(str(image["repository"])) or not ((asks and tag) or pinned):
        return {}
    return {
        "repository": image["repository"],
        "tag": tag if asks else "",
        "pinned": pinned,
        "architecture": wanted.architecture or architecture_of(lane, machine),
    }


def local(repository: str) -> bool:
    """Whether a name is one that no registry but a Docker of one's own has: without an owner. The few of Docker Hub that look so are no engines."""
    return "/" not in repository


def who_knows(lane: Mapping[str, Any]) -> str:
    """Who wrote the recipe down, for what only they can know."""
    source = lane["lane_source"] or {}
    place, launcher = str(source.get("repository") or ""), str(source.get("launcher") or "")
    if not place:
        return f"the author of lane {source.get('derived_from') or lane['lane_id']}"
    at = str(source.get("commit") or source.get("launcher_commit") or "")[:12]
    return f"{place}{f' at {at}' if at else ''}{f' ({launcher})' if launcher and len(launcher) < 60 else ''}"
