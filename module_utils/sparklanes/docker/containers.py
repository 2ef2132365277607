# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The few things we ask of Docker on a Spark, through its command line.

A rank is started from a spec frozen on the Spark itself, also when no controller is
there to template anything, so what we need is small: inspect, create, start, stop, logs.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.commands import NOT_FOUND, Run
from ansible.module_utils.sparklanes.common.files import write_atomically
from ansible.module_utils.sparklanes.common.secrets import blanked_env, blanked_words
from ansible.module_utils.sparklanes.docker import daemon, gpu_access, logs
from ansible.module_utils.sparklanes.docker.logs import Saved

NO_DOCKER = "docker is not installed"

LABEL_DEPLOYMENT = "sparklanes.deployment"
LABEL_RELEASE = "sparklanes.release"
LABEL_RANK = "sparklanes.rank"
LABEL_LANE = "sparklanes.lane"


class DockerError(Exception):
    """Docker said no; the text says to what and why."""


@dataclass(frozen=True)
class Container:
    """One container as `docker inspect` tells it."""

    id: str
    name: str
    image: str
    running: bool
    status: str
    exit_code: int
    oom_killed: bool
    error: str
    started_at: str
    finished_at: str
    labels: Mapping[str, str]
    uses_gpu: bool
    host_network: bool
    # What `image` meant when the container was made: a name can move on.
    image_id: str = ""
    # Folders and files of the Spark that it sees.
    mounts: tuple[str, ...] = ()
    # It has our name and label, and is not the one that was started (`release.owned`).
    foreign: bool = False

    @property
    def claims(self) -> str:
        """The deployment whose label it has. A `docker commit` of a rank inherits that, so it proves nothing."""
        return self.labels.get(LABEL_DEPLOYMENT, "")

    @property
    def deployment(self) -> str:
        """The deployment that it is a rank of, by its name and its label; empty for what is not ours."""
        named = self.claims and re.fullmatch(rf"sparklanes-{re.escape(self.claims)}-rank[0-9]+", self.name)
        return self.claims if named and not self.foreign else ""

    @property
    def signal(self) -> str:
        """The signal that ended it, by its exit code; empty where none did."""
        return "" if self.running else signal_of(self.exit_code)

    @property
    def serves(self) -> bool:
        return serves(self.to_dict())

    @property
    def release(self) -> str:
        return self.labels.get(LABEL_RELEASE, "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id[:12],
            "name": self.name,
            "image": self.image,
            "running": self.running,
            "status": self.status,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "oom_killed": self.oom_killed,
            "error": self.error,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "deployment": self.deployment,
            "claims": self.claims,
            "release": self.release,
            "lane": self.labels.get(LABEL_LANE, ""),
            "rank": self.labels.get(LABEL_RANK, ""),
            "uses_gpu": self.uses_gpu,
            "host_network": self.host_network,
        }


def signal_of(exit_code: Any) -> str:
    """The name of the signal that an exit code above 128 stands for, empty where it is none."""
    try:
        return str(signal.Signals(int(exit_code) - 128).name)
    except (TypeError, ValueError):
        return ""


def serves(box: Mapping[str, Any]) -> bool:
    """Whether a container, as `Container.to_dict` has it, holds what memory and GPU are for: it runs, and is a rank, or a copy of one, or uses the GPU."""
    return bool(box.get("running") and (box.get("uses_gpu") or box.get("deployment") or box.get("claims")))


def parse_inspect(text: str) -> list[Container]:
    """The containers in the JSON that `docker inspect --type container` prints."""
    made = []
    for entry in json.loads(text or "[]"):
        config, host, state = entry.get("Config") or {}, entry.get("HostConfig") or {}, entry.get("State") or {}
        made.append(
            Container(
                id=str(entry.get("Id", "")),
                name=str(entry.get("Name", "")).lstrip("/"),
                image=str(config.get("Image", "")),
                running=bool(state.get("Running")),
                status=str(state.get("Status", "")),
                exit_code=int(state.get("ExitCode") or 0),
                oom_killed=bool(state.get("OOMKilled")),
                error=str(state.get("Error", "")),
                started_at=str(state.get("StartedAt", "")),
                finished_at=str(state.get("FinishedAt", "")),
                labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
                uses_gpu=bool(gpu_access.of_inspect(config, host, entry.get("Mounts") or [])),
                host_network=host.get("NetworkMode") == "host",
                image_id=str(entry.get("Image", "")),
                mounts=tuple(str(mount["Source"]) for mount in entry.get("Mounts") or [] if mount.get("Source")),
            )
        )
    return made


_CONTAINER_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")


def container_of_cgroup(text: str) -> str:
    """The container id in the text of /proc/PID/cgroup, empty where the process is in none."""
    found = _CONTAINER_ID.findall(text)
    return found[-1] if found else ""


# A daemon that hangs (its storage, its containerd) lets its client wait for ever.
QUESTION_SECONDS, DEED_SECONDS = 60.0, 900.0


def patience(words: Sequence[str]) -> float:
    """How long `docker WORDS…` may take. What moves an image, whose time is that of the network, is `docker.moving`'s."""
    question = words[0] in ("ps", "inspect", "info", "version") or tuple(words[:2]) in (("image", "inspect"), ("image", "ls"))
    return QUESTION_SECONDS if question else DEED_SECONDS


class Docker:
    """Docker's command line on this Spark. `run` is `commands.run`."""

    def __init__(self, run: Run, binary: str = "docker") -> None:
        self._run = run
        self._binary = binary

    def call(self, *args: str, environ: Mapping[str, str] | None = None) -> str:
        rc, out, err = self._run([self._binary, *args], environ_update=dict(environ or {}), seconds=patience(args))
        if rc == NOT_FOUND:
            raise DockerError(NO_DOCKER)
        if rc != 0:
            raise DockerError(f"docker {args[0]} failed (exit {rc}): {(err or out).strip()[-600:]}")
        return out

    def info(self) -> dict[str, Any]:
        """What the daemon says of itself (`daemon.parse_info`); raises DockerError where the daemon doesn't answer."""
        data = json.loads(self.call("info", "--format", "{{json .}}"))
        if not data.get("ServerVersion"):
            raise DockerError("; ".join(data.get("ServerErrors") or []) or "the Docker daemon does not answer")
        return daemon.parse_info(data)

    def containers(self, *filters: str) -> list[Container]:
        """All containers (running or not) that match these filters, e.g. `label=sparklanes.rank`."""
        chosen = [part for text in filters for part in ("--filter", text)]
        ids = self.call("ps", "--all", "--quiet", "--no-trunc", *chosen).split()
        if not ids:
            return []
        rc, out, err = self._run([self._binary, "inspect", "--type", "container", *ids], seconds=patience(["inspect"]))
        # One that went away since it was listed (somebody's `docker run --rm`) is no error; the others are in the answer.
        if rc != 0 and "no such container" not in err.lower():
            raise DockerError(f"docker inspect failed (exit {rc}): {(err or out).strip()[-600:]}")
        return parse_inspect(out)

    def running(self) -> list[Container]:
        """The containers whose processes exist, paused ones too: they hold memory and GPU, and `docker ps --filter status=running` hides them."""
        return [box for box in self.containers() if box.running]

    def named(self, name: str) -> Container | None:
        """The container of exactly this name, if there is one."""
        return next((box for box in self.containers(f"name=^/?{re.escape(name)}$") if box.name == name), None)

    def save_logs(
        self, container: Container, path: Path, redact: Sequence[str] | None = (), most: int = logs.MOST_BYTES
    ) -> Saved:
        """The container's log in `path`, as far as there is room, and its inspect record beside it, secrets blanked.

        `redact` names environment variables whose values must not be written beside those whose names say so, None stands
        for all. It raises nothing: what is missing, and why, stands in what it returns.
        """
        saved = logs.save([self._binary, "logs", "--timestamps", container.id], container.name, path, most, DEED_SECONDS)
        if not saved.path:
            return saved
        try:
            record = json.loads(self.call("inspect", "--type", "container", container.id))
            for entry in record:
                config = entry.get("Config") or {}
                config["Env"] = blanked_env(config.get("Env") or [], redact)
                for holder, key in ((config, "Cmd"), (config, "Entrypoint"), (entry, "Args")):
                    holder[key] = list(blanked_words(str(word) for word in holder.get(key) or []))
            write_atomically(path.with_suffix(".inspect.json"), json.dumps(record, indent=2) + "\n", 0o640)
        except (DockerError, OSError, ValueError) as error:
            said = f"how the container ended could not be saved beside it ({error})"
            return replace(saved, whole=False, problem="; ".join(filter(None, (saved.problem, said))))
        return saved
