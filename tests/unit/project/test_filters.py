"""Our filters under ansible-playbook itself: preflight's verdicts, and the commands that render prints."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import lane_files
import pytest
import yaml
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from conftest import ROOT
from inventories import Inventory, ansible_globals
from sparklanes import (  # filter_plugins/sparklanes.py
    checks_failures,
    checks_table,
    checks_verdict,
    lane_of,
    lane_preflight,
    lane_rank_spec,
    models_as_written,
)

OURS = ("shipped", "FLEET", "lanes")
FLEET = {"all": {"children": {"sparks": {"vars": {"lane": "sandbox_tiny"}, "hosts": {"s1": {}, "s2": {}}}}}}
ENGINE = {
    "sandbox_image_repository": "registry.test/engine",
    "sandbox_image_digest": "sha256:" + "a" * 64,
    "sandbox_model_revision": "b" * 40,
}


def play(
    tmp_path: Path,
    playbook: str | Path,
    *arguments: str,
    fleet: Any = FLEET,
) -> tuple[int, str]:
    """Run a playbook with a fleet of this test between our own sources; exit code and what a person reads."""
    folder = tmp_path / "fleet"
    folder.mkdir(exist_ok=True)
    (folder / "10-fleet.yml").write_text(yaml.safe_dump(fleet), encoding="utf-8")
    inventories = [str(folder) if source == "FLEET" else str(ROOT / "inventory" / source) for source in OURS]
    command = ["ansible-playbook", *(part for source in inventories for part in ("-i", source)), str(playbook), *arguments]
    environ = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def run_preflight(tmp_path: Path, *arguments: str, **more: Any) -> tuple[int, str]:
    return play(tmp_path, ROOT / "playbooks" / "preflight.yml", *arguments, **more)


def test_a_good_configuration_passes_and_touches_no_host(tmp_path: Path) -> None:
    """s1 and s2 exist nowhere: had anything been run on them, they would be unreachable."""
    rc, text = run_preflight(tmp_path, "-e", json.dumps({**ENGINE, "preflight_needs": "launch"}))
    assert rc == 0, text
    assert "checks pass: ranks 0 s1, 1 s2; lane sandbox_tiny" in text
    assert "unreachable=0" in text
    assert "UNREACHABLE" not in text


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    layer = json.dumps({"lane_engine_args_override": {"--max-model-len": 1}})
    rc, text = run_preflight(tmp_path, "-e", "lane_max_modellen=8192", "-e", "lane_port=many", "-e", layer)
    assert rc == 2
    # One mistake hides no other.
    assert "Set lane_max_model_len instead." in text
    assert "LANE.NAMES  all  lane_max_modellen is no variable of a lane" in text
    assert "Did you mean lane_max_model_len?" in text
    assert "lane_port: 'many' is no whole number" in text


@pytest.mark.parametrize("playbook", ["launch.yml", "render.yml"])
def test_a_trap_ends_a_playbook_before_any_spark_is_asked(tmp_path: Path, playbook: str) -> None:
    lane = ("-e", "lane=flash_nvfp4_dflash2_tp2", "-e", "lane_kv_cache_dtype=fp8_ds_mla")
    rc, text = play(tmp_path, ROOT / "playbooks" / playbook, *lane)
    assert rc == 2, text
    assert "TRAP.KV_DTYPE_PACKED" in text
    assert "UNREACHABLE" not in text


def judge(
    tmp_path: Path, *extra: str, limit: str = "", sources: tuple[str, ...] = OURS, fleet: Any = FLEET
) -> list[dict[str, str]]:
    """The filter under preflight, with Ansible's own hostvars of this inventory."""
    (tmp_path / "fleet").mkdir(exist_ok=True)
    (tmp_path / "fleet" / "10-fleet.yml").write_text(yaml.safe_dump(fleet), encoding="utf-8")
    needs = [part.partition("=")[2] for part in extra if part.startswith("preflight_needs=")] or ["host"]
    folders = [tmp_path / "fleet" if source == "FLEET" else ROOT / "inventory" / source for source in sources]
    with ansible_globals():
        made = Inventory(folders, extra, limit)
        return lane_preflight(made.hostvars, made.groups(), made.play_hosts(), made.sources, [], needs[0])


@pytest.mark.parametrize(
    ("extra", "limit", "sources", "verdict", "words"),
    [
        ((), "", OURS, "pass", "lane sandbox_tiny"),
        (("lane=sandbox_tinny",), "", OURS, "fail", "unknown lane sandbox_tinny"),
        ((), "", ("FLEET",), "fail", "the variables of lane sandbox_tiny were not loaded"),
        (("lane=",), "", OURS, "warn", "no lane is chosen: only the host part is done"),
        (("lane=", "preflight_needs=launch"), "", OURS, "fail", "no lane is chosen"),
        (("preflight_needs=launch",), "", OURS, "fail", "Run script/sandbox up."),
        (("preflight_needs=launch",), "s2", OURS, "fail", "this run leaves out s1"),
        ((), "s2", OURS, "pass", "ranks 0 s1, 1 s2"),
        (("lane_max_model_len=256",), "", OURS, "pass", "all as defined"),
        (("lane_max_model_len=12k",), "", OURS, "fail", "'12k' is no whole number"),
        (("lane_prot=1",), "", OURS, "fail", "Did you mean lane_port?"),
    ],
)
def test_the_verdict_of_preflight(
    tmp_path: Path, extra: tuple[str, ...], limit: str, sources: tuple[str, ...], verdict: str, words: str
) -> None:
    checks = judge(tmp_path, *extra, limit=limit, sources=sources)
    assert checks_verdict(checks) == verdict, checks_table(checks)
    assert words in " ".join(f"{check['found']} {check['remedy']}" for check in checks)


def test_a_lane_of_the_site_is_known_too(tmp_path: Path) -> None:
    folder = tmp_path / "fleet" / "group_vars"
    folder.mkdir(parents=True)
    own = yaml.safe_load((ROOT / "group_vars" / "lane_sandbox_tiny.yml").read_text(encoding="utf-8"))
    (folder / "lane_mine.yml").write_text(yaml.safe_dump({**own, "lane_id": "mine"}), encoding="utf-8")
    assert "lane mine" in {check["found"] for check in judge(tmp_path, "lane=mine") if check["status"] == "pass"}


def test_a_lane_variable_inside_an_inventory_file_is_warned_of_where_it_loses(tmp_path: Path) -> None:
    inline = {"lane": "sandbox_tiny", "lane_port": 9000, "lane_boot_stagger_seconds": 1}
    fleet = {"all": {"children": {"sparks": {"vars": inline, "hosts": {"s1": {}, "s2": {}}}}}}
    warned = [check for check in judge(tmp_path, fleet=fleet) if check["status"] == "warn"]
    # The lane's file says lane_port and wins; nobody else says lane_boot_stagger_seconds.
    assert [check["found"] for check in warned] == ["lane_port: 9000 in the variables of group sparks has no effect"]


def test_checks_as_sentences() -> None:
    check = {"id": "A.B", "host": "s1", "status": "fail", "found": "x", "expected": "y", "remedy": "Do z."}
    assert checks_failures([check, {**check, "status": "pass"}]) == ["s1 A.B: x; expected y. Do z."]


RENDER = """
- hosts: sparks
  gather_facts: false
  tasks:
    - name: What role roce would find
      ansible.builtin.set_fact:
        roce_fabric:
          transport: socket
          host_ip: "10.0.0.{{ groups['sparks'].index(inventory_hostname) + 1 }}"
          ifname: fab0
          env: {GLOO_SOCKET_IFNAME: fab0}
    - name: Everything at once
      ansible.builtin.copy:
        dest: "{{ out }}"
        content: "{{ {'specs': specs, 'lane': this_lane} | to_json }}"
      vars:
        specs: "{{ [hostvars | sparklanes_rank_spec('s1', groups), hostvars | sparklanes_rank_spec('s2', groups)] }}"
      delegate_to: localhost
      connection: local
      run_once: true
"""


def test_where_one_rank_has_its_model_in_a_hub_cache_all_serve_from_the_same_path() -> None:
    lane = yaml.safe_load((ROOT / "group_vars" / "lane_sandbox_tiny.yml").read_text(encoding="utf-8"))
    lane |= {
        "lane": "sandbox_tiny",
        "lane_image": {"repository": "r.test/e", "digest": "sha256:" + "a" * 64},
        "lane_api_host": "127.0.0.1",
    }
    lane["lane_model"] = {**lane["lane_model"], "revision": "b" * 40}
    fabric = {"roce_fabric": {"transport": "socket", "host_ip": "10.0.0.1", "ifname": "fab0", "env": {}}}
    hub = "/root/.cache/huggingface/hub/models--a--b"
    cached = {"lane_model_host": {"path": f"{hub}/snapshots/{'b' * 40}"}}
    hostvars = {"s1": {**lane, **fabric}, "s2": {**lane, **fabric, **cached}}
    specs = [lane_rank_spec(hostvars, host, {"sparks": ["s1", "s2"]}) for host in hostvars]
    assert [spec["command"][0] for spec in specs] == [f"/models/tiny/snapshots/{'b' * 40}"] * 2
    assert [spec["mounts"][0]["target"] for spec in specs] == [f"/models/tiny/snapshots/{'b' * 40}", "/models/tiny"]
    assert specs[1]["mounts"][0]["source"] == hub


def test_a_cache_that_a_look_found_is_one_that_a_host_named() -> None:
    """The same specs, whoever said it; and only for the very path and commit that the look was asked about."""
    lane = yaml.safe_load((ROOT / "group_vars" / "lane_sandbox_tiny.yml").read_text(encoding="utf-8"))
    lane |= {
        "lane": "sandbox_tiny",
        "lane_image": {"repository": "r.test/e", "digest": "sha256:" + "a" * 64},
        "lane_api_host": "127.0.0.1",
    }
    lane["lane_model"] = {**lane["lane_model"], "revision": "b" * 40}
    lane |= {"roce_fabric": {"transport": "socket", "host_ip": "10.0.0.1", "ifname": "fab0", "env": {}}}
    path = f"/home/u/.cache/huggingface/hub/models--a--b/snapshots/{'b' * 40}"
    own = lane["lane_model"]
    seen = {"name": "model", "path": path, "instead_of": own["path"], "repo": own["repo"], "revision": own["revision"]}

    def specs(second: dict[str, Any]) -> list[Any]:
        hostvars = {"s1": lane, "s2": {**lane, **second}}
        return [lane_rank_spec(hostvars, host, {"sparks": ["s1", "s2"]}) for host in hostvars]

    assert specs({"model_weights_places": [seen]}) == specs({"lane_model_host": {"path": path}}) != specs({})
    for other in ("instead_of", "repo", "revision"):
        assert specs({"model_weights_places": [{**seen, other: "another"}]}) == specs({})
    placed = {"s2": {**lane, "model_weights_places": [seen]}}
    assert lane_of(placed, "s2")["lane_model"]["path"] == path
    assert [one["path"] for one in models_as_written(placed, "s2")] == [own["path"]]
    assert models_as_written({"s2": {}}, "s2") == []


def test_rendering_with_ansibles_own_variables(tmp_path: Path) -> None:
    """Layers, -e strings and templates of the lane, through hostvars as the roles use them."""
    book = tmp_path / "render.yml"
    book.write_text(RENDER, encoding="utf-8")
    layer = {"lane_engine_env_override": {"EXTRA": "1", "DO_NOT_TRACK": None}, **ENGINE}
    out = tmp_path / "out.json"
    arguments = (
        "-e",
        json.dumps(layer),
        "-e",
        "lane_max_model_len=256",
        "-e",
        f"out={out}",
        "-e",
        "engine_api_key=sk-very-secret",
    )
    rc, text = play(tmp_path, book, *arguments)
    assert rc == 0, text
    made = json.loads(out.read_text(encoding="utf-8"))
    head, worker = made["specs"]
    assert head["image"] == f"registry.test/engine@{ENGINE['sandbox_image_digest']}"
    assert head["command"][:2] == ["serve", "/models/tiny"]
    assert head["command"][head["command"].index("--max-model-len") + 1] == "256"
    assert head["env"]["EXTRA"] == "1"
    assert "DO_NOT_TRACK" not in head["env"]
    assert head["env"]["TORCHDYNAMO_DISABLE"] == "1"
    assert worker["env"]["VLLM_HOST_IP"] == "10.0.0.2"
    assert worker["command"][-1] == "--headless"
    assert made["lane"]["lane_max_model_len"] == 256
    assert made["lane"]["lane_kv_cache_memory_bytes"] == 67108864
    # The secret is named, and only named.
    assert head["secret_env"] == ["VLLM_API_KEY"]
    assert "sk-very-secret" not in out.read_text(encoding="utf-8")


def test_the_sum_of_each_extra_is_that_of_its_file() -> None:
    """A changed template without a changed hash would be refused on each Spark; say it here."""
    lanes = [lane_schema.resolve(lane_files.variables_of(lane), lane_files.options(), "s1")[0] for lane in lane_files.ALL]
    known = [extra for lane in lanes for extra in lane["lane_extras"] if extra["sha256"] is not None]
    assert known
    for extra in known:
        assert hashlib.sha256((ROOT / extra["source"]).read_bytes()).hexdigest() == extra["sha256"], extra["source"]


def test_the_collections_that_preflight_asks_for_are_those_that_we_use() -> None:
    used = set()
    for folder in ("roles", "playbooks"):
        for path in (ROOT / folder).rglob("*.yml"):
            for name in re.findall(
                r"^\s*(?:- )?([a-z_]+\.[a-z_]+)\.[a-z_]+:(?:\s|$)", path.read_text(encoding="utf-8"), re.MULTILINE
            ):
                used.add(name)
    used.discard("ansible.builtin")
    preflight_play = yaml.safe_load((ROOT / "playbooks" / "preflight.yml").read_text(encoding="utf-8"))[0]
    assert set(preflight_play["vars"]["preflight_collections"]) == used


def test_ranks_are_rendered_without_a_spark_from_a_file_the_head_first(tmp_path: Path) -> None:
    """The hosts exist nowhere."""
    fabric = {
        host: {"transport": "socket", "host_ip": f"10.0.0.{number}", "ifname": "eth1", "rails": [], "env": {}, "errors": []}
        for number, host in enumerate(("s1", "s2"), 1)
    }
    (tmp_path / "fabric.yml").write_text(yaml.safe_dump(fabric), encoding="utf-8")
    given = json.dumps({**ENGINE, "render_fabric": str(tmp_path / "fabric.yml")})
    rc, text = play(tmp_path, ROOT / "playbooks" / "render.yml", "-e", given)
    assert rc == 0, text
    assert 0 < text.index("rank 0 of 2 on s1") < text.index("rank 1 of 2 on s2")
    assert "--master-addr 10.0.0.1" in " ".join(text.split())
    (tmp_path / "fabric.yml").write_text("s1: {}", encoding="utf-8")
    rc, text = play(tmp_path, ROOT / "playbooks" / "render.yml", "-e", given)
    assert rc == 2
    assert "tells of s1, and not of s2" in text


def test_an_empty_fleet_says_how_to_fill_it(tmp_path: Path) -> None:
    rc, text = run_preflight(tmp_path, fleet={"all": {}})
    assert rc == 1
    assert "script/init 192.168.1.11 192.168.1.12" in text
