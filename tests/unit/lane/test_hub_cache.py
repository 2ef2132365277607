# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A lane whose models lie in the cache of the Hub's client: what is mounted, and where the engine finds them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import inside
from ansible.module_utils.sparklanes.lane import agreement
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.weights.hub_cache import Snapshot, no_snapshot, snapshot
from test_lanes import FABRICS, HOSTS, REVISION, lane

HUB = "/home/u/.cache/huggingface/hub"
REPO, DRAFT = f"{HUB}/models--a--b", f"{HUB}/models--a--d"
BELOW = f"snapshots/{REVISION}"
SERVED, DRAFTED = f"/models/tiny/{BELOW}", f"/models/draft/{BELOW}"
PLAIN = {"repo": "a/b", "revision": REVISION, "path": "/srv/models/tiny", "container_path": "/models/tiny"}
MODEL = {**PLAIN, "path": f"{REPO}/{BELOW}"}
DRAFTER = {"repo": "a/d", "revision": REVISION, "path": f"{DRAFT}/{BELOW}", "container_path": "/models/draft"}
NAMED: dict[str, Any] = {
    "lane_engine_args": {
        "--speculative-config": {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7},
        "--tokenizer": "/models/tiny/",
        "--hf-overrides": '{"a": "/models/tiny/sub", "b": ["/models/tiny-2", "/x/models/tiny", "/models/tiny.bak"]}',
        "--chat-template": "/extras/chat.jinja",
    },
    "lane_engine_env": {"TOKENIZER": "/models/tiny", "PATHS": "/models/tiny:/models/draft"},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"{REPO}/{BELOW}", Snapshot(REPO, BELOW, REVISION)),
        (f"{REPO}/{BELOW}/", Snapshot(REPO, BELOW, REVISION)),
        (f"{REPO}/{BELOW}/fp8/x", Snapshot(REPO, f"{BELOW}/fp8/x", REVISION)),
        ("/models--a--b/snapshots/c", Snapshot("/models--a--b", "snapshots/c", "c")),
        (REPO, None),
        (f"{REPO}/snapshots", None),
        (f"{REPO}/blobs/x", None),
        ("/srv/snapshots/c", None),
        (f"models--a--b/{BELOW}", None),
        ("/srv/models/tiny", None),
        ("", None),
    ],
)
def test_what_is_a_snapshot_by_its_path(path: str, found: Snapshot | None) -> None:
    assert snapshot(path) == found


def specs(*lanes: dict[str, Any]) -> list[dict[str, Any]]:
    below = lane_render.below_mounts(lanes)
    return [lane_render.render_rank(made, FABRICS, "sparks", HOSTS, rank, below) for rank, made in enumerate(lanes)]


def command(spec: dict[str, Any]) -> list[str]:
    """What all ranks have in common of it: the flags of rank 0 alone are of no model."""
    return [word for word in spec["command"] if "/models/" in word]


def test_the_repository_is_mounted_and_a_snapshot_of_it_served() -> None:
    made = lane(lane_model=MODEL, lane_drafter=DRAFTER, **NAMED)
    spec = lane_render.render_rank(made, FABRICS, "sparks", HOSTS, 0)
    assert [(mount["source"], mount["target"], mount["read_only"]) for mount in spec["mounts"]] == [
        (REPO, "/models/tiny", True),
        (DRAFT, "/models/draft", True),
    ]
    assert spec["command"][:2] == ["serve", SERVED]
    flags = dict(zip(spec["command"][2::2], spec["command"][3::2], strict=False))
    assert f'"model":"{DRAFTED}"' in flags["--speculative-config"]
    assert flags["--tokenizer"] == f"{SERVED}/"
    assert flags["--hf-overrides"] == f'{{"a": "{SERVED}/sub", "b": ["/models/tiny-2", "/x/models/tiny", "/models/tiny.bak"]}}'
    assert flags["--chat-template"] == "/extras/chat.jinja"
    assert spec["env"]["TOKENIZER"] == SERVED
    assert spec["env"]["PATHS"] == f"{SERVED}:{DRAFTED}"
    links = {f"{REPO}/{BELOW}/config.json": "../../blobs/1", f"{DRAFT}/{BELOW}/config.json": "../../blobs/2"}
    shown = {mount["target"]: mount["source"] for mount in spec["mounts"]}
    assert inside.opens(shown, f"{SERVED}/config.json", links.get).path == f"{REPO}/blobs/1"
    assert inside.opens(shown, f"{DRAFTED}/config.json", links.get).path == f"{DRAFT}/blobs/2"


def test_what_an_owner_wrote_out_is_left_as_it_is() -> None:
    made = lane(lane_model=MODEL, lane_engine_args={"--tokenizer": SERVED, "--hf-config-path": "/models/tiny"})
    assert command(lane_render.render_rank(made, FABRICS, "sparks", HOSTS, 0)) == [SERVED, SERVED, SERVED]


@pytest.mark.parametrize("cached", [0, 1])
def test_the_command_is_one_on_all_ranks_wherever_each_keeps_its_models(cached: int) -> None:
    ranks = [lane(lane_model=MODEL if rank == cached else PLAIN, **NAMED) for rank in range(2)]
    one, two = specs(*ranks)
    assert command(one) == command(two)
    assert command(one)[0] == SERVED
    assert {name: text for name, text in one["env"].items() if "/models/" in text} == {
        name: text for name, text in two["env"].items() if "/models/" in text
    }
    mounts = [spec["mounts"][0] for spec in (one, two)]
    assert (mounts[cached]["source"], mounts[cached]["target"]) == (REPO, "/models/tiny")
    assert (mounts[1 - cached]["source"], mounts[1 - cached]["target"]) == ("/srv/models/tiny", SERVED)
    assert agreement.disagreements(dict(zip(HOSTS, ranks, strict=True))) == {}


def test_a_lane_without_a_cache_is_rendered_as_ever() -> None:
    made = lane(lane_model=PLAIN, **NAMED)
    spec = lane_render.render_rank(made, FABRICS, "sparks", HOSTS, 0)
    assert spec == specs(made, made)[0]
    assert (spec["command"][1], spec["mounts"][0]["target"]) == ("/models/tiny", "/models/tiny")
    assert spec["env"]["TOKENIZER"] == "/models/tiny"


def test_two_folders_of_one_repository_are_two_models() -> None:
    other = {**MODEL, "path": f"{REPO}/{BELOW}/fp8"}
    with pytest.raises(ValueError, match=f"lane_model.path is {BELOW} on one rank and {BELOW}/fp8 on another"):
        specs(lane(lane_model=MODEL), lane(lane_model=other))


@pytest.mark.parametrize(
    ("path", "found", "remedy"),
    [
        (REPO, f"lane_model.path is {REPO}, a repository of a Hub cache", f"lane_model_site: {{path: {REPO}/{BELOW}}}"),
        (f"{REPO}/snapshots", "a repository of a Hub cache", f"{{path: {REPO}/{BELOW}}}"),
        (f"{REPO}/snapshots/{'e' * 40}", f"lane_model.path is the snapshot of {'e' * 40}", "Write the revision that is meant"),
        (f"{REPO}/{BELOW}", "", ""),
        (f"{REPO}/{BELOW}/fp8", "", ""),
    ],
)
def test_a_path_in_a_cache_is_a_snapshot_of_the_revision(path: str, found: str, remedy: str) -> None:
    assert bool(found) == (no_snapshot(path) or "e" * 40 in path)
    wrong = [
        check
        for check in lane_rules.lane_checks(lane(lane_model={**MODEL, "path": path}), "s1")
        if (check.id, check.status) == ("LANE.FILES", "fail")
    ]
    assert [check.found for check in wrong if found in check.found] == [check.found for check in wrong]
    assert len(wrong) == bool(found)
    assert all(remedy in check.remedy for check in wrong)
