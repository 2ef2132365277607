"""What runs against what a lane renders: the comparison, and what is read of a container."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import rank_command_info
from ansible.module_utils.sparklanes.common.sizes import size_or_none
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.rank import drift
from conftest import RunModule
from hypothesis import given
from hypothesis import strategies as st
from lane_files import SHIPPED, resolved

IMAGE = "registry.test/engine@sha256:" + "a" * 64


def spec(**more: Any) -> dict[str, Any]:
    return {
        "deployment": "sparks",
        "image": IMAGE,
        "entrypoint": None,
        "command": ["vllm", "serve", "/models/m", "--max-model-len", "1000", "--json", '{"a":1,"b":[2]}', "--bare"],
        "env": {"NCCL_NET": "IB"},
        "secret_env": [],
        "mounts": [{"source": "/srv/m", "target": "/models/m", "read_only": True}],
        "options": {"network": "host", "ipc": "host", "shm_size": "10gb", "memory": "112g", "ulimits": ["memlock=-1:-1"]},
        **more,
    }


def found(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {one.what: (one.ours, one.theirs) for one in drift.differences(ours, theirs)}


@pytest.mark.parametrize(
    "command",
    [
        '/models/m --max-model-len=1000 --json {"b":[2],"a":1} --bare',
        "python3 -m vllm.entrypoints.openai.api_server --model /models/m/ --max_model_len 1000 --json.a 1 --json.b [2] --bare",
        'vllm serve /models/m --bare --max-model-len 1000 --json {"a":1,"b":[2]}',
    ],
)
def test_spellings_that_mean_the_same_are_the_same(command: str) -> None:
    assert found(spec(), spec(command=command.split())) == {}


def test_a_command_inside_a_shell_is_read_where_the_shell_is_simple() -> None:
    text = 'unset X; exec vllm serve /models/m --max-model-len 1000 --json \'{"a": 1, "b": [2]}\' --bare'
    assert found(spec(), spec(command=["bash", "-lc", text])) == {}
    assert found(spec(), spec(entrypoint="/bin/sh", command=["-c", text])) == {}
    assert found(spec(), spec(entrypoint="bash", command=["-lc", 'exec vllm serve "$@"', "vllm", *spec()["command"][2:]])) == {}
    # What can't be read is there as it stands.
    assert "model" in found(spec(), spec(command=["bash", "-c", "exec 'vllm"]))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"image": "other:tag"}, {"image": (IMAGE, "other:tag")}),
        ({"image": "engine:tag", "image_digests": [IMAGE]}, {}),
        ({"command": ["/models/n", "--json", '{"a":2}', "--bare", "true", "--max-model-len", "1000", "-tp", "2"]}, {
            "model": ("/models/m", "/models/n"),
            "flag --json": ({"a": 1, "b": [2]}, {"a": 2}),
            "flag --bare": (drift.GIVEN, True),
            "flag --tensor-parallel-size": (drift.ABSENT, 2),
        }),
        ({"env": {"NCCL_NET": "Socket", "X": "1"}}, {"env NCCL_NET": ("IB", "Socket"), "env X": (drift.ABSENT, "1")}),
        ({"mounts": [{"source": "/srv/m", "target": "/models/m", "read_only": False}]}, {
            "mount /models/m": ("/srv/m (read-only)", "/srv/m (writable)"),
        }),
        ({"options": {"network": "bridge", "gpus": "all", "cap_add": ["CAP_SYS_NICE"], "devices": ["/dev/x"], "restart": "always", "privileged": True}}, {
            "limit network": ("host", "bridge"),
            "limit ipc": ("host", "private"),
            "limit shm_size": (10 * 2**30, 64 * 2**20),
            "limit memory": (112 * 2**30, drift.ABSENT),
            "limit memory_swap": (224 * 2**30, drift.ABSENT),
            "limit ulimit memlock": ("-1:-1", drift.ABSENT),
            "limit gpus": (drift.ABSENT, "all"),
            "limit cap SYS_NICE": (drift.ABSENT, True),
            "limit device /dev/x": (drift.ABSENT, "/dev/x"),
            "limit restart": ("no", "always"),
            "limit privileged": (drift.ABSENT, True),
        }),
    ],
)  # fmt: skip
def test_each_thing_that_differs_is_named(more: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found(spec(), spec(**more)) == expected


def test_the_text_says_what_the_lane_would_change() -> None:
    theirs = {
        **spec(env={"OLD": "1"}, command=[*spec()["command"][:4], "2000", *spec()["command"][5:]]),
        "container": "by_hand",
        "running": True,
    }
    assert drift.report("s1", "sparks", spec(), theirs).splitlines() == [
        "# s1: by_hand differs from what the lane renders in 3 places",
        "flag --max-model-len: runs with 2000, the lane says 1000",
        "env NCCL_NET: the lane adds IB",
        "env OLD: runs with 1, which the lane does not have",
    ]
    assert drift.report("s1", "sparks", spec(), {**spec(), "container": "x", "running": False}) == (
        "# s1: x, which does not run, is what the lane renders"
    )
    assert "render_container=NAME" in drift.report("s1", "sparks", spec(), {})


def test_what_the_image_sets_counts_only_where_the_lane_sets_it_too() -> None:
    ours = {**lanes_spec(), "env": {"SAME": "1", "OTHER": "2", "NEW": "3"}}
    entry = inspected({**lanes_spec(), "env": {"SAME": "1", "OTHER": "1", "PATH": "/bin"}})
    image = {"Config": {"Env": ["SAME=1", "OTHER=1", "PATH=/bin"]}}
    expected = {"env OTHER": ("2", "1"), "env NEW": ("3", drift.ABSENT)}
    assert found(ours, drift.spec_of_inspect(entry, image)) == expected
    # Without the image, nobody can tell whose PATH it is.
    assert found(ours, drift.spec_of_inspect(entry)) == {**expected, "env PATH": (drift.ABSENT, "/bin")}


def test_older_ways_to_say_gpus_and_networks() -> None:
    entry = inspected({**lanes_spec(), "options": {**lanes_spec()["options"], "gpus": None, "network": "default"}})
    entry["HostConfig"]["Runtime"] = "nvidia"
    options = {**lanes_spec()["options"], "gpus": "all", "network": None}
    assert found({**lanes_spec(), "options": options}, drift.spec_of_inspect(entry)) == {}


@given(st.lists(st.text(max_size=12), max_size=12))
def test_any_command_has_a_shape(words: list[str]) -> None:
    made = drift.shape(spec(command=words))
    assert all(isinstance(what, str) for what in made)
    assert found(spec(command=words), spec(command=words)) == {}


@pytest.mark.parametrize("lane", SHIPPED)
def test_a_rank_that_runs_as_rendered_does_not_differ_from_itself(lane: str) -> None:
    """Through Docker's own words for it."""
    made = resolved(lane)
    hosts = [f"s{number}" for number in range(made["lane_nodes"])]
    fabrics = {
        host: {"host_ip": f"10.9.0.{number}", "ifname": "eth9", "env": {"NCCL_IB_HCA": "=x"}, "rails": []}
        for number, host in enumerate(hosts, 1)
    }
    ours = lane_render.render_rank(made, fabrics, "sparks", hosts, len(hosts) - 1)
    assert drift.differences(ours, drift.spec_of_inspect(inspected(ours))) == []


def inspected(ours: dict[str, Any]) -> dict[str, Any]:
    """What `docker inspect` would say of the rank, field by field."""
    options = ours["options"]
    limits = [text.partition("=") for text in options["ulimits"]]
    gpus = (options["gpus"] or "").strip('"')
    devices = gpus.removeprefix("device=").split(",") if gpus.startswith("device=") else None
    return {
        "Name": "/" + ours["container"],
        "State": {"Running": True},
        "Config": {
            "Image": ours["image"],
            "Entrypoint": [ours["entrypoint"]] if ours["entrypoint"] else None,
            "Cmd": ours["command"],
            "Env": [f"{name}={value}" for name, value in ours["env"].items()] + [f"{name}=x" for name in ours["secret_env"]],
        },
        "HostConfig": {
            "NetworkMode": options["network"],
            "IpcMode": options["ipc"],
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
            "ShmSize": size_or_none(options["shm_size"]) or 64 * 2**20,
            "Memory": size_or_none(options["memory"]) or 0,
            "PidsLimit": options.get("pids_limit") or None,
            "SecurityOpt": ["no-new-privileges"] if options.get("no_new_privileges") else None,
            "MemorySwap": size_or_none(options["memory_swap"]) or 2 * (size_or_none(options["memory"]) or 0),
            "Ulimits": [
                {"Name": name, "Soft": int(bounds.split(":")[0]), "Hard": int(bounds.split(":")[-1])}
                for name, _, bounds in limits
            ],
            "CapAdd": [f"CAP_{cap}" for cap in options["cap_add"]] or None,
            "Devices": [
                {"PathOnHost": one.split(":")[0], "PathInContainer": one.split(":")[-1], "CgroupPermissions": "rwm"}
                for one in options["devices"]
            ],
            "DeviceRequests": [
                {"Driver": "", "Count": 0 if devices else -1, "DeviceIDs": devices, "Capabilities": [["gpu"]], "Options": {}}
            ]
            if gpus
            else None,
        },
        "Mounts": [
            {"Type": "bind", "Source": one["source"], "Destination": one["target"], "Mode": "", "RW": not one["read_only"]}
            for one in ours["mounts"]
        ],
    }


# --- secrets ---------------------------------------------------------------------------------------------------


def test_no_secret_leaves_the_spark() -> None:
    entry = inspected({**lanes_spec(), "env": {"HF_TOKEN": "hf_SECRET", "VLLM_API_KEY": "SECRET", "MINE": "SECRET", "KEYS": "5"}})
    entry["Config"]["Cmd"] = ["/models/m", "--api-key", "SECRET", "--hf-token=SECRET", "--max-num-batched-tokens", "8"]
    made = drift.spec_of_inspect(entry, None, ["MINE"])
    assert "SECRET" not in json.dumps(made)
    assert made["env"]["KEYS"] == "5"
    assert made["command"][-1] == "8"
    entry["Config"]["Cmd"] = [
        "bash",
        "-c",
        "export HF_TOKEN='SECRET x'; vllm serve /m --api-key SECRET --hf-token=SECRET --port 80",
    ]
    made = drift.spec_of_inspect(entry, None, ["MINE"])
    assert "SECRET" not in json.dumps(made)
    assert "--port 80" in made["command"][2]
    ours = {**lanes_spec(), "secret_env": ["VLLM_API_KEY"]}
    assert not any("SECRET" in text for text in drift.report("s1", "sparks", ours, made).splitlines())


def lanes_spec() -> dict[str, Any]:
    options = {
        "ulimits": [],
        "gpus": None,
        "network": "host",
        "ipc": "host",
        "shm_size": None,
        "memory": None,
        "memory_swap": None,
    }
    return {**spec(), "container": "c", "options": {**options, "cap_add": [], "devices": []}}


# --- the module ------------------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in for Docker on the PATH; the state that it answers from."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"calls": [], "image": "", "containers": []}))
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nexec python3 {Path(__file__).parents[1] / "fake_docker.py"} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(state))
    return state


def boxes(docker: Path, *entries: dict[str, Any]) -> None:
    docker.write_text(json.dumps({"calls": [], "image": "sha256:1", "containers": list(entries)}))


def box(name: str, running: bool = True, **labels: str) -> dict[str, Any]:
    entry = inspected({**lanes_spec(), "container": name})
    entry["Config"]["Labels"] = labels
    return {**entry, "Id": name * 8, "Image": "sha256:1", "State": {"Running": running}}


def test_the_running_rank_is_read_and_the_image_tells_its_digests(docker: Path, run_module: RunModule) -> None:
    rank = {"sparklanes.deployment": "sparks"}
    boxes(
        docker,
        box("sparklanes-sparks-rank1", False, **rank),
        box("sparklanes-sparks-rank0", True, **rank),
        box("copy", True, **rank),
    )
    made = run_module(rank_command_info, {"deployment": "sparks"}, check=True)
    assert (made["found"], made["changed"], made["spec"]["container"]) == (True, False, "sparklanes-sparks-rank0")
    assert made["spec"]["image_digests"] == ["sha256:1"]


def test_a_container_started_by_hand_is_read_by_its_name(docker: Path, run_module: RunModule) -> None:
    boxes(docker, box("vllm_glm53"))
    assert run_module(rank_command_info, {"deployment": "sparks"})["found"] is False
    made = run_module(rank_command_info, {"deployment": "sparks", "container": "vllm_glm53"})
    assert made["spec"]["command"] == spec()["command"]
    assert run_module(rank_command_info, {"deployment": "sparks", "container": "vllm"})["found"] is False


def test_a_docker_that_says_no_is_an_error(docker: Path, run_module: RunModule) -> None:
    docker.with_name("docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    made = run_module(rank_command_info, {"deployment": "sparks"})
    assert made["failed"]
    assert "Cannot connect" in made["msg"]
