from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import engine_image_info
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.docker import probe as docker_probe
from ansible.module_utils.sparklanes.gates import image as gates_image
from ansible.module_utils.sparklanes.gates import launch
from conftest import RunModule
from hypothesis import given
from hypothesis import strategies as st

ID = "sha256:" + "1d" * 32
REFERENCE = "registry/engine@sha256:" + "a" * 64
PACKAGES = {
    "vllm": "0.23.1rc1.dev190+gab6660699",
    "torch": "2.13.0+cu130",
    "nvidia-nccl-cu13": "2.30.7",
    "nvidia-cutlass-dsl": "4.7.0",
    "nvidia-cutlass-dsl-libs-base": "4.6.2",
}
# The shape of argparse's help, as vLLM prints it.
HELP = """usage: vllm serve [model_tag] [options]
  --tensor-parallel-size, -tp TENSOR_PARALLEL_SIZE
  --enable-auto-tool-choice, --no-enable-auto-tool-choice
  --kv-cache-memory-bytes KV_CACHE_MEMORY_BYTES   see --gpu-memory-utilization
  --speculative-config, -sc SPECULATIVE_CONFIG
"""
PROBE: dict[str, Any] = {
    "packages": PACKAGES,
    "flags": docker_probe.parse_flags(HELP),
    "entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
}


def statuses(checks: list[Any]) -> dict[str, str]:
    return {check.id: check.status for check in checks}


def test_flags_are_read_out_of_help() -> None:
    assert docker_probe.parse_flags(HELP) == [
        "--enable-auto-tool-choice",
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--no-enable-auto-tool-choice",
        "--speculative-config",
        "--tensor-parallel-size",
    ]


@pytest.mark.parametrize(
    ("image", "status", "words"),
    [
        ({"vllm": PACKAGES["vllm"], "pins": {"torch": "2.13.0+cu130", "nccl": "2.30.7"}}, "pass", "nccl 2.30.7"),
        ({"pins": {"cutlass_dsl": "4.6.2/4.7.0"}}, "pass", "cutlass_dsl"),
        ({"pins": {"cutlass_dsl": "4.6.2"}}, "fail", "cutlass_dsl 4.7.0, 4.6.2"),
        ({"pins": {"torch": "2.13.0"}}, "pass", "torch 2.13.0"),
        ({"pins": {"torch": "2.13.0+cu129"}}, "fail", "torch 2.13.0+cu130"),
        ({"pins": {"nccl": "2.29.7"}}, "fail", "nccl 2.30.7"),
        ({"pins": {"flashinfer": "0.6.18"}}, "fail", "flashinfer not in the image"),
        ({"vllm": "0.23.1rc1.dev893+g52b6667xx"}, "fail", "dev190"),
    ],
)
def test_what_the_lane_says_of_its_image_is_compared(image: dict[str, Any], status: str, words: str) -> None:
    made = gates_image.version_checks("s1", PROBE, image)
    assert [check.status for check in made] == [status]
    assert words in made[0].found


def test_a_lane_that_states_nothing_is_not_judged() -> None:
    assert gates_image.version_checks("s1", PROBE, {"pins": {"pdl": False}}) == []


def test_versions_that_could_not_be_read_fail() -> None:
    made = gates_image.version_checks("s1", {"error": "exit 125: no such file"}, {"vllm": "0.23"})
    assert made[0].status == "fail"
    assert "no such file" in made[0].found


@pytest.mark.parametrize(
    ("flag", "status"),
    [
        ("--tensor-parallel-size", "pass"),
        ("--tensor_parallel_size", "pass"),
        ("--no-enable-auto-tool-choice", "pass"),
        ("--kv-cache-memory", "pass"),
        ("--speculative-config.method", "pass"),
        ("--kv-cache-dtype-skip-layers", "fail"),
    ],
)
def test_every_flag_of_a_rank_must_be_known_to_its_engine(flag: str, status: str) -> None:
    made = gates_image.flag_checks("s1", PROBE, ["serve", "/models/x", flag, "2"])
    assert made[0].status == status
    assert status == "pass" or flag in made[0].found


def test_a_flag_that_is_nearly_right_is_named() -> None:
    made = gates_image.flag_checks("s1", PROBE, ["--enable-auto-tool-choise"])
    assert "--enable-auto-tool-choice" in made[0].remedy


def test_flags_that_could_not_be_asked_warn_with_the_reason() -> None:
    made = gates_image.flag_checks("s1", {"flags": [], "flags_error": "not asked: 0.7 GiB"}, ["--x"])
    assert (made[0].status, made[0].found) == ("warn", "not asked: 0.7 GiB")
    assert gates_image.flag_checks("s1", {}, ["--x"])[0].status == "warn"


@pytest.mark.parametrize(
    ("spec", "wanted", "expected"),
    [
        ({"entrypoint": "vllm"}, ["x"], {}),
        ({"entrypoint": None}, None, {}),
        ({"entrypoint": None}, ["/opt/nvidia/nvidia_entrypoint.sh"], {"IMAGE.ENTRYPOINT": "pass"}),
        ({"entrypoint": None}, ["bash"], {"IMAGE.ENTRYPOINT": "fail"}),
    ],
)
def test_the_entrypoint_counts_where_the_lane_keeps_it(spec: dict[str, Any], wanted: Any, expected: dict[str, str]) -> None:
    assert statuses(gates_image.entrypoint_checks("s1", PROBE, spec, {"entrypoint": wanted})) == expected


def test_gate_a_takes_the_answer_of_whichever_spark_was_asked() -> None:
    spec = {"command": ["--tensor-parallel-size", "2"], "entrypoint": "vllm"}
    lane = {"lane_image": {"vllm": PACKAGES["vllm"]}}

    made = launch.image_checks(
        {"s1": {"id": ID}, "s2": {"id": ID, "probe": PROBE}}, {"s1": lane, "s2": lane}, {"s1": spec, "s2": spec}
    )
    assert [(check.id, check.host, check.status) for check in made] == [
        ("IMAGE.PINS", "s2", "pass"),
        ("IMAGE.FLAGS", "s2", "pass"),
    ]
    nobody = launch.image_checks({"s1": {"id": ID}}, {"s1": lane}, {"s1": spec})
    assert [(check.id, check.status) for check in nobody] == [("IMAGE.PINS", "fail"), ("IMAGE.FLAGS", "warn")]
    assert launch.image_checks({"s1": None}, {"s1": lane}, {"s1": spec}) == []


# The module


class Played:
    def __init__(self) -> None:
        self.runs: list[str] = []

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[1:3] == ["image", "inspect"]:
            return 0, json.dumps([{"Id": ID, "RepoDigests": [REFERENCE], "Config": {"Entrypoint": ["/entry.sh"]}}]), ""
        at = argv.index("--entrypoint")
        assert "--gpus" not in argv
        assert argv[argv.index("--network") + 1] == "none"
        self.runs.append(" ".join(argv[at + 1 :])[:60])
        if argv[at + 1] == "python3":
            return 0, "== NVIDIA ==\n" + json.dumps({"python": "3.12.3", "packages": PACKAGES}), ""
        return (2, "", "unrecognized arguments: --help=all") if argv[-1] == "--help=all" else (0, HELP, "")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(commands, "run", made.run)
    monkeypatch.setattr(docker_probe, "HELP_BYTES", 0)
    return made


def test_an_image_is_asked_once(played: Played, run_module: RunModule, tmp_path: Path) -> None:
    ask = {"reference": REFERENCE, "images_dir": str(tmp_path)}
    nothing = run_module(engine_image_info, ask, check=True)
    assert (nothing["asked"], nothing["probe"], played.runs) == (False, {}, [])
    first = run_module(engine_image_info, ask)
    assert first["asked"]
    assert first["probe"]["packages"] == PACKAGES
    assert first["probe"]["entrypoint"] == ["/entry.sh"]
    assert "--speculative-config" in first["probe"]["flags"]
    assert len(played.runs) == 3
    again = run_module(engine_image_info, ask)
    assert (again["asked"], again["probe"]) == (False, first["probe"])
    assert len(played.runs) == 3


def test_the_engine_is_not_imported_where_memory_is_short(
    played: Played, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_probe, "HELP_BYTES", 2**60)
    ask = {"reference": REFERENCE, "images_dir": str(tmp_path)}
    result = run_module(engine_image_info, ask)
    assert "GiB of memory available" in result["probe"]["flags_error"]
    assert len(played.runs) == 1
    monkeypatch.setattr(docker_probe, "HELP_BYTES", 0)
    later = run_module(engine_image_info, ask)
    assert later["probe"]["flags"]
    assert len(played.runs) == 3


@given(st.text())
def test_any_answer_is_data_or_a_reason(text: str) -> None:
    docker_probe.parse_flags(text)
    try:
        found = docker_probe.parse_versions(text)
    except ValueError:
        return
    assert isinstance(found["packages"], dict)
