"""A release is named by its content, and its specs carry the name."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.release import plan

SETTINGS = ["lane_swappiness", "lane_swap", "lane_boot_timeout_seconds"]


def ranks(**lane: Any) -> dict[str, dict[str, Any]]:
    told = {"lane_id": "tiny", "lane_model": {"path": "/m"}, "lane_drafter": {}, "lane_swappiness": 10, "lane_port": 8000, **lane}
    return {
        host: {"rank_lane": {**told}, "rank_bare_spec": {"rank": rank, "labels": {"sparklanes.rank": str(rank)}}}
        for rank, host in enumerate(("s1", "s2"))
    }


def test_what_a_release_is() -> None:
    known = ranks()
    made = plan.planned(known, ["s1", "s2"], SETTINGS)
    assert made["identity"] == {
        "lane": "tiny",
        "nodes": ["s1", "s2"],
        "model": {"path": "/m"},
        "drafter": {},
        "settings": {"lane_swappiness": 10},
    }
    assert [spec["labels"] for spec in made["specs"].values()] == [
        {"sparklanes.rank": "0", "sparklanes.release": made["release"]},
        {"sparklanes.rank": "1", "sparklanes.release": made["release"]},
    ]
    assert (list(made["specs"]), made["lanes"]["s2"]["lane_id"]) == (["s1", "s2"], "tiny")
    # The id is that of the specs without their label, as every version named it.
    bare = [one["rank_bare_spec"] for one in known.values()]
    assert made["release"] == plan.release_id(bare, made["identity"])
    assert "sparklanes.release" not in bare[0]["labels"], "what was rendered stays as it was"


@pytest.mark.parametrize(
    ("lane", "same"),
    [({}, True), ({"lane_port": 9000}, True), ({"lane_swappiness": 0}, False), ({"lane_drafter": {"path": "/d"}}, False)],
)
def test_what_belongs_to_a_release_names_it(lane: dict[str, Any], same: bool) -> None:
    """A port that counts stands in a spec; of the lane itself only what the hosts are to be set to."""
    one, other = (plan.planned(known, ["s1", "s2"], SETTINGS)["release"] for known in (ranks(), ranks(**lane)))
    assert (one == other) is same


def test_the_order_of_ranks_names_another_release() -> None:
    one, other = (plan.planned(ranks(), hosts, SETTINGS)["release"] for hosts in (["s1", "s2"], ["s2", "s1"]))
    assert one != other


def test_where_ranks_keep_their_models_in_different_places_the_release_says_where() -> None:
    known = ranks(lane_drafter={"path": "/d"})
    known["s2"]["rank_lane"]["lane_model"] = {"path": "/hub/models--a--b/snapshots/c"}
    made = plan.planned(known, ["s1", "s2"], SETTINGS)
    assert made["identity"]["model"] == {"path": "/m"}
    assert made["identity"]["paths"] == {
        "s1": {"model": "/m", "drafter": "/d"},
        "s2": {"model": "/hub/models--a--b/snapshots/c", "drafter": "/d"},
    }
