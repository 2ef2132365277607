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
from conftest import FIXTURES, ROOT
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


def make(tmp_path: Path, *arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    folder = json.dumps({"new_lane_folder": str(tmp_path / "fleet/group_vars")})
    command = ["ansible-playbook", "-i", "localhost,", str(ROOT / "playbooks/new_lane.yml"), "-e", folder, *arguments]
    environ = {
        **os.environ,
        **(environ or {}),
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


ONE = {"all": {"children": {"sparks": {"hosts": {"spark-1": {}}}}}}
SERVE = "docker run -e HF_TOKEN=hf_x -e NCCL_IB_HCA=mlx5_0 -e FOO=1 ghcr.io/x/engine:1 vllm serve own/Big --max-model-len 4096\n"


def test_a_command_of_somebody_else_becomes_a_lane(tmp_path: Path) -> None:
    """Shown before it is written, told part by part, found by preflight, compared by render."""
    (tmp_path / "serve.txt").write_text(SERVE, encoding="utf-8")
    wanted = ("-e", "new_lane=mine", "-e", f"new_lane_from={tmp_path}/serve.txt")
    rc, text = make(tmp_path, *wanted, "--check")
    assert rc == 0, text
    assert not (tmp_path / "fleet").exists()
    rc, text = make(tmp_path, *wanted)
    assert rc == 0, text
    for words in (
        "kept verbatim, 1",
        "env FOO=1",
        "role roce finds it on each Spark",
        "put the value into the vault as hub_token",
        "Rendered, it differs",
    ):
        assert words in text
    rc, text = play(tmp_path, ROOT / "playbooks/preflight.yml", "-e", "lane=mine", "-e", "preflight_needs=lane", fleet=ONE)
    assert rc == 0, text
    rc, text = play(tmp_path, ROOT / "playbooks/preflight.yml", "-e", "lane=mine", "-e", "preflight_needs=launch", fleet=ONE)
    assert rc != 0
    assert "lane_model_site: {revision:" in text
    fabric = {
        "spark-1": {
            "transport": "roce",
            "host_ip": "192.0.2.1",
            "ifname": "fab0",
            "rails": [],
            "env": {},
            "warnings": [],
            "errors": [],
        }
    }
    (tmp_path / "fabric.yml").write_text(json.dumps(fabric), encoding="utf-8")
    (tmp_path / "serve.txt").write_text(SERVE.replace("4096", "8192"), encoding="utf-8")
    files = ("-e", f"render_fabric={tmp_path}/fabric.yml", "-e", f"render_compare={tmp_path}/serve.txt")
    rc, text = play(tmp_path, ROOT / "playbooks/render.yml", "-e", "lane=mine", *files, fleet=ONE)
    assert rc == 0, text
    assert "flag --max-model-len: runs with 8192, the lane says 4096" in text


INSPECT = FIXTURES / "release/state-0.1/serving/spark-1/docker-inspect.json"


def test_a_container_on_a_host_becomes_a_lane(tmp_path: Path) -> None:
    record = json.loads(INSPECT.read_text(encoding="utf-8"))[0] | {"Name": "/by_hand", "Id": "0123456789abcdef" * 4}
    (tmp_path / "record.json").write_text(json.dumps([record]), encoding="utf-8")
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(
        f'#!/bin/sh\ncase "$1" in\nps) echo {record["Id"]} ;;\ninspect) cat {tmp_path}/record.json ;;\n*) exit 1 ;;\nesac\n'
    )
    docker.chmod(0o755)
    (tmp_path / "hosts.yml").write_text(
        "all: {hosts: {spark-1: {ansible_connection: local, ansible_become: false}}}\n", encoding="utf-8"
    )
    wanted = ("-i", str(tmp_path / "hosts.yml"), "-e", "new_lane=mine")
    path = {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    rc, text = make(tmp_path, *wanted, "-e", "new_lane_from=container:by_hand@spark-1", environ=path)
    assert rc == 0, text
    assert "those of container:by_hand@spark-1" in text
    made = yaml.safe_load((tmp_path / "fleet/group_vars/lane_mine.yml").read_text(encoding="utf-8"))
    assert made["lane_container"]["entrypoint"] == "vllm"
    assert made["lane_max_model_len"] == 512
    for given, words in (
        ("container:other@spark-1", "there is no such container on that Spark"),
        ("container:by_hand@spark-9", "spark-9 is no host of this inventory"),
        ("container:by_hand", "write container:NAME@HOST"),
    ):
        rc, text = make(tmp_path, *wanted[:2], "-e", "new_lane=other", "-e", f"new_lane_from={given}", environ=path)
        assert rc != 0
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-e", "new_lane=mine", "-e", "new_lane_from=./gone.yaml"), "gone.yaml can't be read"),
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
