# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A value set in the text of a site's file: all else stays as a person wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import site_file
from ansible.module_utils.sparklanes.lane.site_file import CannotEdit, Setting, edited
from hypothesis import given, settings
from hypothesis import strategies as st

COMMIT = "a" * 40
MODEL = Setting("lane_model", ("revision",), COMMIT, "on 2026-12-01: main of acme/tiny")
EXTRA = Setting("lane_extras", ("/extras/x.jinja", "sha256"), "b" * 64, "on 2026-12-01: as it lies here")
ABOVE = f"# Pinned lane_model.revision {MODEL.comment}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f'---\n# head\nlane_model_site:\n  {ABOVE}  revision: "{COMMIT}"\n'),
        ("---\n# mine\nlane_port: 1", f'---\n# mine\nlane_port: 1\nlane_model_site:\n  {ABOVE}  revision: "{COMMIT}"\n'),
        (
            "lane_model_site: {path: /x}  # why\nlane_port: 1\n",
            f'{ABOVE}lane_model_site: {{revision: "{COMMIT}", path: /x}}  # why\nlane_port: 1\n',
        ),
        ("lane_model_site: {}\n", f'{ABOVE}lane_model_site: {{revision: "{COMMIT}"}}\n'),
        ("lane_model_site:\nlane_port: 1\n", f'{ABOVE}lane_model_site: {{revision: "{COMMIT}"}}\nlane_port: 1\n'),
        (
            "lane_model_site:\n    # my path\n    path: /x # keep\n\nlane_port: 1\n",
            f'lane_model_site:\n    {ABOVE}    revision: "{COMMIT}"\n    # my path\n    path: /x # keep\n\nlane_port: 1\n',
        ),
        (
            "lane_model_site:\n  # mine\n  # Pinned lane_model.revision on 2026-01-01: old\n  revision: 'old' # look\n  path: /x\n",
            f'lane_model_site:\n  # mine\n  {ABOVE}  revision: "{COMMIT}" # look\n  path: /x\n',
        ),
        (
            "lane_model_site: {\n  path: /x,\n  revision: old }\n",
            f'lane_model_site: {{\n  path: /x,\n  {ABOVE}  revision: "{COMMIT}" }}\n',
        ),
        # A lane of the site's own, which holds the value itself.
        (
            "lane_id: mine\nlane_model:\n  repo: acme/tiny\n  revision: null\n  path: /x\n",
            f'lane_id: mine\nlane_model:\n  repo: acme/tiny\n  {ABOVE}  revision: "{COMMIT}"\n  path: /x\n',
        ),
        ("lane_model: {path: /x}\n", f'lane_model: {{path: /x}}\nlane_model_site:\n  {ABOVE}  revision: "{COMMIT}"\n'),
        (
            "lane_model: {revision: null}\nlane_model_site: {path: /x}\n",
            f'lane_model: {{revision: null}}\n{ABOVE}lane_model_site: {{revision: "{COMMIT}", path: /x}}\n',
        ),
        (
            "lane_port: !vault |\n  $ANSIBLE\n",
            f'lane_port: !vault |\n  $ANSIBLE\nlane_model_site:\n  {ABOVE}  revision: "{COMMIT}"\n',
        ),
    ],
)
def test_a_value_goes_where_it_belongs_and_nothing_else_moves(before: str, after: str) -> None:
    assert edited(before, [MODEL], "---\n# head\n") == after
    assert edited(after, [MODEL]) == after, "a second time changes nothing"


def test_line_ends_stay() -> None:
    made = edited("# mine\r\nlane_model_site:\r\n  path: /x\r\n", [MODEL, EXTRA])
    assert made.count("\n") == made.count("\r\n")
    assert yaml.safe_load(made)["lane_extras_site"] == {"/extras/x.jinja": {"sha256": "b" * 64}}


@pytest.mark.parametrize(
    "before",
    [
        "lane_extras_site:\n  - target: /extras/x.jinja\n    sha256:\n    source: y\n",
        "lane_extras_site:\n  - {target: /extras/other, sha256: null}\n  - {target: /extras/x.jinja, sha256: null}\n",
        "lane_extras_site: {/extras/x.jinja: {source: y}}\n",
        "lane_extras_site:\n  /extras/x.jinja:\n",
        "lane_extras_site:\n  /extras/other: {sha256: c}\n",
    ],
)
def test_a_thing_with_a_target_is_found_by_it(before: str) -> None:
    made = yaml.safe_load(edited(before, [EXTRA]))["lane_extras_site"]
    entry = made["/extras/x.jinja"] if isinstance(made, dict) else next(one for one in made if one["target"] == "/extras/x.jinja")
    assert entry["sha256"] == "b" * 64
    old = yaml.safe_load(before)["lane_extras_site"]
    assert len(made) == len(old) + (isinstance(old, dict) and "/extras/x.jinja" not in old)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("a: [", "it is no YAML: line 1"),
        ("a:\n\t- b\n", "it is no YAML: line 2"),
        ("- a\n", "holds no variables, but a list"),
        (
            "lane_port: 1\nlane_model_site: {}\nlane_port: 2\n",
            "it has lane_port twice, on lines 1 and 3, and the second hides the first. Keep one",
        ),
        ("lane_model_site:\n  path: /x\n  path: /y\n", "it has path twice, on lines 2 and 3"),
        ('lane_model_site: "{{ mine }}"\n', "line 1: lane_model_site is a text"),
        ("lane_model_site: &x {path: /y}\nlane_drafter_site: *x\n", "alias, an anchor"),
        ("x: &a {p: 1}\nlane_model_site: *a\n", "line 2: lane_model_site is an alias"),
        ("lane_model_site: !unsafe x\n", "has a tag"),
        ("lane_model_site: {revision: [a]}\n", "revision holds no plain value"),
        ("lane_model_site:\n  revision: |\n    x\n", "revision holds no plain value"),
        ("lane_port: 1\n...\n", "once the pins are in it"),
        ("{lane_port: 1}\n", "in braces"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: \x00\n", "it is no YAML"),
    ],
)
def test_what_can_not_be_changed_safely_says_why(before: str, words: str) -> None:
    with pytest.raises(CannotEdit, match=words.replace("(", r"\(")):
        edited(before, [MODEL])


def test_of_a_list_with_a_target_twice_or_without_a_place_nobody_guesses() -> None:
    with pytest.raises(CannotEdit, match=r"0 entries with target /extras/x\.jinja"):
        edited("lane_extras_site: [{target: /extras/y, sha256: null}]\n", [EXTRA])
    with pytest.raises(CannotEdit, match="has no sha256"):
        edited("lane_extras_site: [{target: /extras/x.jinja}]\n", [EXTRA])


NAMES = st.text("ab_", min_size=1, max_size=6).map(lambda name: f"x_{name}")
LEAVES = st.one_of(st.none(), st.integers(), st.text("ab: #'\"{}\n", max_size=12), st.booleans())
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12)


@settings(max_examples=40)
@given(
    st.dictionaries(NAMES, TREES, max_size=4),
    st.dictionaries(NAMES, TREES, max_size=3),
    st.sampled_from(["block", "flow"]),
    st.booleans(),
)
def test_whatever_a_file_says_it_says_the_rest_as_before(
    others: dict[str, Any], inner: dict[str, Any], style: str, own: bool
) -> None:
    data: dict[str, Any] = {**others, **({"lane_model_site": inner} if own else {}), "z": 1}
    text = (
        yaml.safe_dump(data, sort_keys=False)
        if style == "block"
        else "".join(f"{name}: {json.dumps(value)}\n" for name, value in data.items())
    )
    assert yaml.safe_load(edited(text, [MODEL])) == {**data, "lane_model_site": {**(inner if own else {}), "revision": COMMIT}}


# --- which file ---


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({}, "lane_mine.yml"),
        ({"lane_mine_dot_yml": ""}, "lane_mine.yml"),
        ({"lane_mine_dot_yaml": ""}, "lane_mine.yaml"),
        # Ansible reads the folder and passes over the file beside it.
        ({"lane_mine__10_dot_yml": "lane_port: 1\n", "lane_mine_dot_yml": "lane_model_site: {}\n"}, "lane_mine/pins.yml"),
        ({"lane_mine__10_dot_yml": "lane_model_site: {}\n", "lane_mine__20_dot_yml": "lane_port: 1\n"}, "lane_mine/10.yml"),
        (
            {"lane_mine__10_dot_yml": "lane_model_site: {}\n", "lane_mine__20_dot_yml": "lane_model:\n  revision: null\n"},
            "lane_mine/20.yml",
        ),
    ],
)
def test_the_file_that_ansible_reads_is_the_one(tmp_path: Path, files: dict[str, str], chosen: str) -> None:
    write(tmp_path, **files)
    assert site_file.lane_file(tmp_path, "mine", ["lane_model"]) == tmp_path / chosen


def test_files_that_are_not_for_us(tmp_path: Path) -> None:
    (tmp_path / "lane_a.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n61\n")
    (tmp_path / "lane_b.json").write_text("{}")
    (tmp_path / "lane_c.yml").write_bytes(b"\xff\xfe")
    (tmp_path / "lane_d.yml").mkdir()
    for lane, words in {"a": "encrypted as a whole", "b": "is JSON", "c": "no text of UTF-8"}.items():
        with pytest.raises(CannotEdit, match=words):
            site_file.read(site_file.lane_file(tmp_path, lane, []))
    assert site_file.lane_files(tmp_path, "d") == [], "a folder of that name, which Ansible reads, and nothing in it"
