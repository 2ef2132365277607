"""A lane of one's own, begun from another one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import catalogue as lane_catalogue
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane.catalogue import NOT_INHERITED, new_lane
from conftest import ROOT
from lane_files import ALL, GROUP_VARS, options, read
from test_filters import FLEET, play


def text_of(lane: str) -> str:
    return (GROUP_VARS / f"lane_{lane}.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("parent", ALL)
def test_a_new_lane_has_all_of_its_parent_but_what_is_the_parents_own(parent: str) -> None:
    made = yaml.safe_load(new_lane(text_of(parent), parent, "mine"))
    own = {"lane_id": "mine", "lane_title": f"mine, from {parent}", "lane_source": {"derived_from": parent}}
    kept = {name: value for name, value in read(f"lane_{parent}").items() if name not in (*NOT_INHERITED, *own)}
    assert made == {**own, **kept}
    assert set(made) <= set(lane_schema.known_names(options()))


def test_comments_stay_with_what_they_are_about() -> None:
    made = new_lane(text_of("flash_nvfp4_dflash2_tp2"), "flash_nvfp4_dflash2_tp2", "mine")
    lines = made.splitlines()
    assert lines[lines.index("lane_kv_cache_memory_bytes: 6GiB") - 1].startswith("# TRAP.KV_PIN_PROOF says")
    assert "  # CUDA graphs gain nothing at TP2." in lines
    assert "GLM-5.3-Flash (320B" not in made  # the parent's own heading
    assert lines.count("---") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [("a-b", "letters, digits and _"), ("", "letters"), ("../x", "letters"), ("glm53_bare", "a name of its own")],
)
def test_names_that_can_not_be(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        new_lane(text_of("glm53_bare"), "glm53_bare", name)
    with pytest.raises(ValueError, match="does not say lane_id: other"):
        new_lane(text_of("glm53_bare"), "other", "mine")


def make(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    folder = json.dumps({"new_lane_folder": str(tmp_path / "fleet/group_vars")})
    command = ["ansible-playbook", "-i", "localhost,", str(ROOT / "playbooks/new_lane.yml"), "-e", folder, *arguments]
    environ = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(tmp_path / "h"),
    }
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_one_file_makes_a_lane_that_preflight_knows(tmp_path: Path) -> None:
    """Written by the playbook, found by preflight, merged with family and kit; nothing else is to be touched."""
    wanted = ("-e", "new_lane=mine", "-e", "new_lane_from=flash_w4a16_dflash2_tp2_1m")
    rc, text = make(tmp_path, *wanted, "--check")
    assert rc == 0, text
    assert not (tmp_path / "fleet").exists()
    rc, text = make(tmp_path, *wanted)
    assert rc == 0, text
    assert "playbooks/render.yml -e lane=mine" in text
    assert lane_catalogue.known_lanes([tmp_path / "fleet/group_vars"]) == ["mine"]
    rc, text = play(tmp_path, ROOT / "playbooks/preflight.yml", "-e", "lane=mine", "-e", "preflight_needs=lane", fleet=FLEET)
    assert rc == 0, text  # an unknown lane, or one that was not loaded, fails
    assert "unknown lane" not in text
    # A second run overwrites nothing.
    mine = tmp_path / "fleet/group_vars/lane_mine.yml"
    mine.write_text(mine.read_text() + "lane_port: 9000\n", encoding="utf-8")
    rc, text = make(tmp_path, *wanted)
    assert rc != 0
    assert "is there already: edit it, or choose another name." in text
    assert "lane_port: 9000" in mine.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-e", "new_lane=mine"), "-e new_lane=NAME -e new_lane_from=LANE"),
        (("-e", "new_lane=mine", "-e", "new_lane_from=glm53_bear"), "Did you mean glm53_bare?"),
        (("-e", "new_lane=glm53_mtp", "-e", "new_lane_from=glm53_bare"), "lane glm53_mtp is there already"),
        (("-e", "new_lane=a-b", "-e", "new_lane_from=glm53_bare"), "letters, digits and _"),
    ],
)
def test_what_can_not_be_made_says_why(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    rc, text = make(tmp_path, *arguments)
    assert rc != 0
    assert words in text
    assert not list(tmp_path.rglob("lane_*.yml"))
