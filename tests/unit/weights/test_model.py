# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a lane asks for and what a manifest lists: what is taken, and what can't be meant."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.weights import model as weights_model
from ansible.module_utils.sparklanes.weights import sources as weights_sources
from ansible.module_utils.sparklanes.weights.folder import look
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


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\nb", "a/", ".", ".git/../x", "--help", "-x",
     "a/-x", ".git/-x", "a\x9b31mb", "a\u202egnp.exe", "a\u2028b", "a\u200bb", "\ud800", "x" * 2000, "/".join("a" * 40)])  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(StagingError, match="is no name for a file"):
        weights_model.safe_name(name)
    with pytest.raises(StagingError):
        weights_sources.from_hub(model(), {name: HubFile(1, A, "")})


@pytest.mark.parametrize(
    "name", [".github/workflows/x.yml", ".git/x", ".cache/x", "sub/.git/hooks/x", "sub/.cache/x", "a/.b/c", "sub/.git", ".cache"]
)
def test_what_a_client_or_a_repository_keeps_for_itself_is_no_file_of_a_model(tmp_path: Path, name: str) -> None:
    """Left out of each list and of each look, so that a repository with a .github/ is staged without it."""
    odd = HubFile(-5, "no hash", "")
    assert set(weights_sources.from_hub(model(), {name: odd, "a": HubFile(1, A, "")}).files) == {"a"}
    for one in ("file", name):
        (tmp_path / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / one).write_text("x")
    assert set(look(tmp_path)) == {"file"}


@pytest.mark.parametrize("name", [".gitattributes", "a/b.json", "a b", "é.txt", "a-b", "模型.safetensors"])
def test_names_that_models_have_are_taken(name: str) -> None:
    assert weights_model.safe_name(name) == name


@pytest.mark.parametrize(
    "entry",
    [
        {"size": -1}, {"size": "5"}, {"size": True}, {"size": 1 << 60}, {"size": 1, "sha256": "A" * 64}, {"size": 1, "sha256": 5},
        {"size": 1, "git_sha1": "a"}, {"size": 1, "git_sha1": ["a" * 40]}, {"size": 1, "at": "../x"}, {"size": 1, "at": 5},
    ],
)  # fmt: skip
def test_what_no_file_can_be_is_refused_from_everybody(entry: dict[str, Any]) -> None:
    with pytest.raises(StagingError):
        Manifest.from_dict({"repo": "r", "revision": "v", "files": {"x": entry}})


def test_no_hash_is_no_proof() -> None:
    with pytest.raises(StagingError, match=r"hub says no hash of a\.py.*lane_model\.sha256"):
        weights_sources.from_hub(model(), {"a.py": HubFile(5, "", ""), "b": HubFile(1, A, "")})
    assert weights_sources.from_hub(model(sha256={"a.py": B}), {"a.py": HubFile(5, "", "")}).files["a.py"] == Content(5, B)


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
        assert set(made.files) == set(filter(weights_model.of_model, data.get("files") or {}))


def test_the_lane_may_add_digests_but_not_contradict() -> None:
    files = {"config.json": HubFile(2, "", "d" * 40), "m.safetensors": HubFile(9, A, "")}
    made = weights_sources.from_hub(model(sha256={"config.json": B, "m.safetensors": A}), files)
    assert made.files["config.json"] == Content(2, B, "d" * 40)
    with pytest.raises(StagingError, match=r"m\.safetensors is aaaaaaaaaaaaaaaa… by hub, bbbbbbbbbbbbbbbb… by the lane"):
        weights_sources.from_hub(model(sha256={"m.safetensors": B}), files)
    with pytest.raises(StagingError, match="the lane names other, which hub does not list"):
        weights_sources.from_hub(model(sha256={"other": B}), files)
