# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a lane asks for and what a manifest lists: what is taken, and what can't be meant."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import pytest
from ansible.module_utils.sparklanes.weights import model as weights_model
from ansible.module_utils.sparklanes.weights import sources as weights_sources
from ansible.module_utils.sparklanes.weights.hub import HubFile
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, StagingError
from checkpoints import A, B, model
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a/b"}, "the model's name is 'a/b'"),
        ({"path": "models/tiny"}, "must be absolute"),
        ({"path": "/models"}, "no top-level folder"),
        ({"path": "/models/../etc"}, "must be absolute"),
        ({"sha256": {"config.json": "abc"}}, "sha256 of config.json is 'abc'; it must be 64 hex digits"),
    ],
)
def test_a_model_that_cannot_be_meant(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(StagingError, match=message):
        Model.from_dict({"name": "model", "path": "/models/tiny", **wrong})


@pytest.mark.parametrize("revision", ["main", "v1.0", "", "C" * 40, "c" * 39])
def test_only_a_commit_is_fetched(revision: str) -> None:
    with pytest.raises(StagingError, match=r"is no commit\. A branch may change between two nodes"):
        model(revision=revision).needs_commit()


def test_a_model_survives_json() -> None:
    one = model(sha256={"config.json": A}, expect={"shards": 4}, config_sha256=B)
    assert Model.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".cache/x", ".git/x", "a\nb", "a/", "."])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(StagingError, match="is no name for a file"):
        weights_model.safe_name(name)
    with pytest.raises(StagingError):
        weights_sources.from_hub(model(), {name: HubFile(1, A, "")})


@given(st.text(max_size=20))
def test_any_accepted_name_stays_below_its_folder(name: str) -> None:
    try:
        weights_model.safe_name(name)
    except StagingError:
        return
    assert os.path.normpath(os.path.join("/folder", name)).startswith("/folder/")  # noqa: PTH118


@given(
    st.dictionaries(st.text(max_size=6), st.none() | st.text(max_size=3) | st.dictionaries(st.text(max_size=4), st.integers()))
)
def test_any_manifest_is_read_or_refused(data: dict[str, Any]) -> None:
    with contextlib.suppress(StagingError):
        made = Manifest.from_dict({"repo": "r", "revision": "v", "files": {}, **data})
        assert set(made.files) == set(data.get("files") or {})


def test_the_lane_may_add_digests_but_not_contradict() -> None:
    files = {"config.json": HubFile(2, "", "d" * 40), "m.safetensors": HubFile(9, A, "")}
    made = weights_sources.from_hub(model(sha256={"config.json": B, "m.safetensors": A}), files)
    assert made.files["config.json"] == Content(2, B, "d" * 40)
    with pytest.raises(StagingError, match=r"m\.safetensors is aaaaaaaaaaaaaaaa… by hub, bbbbbbbbbbbbbbbb… by the lane"):
        weights_sources.from_hub(model(sha256={"m.safetensors": B}), files)
    with pytest.raises(StagingError, match="the lane names other, which hub does not list"):
        weights_sources.from_hub(model(sha256={"other": B}), files)
