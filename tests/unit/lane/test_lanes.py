"""The definition of a lane, its rules, and the commands that it makes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.common.sizes import exact_bytes
from ansible.module_utils.sparklanes.common.suggest import did_you_mean, nearest
from ansible.module_utils.sparklanes.engine import flags
from ansible.module_utils.sparklanes.lane import catalogue as lane_catalogue
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import state as lane_state
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.rank import spec as rank_spec
from ansible.module_utils.sparklanes.traps import engine as traps_engine
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

OPTIONS = lane_schema.schema(yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8")))
DIGEST = "sha256:" + "a" * 64
REVISION = "b" * 40

TINY: dict[str, Any] = {
    "lane_id": "tiny",
    "lane_nodes": 2,
    "lane_tensor_parallel_size": 2,
    "lane_image": {"repository": "registry.test:5000/engine", "digest": DIGEST},
    "lane_model": {"repo": "a/b", "revision": REVISION, "path": "/srv/models/tiny", "container_path": "/models/tiny"},
    "lane_served_model_name": ["tiny"],
    "lane_container_family": {"entrypoint": "vllm", "command_prefix": ["serve"], "gpus": "all"},
}
HOSTS = ["s1", "s2"]
FABRICS: dict[str, dict[str, Any]] = {
    host: {
        "transport": "roce",
        "host_ip": f"10.0.0.{number}",
        "ifname": "enp1s0f0np0",
        "env": {"NCCL_IB_HCA": "=rocep1s0f0", "NCCL_IB_GID_INDEX": ""},
        "rails": [
            {"hca": "rocep1s0f0", "gid_index": 3, "network": "10.0.0.0/24"},
            {"hca": "roceP2p1s0f0", "gid_index": None, "network": "10.0.1.0/24"},
        ],
    }
    for number, host in enumerate(HOSTS, 1)
}


def resolve(**more: Any) -> tuple[dict[str, Any], list[Check]]:
    return lane_schema.resolve({**TINY, **more}, OPTIONS, "s1")


def lane(**more: Any) -> dict[str, Any]:
    made, checks = resolve(**more)
    assert [check for check in checks if check.status != "pass"] == []
    return made


def spec(rank: int = 0, **more: Any) -> dict[str, Any]:
    return lane_render.render_rank(lane(**more), FABRICS, "sparks", HOSTS, rank)


def faults(made: list[Check], id: str) -> list[Check]:
    return [check for check in made if check.id == id and check.status == "fail"]


def the_fault(made: list[Check], id: str) -> Check:
    found = faults(made, id)
    assert len(found) == 1, found
    return found[0]


# --- names, types, layers --------------------------------------------------------------------------------------


def test_an_unknown_name_is_an_error_with_the_nearest_known_one() -> None:
    check = the_fault(resolve(lane_max_modellen=4096)[1], "LANE.NAMES")
    assert "lane_max_modellen" in check.found
    assert check.remedy == "Did you mean lane_max_model_len?"


def test_layers_of_dicts_are_known_and_those_of_others_are_not() -> None:
    assert faults(resolve(lane_engine_args_site={"--seed": 1}, lane_image_host={"vllm": "1"})[1], "LANE.NAMES") == []
    assert "lane_port_site" in the_fault(resolve(lane_port_site=1)[1], "LANE.NAMES").found


def test_an_unknown_part_of_a_dict_is_an_error_too() -> None:
    check = the_fault(resolve(lane_container={"shm_szie": "1g"})[1], "LANE.NAMES")
    assert "lane_container.shm_szie" in check.found
    assert check.remedy == "Did you mean shm_size?"
    check = the_fault(resolve(lane_extras=[{"source": "a", "target": "/b", "sha265": "c"}])[1], "LANE.NAMES")
    assert "lane_extras.0.sha265" in check.found


def test_a_missing_required_name_is_said() -> None:
    without = {name: value for name, value in TINY.items() if name != "lane_model"}
    _, checks = lane_schema.resolve(without, OPTIONS, "s1")
    assert the_fault(checks, "LANE.TYPES").found == "lane_model is missing"
    assert "lane_model.path is missing" in {check.found for check in faults(resolve(lane_model={"repo": "a/b"})[1], "LANE.TYPES")}


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("lane_max_model_len", "8192", 8192),
        ("lane_max_model_len", 8192.0, 8192),
        ("lane_max_model_len", "", None),
        ("lane_max_model_len", "null", None),
        ("lane_port", None, 8000),
        ("lane_gpu_memory_utilization", "0.90", 0.9),
        ("lane_kv_cache_memory_bytes", "8GiB", 8 * 2**30),
        ("lane_kv_cache_memory_bytes", "7 GB", 7 * 10**9),
        ("lane_kv_cache_memory_bytes", "1.5 KiB", 1536),
        ("lane_kv_cache_memory_bytes", 7000000000, 7000000000),
        ("lane_served_model_name", "a, b", ["a", "b"]),
        ("lane_served_model_name", '["a"]', ["a"]),
        ("lane_served_model_name", "a", ["a"]),
        ("lane_page_cache_policy", False, "off"),  # what YAML makes of a bare off
        ("lane_engine_args_override", '{"--seed": 1}', None),
    ],
)
def test_what_a_person_types_becomes_what_is_meant(name: str, given: Any, meant: Any) -> None:
    made = lane(**{name: given})
    if name.endswith("_override"):
        assert made["lane_engine_args"] == {"--seed": 1}
    else:
        assert made[name] == meant
        assert type(made[name]) is type(meant)


@pytest.mark.parametrize(
    ("name", "given", "word"),
    [
        ("lane_max_model_len", "12k", "whole number"),
        ("lane_max_model_len", True, "whole number"),
        ("lane_max_model_len", 1.5, "whole number"),
        ("lane_gpu_memory_utilization", "ninety", "no number"),
        ("lane_gpu_memory_utilization", "nan", "finite"),
        ("lane_kv_cache_memory_bytes", "8G", "is no size"),  # vLLM and Docker disagree about one letter
        ("lane_page_cache_policy", "intervall", "Did you mean interval?"),
        ("lane_engine_args", "--seed=1", "no mapping"),
        ("lane_engine_args", ["--seed"], "no mapping"),
        ("lane_served_model_name", {"a": 1}, "a mapping stands where a list belongs"),
        ("lane_model_site", {"path": "models/tiny"}, "no absolute path"),
        ("lane_model_site", {"path": "/srv/a,b"}, "comma"),
        ("lane_container", {"mounts": [{"source": "/a", "target": "/b", "read_only": "maybe"}]}, "neither true nor false"),
        ("lane_overlays", [None], "is empty"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(name: str, given: Any, word: str) -> None:
    check = the_fault(resolve(**{name: given})[1], "LANE.TYPES")
    assert word in check.found
    assert check.found.startswith(name.removesuffix("_site"))


def test_layers_merge_by_key_keep_the_order_and_null_removes() -> None:
    made = lane(
        lane_engine_args_family={"--a": 1, "--b": {"x": 1, "y": 2}, "--c": True},
        lane_engine_args_kit={"--c": None, "--z": 7},
        lane_engine_args={"--d": 4, "--c": True},
        lane_engine_args_site={"--b": {"y": 3}},
        lane_engine_args_host={"--a": None},
        lane_engine_args_override={"--d": 5, "--e": 6},
    )
    assert list(made["lane_engine_args"].items()) == [
        ("--b", {"x": 1, "y": 3}),
        ("--z", 7),
        ("--d", 5),
        ("--c", True),
        ("--e", 6),
    ]


def test_each_layer_beats_those_before_it() -> None:
    names = [f"lane_engine_args{layer}" for layer in ("_sparks", "_family", "_kit", "", "_site", "_host", "_override")]
    for count in range(1, len(names) + 1):
        made = lane(**{name: {"--x": name} for name in names[:count]})
        assert made["lane_engine_args"] == {"--x": names[count - 1]}


OVERLAY = {"source": "set/a.py", "sha256": "c" * 64}


def test_layers_of_files_merge_by_target_in_either_form() -> None:
    made = lane(
        lane_overlays_family={"/app/a.py": {**OVERLAY, "markers": ["one"]}, "/app/b.py": {**OVERLAY, "source": "set/b.py"}},
        lane_overlays_kit=[{**OVERLAY, "target": "/app/c.py"}],
        lane_overlays={"/app/b.py": None},
        lane_overlays_site={"/app/a.py": {"sha256": "d" * 64, "markers": None}},
        lane_overlays_override='{"/app/d.py": {"source": "set/d.py", "sha256": null}}',
    )
    assert [(one["target"], one["source"], one["sha256"], one["markers"]) for one in made["lane_overlays"]] == [
        ("/app/a.py", "set/a.py", "d" * 64, []),
        ("/app/c.py", "set/a.py", "c" * 64, []),
        ("/app/d.py", "set/d.py", None, []),
    ]


def test_mounts_and_limits_of_the_container_merge_and_can_be_removed() -> None:
    made = lane(
        lane_container_family={"memory": "112g", "shm_size": "32g", "mounts": [{"source": "/a", "target": "/cache/"}]},
        lane_container={"mounts": {"/more": {"source": "/b", "read_only": False}}},
        lane_container_site={"memory": None, "mounts": {"/cache": {"source": "/mine"}, "/more": None}},
        lane_container_override={"mounts": {"/new": {"source": "/n", "create": "yes"}}},
    )["lane_container"]
    assert (made["memory"], made["shm_size"]) == (None, "32g")
    assert [(one["source"], one["target"], one["read_only"], one["create"]) for one in made["mounts"]] == [
        ("/mine", "/cache", True, False),
        ("/n", "/new", True, True),
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lane_overlays": {"/app/a.py": "set/a.py"}}, "lane_overlays: 'set/a.py' is no mapping"),
        ({"lane_overlays": {"app/a.py": OVERLAY}}, "lane_overlays.0.target: 'app/a.py' is no absolute path"),
        ({"lane_overlays_site": {"/app/a.py": {"sha256": "c" * 64}}}, "lane_overlays.0.source is missing"),
        ({"lane_overlays": [{"source": "a"}], "lane_overlays_site": {"/b": None}}, "lane_overlays.0.target is missing"),
        ({"lane_overlays": "{"}, "lane_overlays: '{' is no JSON"),
        ({"lane_container": {"mounts": {"/a": None, "/b": []}}}, "lane_container.mounts: [] is no mapping"),
    ],
)
def test_files_in_no_form_we_know(more: dict[str, Any], words: str) -> None:
    assert words in the_fault(resolve(**more)[1], "LANE.TYPES").found


def test_two_files_with_one_target_in_one_list_stay_two_and_are_refused() -> None:
    made = lane(lane_overlays=[{**OVERLAY, "target": "/app/a.py"}, {**OVERLAY, "source": "b", "target": "/app/a.py/"}])
    assert "2 mounts have the target /app/a.py" in the_fault(lane_rules.lane_checks(made, "s1"), "LANE.FILES").found


def test_a_removed_drafter_leaves_none() -> None:
    kit = {"repo": "a/d", "path": "/srv/d", "container_path": "/models/d"}
    assert lane(lane_drafter_kit=kit, lane_drafter={"repo": None, "path": None, "container_path": None})["lane_drafter"] == {}


def test_one_line_of_a_site_fills_one_part_of_a_dict() -> None:
    made = lane(lane_image={"repository": "r/e", "digest": None}, lane_image_site={"digest": DIGEST})
    assert made["lane_image"]["repository"] == "r/e"
    assert made["lane_image"]["digest"] == DIGEST


def test_a_template_that_can_not_be_filled_in_is_said_with_its_name() -> None:
    class Lazy(dict[str, Any]):
        """As Ansible's hostvars: a value is computed when it is read."""

        def __getitem__(self, name: str) -> Any:
            assert name.startswith("lane_"), f"{name} was read, which costs time and may fail"
            if name == "lane_port":
                raise RuntimeError("'nope' is undefined")
            return super().__getitem__(name)

    _, checks = lane_schema.resolve(Lazy(TINY, lane_port="{{ nope }}", other="{{ x }}"), OPTIONS, "s1")
    assert the_fault(checks, "LANE.TEMPLATES").found == "lane_port has a template that can't be filled in: 'nope' is undefined"


def test_no_drafter_stays_none() -> None:
    assert lane()["lane_drafter"] == {}


def test_the_lane_is_plain_json() -> None:
    assert json.loads(json.dumps(lane())) == lane()


@given(st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.dictionaries(st.text(max_size=2), st.integers()))))
def test_merging_nothing_changes_nothing(base: dict[str, Any]) -> None:
    assert lane_schema.merge(base, {}) == base
    assert lane_schema.merge(base, base) == base
    assert lane_schema.merge(base, dict.fromkeys(base)) == {}


@given(st.integers(min_value=0, max_value=2**50), st.sampled_from(["", "B", "kB", "KiB", "MB", "MiB", "GB", "GiB"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    factor = {"": 1, "B": 1, "kB": 1000, "KiB": 1024, "MB": 1000**2, "MiB": 1024**2, "GB": 1000**3, "GiB": 1024**3}[unit]
    assert exact_bytes(f"{number}{unit}") == number * factor


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("lane_pot", ["lane_port", "lane_id"], "lane_port"),
        ("lane_prot", ["lane_port", "lane_id"], "lane_port"),
        ("alhpa", ["alpha", "beta"], "alpha"),
        ("--max_num_seq", ["--max-num-seqs", "--max-model-len"], "--max-num-seqs"),
        ("lane_max_modellen", ["lane_max_model_len"], "lane_max_model_len"),
        ("lane_max_model_length", ["lane_max_model_len", "lane_model"], "lane_max_model_len"),
        ("lane_max_len", ["lane_max_model_len", "lane_model"], "lane_max_model_len"),
        # Near in spelling and far in meaning: no hint.
        ("zzz", ["lane_port"], None),
        ("--disable-log-requests", ["--enable-log-requests", "--no-enable-log-requests"], None),
        ("--guided-decoding-backend", ["--kda-decode-backend"], None),
        ("lane_api_port", ["lane_api_host"], None),
        ("lane_model_path", ["lane_model_kit"], None),
        ("lane_boot_stall", ["lane_boot_stagger"], None),
        ("", ["a"], None),
    ],
)
def test_suggestions(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant
    assert did_you_mean(name, known) == (f"Did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lane_api_port", "Write lane_port."),
        ("lane_model_path", "write lane_model_site: {path: …}"),
        ("lane_image_digest", "write lane_image_site: {digest: …}"),
        ("lane_shm_size", "write lane_container_site: {shm_size: …}"),
        ("lane_dtype", "write lane_engine_args_site: {--dtype: …}"),
        ("lane_host", "Write lane_api_host."),
        ("lane_qqqq", "See roles/lane/README.md"),
    ],
)
def test_what_people_call_it_is_answered_by_meaning(name: str, words: str) -> None:
    _, checks = resolve(**{name: "x"})
    assert words in the_fault(checks, "LANE.NAMES").remedy
    assert set(lane_schema.HABITS) & set(lane_schema.known_names(OPTIONS)) == set()
    for meant in lane_schema.HABITS.values():
        assert meant in lane_schema.known_names(OPTIONS)


def test_a_flag_that_is_gone_has_its_successor() -> None:
    for gone, instead in flags.GONE.items():
        assert not flags.known(gone), gone
        for flag in re.findall(r"--[a-z][a-z-]+", instead):
            assert flags.known(flag), f"{gone}: {instead}"
    view = View(lane(lane_engine_args={"--disable_log_requests": True, "--guided-decoding-backend": "xgrammar"}))
    first, second = traps_engine.unknown(view)
    assert first.endswith("instead: remove it: requests are logged only with --enable-log-requests")
    assert second.endswith("instead: --structured-outputs-config: {backend: NAME}")


# --- the container ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lane_container_family": {"gpus": "all"}}, "nothing stands before the path of the model"),
        ({"lane_container_family": {"gpus": "all", "command_prefix": ["vllm"]}}, "'vllm'"),
        ({"lane_container_family": {"gpus": "all", "entrypoint": "bash"}}, "'bash'"),
        ({"lane_container_family": {"entrypoint": "vllm", "command_prefix": ["serve"]}}, "asks for no GPU"),
        ({"lane_container_override": {"gpus": None}, "lane_gpu_arch": "sm_90"}, "asks for no GPU"),
        ({"lane_container_override": {"gpus": None, "devices": ["/dev/infiniband:/dev/nvidia0"]}}, "asks for no GPU"),
    ],
)
def test_a_container_that_could_not_serve(more: dict[str, Any], words: str) -> None:
    assert words in the_fault(lane_rules.lane_checks(lane(**more), "s1"), "LANE.CONTAINER").found


@pytest.mark.parametrize(
    "more",
    [
        {"lane_container_override": {"gpus": None}, "lane_gpu_arch": "cpu"},
        {"lane_container_override": {"gpus": None, "devices": ["nvidia.com/gpu=all"]}},
        {"lane_container_override": {"gpus": None, "devices": ["management.nvidia.com/all=all"]}},
        {"lane_container_override": {"gpus": None, "devices": ["/dev/nvhost-ctrl", "/dev/nvmap"]}},
        {"lane_container_family": {"gpus": "all"}, "lane_image_override": {"entrypoint": ["vllm", "serve"]}},
        {"lane_container_family": {"gpus": "all", "command_prefix": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}},
        {
            "lane_container_family": {
                "gpus": "all",
                "entrypoint": "bash",
                "command_prefix": ["-lc", 'exec vllm serve "$@"', "vllm"],
            }
        },
    ],
)
def test_ways_to_start_the_engine(more: dict[str, Any]) -> None:
    assert faults(lane_rules.lane_checks(lane(**more), "s1"), "LANE.CONTAINER") == []


# --- rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--max-model-len", "--max_model_len"])
def test_a_flat_variable_is_the_spelling_of_its_flag(flag: str) -> None:
    made = lane(lane_engine_args_override={flag: 4096})
    check = the_fault(lane_rules.lane_checks(made, "s1"), "LANE.FLAGS")
    assert check.remedy == "Set lane_max_model_len instead."


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"--kv-cache-memory": 1}, "lane_kv_cache_memory_bytes"),
        ({"--port": 1}, "lane_port"),
        ({"--node-rank": 0}, "the place of the host"),
        ({"--api-key": "x"}, "a secret"),
        ({"--redis-password": "x"}, "secret"),
        ({"--header": "Bearer hf_" + "a" * 30}, "secret"),
        ({"--kv-transfer-config": {"store": {"access_key": "x"}}}, "--kv-transfer-config.store.access_key would put a secret"),
        ({"-tp": 2}, "no long flag"),
        ({"tensor_parallel_size": 2}, "lane_tensor_parallel_size"),
        ({"--enforce-eager": False}, "null"),
        ({"--seed": ""}, "empty"),
        ({"--seed": []}, "empty"),
        ({"--enable-x": True, "--enable_x": True}, "one flag"),
    ],
)
def test_flags_that_no_rank_could_honour(args: dict[str, Any], words: str) -> None:
    check = the_fault(lane_rules.lane_checks(lane(lane_engine_args=args), "s1"), "LANE.FLAGS")
    assert words in f"{check.found} {check.expected} {check.remedy}"


@pytest.mark.parametrize("name", lane_rules.FABRIC_ENV)
def test_what_belongs_to_the_fabric_is_refused_in_a_lane(name: str) -> None:
    check = the_fault(lane_rules.lane_checks(lane(lane_engine_env={name: "x"}), "s1"), "LANE.ENV")
    assert name in check.found
    assert "differs per Spark" in check.found


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"lane_engine_env": {"A": ""}}, "null to remove it"),
        ({"lane_engine_env": {"A": True}}, "Quote it"),
        ({"lane_engine_env": {"A B": "1"}}, "no name"),
        ({"lane_engine_env": {"HF_TOKEN": "hf_x"}}, "secret"),
        ({"lane_engine_env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "secret"),
        ({"lane_engine_env": {"hf_token": "x"}}, "secret"),
        ({"lane_engine_env": {"STORE": "redis://user:pw@host"}}, "secret"),
        ({"lane_engine_env": {"K": "x"}, "lane_secret_env": ["K"]}, "secret"),
        ({"lane_fabric_env": {"X": "hcaa"}}, "Did you mean hca?"),
        ({"lane_fabric_env": {"X": "hca"}, "lane_engine_env": {"X": "1"}}, "one of them"),
        ({"lane_secret_env": ["sk-123456"]}, "never values"),
    ],
)
def test_environment_that_no_rank_could_honour(more: dict[str, Any], words: str) -> None:
    check = the_fault(lane_rules.lane_checks(lane(**more), "s1"), "LANE.ENV")
    assert words in f"{check.found} {check.expected} {check.remedy}"


def test_a_name_that_only_sounds_secret_is_fine() -> None:
    assert faults(lane_rules.lane_checks(lane(lane_engine_env={"TOKENIZERS_PARALLELISM": "false"}), "s1"), "LANE.ENV") == []


@pytest.mark.parametrize(
    "more",
    [
        {"lane_nodes": 4},
        {"lane_pipeline_parallel_size": 2},
        {"lane_tensor_parallel_size": 0, "lane_nodes": 0},
        {"lane_engine_args": {"--decode-context-parallel-size": 4}},
        {"lane_port": 29500},
        {"lane_port": 70000},
    ],
)
def test_shapes_that_do_not_fit(more: dict[str, Any]) -> None:
    the_fault(lane_rules.lane_checks(lane(**more), "s1"), "LANE.WORLD")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"lane_image_site": {"digest": "sha256:123"}}, "lane_image.digest"),
        ({"lane_image_site": {"repository": "ghcr.io/a/b:latest"}}, "no tag"),
        ({"lane_model_site": {"revision": "main"}}, "lane_model.revision"),
        ({"lane_overlays": [{"source": "a", "target": "/b", "sha256": "12"}]}, "lane_overlays.0.sha256"),
        ({"lane_container": {"mounts": [{"source": "/a", "target": "/models/tiny/"}]}}, "2 mounts have the target /models/tiny"),
    ],
)
def test_files_that_are_not_well_formed(more: dict[str, Any], word: str) -> None:
    check = the_fault(lane_rules.lane_checks(lane(**more), "s1"), "LANE.FILES")
    assert word in f"{check.found} {check.expected}"


def test_one_host_with_several_gpus_is_a_lane_without_a_fabric() -> None:
    made = lane(lane_nodes=1, lane_gpus_per_node=4, lane_tensor_parallel_size=4)
    assert faults(lane_rules.lane_checks(made, "s1"), "LANE.WORLD") == []
    spec = lane_render.render_rank(made, {}, "solo", ["s1"], 0)
    assert spec["command"][spec["command"].index("--tensor-parallel-size") + 1] == "4"
    assert "--nnodes" not in spec["command"]
    wrong = lane(lane_nodes=1, lane_gpus_per_node=4, lane_tensor_parallel_size=2)
    assert "on 1 hosts of 4 GPUs" in the_fault(lane_rules.lane_checks(wrong, "s1"), "LANE.WORLD").found


def test_a_state_is_the_worst_of_what_a_lane_says_and_a_superseded_one_warns() -> None:
    told = {"lane_state": "measured"}
    found = {
        lane_state.state(lane()): lane(),
        lane_state.state(lane(**told)): lane(**told),
        lane_state.state(lane(**told, lane_superseded="by x")): lane(**told, lane_superseded="by x"),
        lane_state.state(lane(**told, lane_superseded="x", lane_negative="it is slow")): lane(**told, lane_negative="it is slow"),
    }
    assert list(found) == ["never run", "measured", "superseded", "negative"]
    assert [lane_state.state_check(one, "d").status for one in found.values()] == ["pass", "pass", "warn", "pass"]
    assert "superseded: by x" in lane_state.state_check(found["superseded"], "d").found
    assert "# state: superseded, by x" in lane_render.describe(found["superseded"], spec(**told))


def test_a_negative_example_launches_only_where_a_person_says_so() -> None:
    bad = {"lane_negative": "it is 25 % slower"}
    assert lane_state.negative_check(lane(), "d").status == "pass"
    refused = lane_state.negative_check(lane(**bad), "d")
    assert (refused.id, refused.status) == ("LANE.NEGATIVE", "fail")
    assert "25 % slower" in refused.found
    assert "-e lane_accept_negative=true" in refused.remedy
    assert lane_state.negative_check(lane(**bad, lane_accept_negative="true"), "d").status == "warn"
    assert "# state: negative, it is 25 % slower" in lane_render.describe(lane(**bad), spec(**bad))


def test_a_good_lane_passes_every_rule() -> None:
    checks = lane_rules.lane_checks(lane(), "s1")
    assert {check.id: check.status for check in checks} == dict.fromkeys(lane_rules.RULES, "pass")


# --- unknowns --------------------------------------------------------------------------------------------------


def test_nothing_unknown_may_launch() -> None:
    assert [check.status for check in lane_unknowns.launch_refusals(lane())] == ["pass"]


def test_each_unknown_refuses_and_names_its_line_while_rendering_works() -> None:
    made = lane(
        lane_image={"repository": "r/e"},
        lane_model_override={"revision": None},
        lane_extras=[{"source": "x.jinja", "target": "/extras/x"}],
        lane_unknowns=[{"what": "nobody says how long", "fill": "lane_max_model_len: 4096"}],
    )
    by_path = {check.expected.split()[0]: check for check in lane_unknowns.launch_refusals(made) if check.status == "fail"}
    assert set(by_path) == {"lane_image.digest", "lane_model.revision", "lane_extras.0.sha256", "lane_max_model_len"}
    assert by_path["lane_model.revision"].remedy == (
        'Add one line to inventory/fleet/group_vars/lane_tiny.yml: lane_model_site: {revision: "<40 hex digits>"}'
    )
    assert by_path["lane_extras.0.sha256"].remedy.endswith(
        'lane_tiny.yml: lane_extras_site: {/extras/x: {sha256: "<64 hex digits: sha256sum x.jinja>"}}'
    )
    assert by_path["lane_max_model_len"].remedy.endswith("lane_tiny.yml: lane_max_model_len: 4096")
    rendered = lane_render.render_rank(made, FABRICS, "sparks", HOSTS, 0)
    assert rendered["image"] == "r/e@sha256:unknown"


def test_two_parts_of_one_variable_are_one_line() -> None:
    extras = [{"source": f"{name}.jinja", "target": f"/extras/{name}"} for name in "ab"]
    lines = {check.remedy.partition(".yml: ")[2] for check in lane_unknowns.launch_refusals(lane(lane_extras=extras))}
    assert len(lines) == 1
    assert set(yaml.safe_load(lines.pop())["lane_extras_site"]) == {"/extras/a", "/extras/b"}
    whole = [{"what": "all of it", "fill": "lane_source: text"}, {"what": "a part", "fill": "lane_source.date: text"}]
    assert len(lane_unknowns.launch_refusals(lane(lane_unknowns=whole))) == 2


def test_a_filled_unknown_no_longer_refuses() -> None:
    unknown = [{"what": "how long", "fill": "lane_max_model_len: 4096", "remedy": "Ask."}]
    assert lane_unknowns.launch_refusals(lane(lane_unknowns=unknown))[0].remedy == "Ask."
    assert lane_unknowns.launch_refusals(lane(lane_unknowns=unknown, lane_max_model_len=512))[0].status == "pass"


def test_paths_are_looked_up_in_dicts_and_lists() -> None:
    data = {"a": [{"b": 1}]}
    assert lane_unknowns.lookup(data, "a.0.b") == 1
    assert lane_unknowns.lookup(data, "a.1.b") is None
    assert lane_unknowns.lookup(data, "a.b") is None


# --- rendering -------------------------------------------------------------------------------------------------


def test_the_head() -> None:
    made = spec(lane_api_host="192.168.1.11", lane_port="8001")
    assert made["container"] == "sparklanes-sparks-rank0"
    assert made["command"][:2] == ["serve", "/models/tiny"]
    text = shlex.join(made["command"])
    assert "--host 192.168.1.11 --port 8001" in text
    assert "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500" in text
    assert "--headless" not in text
    assert made["api"] == {"host": "192.168.1.11", "port": 8001}
    assert made["options"]["restart"] == "no"


def test_a_worker() -> None:
    made = spec(rank=1)
    text = shlex.join(made["command"])
    assert made["node"] == "s2"
    assert "--host" not in text
    assert "--port" not in made["command"]
    assert "--node-rank 1 --master-addr 10.0.0.1" in text
    assert text.endswith("--headless")
    assert made["env"]["VLLM_HOST_IP"] == "10.0.0.2"


def test_one_spark_needs_no_fabric_and_no_peers() -> None:
    made = lane_render.render_rank(lane(lane_nodes=1, lane_tensor_parallel_size=1), {}, "solo", ["s1"], 0)
    assert made["master"] is None
    assert not {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"} & set(made["command"])
    assert "VLLM_HOST_IP" not in made["env"]


@pytest.mark.parametrize(
    ("hosts", "rank", "words"),
    [
        (["s1"], 0, "has 1 hosts (s1), but lane tiny needs 2"),
        (["s1", "s2"], 2, "has no rank 2"),
        (["s1", "s3"], 0, None),
        (["s1", "s3"], 1, "s3 has no fabric address yet"),
        (["s3", "s1"], 1, "s3 has no fabric address yet"),
    ],
)
def test_what_can_not_be_rendered_says_why(hosts: list[str], rank: int, words: str | None) -> None:
    if words is None:
        assert lane_render.render_rank(lane(), FABRICS, "sparks", hosts, rank)["node"] == "s1"
        return
    with pytest.raises(ValueError) as caught:
        lane_render.render_rank(lane(), FABRICS, "sparks", hosts, rank)
    assert words in str(caught.value)


def test_the_fabric_wins_and_empty_values_never_appear() -> None:
    made = spec(lane_engine_env={"A": 1, "NCCL_NET": "IB"})
    assert made["env"] == {"A": "1", "NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f0", "VLLM_HOST_IP": "10.0.0.1"}
    fabrics = {host: {**fabric, "env": {"NCCL_NET": "Socket"}} for host, fabric in FABRICS.items()}
    assert (
        lane_render.render_rank(lane(lane_engine_env={"NCCL_NET": "IB"}), fabrics, "d", HOSTS, 0)["env"]["NCCL_NET"] == "Socket"
    )


def test_a_rank_that_is_alone_needs_no_fact_of_a_fabric() -> None:
    """A lane of two Sparks, overridden to one."""
    alone = lane(lane_nodes=1, lane_tensor_parallel_size=1, lane_fabric_env={"MN_IF_NAME": "ifname", "MY_RANK": "rank"})
    env = lane_render.render_rank(alone, {}, "solo", ["s1"], 0)["env"]
    assert "MN_IF_NAME" not in env
    assert env["MY_RANK"] == "0"


def test_facts_of_the_fabric_under_the_names_an_engine_wants() -> None:
    wanted = dict(zip("ABCDEFGHIJ", lane_rules.FABRIC_SOURCES, strict=True))
    env = spec(rank=1, lane_fabric_env=wanted)["env"]
    assert [env[name] for name in "ABCDEFGHIJ"] == [
        "1", "2", "10.0.0.2", "enp1s0f0np0", "10.0.0.1", "29500", "rocep1s0f0", "rocep1s0f0,roceP2p1s0f0", "3", "10.0.0.0/24",
    ]  # fmt: skip
    fabrics = {host: {**fabric, "rails": []} for host, fabric in FABRICS.items()}
    with pytest.raises(ValueError, match="needs the fabric's hca"):
        lane_render.render_rank(lane(lane_fabric_env={"X": "hca"}), fabrics, "d", HOSTS, 0)


def test_values_as_the_engine_reads_them() -> None:
    made = spec(
        lane_engine_args={
            "--bare": True,
            "--json": {"a": [1, 2.5], "b": "x y", "c": None, "d": True},
            "--many": ["one", "two words"],
            "--dash": "-1",
            "--quoted": "0.90",
        },
        lane_gpu_memory_utilization="0.90",
        lane_kv_cache_memory_bytes="64MiB",
        lane_flag_names={"--kv-cache-memory-bytes": "--kv-cache-memory"},
        lane_served_model_name=["a", "b"],
    )
    words = made["command"]
    assert all(isinstance(word, str) and word for word in words)
    assert words[words.index("--json") + 1] == '{"a":[1,2.5],"b":"x y","c":null,"d":true}'
    assert words[words.index("--many") + 1 : words.index("--many") + 3] == ["one", "two words"]
    assert words[words.index("--bare") + 1] == "--json"
    assert "--dash=-1" in words
    assert words[words.index("--quoted") + 1] == "0.90"
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.9"
    assert words[words.index("--kv-cache-memory") + 1] == "67108864"
    assert words[words.index("--served-model-name") + 1 : words.index("--served-model-name") + 3] == ["a", "b"]
    assert "--pipeline-parallel-size" not in words


def test_mounts_in_order_and_by_content() -> None:
    made = spec(
        lane_drafter={"repo": "a/d", "revision": REVISION, "path": "/srv/d", "container_path": "/models/d"},
        lane_overlays=[{"source": "set/a.py", "sha256": "c" * 64, "target": "/app/a.py"}],
        lane_extras=[{"source": "lanes/extras/x.jinja", "sha256": "d" * 64, "target": "/extras/x.jinja"}],
        lane_container={"mounts": [{"source": "/var/cache/x", "target": "/cache", "read_only": False, "create": True}]},
    )
    assert [(mount["source"], mount["target"], mount["read_only"]) for mount in made["mounts"]] == [
        ("/srv/models/tiny", "/models/tiny", True),
        ("/srv/d", "/models/d", True),
        (f"/var/lib/sparklanes/overlays/{'c' * 64}/a.py", "/app/a.py", True),
        (f"/var/lib/sparklanes/overlays/{'d' * 64}/x.jinja", "/extras/x.jinja", True),
        ("/var/cache/x", "/cache", False),
    ]
    argv = rank_spec.docker_create_argv(made)
    assert "type=bind,source=/srv/models/tiny,target=/models/tiny,readonly" in argv
    assert "/var/cache/x:/cache" in argv  # only -v makes the directory of a cache


def test_the_command_for_docker() -> None:
    made = spec(
        lane_secret_env=["VLLM_API_KEY"],
        lane_container={
            "shm_size": "2g", "memory": "112g", "memory_swap": "112g", "gpus": "all", "ulimits": ["memlock=-1:-1"],
            "cap_add": ["IPC_LOCK"], "devices": ["/dev/infiniband:/dev/infiniband"], "entrypoint": "vllm", "command_prefix": ["serve"],
        },
    )  # fmt: skip
    argv = rank_spec.docker_create_argv(made)
    assert argv[:2] == ["docker", "create"]
    text = shlex.join(argv)
    for part in (
        "--name sparklanes-sparks-rank0",
        "--pull never",
        "--restart no",
        "--security-opt no-new-privileges",
        "--pids-limit 32768",
        "--label sparklanes.deployment=sparks",
        "--network host",
        "--ipc host",
        "--shm-size 2g",
        "--memory 112g",
        "--memory-swap 112g",
        "--gpus all",
        "--ulimit memlock=-1:-1",
        "--cap-add IPC_LOCK",
        "--device /dev/infiniband:/dev/infiniband",
        "--env VLLM_HOST_IP=10.0.0.1",
        "--env VLLM_API_KEY ",
        f"--entrypoint vllm registry.test:5000/engine@{DIGEST} serve /models/tiny",
    ):
        assert part in text, part
    assert "--rm" not in argv
    assert not any(word.startswith("VLLM_API_KEY=") for word in argv)
    # Options that a lane leaves out are not there at all.
    assert not {"--memory", "--shm-size", "--gpus", "--entrypoint"} & set(
        rank_spec.docker_create_argv(spec(lane_container_family={}))
    )


@pytest.mark.parametrize(
    ("limit", "words"),
    [(None, ["--pids-limit", "32768"]), (65536, ["--pids-limit", "65536"]), ("100000", ["--pids-limit", "100000"]), (0, [])],
)
def test_a_lane_raises_the_limit_of_processes_or_leaves_it_out(limit: Any, words: list[str]) -> None:
    made = spec(lane_container_override={"pids_limit": limit})
    argv = rank_spec.docker_create_argv(made)
    assert [word for before, word in zip(["", *argv], argv, strict=False) if "--pids-limit" in (before, word)] == words


def test_a_release_frozen_before_there_were_such_limits_is_confined_too() -> None:
    made = spec()
    made["options"] = {name: value for name, value in made["options"].items() if name not in ("pids_limit", "no_new_privileges")}
    argv = rank_spec.docker_create_argv(made)
    assert argv[argv.index("--security-opt") + 1] == "no-new-privileges"
    assert "--pids-limit" not in argv


def test_the_text_for_people_is_the_same_command() -> None:
    """A real shell reads it, with values that shells like to misread."""
    env = {"A": "$(id) `id` $HOME", "B": 'it\'s "quoted"', "C": "two\nlines", "D": "ends in \\\n", "E": "*~#!&;|<>"}
    made = {**spec(lane_engine_args={"--json": {"k": "a b"}}), "env": env}
    shell = f"docker() {{ printf '%s\\0' docker \"$@\"; }}; {rank_spec.command_text(made)}"
    said = subprocess.run(["bash", "-c", shell], capture_output=True, check=True, text=True).stdout
    assert said.split("\0")[:-1] == rank_spec.docker_create_argv(made)


def test_what_stands_above_a_command() -> None:
    made = lane(
        lane_max_model_len=1000,
        lane_max_num_seqs=6,
        lane_kv_cache_memory_bytes="3GiB",
        lane_image={"repository": "r/e"},
        lane_secret_env=["VLLM_API_KEY"],
    )
    text = lane_render.describe(made, lane_render.render_rank(made, FABRICS, "sparks", HOSTS, 0))
    assert text.splitlines() == [
        "# rank 0 of 2 on s1: the head, API on 0.0.0.0:8000",
        "# tiny",
        "# 1,000 tokens of context, 6 requests at a time",
        "# KV cache 3.00 GiB on each rank, pinned",
        "# state: never run",
        "# needs VLLM_API_KEY in the environment of this shell",
        "# unknown, so a launch is refused: lane_image.digest",
    ]
    assert "a worker" in lane_render.describe(lane(), spec(rank=1))
    assert "sized by the engine" in lane_render.describe(lane(), spec())


def test_a_spec_is_plain_json() -> None:
    assert json.loads(json.dumps(spec())) == spec()


def test_known_lanes_are_files_whose_names_ansible_can_load(tmp_path: Path) -> None:
    for name in ("lane_b.yml", "lane_a.yaml", "lane_c-d.yml", "family_x.yml", "lane_e.md"):
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "lane_dir").mkdir()
    assert lane_catalogue.known_lanes([tmp_path, tmp_path / "absent"]) == ["a", "b", "dir"]
    (tmp_path / "kit_k.yml").write_text("", encoding="utf-8")
    assert lane_catalogue.known_shared([tmp_path]) == ["family_x", "kit_k"]


@pytest.mark.parametrize("name", ["lane_model", "lane_drafter"])
@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/etc/ssh", True), ("/usr/share/models/x", True), ("/var/lib", True), ("/var/lib/", True), ("/var/lib/docker/x", True), ("/", True),
        ("/srv/../etc/ssh", True), ("//etc/ssh", True), ("/home", True), ("/var/lib/sparklanes", True),
        ("/var/lib/sparklanes/models/x", False), ("/srv/x", False), ("/home/me/x", False), ("/mnt/nas/x", False), ("/etcetera/x", False),
        ("/data/hub/models--a--b/snapshots/abc", False),
    ],
)  # fmt: skip
def test_a_model_has_a_folder_of_its_own(name: str, path: str, refused: bool) -> None:
    model = {"repo": "a/b", "path": path, "container_path": f"/models/{name}", "sha256": {}}
    found = [check for check in lane_rules.lane_checks({**lane(), name: model}, "s1") if check.status == "fail"]
    assert [check.id for check in found] == ["LANE.FILES"] * refused
    assert all("/var/lib/sparklanes/models/b" in check.remedy for check in found)


BAD = "no hash"
HASHES = {
    "lane_image": {"repository": "r/x", "digest": BAD, "ids": [BAD], "archive": {"path": "/x", "sha256": BAD}},
    "lane_model": {"path": "/m", "container_path": "/models/m", "revision": BAD, "config_sha256": BAD, "sha256": {"a": BAD}},
    "lane_overlays": [{"source": "a", "target": "/a", "sha256": BAD, "replaces_sha256": BAD}],
    "lane_extras": [{"source": "b", "target": "/b", "sha256": BAD}],
}


def test_each_hash_is_judged_once() -> None:
    found = [check.found for check in lane_rules.lane_checks({**lane(), **HASHES}, "s1") if check.id == "LANE.FILES"]
    assert len(found) == str(HASHES).count(BAD), found
    assert len(set(found)) == len(found), found
