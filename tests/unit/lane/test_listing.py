"""The lanes that there are, as playbooks/lanes.yml lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import listing
from conftest import ROOT
from lane_files import ALL, GROUP_VARS, options
from sparklanes import lanes_text  # filter_plugins/sparklanes.py


def read(path: Path) -> Mapping[str, Any]:
    told: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return told


def test_every_lane_that_we_ship_is_listed_with_its_state_and_the_reason_below() -> None:
    text = lanes_text([str(ROOT / "inventory" / "shipped")])
    lines = text.splitlines()
    assert {line.split()[0] for line in lines[1 : len(ALL) + 1]} == set(ALL)
    (topkfix,) = [line for line in lines[: len(ALL) + 1] if line.startswith("flash_nvfp4_dflash2_tp4_1m_topkfix")]
    assert topkfix.split()[1:4] == ["4", "1,048,576", "superseded"]
    assert 'flash_nvfp4_dflash2_tp4_1m_topkfix is superseded: CURRENT.md of 2026-09-02 lists it under "do not use"' in text
    assert "flash_nvfp4_dflash2_tp4_v3_negative is negative: its source measured 31.5 tok/s" in text
    assert lines[len(ALL)].startswith("flash_w4a16_mtp_tp4_sm120"), "hosts that are no Sparks stand last"
    (hopper,) = [line for line in lines if line.startswith("flash_w4a16_mtp_tp4_hopper")]
    assert hopper.split()[1:3] == ["no", "Spark"]


def test_a_site_adds_lanes_and_changes_ours_by_layers_and_by_name(tmp_path: Path) -> None:
    site = tmp_path / "group_vars"
    (site / "lane_folder").mkdir(parents=True)
    (site / "lane_mine.yml").write_text(
        "lane_id: mine\nlane_title: Mine\nlane_family: glm53_flash\nlane_nodes: 1\nlane_tensor_parallel_size: 1\n",
        encoding="utf-8",
    )
    (site / "lane_folder" / "main.yml").write_text(
        "lane_id: folder\nlane_superseded: by mine since 2026-12-01\n", encoding="utf-8"
    )
    (site / "lane_glm53_bare.yml").write_text("lane_max_model_len: 1000\n", encoding="utf-8")
    lanes, unread = listing.found([GROUP_VARS, site], read, options())
    assert (set(lanes), unread) == ({*ALL, "mine", "folder"}, {})
    assert lanes["glm53_bare"]["lane_max_model_len"] == 1000
    assert lanes["mine"]["lane_engine_args"]["--block-size"] == 2304
    lines = listing.text(lanes)
    assert next(line for line in lines if line.startswith("mine")).split()[1:5] == ["1", "?", "never", "run"]
    assert "folder is superseded: by mine since 2026-12-01" in lines


@pytest.mark.parametrize("text", ["[1]", "a: b: c", "lane_id: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  00\n"])
def test_a_file_that_can_not_be_read_hides_no_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "lane_mine.yml").write_text(text, encoding="utf-8")
    (tmp_path / "10.yml").touch()
    listed = lanes_text([str(tmp_path)])
    assert ("mine can't be read: " in listed) == ("!vault" not in text)
    assert "glm53_bare" in listed
