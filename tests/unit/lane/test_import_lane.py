"""A lane from a recipe, a command line, a container: what becomes of each part, and that it renders as its source runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.lane.importers import compare, importing
from ansible.module_utils.sparklanes.lane.importers.lane import Imported
from ansible.module_utils.sparklanes.lane.importers.source import Refused
from conftest import FIXTURES, ROOT
from lane_files import options, resolved

sys.path.insert(0, str(ROOT))

from benchmarks.lanes import bench, forms

TOKEN = "hf_" + "a1B2" * 9


def lane(tmp_path: Path, text: str, name: str = "given.txt") -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return importing.of_file(str(tmp_path / name), "mine")


def serve(tmp_path: Path, flags: str) -> Imported:
    return lane(tmp_path, f"vllm serve a/b {flags}")


def docker(tmp_path: Path, options_: str, command: str = "vllm serve a/b") -> Imported:
    return lane(tmp_path, f"docker run {options_} ghcr.io/x/engine:1 {command}")


def fates(imported: Imported, begin: str = "") -> dict[str, str]:
    return {row.what: row.fate for row in imported.rows if row.what.startswith(begin)}


def whole(imported: Imported) -> dict[str, Any]:
    """The lane that its file makes: read back, resolved, without a fault."""
    made = importing.written(imported, "given", options())
    told = yaml.safe_load(made["text"])
    told.pop("lane_secret_env", None)
    back, checks = lane_schema.resolve(told, options(), "s1")
    assert [check for check in checks if check.status != "pass"] == []
    assert [check for check in lane_rules.lane_checks(back, "s1") if check.status != "pass"] == []
    return back


# --- public recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("facts", forms.recorded(), ids=lambda facts: str(facts["id"]))
def test_a_public_recipe_becomes_a_lane_that_runs_the_same(tmp_path: Path, facts: dict[str, Any], form: str) -> None:
    write, ending = forms.FORMS[form]
    imported = lane(tmp_path, write(facts), f"given.{ending}")
    made = whole(imported)
    counts = compare.counts(imported, options())
    assert set(counts.unlike) <= {"--max-model-len"}  # auto, which a lane says by saying nothing
    assert counts.verbatim <= len(facts["flags"]) / 4
    assert made["lane_model"]["repo"] == facts["model"]
    assert made["lane_model"]["container_path"] not in ("", facts["model"])
    # What is open is asked for before a launch.
    assert "fail" in [check.status for check in lane_unknowns.launch_refusals(made)]


@pytest.mark.parametrize("facts", forms.recorded(), ids=lambda facts: str(facts["id"]))
def test_all_forms_of_a_recipe_become_one_lane(tmp_path: Path, facts: dict[str, Any]) -> None:
    made = []
    for write, ending in forms.FORMS.values():
        back = whole(lane(tmp_path, write({**facts, "options": []}), f"given.{ending}"))
        made.append({key: value for key, value in back.items() if key not in ("lane_title", "lane_source", "lane_container")})
    assert made[0] == made[1] == made[2]


def test_the_benchmark_meets_its_aims(tmp_path: Path) -> None:
    figures = {figure.figure: figure for figure in bench.measure(list(bench.written(tmp_path)), options())}
    assert all(figure.ok for figure in figures.values()), figures
    assert len(forms.recorded()) >= 20


@pytest.mark.parametrize("path", sorted((FIXTURES / "lane/commands").glob("*.txt")), ids=lambda path: path.stem)
def test_what_our_lanes_sources_print_is_read(path: Path) -> None:
    if "unset" in path.read_text(encoding="utf-8"):
        with pytest.raises(Refused, match="'unset' is neither"):
            importing.of_file(str(path), "mine")
        return
    counts = compare.counts(importing.of_file(str(path), "mine"), options())
    assert counts.unlike == ()
    assert counts.verbatim == 0


def test_what_a_lane_of_ours_runs_comes_back_as_that_lane(tmp_path: Path) -> None:
    """Our own docker create, as a text: flags, environment and limits are those that it was rendered from."""
    from ansible.module_utils.sparklanes.lane import render
    from ansible.module_utils.sparklanes.rank import drift, spec

    ours = resolved("flash_nvfp4_dflash2_tp2")
    fabrics = {host: {"host_ip": f"192.0.2.{number}", "ifname": "fab0"} for number, host in enumerate(("a", "b"), 1)}
    rendered = render.render_rank(ours, fabrics, "sparks", ["a", "b"], 0)
    imported = lane(tmp_path, spec.command_text(rendered).replace("docker create", "docker run", 1))
    again = compare.rendered(imported, options())
    found = [one.what for one in drift.differences(again, rendered)]
    of_the_fabric = {f"env {name}" for name in lane_rules.FABRIC_ENV}
    assert [what for what in found if not what.startswith("mount") and what not in of_the_fabric] == []


# --- flags ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "variable", "value"),
    [
        ("--max-model-len 128K", "lane_max_model_len", 131072),
        ("--max-model-len=32k", "lane_max_model_len", 32000),
        ("--max_model_len 1.5k", "lane_max_model_len", 1500),
        ("--kv-cache-memory-bytes 6G", "lane_kv_cache_memory_bytes", 6 * 2**30),
        ("--gpu-memory-utilization 0.90", "lane_gpu_memory_utilization", 0.9),
        ("-tp 2", "lane_tensor_parallel_size", 2),
        ("-tp=2", "lane_nodes", 2),
        ("-tp 2 -pp 2", "lane_nodes", 4),
        ("--port 8001", "lane_port", 8001),
        ("--host 127.0.0.1", "lane_api_host", "127.0.0.1"),
        ("--served-model-name x y", "lane_served_model_name", ["x", "y"]),
        ("", "lane_served_model_name", ["a/b"]),
        ("--nnodes 2 -tp 2 --node-rank $R --master-addr $H --master-port 29501", "lane_master_port", 29501),
        ("--kv-cache-memory 5", "lane_flag_names", {"--kv-cache-memory-bytes": "--kv-cache-memory"}),
        ("--revision " + "a" * 40, "lane_model", {"revision": "a" * 40}),
        ("--enforce-eager", "lane_engine_args", {"--enforce-eager": True}),
        (
            "-q fp8 -cc '{\"mode\":3}' -O2",
            "lane_engine_args",
            {"--quantization": "fp8", "--compilation-config": {"mode": 3}, "--optimization-level": 2},
        ),
        ("--zap 1 2 --zip", "lane_engine_args", {"--zap": [1, 2], "--zip": True}),
        ("--x 1 --x 2", "lane_engine_args", {"--x": 2}),
        ("--hf-overrides '{\"a\":null}'", "lane_engine_args", {"--hf-overrides": '{"a":null}'}),
        ("--compilation-config.mode 3", "lane_engine_args", {"--compilation-config.mode": 3}),
        ('--port 7 "$@"', "lane_port", 7),
        ("--stop 007 --t 0.50", "lane_engine_args", {"--stop": "007", "--t": "0.50"}),
    ],
)
def test_a_flag_arrives_where_the_lane_says_it(tmp_path: Path, flags: str, variable: str, value: Any) -> None:
    imported = serve(tmp_path, flags)
    made = whole(imported)[variable]
    assert (made | value if isinstance(value, dict) else made) == made == (made | value if isinstance(value, dict) else value)
    assert [one for one in compare.differences(imported, options()) if "the lane adds" not in one] == []


@pytest.mark.parametrize(
    ("flags", "what", "fate"),
    [
        ("--enable-prefix-caching", "flag --enable-prefix-caching", "recognised"),
        ("--zap 3", "flag --zap 3", "kept verbatim"),
        ("--swap-space 16", "flag --swap-space 16", "kept verbatim"),
        ("--distributed-executor-backend ray -tp 2", "flag --distributed-executor-backend ray", "dropped"),
        ("--data-parallel-size 1", "flag --data-parallel-size 1", "dropped"),
        ("-dp 2", "flag --data-parallel-size 2", "open"),
        ("--download-dir /x", "flag --download-dir /x", "dropped"),
        ("--max-model-len $LEN", "flag --max-model-len $LEN", "open"),
        ("--chat-template $T", "flag --chat-template $T", "open"),
        ("--revision main", "revision main", "open"),
        ("--x ''", "flag --x ", "dropped"),
        ("--x:y 3", "flag --x:y 3", "open"),
    ],
)
def test_each_flag_says_what_became_of_it(tmp_path: Path, flags: str, what: str, fate: str) -> None:
    imported = serve(tmp_path, flags)
    assert fates(imported)[what] == fate
    whole(imported)


def test_a_number_that_the_source_does_not_say_is_asked_for_before_a_launch(tmp_path: Path) -> None:
    made = whole(serve(tmp_path, "--max-model-len $LEN"))
    asked = [check.remedy for check in lane_unknowns.launch_refusals(made)]
    assert any("lane_max_model_len: a number" in one for one in asked), asked


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-tp $TP", "write the number into the source"),
        ("-tp 1000000000", "no fleet of Sparks has"),
        ("-tp 0", "no fleet of Sparks has"),
        ("-tp 2 --nnodes 3", "3 nodes for tensor × pipeline parallel 2"),
        ("--x '{{ 1 }}'", "'{{', which Ansible would fill in"),
        ('--x \'{"a": "{% raw %}"}\'', "'{%', which Ansible"),
        ("--x '{# c #}'", "Ansible would fill in"),
        ("more words", "is a \\ missing at the end of a line?"),
    ],
)
def test_what_no_lane_can_be_made_of_is_refused(tmp_path: Path, flags: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        whole(serve(tmp_path, flags))
    assert said in str(refused.value)


# --- models --------------------------------------------------------------------------------------------------------


def test_weights_and_drafter_are_staged_and_flags_name_them_where_they_lie(tmp_path: Path) -> None:
    text = """vllm serve own/Big --tokenizer own/Big --speculative-config '{"method":"eagle3","model":"x/draft","num_speculative_tokens":3}'"""
    made = whole(lane(tmp_path, text))
    assert made["lane_model"]["container_path"] == "/models/Big"
    assert made["lane_drafter"]["repo"] == "x/draft"
    assert made["lane_engine_args"]["--tokenizer"] == "/models/Big"
    assert made["lane_engine_args"]["--speculative-config"]["model"] == made["lane_drafter"]["container_path"] == "/models/draft"


@pytest.mark.parametrize(
    ("mount", "model", "repo", "path", "inside"),
    [
        ("-v /srv/w:/models/w:ro", "/models/w", "unknown/w", "/srv/w", "/models/w"),
        ("-v /srv/all:/models", "/models/w", "unknown/w", "/srv/all/w", "/models/w"),
        ("-v $HOME/w:/model", "/model", "unknown/model", "/var/lib/sparklanes/models/model", "/model"),
        ("", "/models/w", "unknown/w", "/var/lib/sparklanes/models/w", "/models/w"),
        ("", "$MODEL", "unknown/MODEL", "/var/lib/sparklanes/models/MODEL", "/models/MODEL"),
        (
            "-v /hub:/root/.cache/huggingface/hub",
            f"/root/.cache/huggingface/hub/models--o--n/snapshots/{'c' * 40}",
            "o/n",
            f"/hub/models--o--n/snapshots/{'c' * 40}",
            "/models/n",
        ),
    ],
)  # fmt: skip
def test_a_model_in_a_folder(tmp_path: Path, mount: str, model: str, repo: str, path: str, inside: str) -> None:
    made = whole(docker(tmp_path, mount, f"vllm serve {model}"))
    assert {key: made["lane_model"][key] for key in ("repo", "path", "container_path")} == {
        "repo": repo,
        "path": path,
        "container_path": inside,
    }
    assert made["lane_container"]["mounts"] == []
    asked = [check.remedy for check in lane_unknowns.launch_refusals(made) if "lane_model" in check.expected]
    assert bool(asked) == repo.startswith("unknown/")


def test_a_commit_of_a_repository_that_is_not_known_is_not_taken(tmp_path: Path) -> None:
    imported = lane(tmp_path, f"vllm serve /models/w --revision {'a' * 40}")
    made = whole(imported)
    assert made["lane_model"]["revision"] is None
    assert any("lane_model_site: {repo:" in check.remedy for check in lane_unknowns.launch_refusals(made))


# --- containers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("--gpus all", "gpus", "all"),
        ("--runtime=nvidia", "gpus", "all"),
        ("--shm-size=16g --memory 100g --memory-swap 100g", "memory", "100g"),
        ("-m 100g", "memory", "100g"),
        ("--ulimit memlock=-1 --ulimit stack=67108864", "ulimits", ["memlock=-1", "stack=67108864"]),
        ("--cap-add SYS_NICE", "cap_add", ["SYS_NICE"]),
        ("--device /dev/infiniband", "devices", ["/dev/infiniband"]),
        ("--pids-limit 5000", "pids_limit", 5000),
        ("--net=host -itd --rm --name x --restart always --pull=always --log-opt a=b", "network", "host"),
        ("-p 9000:8000", "network", "host"),
    ],
)
def test_an_option_of_docker_arrives(tmp_path: Path, given: str, key: str, value: Any) -> None:
    assert whole(docker(tmp_path, given))["lane_container"][key] == value


def test_a_published_port_is_the_port_of_the_api(tmp_path: Path) -> None:
    assert whole(docker(tmp_path, "-p 9000:8000"))["lane_port"] == 9000
    assert whole(docker(tmp_path, "-p 127.0.0.1:9000:8001", "vllm serve a/b --port 8001"))["lane_api_host"] == "127.0.0.1"
    assert whole(docker(tmp_path, "-p 9001:9001"))["lane_port"] == 8000


def test_ranks_on_a_fabric_get_what_privileged_gave_them(tmp_path: Path) -> None:
    imported = docker(tmp_path, "--privileged", "vllm serve a/b -tp 2")
    made = whole(imported)["lane_container"]
    assert (made["cap_add"], made["ulimits"], made["devices"]) == (
        ["IPC_LOCK"],
        ["memlock=-1:-1"],
        ["/dev/infiniband:/dev/infiniband"],
    )
    assert fates(imported)["option --privileged"] == "dropped"


@pytest.mark.parametrize(
    ("given", "what", "fate"),
    [
        ("-v ~/.cache/huggingface:/root/.cache/huggingface", "mount ~/.cache/huggingface:/root/.cache/huggingface", "dropped"),
        ("-v ~/.cache/vllm:/root/.cache/vllm", "mount ~/.cache/vllm:/root/.cache/vllm", "recognised"),
        ("-v named:/root/.triton", "mount named:/root/.triton", "recognised"),
        ("-v /x/a.py:/usr/lib/python3/a.py:ro", "mount /x/a.py:/usr/lib/python3/a.py:ro", "recognised"),
        ("-v $PWD/t.jinja:/t.jinja", "mount $PWD/t.jinja:/t.jinja", "recognised"),
        ("-v /data:/data", "mount /data:/data", "kept verbatim"),
        ("--mount type=bind,source=/data,target=/data,readonly", "mount /data:/data:ro", "kept verbatim"),
        ("-v $HOME/x:/x", "mount $HOME/x:/x", "open"),
        ("-v ./t.jinja:/models/b/t.jinja", "mount ./t.jinja:/models/b/t.jinja", "open"),
        ("-v /var/run/docker.sock:/var/run/docker.sock", "mount /var/run/docker.sock:/var/run/docker.sock", "open"),
        ("-v /:/host", "mount /:/host", "open"),
        ("-v /dev/shm:/dev/shm", "mount /dev/shm:/dev/shm", "dropped"),
        ("--mount type=tmpfs,target=/x", "mount type=tmpfs,target=/x", "open"),
        ("-e NCCL_IB_HCA=mlx5_0", "env NCCL_IB_HCA=mlx5_0", "dropped"),
        ("-e VLLM_USE_V1=1", "env VLLM_USE_V1=1", "recognised"),
        ("-e FOO=1", "env FOO=1", "kept verbatim"),
        ("-e FOO=", "env FOO=", "dropped"),
        ("-e FOO", "env FOO", "open"),
        ("-e FOO=$BAR", "env FOO=$BAR", "open"),
        ("--env-file x.env", "option --env-file x.env", "open"),
        ("--user 1000", "option --user 1000", "open"),
    ],
)
def test_each_mount_variable_and_option_says_what_became_of_it(tmp_path: Path, given: str, what: str, fate: str) -> None:
    imported = docker(tmp_path, given)
    assert fates(imported)[what] == fate
    whole(imported)


def test_files_over_those_of_the_image_are_overlays_whose_hash_is_open(tmp_path: Path) -> None:
    made = whole(docker(tmp_path, "-v ./a.py:/usr/lib/a.py -v t.jinja:/t.jinja"))
    assert [(one["source"], one["sha256"]) for one in made["lane_overlays"]] == [("mine/a.py", None)]
    asked = [check.remedy for check in lane_unknowns.launch_refusals(made)]
    assert any("lane_overlays_site" in one for one in asked)
    assert any("lane_extras_site" in one for one in asked)


@pytest.mark.parametrize(
    ("image", "meant"),
    [
        ("ghcr.io/x/y:1", {"repository": "ghcr.io/x/y", "tag": "1", "digest": None}),
        ("h:5000/y", {"repository": "h:5000/y", "tag": None, "digest": None}),
        (f"x/y:1@sha256:{'a' * 64}", {"repository": "x/y", "tag": "1", "digest": f"sha256:{'a' * 64}"}),
        ("x/y:${TAG}", {"repository": "x/y", "tag": None}),
        ("$IMAGE", {"repository": "image-is-not-said", "digest": None}),
    ],
)
def test_an_image_by_its_parts(tmp_path: Path, image: str, meant: dict[str, Any]) -> None:
    made = whole(lane(tmp_path, f"docker run {image} vllm serve a/b"))["lane_image"]
    assert {key: made[key] for key in meant} == meant


@pytest.mark.parametrize(
    ("options_", "command", "entrypoint", "prefix"),
    [
        ("", "vllm serve a/b", None, ["vllm", "serve"]),
        ("", "a/b --port 1", "vllm", ["serve"]),
        ("", "--model a/b", "vllm", ["serve"]),
        ("", "serve a/b", "vllm", ["serve"]),
        ("--entrypoint vllm", "serve a/b", "vllm", ["serve"]),
        ("--entrypoint /wrap.sh", "vllm serve a/b", "/wrap.sh", ["vllm", "serve"]),
        ("--entrypoint python3", "-m vllm.entrypoints.openai.api_server --model a/b", "vllm", ["serve"]),
        ("--entrypoint bash", "-c 'exec vllm serve a/b'", "vllm", ["serve"]),
        ("", "bash -lc 'export VLLM_X=1 && vllm serve a/b > log'", None, ["vllm", "serve"]),
        ("", "bash -lc 'vllm serve a/b \"$@\"' vllm --port 1", None, ["vllm", "serve"]),
    ],
)
def test_what_comes_before_the_model(
    tmp_path: Path, options_: str, command: str, entrypoint: str | None, prefix: list[str]
) -> None:
    made = whole(docker(tmp_path, options_, command))["lane_container"]
    assert (made["entrypoint"], made["command_prefix"]) == (entrypoint, prefix)


# --- texts ---------------------------------------------------------------------------------------------------------

LAUNCHER = """\
#!/bin/bash
set -euo pipefail
MODEL="own/Big"; PORT=9000
ARGS=(--max-model-len 4096 --enforce-eager)
docker rm -f x 2>/dev/null || true
docker pull ghcr.io/x/engine:1
hf download $MODEL
docker run -d --name x --gpus all ghcr.io/x/engine:1 sleep infinity
docker exec -e VLLM_Y=1 -it x bash -c "vllm serve $MODEL --port $PORT ${ARGS[*]}"
docker logs -f x
"""


def test_a_launcher_is_read_without_being_run(tmp_path: Path) -> None:
    imported = lane(tmp_path, LAUNCHER)
    made = whole(imported)
    assert (made["lane_model"]["repo"], made["lane_port"], made["lane_max_model_len"]) == ("own/Big", 9000, 4096)
    assert made["lane_image"]["repository"] == "ghcr.io/x/engine"
    assert made["lane_engine_env"] == {"VLLM_Y": "1"}
    assert "line 6: docker pull" in fates(imported)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve a/b; reboot", "'reboot' is neither docker run nor vllm serve"),
        ("pip install x && vllm serve a/b", "'pip' is neither"),
        ("if true; then vllm serve a/b; fi", "if is of a shell's own language"),
        ("vllm serve a/b | grep x", "its output goes to grep"),
        ("vllm serve a/b\nvllm serve c/d", "line 2: a second vllm serve, the first stands in line 1"),
        ("docker run x vllm serve a/b\nvllm serve c/d", "line 2: a second vllm serve"),
        ("docker run x a/b --port 1\nvllm serve c/d", "line 2: a second vllm serve"),
        ("docker run x vllm serve a/b\ndocker run y vllm serve a/b", "a second docker run"),
        ("docker run x bash start.sh", "runs a file that is not here"),
        ("docker run x sleep infinity", "no vllm serve"),
        ("docker run x ./go.sh --role head", "no vllm serve"),
        ("docker run x bash -c 'pip install y; vllm serve a/b'", "'pip' is neither"),
        ("docker run x bash -c 'echo hi'", "runs no vllm serve"),
        ("docker run --gpus all", "without an image"),
        ("docker run --gpu all x vllm serve a/b", "--gpu is no option of docker run. Did you mean --gpus?"),
        ("python -m sglang.launch_server --model a/b", "this starts SGLang"),
        ("docker run x python3 -m sglang.launch_server --model a/b", "this starts SGLang"),
        ("trtllm-serve a/b", "this starts TensorRT-LLM"),
        ("llama-server -hf a/b", "this starts llama.cpp"),
        ("vllm serve", "without a model"),
        ("docker compose up", "'docker compose' is neither"),
        ("echo hello", "has no docker run and no vllm serve"),
        ("tensor_parallel 2", "'tensor_parallel' is neither"),
    ],
)
def test_a_text_that_is_no_one_engine_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        lane(tmp_path, text)
    assert said in str(refused.value)


# --- recipes -------------------------------------------------------------------------------------------------------


def recipe(**more: Any) -> str:
    return yaml.safe_dump(
        {"recipe_version": "2", "model": "a/b", "runtime": "vllm", "container": "x/y:1", **more}, sort_keys=False
    )


def test_a_recipe_without_a_command_has_its_flags_in_its_defaults(tmp_path: Path) -> None:
    defaults = {
        "port": 9000,
        "tensor_parallel": 2,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
    }
    made = whole(lane(tmp_path, recipe(defaults=defaults), "r.yaml"))
    assert (made["lane_port"], made["lane_nodes"], made["lane_kv_cache_dtype"]) == (9000, 2, "fp8")
    assert made["lane_engine_args"] == {"--enforce-eager": True}


def test_braces_of_a_recipe(tmp_path: Path) -> None:
    """One is a default, also inside another one, two are one where the recipe doubles them; those of JSON stay."""
    command = 'vllm serve {model} --x \'{{"a":{{"b":{n}}}}}\' --y {y}'
    made = whole(lane(tmp_path, recipe(defaults={"n": 3, "y": "v{n}"}, command=command), "r.yaml"))
    assert made["lane_engine_args"] == {"--x": {"a": {"b": 3}}, "--y": "v3"}
    made = whole(lane(tmp_path, recipe(command='vllm serve {model} --x \'{"a":{"b":1}}\''), "r.yaml"))
    assert made["lane_engine_args"] == {"--x": {"a": {"b": 1}}}


def test_what_a_recipe_runs_around_its_engine_is_named_in_the_lane(tmp_path: Path) -> None:
    more = {
        "mods": ["mods/fix"],
        "pre_exec": [f"HF_TOKEN={TOKEN} pip install x"],
        "post_commands": ["curl x"],
        "executor_config": {"user": "root", "shm_size": "20g"},
    }
    imported = lane(tmp_path, recipe(**more, command="vllm serve {model}"), "r.yaml")
    made = whole(imported)
    assert len(made["lane_warnings"]) == 3
    assert "mods mods/fix" in made["lane_warnings"][0]
    assert made["lane_container"]["shm_size"] == "20g"
    assert TOKEN not in str(importing.written(imported, "r", options()))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"runtime": "sglang"}, "for the runtime sglang, and lanes run vLLM"),
        ({"runtime": "trtllm"}, "for the runtime trtllm"),
        ({"runtime": "llama-cpp"}, "for the runtime llama-cpp"),
        ({"model": ""}, "has no model"),
        ({"model": ["a/b"]}, "model is"),
        ({"defaults": [1]}, "defaults is"),
        ({"command": 3}, "command is no text"),
        ({"command": "sglang serve {model}"}, "this starts SGLang"),
        ({"command": "vllm serve {model}; rm -rf /"}, "'rm' is neither"),
        ({"command": "vllm serve $(cat x)"}, "would run a command"),
        ({"defaults": {"x": "$(reboot)"}, "command": "vllm serve {model} --x {x}"}, "would run a command"),
        ({"defaults": {"x": "{{ lookup('pipe', 'id') }}"}}, "which Ansible would fill in"),
        ({"container": "{{ x }}/y"}, "which Ansible would fill in"),
        ({"defaults": {"x": "y" * 9000}, "command": "vllm serve {model} " + "{x}" * 9000}, "longer than 512 KiB"),
        ({"env": {"A": "{{ x }}"}}, "which Ansible would fill in"),
        ({"description": "{{ x }}"}, "which Ansible would fill in"),
    ],
)
def test_a_recipe_that_is_none_of_ours_is_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        whole(lane(tmp_path, recipe(**more), "r.yaml"))
    assert said in str(refused.value)


# --- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={TOKEN} vllm serve a/b",
        f"export HF_TOKEN={TOKEN}\nvllm serve a/b",
        f"docker run -e HF_TOKEN={TOKEN} x vllm serve a/b",
        f"T={TOKEN}\ndocker run -e HF_TOKEN=$T x vllm serve a/b",
        f"docker run -e OTHER={TOKEN} x vllm serve a/b",
        f"vllm serve a/b --hf-token {TOKEN}",
        f"vllm serve a/b --api-key {TOKEN}",
        f"vllm serve a/b --api-key={TOKEN} x",
        f"vllm serve a/b --zap {TOKEN}",
        f'vllm serve a/b --kv-transfer-config \'{{"api_key":"{TOKEN}"}}\'',
        f"echo {TOKEN}\nvllm serve a/b",
        f"hf auth login --token {TOKEN}\nvllm serve a/b",
        f"docker run --label token={TOKEN} x vllm serve a/b",
        f"docker run x bash -c 'vllm serve a/b --api-key {TOKEN}'",
        f"{TOKEN} vllm serve a/b",
        recipe(env={"HF_TOKEN": TOKEN}, command="vllm serve {model}"),
        recipe(defaults={"api_key": TOKEN}),
        recipe(defaults={"api_key": TOKEN}, command="vllm serve {model}"),
        recipe(description=f"my token {TOKEN}", command="vllm serve {model}"),
        json.dumps(
            [
                {
                    "Config": {"Image": "x", "Env": [f"HF_TOKEN={TOKEN}"], "Cmd": ["vllm", "serve", "a/b", "--api-key", TOKEN]},
                    "HostConfig": {},
                }
            ]
        ),
    ],
)
def test_no_secret_is_written_shown_or_said(tmp_path: Path, text: str) -> None:
    try:
        imported = lane(tmp_path, text)
        told = str(importing.written(imported, "given", options()))
    except Refused as error:
        told = str(error)
    assert TOKEN not in told
    assert any(one in told for one in ("mine", "is neither", "belongs to no flag", "looks like a key"))


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("-e HF_TOKEN=x", "hub_token"),
        ("-e VLLM_API_KEY=x", "engine_api_key"),
        ("-e MY_SECRET=x", "rank_secret_env"),
        ("-e HF_TOKEN=$HF_TOKEN", "hub_token"),
    ],
)
def test_where_a_secret_belongs_is_said(tmp_path: Path, given: str, where: str) -> None:
    rows = [row for row in docker(tmp_path, given).rows if row.fate == "secret"]
    assert len(rows) == 1
    assert where in rows[0].why


def test_a_lane_with_secrets_of_its_own_keeps_the_key_of_the_api(tmp_path: Path) -> None:
    text = importing.written(docker(tmp_path, "-e MY_SECRET=x"), "given", options())["text"]
    line = next(line for line in text.splitlines() if line.startswith("lane_secret_env"))
    assert "['MY_SECRET'] + (['VLLM_API_KEY'] if engine_api_key" in line


def test_a_secret_with_a_name_that_is_none_gets_into_no_template(tmp_path: Path) -> None:
    text = importing.written(docker(tmp_path, "-e \"A'] + [lookup('pipe', 'id')] + ['_SECRET=x\""), "given", options())["text"]
    assert "lane_secret_env:" not in text
    assert all("lookup" not in line for line in text.splitlines() if not line.startswith("#"))


# --- comparing -----------------------------------------------------------------------------------------------------


def test_what_differs_is_told_flag_by_flag(tmp_path: Path) -> None:
    imported = serve(tmp_path, "--max-model-len auto -dp 2 --port 8000")
    told = compare.differences(imported, options())
    assert "flag --max-model-len: runs with auto, which the lane does not have" in told
    assert "flag --data-parallel-size: runs with 2, which the lane does not have" in told
    assert not [one for one in told if "--port" in one]
    lines = importing.written(imported, "given", options())["report"]
    assert any(line.startswith("Rendered, it differs from given in") for line in lines)


def test_a_container_with_several_records_says_which_there_are() -> None:
    from ansible.module_utils.sparklanes.lane.importers import container

    record = {"Name": "/one", "Config": {}, "HostConfig": {}}
    with pytest.raises(Refused, match="has 2 containers \\(one, two\\)"):
        container.launch([record, {**record, "Name": "/two"}], "given")
