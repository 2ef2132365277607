# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A release as a launch plans it: named by the content of its rank specs and of what else belongs to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars

Facts = Mapping[str, Any]


def release_id(specs: Sequence[Mapping[str, Any]], identity: Mapping[str, Any]) -> str:
    """12 hex digits that stand for these rank specs and this identity (image, weights, overlays, host settings).

    Equal content gives an equal id on any controller, so that a second launch of the same lane is recognised.
    """
    content = json.dumps([list(specs), dict(identity)], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def planned(hostvars: HostVars, hosts: Sequence[str], settings: Sequence[str]) -> dict[str, Any]:
    """The release of these ranks: {release (its id), identity, specs and lanes by host}.

    hostvars: of each rank rank_lane, its lane, and rank_bare_spec, its spec without the label of a release. settings: names of what
    a lane wants of its hosts; they belong to the release.
    """
    lanes = {host: dict(hostvars[host]["rank_lane"]) for host in hosts}
    specs = {host: dict(hostvars[host]["rank_bare_spec"]) for host in hosts}
    lane = lanes[hosts[0]]
    # What a release is besides its rank specs, which name image, overlays and extras by digest.
    identity = {
        "lane": lane["lane_id"],
        "nodes": list(hosts),
        "model": lane["lane_model"],
        "drafter": lane["lane_drafter"],
        "settings": {name: value for name, value in lane.items() if name in settings},
    }
    paths = {host: _paths(one) for host, one in lanes.items()}
    if any(own != paths[hosts[0]] for own in paths.values()):
        identity["paths"] = paths  # a restore looks at each rank's models where that rank has them
    release = release_id(list(specs.values()), identity)
    for spec in specs.values():
        spec["labels"] = {**spec["labels"], "sparklanes.release": release}
    return {"release": release, "identity": identity, "specs": specs, "lanes": lanes}


def _paths(lane: Mapping[str, Any]) -> dict[str, str]:
    models = {"model": lane["lane_model"], "drafter": lane["lane_drafter"]}
    return {name: str(model["path"]) for name, model in models.items() if model and model.get("path")}
