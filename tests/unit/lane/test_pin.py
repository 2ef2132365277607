# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What of a lane is asked, and what the answers make of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.lane import pin, pin_answers, pin_written
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.lane.pin import Wanted
from lane_files import SHIPPED, options, resolved, variables_of

TODAY = datetime.date(2026, 12, 1)
NEW, OLD = "a" * 40, "b" * 40
DIGEST, INDEX, ID = (f"sha256:{letter * 64}" for letter in "def")
AS_THE_LANE_SAYS = Wanted()
FLASH, W4A16 = "flash_nvfp4_dflash2_tp2", "flash_w4a16_dflash2_tp2_1m"


def hub(**more: Any) -> dict[str, Any]:
    told = {
        "source": "https://hub.test",
        "asked": "main",
        "commit": NEW,
        "date": "2026-09-20T10:00:00Z",
        "title": "x",
        "files": 13,
    }
    return {**told, "bytes": 99 << 30, "shards": 11, "sha256": {"config.json": "1" * 64}, "pinned": {}, "error": "", **more}


def image(**more: Any) -> dict[str, Any]:
    one = {"digest": DIGEST, "index": INDEX, "id": ID, "date": "2026-09-20T10:00:00Z", "architecture": "arm64", "bytes": 9 << 30}
    told = {"entrypoint": ["vllm"], "labels": {}, "versions": {"CUDA_VERSION": "13.0.2"}}
    return {"source": "ghcr.io", "asked": "v11", "now": {**one, **told}, "pinned": {}, "error": "", **more}


def none_here(files: str, source: str) -> None:
    return None


def weigh(
    lane: dict[str, Any], wanted: Wanted = AS_THE_LANE_SAYS, models: Any = None, registry: Any = None, hashed: Any = none_here
) -> pin_answers.Pins:
    asked = pin.questions(lane, wanted, "hub", "x86_64")
    answers = {one["name"]: (models or {}).get(one["name"], hub()) for one in asked["repositories"]}
    told = registry or image()
    if asked["image"] and not asked["image"]["tag"] and "now" in told:
        told = {**told, "now": {}, "pinned": {**told["now"], "error": ""}}
    return pin_answers.weigh(lane, wanted, answers, told if asked["image"] else {}, hashed, TODAY)


def test_what_is_open_is_asked_for_and_what_is_pinned_only_dated() -> None:
    asked = pin.questions(resolved(FLASH), Wanted(), "hub", "x86_64")
    assert [(one["name"], one["ask"], one["pinned"]) for one in asked["repositories"]] == [
        ("model", "main", ""),
        ("drafter", "main", ""),
    ]
    assert (asked["image"]["tag"], asked["image"]["pinned"][:15], asked["image"]["architecture"]) == (
        "",
        "sha256:4def0ef6",
        "arm64",
    )
    again = pin.questions(resolved(FLASH), Wanted(all=True), "hub", "x86_64")
    assert again["image"]["tag"] == "sm121-v11-dflash2"
    chosen = pin.questions(resolved(FLASH), Wanted(model="v2", tag="other"), "hub", "x86_64")
    assert (chosen["repositories"][0]["ask"], chosen["image"]["tag"]) == ("v2", "other")
    assert pin.questions(resolved(W4A16), Wanted(), "hub", "x86_64")["repositories"][0]["hash"] == ["config.json"]


@pytest.mark.parametrize(
    ("lane", "architecture"), [(FLASH, "arm64"), ("flash_w4a16_mtp_tp4_hopper", "amd64"), ("flash_w4a16_mtp_tp4_sm120", "amd64")]
)
def test_an_image_is_for_the_machines_of_its_lane(lane: str, architecture: str) -> None:
    assert pin.architecture_of(resolved(lane), "aarch64") == architecture
    assert pin.architecture_of({"lane_gpu_arch": "cpu"}, "aarch64") == "arm64"


@pytest.mark.parametrize("lane", SHIPPED)
def test_each_shipped_lane_is_pinned_or_says_who_knows(lane: str) -> None:
    """Every part that is open is given, or a check of it names somebody; and what is given fills it."""
    made = resolved(lane)
    expect = made["lane_model"]["expect"].get("shards")
    models = {"model": hub(shards=expect)} if expect else {}
    found = weigh(made, models=models, hashed=lambda files, source: ("c" * 64, "2026-11-30"))
    open_before = set(lane_unknowns.open_parts(made))
    layers: dict[str, Any] = {}
    for setting in found.settings:
        tree = layers.setdefault(f"{setting.variable}_site", {})
        for key in setting.keys[:-1]:
            tree = tree.setdefault(key, {})
        tree[setting.keys[-1]] = setting.value
    after, _ = lane_schema.resolve({**variables_of(lane), **layers}, options(), "s1")
    left = set(lane_unknowns.open_parts(after))
    assert open_before - left == {given.partition(" (")[0] for given in found.given}
    assert len(left) == len([check for check in found.checks if check.id == "PIN.PERSON"])
    assert all("Who could know" in check.remedy for check in found.checks), found.checks
    assert len(pin_answers.left_open(found, False)) == len(left)


def test_the_flash_and_the_w4a16_lanes_need_no_editor() -> None:
    for lane in ("flash_nvfp4_mtp_tp2", FLASH, W4A16, "flash_w4a16_dflash2_tp2_262k"):
        found = weigh(resolved(lane), hashed=lambda files, source: ("c" * 64, "2026-11-30"))
        assert (found.checks, pin_answers.left_open(found, False)) == ([], []), lane


def rows(pins: pin_answers.Pins) -> dict[str, pin_answers.Row]:
    return {row.path: row for row in pins.rows}


def test_a_commit_that_is_not_what_the_lane_expects_is_not_given() -> None:
    found = weigh(resolved(FLASH), models={"model": hub(shards=33)})
    assert rows(found)["lane_model.revision"].becomes == ""
    check = next(check for check in found.checks if check.id == "PIN.FITS")
    assert (check.status, "33 shards, expected 11" in check.found, "-e pin_model_revision=COMMIT" in check.remedy) == (
        "fail",
        True,
        True,
    )
    found = weigh(resolved(W4A16), models={"model": hub(sha256={"config.json": "92ae6f37" + "0" * 56})})
    assert any(check.id == "PIN.FITS" and "known to be bad" in check.found for check in found.checks)


def test_hashes_of_the_lane_are_compared() -> None:
    unread = {"sha256": {}, "config_sha256": None, "bad_sha256": ["12345678"], "expect": {}}
    assert list(pin_answers.misfits(unread, hub(sha256={}))) == ["config.json could not be read to be compared"]
    model = {"sha256": {"a.safetensors": "1" * 64}, "config_sha256": "2" * 64, "bad_sha256": [], "expect": {}}
    told = hub(sha256={"a.safetensors": "3" * 64, "config.json": "4" * 64})
    assert len(list(pin_answers.misfits(model, told))) == 2
    assert not list(pin_answers.misfits(model, hub(sha256={"a.safetensors": "1" * 64, "config.json": "2" * 64})))


PINNED = {"lane_model_site": {"revision": OLD}, "lane_drafter_site": {"revision": NEW}}


def test_what_is_pinned_has_an_age_and_nothing_is_written() -> None:
    told = hub(commit="", asked="", pinned={"commit": OLD, "date": "2026-08-24T00:00:00Z", "behind": None, "error": ""})
    found = weigh(resolved("flash_nvfp4_mtp_tp2", lane_model_site={"revision": OLD}), models={"model": told})
    assert (found.settings, found.checks, pin_answers.left_open(found, False)) == ([], [], [])
    assert rows(found)["lane_model.revision"].made == "2026-08-24 (99 days)"


def test_a_pin_that_moved_is_a_change_and_one_that_did_not_is_none() -> None:
    told = hub(pinned={"commit": OLD, "date": "2026-08-24T00:00:00Z", "behind": 3, "error": ""})
    lane = resolved(FLASH, **PINNED)
    found = weigh(lane, Wanted(all=True), {"model": told, "drafter": hub(pinned={"behind": 0, "date": "", "error": ""})})
    by = rows(found)
    assert (by["lane_model.revision"].now, by["lane_model.revision"].becomes) == (f"{'b' * 12}…", f"{'a' * 12}…")
    assert "3 commits newer than the pin of 2026-08-24" in by["lane_model.revision"].told
    assert by["lane_drafter.revision"].becomes == ""
    assert by["lane_image.digest"].becomes == "sha256:dddddddddddd…"
    comments = {setting.path: setting.comment for setting in found.settings}
    assert OLD in comments["lane_model.revision"], "the way back stands in the file"
    assert INDEX in comments["lane_image.digest"]
    assert ID in comments["lane_image.digest"]
    gone = hub(pinned={"commit": OLD, "date": "", "behind": None, "error": "no such revision"})
    assert "not known there any more" in rows(weigh(lane, Wanted(all=True), {"model": gone}))["lane_model.revision"].told


@pytest.mark.parametrize("digest", [DIGEST, INDEX])
def test_a_digest_of_the_index_is_the_same_image(digest: str) -> None:
    lane = resolved("flash_nvfp4_mtp_tp2", lane_image_site={"digest": digest})
    assert rows(weigh(lane, Wanted(all=True)))["lane_image.digest"].becomes == ""


def test_another_tag_is_written_by_name_too_and_says_what_may_be_stale() -> None:
    found = weigh(resolved(FLASH), Wanted(tag="v12"), registry=image(asked="v12"))
    assert {setting.path: setting.value for setting in found.settings if setting.variable == "lane_image"} == {
        "lane_image.digest": DIGEST,
        "lane_image.tag": "v12",
    }
    assert any("lane_image.vllm still says" in note for note in found.notes)


def test_who_can_not_be_asked_fails_what_is_open_and_warns_of_what_is_pinned() -> None:
    silent = {"error": "hub.test does not answer"}
    found = weigh(resolved(FLASH), models={"model": silent}, registry={"error": "ghcr.io does not answer"})
    assert {(check.id, check.status) for check in found.checks if check.id in ("PIN.HUB", "PIN.REGISTRY")} == {
        ("PIN.HUB", "fail"),
        ("PIN.REGISTRY", "warn"),
    }
    found = weigh(resolved(FLASH, **PINNED), models={"model": silent})
    assert [check.status for check in found.checks if check.id == "PIN.HUB"] == ["warn"]
    found = weigh(resolved("flash_nvfp4_dflash2_tp4_1m_topkfix"), registry={"error": "ghcr.io has no such tag"})
    assert [check.status for check in found.checks if check.id == "PIN.REGISTRY"] == ["fail"]


def test_a_local_build_and_an_unknown_tag_ask_no_registry() -> None:
    for lane, words in (
        ("glm53_bare", "a local build: no registry has it"),
        ("flash_w4a16_mtp_tp2_upstream", "the lane names no tag"),
    ):
        asked = pin.questions(resolved(lane), Wanted(), "hub", "x86_64")
        assert asked["image"] == {}
        found = weigh(resolved(lane))
        assert rows(found)["lane_image.digest"].told == words
        check = next(check for check in found.checks if "lane_image.digest" in check.expected)
        assert lane_source(lane) in check.remedy
    known = resolved("glm53_bare", lane_image_site={"ids": [ID]})
    assert rows(weigh(known))["lane_image.ids"].told == "an image that no registry has, known by its ID"


def lane_source(lane: str) -> str:
    return str(resolved(lane)["lane_source"]["repository"])


def test_files_on_the_sparks_are_known_by_the_path_of_a_hub_cache() -> None:
    lane = resolved("flash_nvfp4_mtp_tp2")
    asked = pin.questions(lane, Wanted(), "directory", "x86_64")
    assert asked["repositories"] == []
    found = pin_answers.weigh(lane, Wanted(), {}, {}, none_here, TODAY)
    assert (found.settings, [check.id for check in found.checks]) == ([], ["PIN.PERSON"])
    lane["lane_model"]["path"] = f"/data/hub/models--a--b/snapshots/{NEW}"
    found = pin_answers.weigh(lane, Wanted(), {}, {}, none_here, TODAY)
    assert [setting.value for setting in found.settings] == [NEW]
    assert pin.questions(lane, Wanted(model="main"), "directory", "x86_64")["repositories"][0]["ask"] == "main"


def test_a_file_that_is_not_here_names_who_has_it() -> None:
    check = next(check for check in weigh(resolved(FLASH)).checks if check.id == "PIN.FILE")
    assert "glm53_flash_mm.jinja is not here" in check.found
    assert "tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark at abb38bb0c422" in check.remedy


def test_what_the_lane_says_of_its_gap_is_shown_beside_the_answer() -> None:
    assert any("Two commits of the drafter were seen in use" in note for note in weigh(resolved(FLASH)).notes)


def test_what_a_registry_can_not_know_is_said() -> None:
    note = pin_answers.said_of(image()["now"])[0]
    assert "ENTRYPOINT vllm; CUDA_VERSION 13.0.2" in note
    assert "Which Python packages it holds shows only once it is on a Spark" in note


# --- into the site's file ---


def write(tmp_path: Path, text: str | None, has: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
    folder = tmp_path / "group_vars"
    folder.mkdir(exist_ok=True)
    if text is not None:
        (folder / "lane_flash_nvfp4_mtp_tp2.yml").write_text(text)
    lane = resolved("flash_nvfp4_mtp_tp2")
    return pin_written.written(lane, weigh(lane).settings, folder, (has or {}).get)


def test_a_new_file_says_what_it_is(tmp_path: Path) -> None:
    made, problem = write(tmp_path, None)
    assert (problem, made["was"]) == (None, "")
    assert made["content"].startswith("---\n# What this site changes of lane flash_nvfp4_mtp_tp2")
    assert f'+  revision: "{NEW}"' in made["diff"]


@pytest.mark.parametrize(
    ("text", "has", "words"),
    [
        ("a: [\n", {}, "it is no YAML"),
        ("lane_model_site: {path: /x}\nlane_model_site: {path: /y}\n", {}, "it has lane_model_site twice"),
        ("lane_port: 1\n", {"lane_model_site": {"path": "/x"}}, "set in another place than the site's files"),
        ("lane_model_site: {path: /x}\n", {"lane_model_site": {"path": "/other"}}, "set in another place"),
    ],
)
def test_a_file_that_can_not_take_the_pins_says_so_with_the_lines(
    tmp_path: Path, text: str, has: dict[str, Any], words: str
) -> None:
    made, problem = write(tmp_path, text, has)
    assert made["content"] == text
    assert (problem.id, problem.status) == ("PIN.SITE_FILE", "fail")
    assert words in problem.found
    assert f'lane_model_site: {{revision: "{NEW}"}}' in problem.remedy


def test_the_file_that_has_the_variable_is_named(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/sparks.yml").write_text("lane_model_site:\n  path: /x\n")
    _, problem = write(tmp_path, None, {"lane_model_site": {"path": "/x"}})
    assert "lane_model_site is set in" in problem.found
    assert "group_vars/sparks.yml" in problem.found


def test_what_the_site_wrote_itself_is_no_other_place(tmp_path: Path) -> None:
    for text, has in (
        ("lane_model_site: {path: /x}\n", {"path": "/x"}),
        ("lane_model_site: {path: '{{ x }}'}\n", {"path": "/y"}),
    ):
        made, problem = write(tmp_path, text, {"lane_model_site": has})
        assert problem is None
        assert NEW in made["content"]


def closing(wanted: Wanted = AS_THE_LANE_SAYS, file: dict[str, Any] | None = None, confirmed: bool = False, **result: Any) -> str:
    made = {"shown": "inventory/fleet/group_vars/lane_x.yml", "given": {}, "open": [], **result}
    return "\n".join(pin_answers.closing(made, file or {}, wanted, confirmed))


def test_what_to_type_next() -> None:
    assert "pin.yml -e pin_confirm=true -e pin_model_revision=v2 -e pin_all=true" in closing(
        Wanted(model="v2", all=True), given={"a": "b"}
    )
    assert "playbooks/preflight.yml -e preflight_needs=launch" in closing(
        file={"written": True, "backup": "/b"}, given={"a": "b"}, confirmed=True
    )
    assert "Nothing to pin: the lane leaves nothing open." in closing()
    assert "-e pin_all=true" in closing()
    assert "nothing moved" in closing(Wanted(all=True))
    assert "Still open: lane_max_num_seqs" in closing(open=["lane_max_num_seqs"])


def test_files_that_ansible_could_not_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "lane_a.yml").write_text("a: [\n")
    (tmp_path / "lane_b.yml").write_bytes(b"\xff")
    (tmp_path / "lane_c").mkdir()
    (tmp_path / "lane_c/10.yml").write_text("x: {\n")
    for name, text in {
        "lane_d.yml": "a: 1\n",
        "lane_e.yml": "",
        "lane_f.yml": "$ANSIBLE_VAULT;1.1;AES256\n61\n",
        "lane_g.json": "{}",
        "sparks.yml": "[",
    }.items():
        (tmp_path / name).write_text(text)
    assert [sentence.partition(": ")[0].removeprefix(f"{tmp_path}/") for sentence in pin_written.unreadable(tmp_path)] == [
        "lane_a.yml",
        "lane_b.yml is no text of UTF-8",
        "lane_c/10.yml",
    ]
    assert pin_written.unreadable(tmp_path / "none") == []


def test_a_file_that_takes_nothing_is_not_judged(tmp_path: Path) -> None:
    lane = resolved("flash_nvfp4_mtp_tp2")
    (tmp_path / "lane_flash_nvfp4_mtp_tp2.yml").write_text("a: 1\na: 2\n")
    made, problem = pin_written.written(lane, [], tmp_path, {}.get)
    assert (problem, made["diff"]) == (None, [])
