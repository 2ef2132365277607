# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""From how somebody starts an engine to the variables of a lane, and what became of each part."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.engine.command import Flag
from ansible.module_utils.sparklanes.engine.flags import (
    DERIVED_FLAGS,
    FLAT_FLAGS,
    HEAD_FLAGS,
    base_flag,
    canonical_flag,
    known,
    successor,
)
from ansible.module_utils.sparklanes.lane.importers import places, values
from ansible.module_utils.sparklanes.lane.importers.docker_run import image_parts
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, OPEN, OURS, VERBATIM, Launch, Row
from ansible.module_utils.sparklanes.lane.importers.source import Refused
from ansible.module_utils.sparklanes.lane.rules import FABRIC_ENV
from ansible.module_utils.sparklanes.weights import hub_cache

MODELS = "/var/lib/sparklanes/models"
MOST_RANKS = 256
UNKNOWN = "unknown/"  # the owner of a repository that no source names; its revision stays open, so no launch begins
NO_IMAGE = "image-is-not-said"
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FLAG = re.compile(r"--[a-z0-9][A-Za-z0-9.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Beginnings of variables of the environment that engines and their libraries read.
_KNOWN_ENV = re.compile(
    r"(?:VLLM|NCCL|TORCH|TORCHDYNAMO|PYTORCH|HF|HUGGINGFACE|TRANSFORMERS|SAFETENSORS|TRITON|FLASHINFER|TILELANG|CUDA|CUTE|CUTLASS|OMP|MKL|TORCHINDUCTOR|UCX"
    r"|GLOO|RAY|LMCACHE|NVSHMEM|NVTE|MAX_JOBS|LD_PRELOAD|LD_LIBRARY_PATH|PYTHON\w*|TOKENIZERS_PARALLELISM|USE_\w+|XDG_CACHE_HOME|DG)(?:_\w+)?"
)
# Flags of data parallelism: one deployment is one replica.
_REPLICAS = re.compile(r"--data-parallel-.+")
# What a rank on the fabric needs of its container.
_FABRIC_NEEDS = {"cap_add": "IPC_LOCK", "ulimits": "memlock=-1:-1", "devices": "/dev/infiniband:/dev/infiniband"}


@dataclass
class Imported:
    """The variables of a lane in the order of its file, and what became of the source."""

    variables: dict[str, Any]
    rows: list[Row]
    launch: Launch
    renamed: dict[str, str] = field(default_factory=dict)  # name or place in the source → where the lane has it


def lane_of(launch: Launch, name: str, origin: str, sha256: str = "") -> Imported:
    """The lane `name`. Refused where the source leaves open how many Sparks it is for, or would have Ansible fill in a value."""
    made = _Lane(launch, name)
    variables = made.variables(origin, sha256)
    values.no_template({key: value for key, value in variables.items() if key != "lane_secret_env"})
    values.no_secret(variables)
    return Imported(variables, launch.rows, launch, made.renamed)


class _Lane:
    def __init__(self, launch: Launch, name: str) -> None:
        self.launch, self.name = launch, name
        self.flat: dict[str, Any] = {}
        self.args: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.unknowns: list[dict[str, str]] = []
        self.renamed: dict[str, str] = {}
        self.mounts = [dict(mount) for mount in launch.mounts]
        self.model: dict[str, Any] = {}
        self.drafter: dict[str, Any] = {}

    def variables(self, origin: str, sha256: str) -> dict[str, Any]:
        launch, name = self.launch, self.name
        image = self._image()
        self.model = self._model(launch.model, "model", launch.revision)
        for flag in _last(launch):
            self._flag(*flag)
        nodes, gpus = self._world()
        container = self._container(nodes)
        files = places.of_mounts(self._mounts(), name, launch)
        env = self._env()
        served = self.flat.pop("lane_served_model_name", None)
        if served is None:
            # As the engine would call it.
            served = [launch.model]
            launch.note(
                OURS,
                f"(no --served-model-name) {launch.model}",
                "lane_served_model_name",
                "the name under which the source serves",
            )
        made: dict[str, Any] = {
            "lane_id": name,
            "lane_title": f"{name}: {launch.title}" if launch.title else f"{name}, from {origin}",
            "lane_source": {"imported_from": origin, "kind": launch.kind} | ({"sha256": sha256} if sha256 else {}),
            "lane_warnings": launch.warnings,
            "lane_unknowns": self.unknowns,
            "lane_nodes": nodes,
            "lane_gpus_per_node": gpus if gpus != 1 else None,
            "lane_tensor_parallel_size": self.flat.pop("lane_tensor_parallel_size", 1),
            "lane_pipeline_parallel_size": self.flat.pop("lane_pipeline_parallel_size", None),
            "lane_image": image,
            "lane_model": self.model,
            "lane_drafter": self.drafter,
            "lane_overlays": files.overlays,
            "lane_extras": files.extras,
            "lane_container": container | ({"mounts": files.mounts} if files.mounts else {}),
            "lane_served_model_name": served,
            **self.flat,
            "lane_flag_names": self.names,
            "lane_engine_args": self.args,
            "lane_engine_env": env,
            "lane_secret_env": launch.secret_env,
        }
        return {key: value for key, value in made.items() if value not in (None, [], {}, "")}

    # --- what runs ---

    def _image(self) -> dict[str, Any]:
        launch = self.launch
        repository, tag, digest = image_parts(launch.image)
        if launch.image.startswith("sha256:"):
            repository, tag = "", ""
            launch.image_ids = launch.image_ids or [launch.image]
        digest = digest or next(
            (one.partition("@")[2] for one in launch.image_digests if one.partition("@")[0] == repository), ""
        )
        shown = launch.image or "(no image)"
        if repository:
            launch.note(OURS, f"image {shown}", "lane_image", "" if digest else "its digest is open: a tag can move")
        else:
            launch.note(OPEN, f"image {shown}", "lane_image", "the source does not say which one")
            if not launch.image_ids:
                self.unknowns.append(
                    {
                        "what": "The source names no image",
                        "fill": "lane_image.digest: sha256:…",
                        "remedy": "Write lane_image_site: {repository: …, digest: …}, an image with vllm for this GPU.",
                    }
                )
        image: dict[str, Any] = {"repository": repository or NO_IMAGE, "digest": digest or None}
        if launch.image_ids and not digest:
            image["ids"] = launch.image_ids
        return image | ({"tag": tag} if tag else {})

    def _model(self, named: str, what: str, revision: str = "") -> dict[str, Any]:
        """The weights behind a name on the Hub or a folder of the container, and where they lie on a Spark."""
        variable = "lane_model" if what == "model" else "lane_drafter"
        named = named.rstrip("/") or "/"
        if _HUB.fullmatch(named):
            own = named.rpartition("/")[2]
            self.renamed[named] = f"/models/{own}"
            self.launch.note(OURS, f"{what} {named}", variable, "staged and mounted, so that ranks ask no Hub")
            return _weights(named, self._revision(revision, variable), f"{MODELS}/{own}", f"/models/{own}")
        mount = places.holding(self.mounts, named)
        host = _host_path(mount, named) if mount else ""
        cached = re.search(r"models--([^/]+?)--([^/]+)(?:/snapshots/([0-9a-f]{40}))?", host or named)
        if cached:
            repo = f"{cached[1]}/{cached[2]}"
            path = host if host and not places.open_path(host) and hub_cache.snapshot(host) else f"{MODELS}/{cached[2]}"
            target = f"/models/{cached[2]}"
            self.renamed[named] = target
            self.launch.note(OURS, f"{what} {named}", variable, f"{repo} in a Hub cache")
            return _weights(repo, cached[3] or self._revision(revision, variable), path, target)
        own = re.sub(r"[^\w.-]+", "-", named.rpartition("/")[2].strip("${}")).strip("-.") or what
        whole = named.startswith("/") and not values.UNFILLED.search(named) and not re.search(r"[,:\s]", named)
        target = named if (whole and named.count("/") > 1) or (whole and mount and mount["target"] == named) else f"/models/{own}"
        path = host if host and not places.open_path(host) and host.count("/") > 1 else f"{MODELS}/{own}"
        self.renamed[named] = target
        self.unknowns.append(
            {
                "what": f"The source serves {named} and does not say which repository of the Hub that is",
                "fill": f"{variable}.revision: 40 hex digits",
                "remedy": f"Write {variable}_site: {{repo: OWNER/NAME, revision: 40 hex digits}}.",
            }
        )
        self.launch.note(OPEN, f"{what} {named}", variable, "which repository of the Hub that is stands nowhere")
        return _weights(f"{UNKNOWN}{own}", None, path, target)

    def _revision(self, revision: str, variable: str) -> str | None:
        if _COMMIT.fullmatch(revision):
            return revision
        if revision:
            self.launch.note(OPEN, f"revision {revision}", f"{variable}.revision", "a branch or tag can move: the commit is open")
        return None

    # --- flags ---

    def _flag(self, spelled: str, given: list[str]) -> None:
        launch = self.launch
        name = canonical_flag(spelled)
        shown = " ".join(["flag", spelled, *given])[:160]
        variable = {**FLAT_FLAGS, **HEAD_FLAGS}.get(name) or ("lane_master_port" if name == "--master-port" else None)
        if not _FLAG.fullmatch(name):
            launch.note(OPEN, shown, "", "no long flag of vllm serve")
        elif name == "--nnodes":
            self.flat["nnodes"] = self._number(name, given)
            launch.note(DROPPED, shown, "lane_nodes", DERIVED_FLAGS[name])
        elif variable:
            self._variable(variable, name, spelled, given, shown)
        elif name == "--revision" and self.model["repo"].startswith(UNKNOWN):
            launch.note(OPEN, shown, "lane_model.revision", "of which repository stands nowhere")
        elif name == "--revision":
            self.model["revision"] = self._revision(given[0] if given else "", "lane_model")
            launch.note(OURS, shown, "lane_model.revision", "staged, so that ranks ask no Hub")
        elif name == "--tokenizer" and given and given[0] in self.renamed:
            self.args[name] = self.renamed[given[0]]
            launch.note(OURS, shown, "lane_engine_args", "it lies with the model")
        elif name == "--download-dir":
            launch.note(DROPPED, shown, "lane_model.path", "staging brings the weights")
        elif name == "--distributed-executor-backend" and given == ["ray"]:
            launch.note(DROPPED, shown, "", "ranks find each other by --nnodes, without ray")
        elif _REPLICAS.fullmatch(name):
            fate = DROPPED if given == ["1"] else OPEN
            launch.note(fate, shown, "", DERIVED_FLAGS["--data-parallel-size"])
        elif name in DERIVED_FLAGS:
            launch.note(DROPPED, shown, "", DERIVED_FLAGS[name])
        elif given and not "".join(given).strip():
            launch.note(DROPPED, shown, "", "an empty value says nothing")
        elif given and len(given) > 1 and "" in given:
            launch.note(OPEN, shown, "", "one of its values is empty")
        elif name == "--speculative-config":
            self._speculation(name, given, shown)
        else:
            self.args[name] = values.of_flag(given)
            self._kept(name, given, shown)

    def _kept(self, name: str, given: list[str], shown: str) -> None:
        unfilled = values.UNFILLED.search(" ".join(given))
        if unfilled:
            why = f"{unfilled[0]} has no value in the source: RANK.ARGV refuses it until you write one"
            self.launch.note(OPEN, shown, "lane_engine_args", why)
        elif known(base_flag(name)):
            self.launch.note(OURS, shown, "lane_engine_args")
        else:
            newer = f"newer engines have {successor(name)}" if successor(name) else "no flag that is known here"
            self.launch.note(VERBATIM, shown, "lane_engine_args", f"{newer}: TRAP.FLAG_UNKNOWN asks whether yours has it")

    def _variable(self, variable: str, name: str, spelled: str, given: list[str], shown: str) -> None:
        try:
            self.flat[variable] = values.of_variable(variable, given)
        except ValueError:
            if variable in ("lane_tensor_parallel_size", "lane_pipeline_parallel_size"):
                raise Refused(
                    f"{spelled} is {' '.join(given)!r:.40}, which is no number, and decides how many Sparks the lane needs: write the number into the source"
                ) from None
            if variable.startswith("lane_max") or variable == "lane_kv_cache_memory_bytes":
                self.unknowns.append({"what": f"The source has {spelled} {' '.join(given)}", "fill": f"{variable}: a number"})
            self.launch.note(OPEN, shown, variable, "no value that can be taken as it is")
            return
        if variable == "lane_kv_cache_memory_bytes" and spelled.replace("_", "-") != name:
            self.names[name] = spelled.replace("_", "-")
        self.launch.note(OURS, shown, variable)

    def _number(self, name: str, given: list[str]) -> int:
        try:
            return int(given[0])
        except (IndexError, ValueError):
            raise Refused(
                f"{name} is {' '.join(given)!r:.40}, which is no number: write the number of Sparks into the source"
            ) from None

    def _speculation(self, name: str, given: list[str], shown: str) -> None:
        """The drafter is weights too: staged, pinned and mounted."""
        told = values.of_flag(given)
        if isinstance(told, Mapping) and isinstance(told.get("model"), str) and told["model"]:
            drafter = told["model"].rstrip("/")
            if drafter in self.renamed:  # the model drafts for itself
                told = {**told, "model": self.renamed[drafter]}
            else:
                self.drafter = self._model(drafter, "drafter", str(told.get("revision") or ""))
                told = {key: value for key, value in told.items() if key != "revision"} | {"model": self.renamed[drafter]}
        self.args[name] = told
        self._kept(name, given if not isinstance(told, Mapping) else [json.dumps(told)], shown)

    # --- the rest ---

    def _mounts(self) -> list[dict[str, Any]]:
        """The mounts without those that are there for the models, which are mounted by themselves."""
        models = [str(one["container_path"]) for one in (self.model, self.drafter) if one]
        named = [*self.renamed, *models]
        kept = []
        for mount in self.mounts:
            target = str(mount["target"]).rstrip("/")
            if any(f"{one}/".startswith(f"{target}/") for one in named if one.startswith("/")):
                self.launch.note(
                    DROPPED,
                    f"mount {mount['source']}:{target}",
                    "lane_model.path",
                    "the folders of the models are mounted by themselves",
                )
            elif any(target.startswith(f"{one}/") for one in models):
                shown = f"mount {mount['source']}:{target}"
                why = "it lies in the folder of a model: lanes mount beside it, as under /extras, and name it there in its flag"
                self.launch.note(OPEN, shown, "lane_extras", why)
            else:
                kept.append(mount)
        return kept

    def _world(self) -> tuple[int, int]:
        """Sparks, and GPUs of each."""
        ranks = self.flat.get("lane_tensor_parallel_size", 1) * self.flat.get("lane_pipeline_parallel_size", 1)
        if not 0 < ranks <= MOST_RANKS:
            raise Refused(
                f"tensor × pipeline parallel is {ranks}, and that many ranks no fleet of Sparks has: correct the source"
            )
        told = self.flat.pop("nnodes", None) or self.launch.nodes
        if told and told < ranks and ranks % told == 0:
            return told, ranks // told
        if told and told != ranks:
            raise Refused(f"the source has {told} nodes for tensor × pipeline parallel {ranks}: one of these numbers is wrong")
        if ranks > 1 and not told:
            self.launch.note(
                OURS, f"(tensor × pipeline parallel {ranks})", "lane_nodes", "a Spark has one GPU, so it is as many Sparks"
            )
        return ranks, 1

    def _container(self, nodes: int) -> dict[str, Any]:
        launch, made = self.launch, {}
        for key in ("network", "ipc", "shm_size", "memory", "memory_swap", "gpus", "pids_limit", "ulimits", "cap_add", "devices"):
            value = launch.options.get(key)
            if value in (None, "", []):
                continue
            if key == "network" and value != "host":
                launch.note(
                    DROPPED, f"option --network {value}", "lane_container.network", "ranks use the network of their Spark"
                )
                continue
            made[key] = value
            listed = value if isinstance(value, list) else [value]
            launch.note(OURS, f"option {key} {', '.join(map(str, listed))}", f"lane_container.{key}")
        self._published(launch.options.get("publish") or [])
        if launch.options.get("privileged"):
            launch.note(
                DROPPED,
                "option --privileged",
                "lane_container",
                "a rank gets its GPU, the RDMA devices and locked memory, and no more",
            )
        made.setdefault("gpus", "all")
        for key, needed in _FABRIC_NEEDS.items():
            there = [str(one) for one in made.get(key, [])]
            begins = needed.partition("=" if key == "ulimits" else ":")[0]
            if nodes > 1 and not any(one.removeprefix("CAP_").startswith(begins) or one == "ALL" for one in there):
                made[key] = [*there, needed]
                launch.note(OURS, f"(added) {key} {needed}", f"lane_container.{key}", "a rank on the fabric needs it")
        if launch.entrypoint:
            made["entrypoint"] = launch.entrypoint
        made["command_prefix"] = launch.prefix
        return {key: value for key, value in made.items() if value not in (None, [], "")}

    def _published(self, ports: list[str]) -> None:
        inside = str(self.flat.get("lane_port", 8000))
        for text in ports:
            *host, target = text.partition("/")[0].split(":")
            if target == inside and host and host[-1].isdigit():
                self.flat["lane_port"] = int(host[-1])
                if len(host) > 1 and host[0]:
                    self.flat["lane_api_host"] = host[0]
                self.launch.note(OURS, f"option --publish {text}", "lane_port", "the API listens on the Spark's own port")
            else:
                self.launch.note(DROPPED, f"option --publish {text}", "", "ranks use the network of their Spark")

    def _env(self) -> dict[str, str]:
        made: dict[str, str] = {}
        for name, value in self.launch.env.items():
            if name in FABRIC_ENV:
                self.launch.note(DROPPED, f"env {name}={value}", "", "role roce finds it on each Spark")
            elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.launch.note(OPEN, f"env {name}", "", "no name of a variable")
            elif value == f"${name}" or value == f"${{{name}}}":
                self.launch.note(OPEN, f"env {name}", "lane_engine_env", "handed on from a shell: its value stands nowhere")
            elif not value.strip():
                self.launch.note(DROPPED, f"env {name}=", "", "an empty value is not the same as none: libraries read it as 0")
            else:
                made[name] = self.renamed.get(value, value)
                if values.UNFILLED.search(value):
                    self.launch.note(
                        OPEN, f"env {name}={value}", "lane_engine_env", "RANK.ENV refuses it until you write its value"
                    )
                elif _KNOWN_ENV.fullmatch(name):
                    self.launch.note(OURS, f"env {name}={value}", "lane_engine_env")
                else:
                    self.launch.note(VERBATIM, f"env {name}={value}", "lane_engine_env", "no variable that is known here")
        return made


def _last(launch: Launch) -> list[Flag]:
    """Each flag once, as the engine takes it: the last one counts."""
    found: dict[str, Flag] = {}
    for flag in launch.flags:
        name = canonical_flag(flag[0])
        if name in found:
            launch.note(DROPPED, " ".join(["flag", found[name][0], *found[name][1]])[:160], "", "the same flag stands after it")
        found[name] = flag
    return list(found.values())


def _weights(repo: str, revision: str | None, path: str, container_path: str) -> dict[str, Any]:
    return {"repo": repo, "revision": revision, "path": path, "container_path": container_path}


def _host_path(mount: Mapping[str, Any], inside: str) -> str:
    below = posixpath.relpath(inside, mount["target"])
    return str(mount["source"]) if below == "." else posixpath.join(str(mount["source"]), below)
