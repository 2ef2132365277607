# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Does anything on this Spark serve, or may it? The one answer to that question.

It is asked before memory is moved, swap is emptied, the GPU is loaded, the fabric is tested, a rank starts by itself, or a disk is read
at full speed. Whoever does not answer (Docker, nvidia-smi) may hide something, so what is unknown counts as serving, and each is asked
with a time limit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.files import STATE_ROOT
from ansible.module_utils.sparklanes.docker.containers import (
    NO_DOCKER,
    Container,
    Docker,
    DockerError,
    container_of_cgroup,
    serves,
)
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu.nvidia_smi import COMPUTE_APPS, parse_compute_apps

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """What serves on a Spark, or may.

    containers: of `Container.to_dict`, the running ones that are a rank or use the GPU. processes: on the GPU, each with `pid`, `name`
    and its `container`: empty in none, None where that is not known. transactions: deployments with an open one. unknown: why not
    all of this is known, as part of a sentence.
    """

    containers: tuple[Facts, ...] = ()
    processes: tuple[Facts, ...] = ()
    transactions: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def outside(self) -> tuple[Facts, ...]:
        """Processes on the GPU that belong to none of these containers, or may not."""
        names = {box["name"] for box in self.containers}
        return tuple(
            one for one in self.processes if (not names if one.get("container") is None else one["container"] not in names)
        )

    def holder(self, but: str = "") -> str:
        """What may hold the GPU, as part of a sentence; empty where nothing does. `but`: a deployment whose own ranks don't count.

        Not a transaction: who asks is often in the middle of one.
        """
        boxes = [str(box["name"]) for box in self.containers if not but or box.get("deployment") != but]
        held = [name_of(process) for process in self.outside]
        parts = [f"{', '.join(boxes)} runs"] if boxes else []
        parts += [f"{', '.join(held)} holds the GPU"] if held else []
        return "; ".join([*parts, *([self.unknown] if self.unknown else [])])


def name_of(process: Facts) -> str:
    return f"{process.get('name') or '?'} (pid {process.get('pid')})"


def of_facts(containers: Iterable[Facts] | None, docker: Facts, gpu: Facts | None, transactions: Sequence[str] = ()) -> Seen:
    """The answer from what was measured, on a Spark or elsewhere.

    containers: of `Container.to_dict`. docker: `error` where it did not answer. gpu: `gpu.facts.facts` or its `present`, `error`
    and `processes`. None, or nothing at all, was not measured.
    """
    unknown = []
    error = str(docker.get("error") or "")
    if error != NO_DOCKER and (error or containers is None):
        unknown.append(f"Docker does not answer ({error or 'it was not asked'})")
    if not gpu:
        unknown.append("the GPU's processes are not known (it was not asked)")
    elif gpu.get("present", True) and (gpu.get("error") or gpu.get("processes") is None):
        unknown.append(f"the GPU's processes are not known ({gpu.get('error') or 'nvidia-smi does not tell them'})")
    return Seen(
        tuple(box for box in containers or [] if serves(box)),
        tuple((gpu or {}).get("processes") or []),
        tuple(transactions),
        "; ".join(unknown),
    )


def attributed(processes: Iterable[Facts], boxes: Sequence[Container] | None, proc: Path = Path("/proc")) -> list[dict[str, Any]]:
    """Processes with their `container`: empty in none, None where the process is gone already or Docker told nothing (None)."""
    names = {box.id: box.name for box in boxes or []}
    made = []
    for one in processes:
        text = gpu_facts.read(proc / str(one["pid"]) / "cgroup") if one.get("pid") is not None else ""
        made.append({**one, "container": None if boxes is None or not text else names.get(container_of_cgroup(text), "")})
    return made


def look(run: commands.Run | None = None, root: str = STATE_ROOT, gpu: Facts | None = None) -> Seen:
    """The answer for this Spark as it is now, within a minute or two. `gpu`: facts of the GPU, where they were just measured.

    Without the tools of the driver no process uses the GPU, and without Docker none is in a container.
    """
    run = run or commands.run
    boxes: list[Container] | None = None
    docker: dict[str, str] = {}
    try:
        boxes = Docker(run).running() if shutil.which("docker") else []
    except (DockerError, ValueError) as error:
        docker["error"] = str(error)
    found = dict(gpu if gpu is not None else processes(run))
    if found.get("processes"):
        found["processes"] = attributed(found["processes"], boxes)
    open_ = sorted(path.parent.name for path in Path(root).glob("deployments/*/transaction.json"))
    return of_facts(None if boxes is None else [box.to_dict() for box in boxes], docker, found, open_)


def processes(run: commands.Run) -> dict[str, Any]:
    """Of the facts of the GPU those that this question needs, which costs less than all."""
    if not shutil.which("nvidia-smi"):
        return {"present": False, "error": gpu_facts.ABSENT, "processes": None}
    rc, out, err = run(COMPUTE_APPS, seconds=gpu_facts.PATIENCE_SECONDS)
    if rc != 0:
        return {"present": True, "error": f"nvidia-smi: {(err or out).strip()[:120] or f'exit {rc}'}", "processes": None}
    return {"present": True, "error": "", "processes": [{"pid": one.pid, "name": one.name} for one in parse_compute_apps(out)]}
