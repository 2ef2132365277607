# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who serves here, as every caller asks it: of programs that answer, that fail, and that never end."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jit_cache
import memory_settle
import model_stage
import pytest
import readiness_info
import swap_file
import swap_recycle
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.registered import Look
from ansible.module_utils.sparklanes.docker import containers
from ansible.module_utils.sparklanes.docker.containers import NO_DOCKER, DockerError
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import measure, occupied
from ansible.module_utils.sparklanes.host import units
from ansible.module_utils.sparklanes.rank import after_boot
from ansible.module_utils.sparklanes.weights.pace import rate_limit

BOX = {
    "Id": "ab" * 32,
    "Name": "/vllm_x",
    "State": {"Running": True, "Status": "running"},
    "Config": {"Image": "engine", "Labels": {}},
    "HostConfig": {},
}
PAUSED = {"Running": True, "Paused": True, "Status": "paused"}
RANK = {**BOX, "Config": {"Image": "engine", "Labels": {"sparklanes.deployment": "sparks", "sparklanes.lane": "tiny"}}}
FOREIGN = {**BOX, "HostConfig": {"Runtime": "nvidia"}}
PLAIN = BOX
INFO = {"ServerVersion": "28.3.3", "CgroupDriver": "systemd", "Driver": "overlay2"}
HANGS, FAILS = "sleep 60", "echo broken >&2; exit 9"
XML = '<nvidia_smi_log><driver_version>580.95</driver_version><gpu id="0">{}</gpu></nvidia_smi_log>'
PROCESS = "<process_info><pid>{pid}</pid><type>C</type><process_name>python3</process_name><used_memory>5 MiB</used_memory></process_info>"


class Machine:
    """Docker and nvidia-smi of a Spark, as programs in its path."""

    def __init__(self, tmp: Path) -> None:
        self.bin = tmp / "bin"
        self.bin.mkdir()
        for name in ("sh", "sleep", "cat", "echo"):
            (self.bin / name).symlink_to(next(path for folder in ("/bin", "/usr/bin") if (path := Path(folder, name)).exists()))
        self.docker()
        self.gpu()

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def docker(self, *boxes: dict[str, Any]) -> None:
        ids = " ".join(box["Id"] for box in boxes)
        running = " ".join(box["Id"] for box in boxes if box["State"].get("Status") == "running")
        self.program(
            "docker",
            f'case "$*" in *status=running*) echo {running}; exit;; esac; case "$1" in ps) echo {ids};; inspect) echo {shlex.quote(json.dumps(boxes))};; info) echo {shlex.quote(json.dumps(INFO))};; esac',
        )

    def gpu(self, *pids: int) -> None:
        rows = "".join(f"{pid}, python3, 5 MiB\n" for pid in pids)
        report = XML.format("<processes>" + "".join(PROCESS.format(pid=pid) for pid in pids) + "</processes>")
        self.program(
            "nvidia-smi",
            f"case \"$*\" in *-x*) echo {shlex.quote(report)};; *compute-apps*) printf '%s' {shlex.quote(rows)};; esac",
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(containers, "QUESTION_SECONDS", 0.4)
    monkeypatch.setattr(gpu_facts, "PATIENCE_SECONDS", 0.4)
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.1)
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    return made


class Module:
    """What a class of a module needs to be asked."""

    check_mode = True

    def __init__(self, **_: Any) -> None:
        self.params = {"root": "/", "rate_mib": 0, "serving_rate_mib": 256, "verify_rate_mib": 0, "reserve_gib": 4.0}


def swap_stays(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    edits = object.__new__(swap_file.SwapFile)
    edits.waiting = []
    monkeypatch.setattr(swap_file.SwapFile, "did", lambda *_: ["/swap.img"])
    monkeypatch.setattr(swap_file.SwapFile, "fstab", lambda _: "")
    monkeypatch.setattr(swap_file.SwapFile, "on", lambda _: [])
    monkeypatch.setattr(swap_file.SwapFile, "undone", lambda *_: None)
    monkeypatch.setattr(swap_file.SwapFile, "write_fstab", lambda *_: None)
    edits.tree = type("Tree", (), {"there": lambda *_: False})()
    edits.remove()
    return "; ".join(edits.waiting)


def settle(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return memory_settle.Spark(Module()).busy()


def recycle(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    class Quiet(Module):
        def fail_json(self, msg: str) -> None:
            raise RuntimeError(msg)

        def exit_json(self, **_: Any) -> None:
            raise RuntimeError("")

    monkeypatch.setattr(swap_recycle, "used_and_available", lambda: (1 << 30, 1 << 40))
    monkeypatch.setattr(swap_recycle, "AnsibleModule", Quiet)
    with pytest.raises(RuntimeError) as told:
        swap_recycle.main()
    return str(told.value)


def burn(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return measure.may_start(str(tmp))[0]


def boot(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return after_boot.in_the_way("another", str(tmp), seconds=0)


def staging(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    stage = object.__new__(model_stage.Stage)
    stage.params = Module().params
    return "slower" if stage.limits()[0] else ""


def looked(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The part of readiness_info that gates read."""
    docker = containers.Docker(commands.run)
    boxes: list[containers.Container] | None = None
    try:
        told: dict[str, Any] = docker.info()
        boxes = docker.containers()
    except (DockerError, ValueError) as error:
        told = {"error": str(error)}
    shown = [box.to_dict() for box in boxes or [] if box.running or box.deployment]
    return {"docker": told, "containers": shown, "gpu": readiness_info.gpu_seen(boxes), "transaction": {}}


def idle(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    check = readiness.idle("s1", Look(looked(tmp, monkeypatch)))
    return check.found if check.status == "fail" else ""


def lane(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return readiness.other_lane(looked(tmp, monkeypatch), "none of these")


Caller = Callable[[Path, pytest.MonkeyPatch], str]
CALLERS: list[Caller] = [settle, recycle, swap_stays, burn, boot, staging, idle, lane]


def told(caller: Caller, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    began = time.monotonic()
    answer = caller(tmp, monkeypatch)
    assert time.monotonic() - began < 20, "the limit did not cut what hangs"
    return answer


@pytest.mark.parametrize("caller", CALLERS)
def test_a_spark_on_which_nothing_serves(
    caller: Caller, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(caller, tmp_path, monkeypatch) == ""
    machine.docker(PLAIN)  # a container without GPU, nobody's rank
    assert told(caller, tmp_path, monkeypatch) == ""
    machine.docker({**FOREIGN, "State": {"Running": False}})
    assert told(caller, tmp_path, monkeypatch) == ""
    for name in ("docker", "nvidia-smi"):
        (machine.bin / name).unlink()
    if caller is not burn:  # which says that there is nothing to measure with
        assert told(caller, tmp_path, monkeypatch) == "", "without the tools there is nothing"


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    "box",
    [RANK, FOREIGN, {**RANK, "State": PAUSED}, {**FOREIGN, "State": PAUSED}],
    ids=["rank", "foreign", "paused rank", "paused foreign"],
)
def test_a_rank_and_a_container_of_a_person_serve(
    caller: Caller, box: dict[str, Any], machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.docker(box)
    answer = told(caller, tmp_path, monkeypatch)
    assert answer
    assert caller is staging or "vllm_x" in answer or answer == "tiny"


@pytest.mark.parametrize("caller", CALLERS)
def test_a_process_outside_of_containers_serves(
    caller: Caller, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpu(os.getpid())
    answer = told(caller, tmp_path, monkeypatch)
    assert caller is staging or f"python3 (pid {os.getpid()})" in answer


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("program", ["docker", "nvidia-smi"])
@pytest.mark.parametrize("text", [HANGS, FAILS], ids=["hangs", "fails"])
def test_what_does_not_answer_may_serve(
    caller: Caller, program: str, text: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.program(program, text)
    answer = told(caller, tmp_path, monkeypatch)
    assert answer
    assert caller is staging or program.lower() in answer.lower()


def test_a_reload_waits_for_a_docker_that_does_not_answer(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (HANGS, FAILS):
        machine.program("docker", text)
        assert "Docker does not say" in units.reload_risk_here(commands.run, tmp_path)
    machine.docker(PLAIN)
    assert units.gpu_containers(commands.run) == ([], "systemd")
    for box in (FOREIGN, {**FOREIGN, "State": PAUSED}):
        machine.docker(box)
        assert units.gpu_containers(commands.run) == (["vllm_x"], "systemd")


def test_a_cache_is_not_filled_behind_a_docker_that_does_not_answer(machine: Machine, tmp_path: Path) -> None:
    for text in (HANGS, FAILS):
        machine.program("docker", text)
        with pytest.raises(DockerError):
            jit_cache.users(Module(), tmp_path)


def test_own_ranks_do_not_stand_in_their_own_way_but_all_else_does(machine: Machine, tmp_path: Path) -> None:
    machine.docker({**RANK, "Name": "/sparklanes-sparks-rank0"})
    assert after_boot.in_the_way("sparks", str(tmp_path), 0) == ""
    assert after_boot.in_the_way("pair_a", str(tmp_path), 0) == "sparklanes-sparks-rank0 runs"
    machine.docker(RANK)
    assert after_boot.in_the_way("sparks", str(tmp_path), 0) == "vllm_x runs", "a copy of a rank has its label, and is none"
    machine.docker({**RANK, "Name": "/sparklanes-sparks-rank0"})
    machine.gpu(os.getpid())
    assert after_boot.in_the_way("sparks", str(tmp_path), 0) == f"python3 (pid {os.getpid()}) holds the GPU"


def test_a_driver_that_comes_late_is_waited_for_after_a_boot(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.program("nvidia-smi", FAILS)
    monkeypatch.setattr(after_boot.time, "sleep", lambda _: machine.gpu())
    assert after_boot.in_the_way("sparks", str(tmp_path), 30) == ""


def test_a_process_belongs_to_its_container(tmp_path: Path) -> None:
    box = containers.parse_inspect(json.dumps([RANK]))[0]
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::/system.slice/docker-{box.id}.scope\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/cgroup").write_text("0::/user.slice\n")
    found = [{"pid": 7, "name": "a"}, {"pid": 8, "name": "b"}, {"pid": 9, "name": "c"}, {"pid": None, "name": "d"}]
    made = occupied.attributed(found, [box], tmp_path)
    assert [one["container"] for one in made] == ["vllm_x", "", None, None]
    assert [one["container"] for one in occupied.attributed(found, None, tmp_path)] == [None] * 4
    seen = occupied.Seen((box.to_dict(),), tuple(made))
    assert [one["name"] for one in seen.outside] == ["b"]
    assert seen.holder() == "vllm_x runs; b (pid 8) holds the GPU"
    assert [one["name"] for one in occupied.Seen((), tuple(made)).outside] == ["a", "b", "c", "d"]


def test_open_transactions_are_seen_and_hold_no_gpu(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "deployments/pair_a").mkdir(parents=True)
    (tmp_path / "deployments/pair_a/transaction.json").write_text("half-writ")
    seen = occupied.look(root=str(tmp_path))
    assert (seen.transactions, seen.holder()) == (("pair_a",), "")
    assert "pair_a is open" in measure.may_start(str(tmp_path))[0]


@pytest.mark.parametrize(
    ("containers_", "docker", "gpu", "words"),
    [
        ([], {}, {"present": False, "error": gpu_facts.ABSENT}, ""),
        (None, {"error": NO_DOCKER}, {"present": False}, ""),
        (None, {}, {"present": False}, "Docker does not answer (it was not asked)"),
        ([], {}, None, "it was not asked"),
        ([], {}, {}, "it was not asked"),
        ([], {}, {"present": True, "error": "", "processes": None}, "nvidia-smi does not tell them"),
        (
            [],
            {"error": "x"},
            {"present": True, "error": "y"},
            "Docker does not answer (x); the GPU's processes are not known (y)",
        ),
    ],
)
def test_what_was_not_measured_is_unknown(containers_: Any, docker: dict[str, str], gpu: Any, words: str) -> None:
    seen = occupied.of_facts(containers_, docker, gpu)
    assert words in seen.unknown
    assert bool(seen.holder()) == bool(words)


def test_the_limit_while_something_serves() -> None:
    assert [rate_limit(False, rate, 256) for rate in (0, 900)] == [0, 900]
    assert [rate_limit(True, rate, 256) for rate in (0, 900, 100)] == [256, 256, 100]
    assert rate_limit(True, 900, 0) == 900
